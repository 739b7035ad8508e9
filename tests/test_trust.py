"""`make trust` goes on after a red run, counts what was red, and says so by its exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def trust(folder: Path, command: str) -> tuple[int, str]:
    options = ["--runs", "2", "--loaded-runs", "1", "--load", "2", "--logs", str(folder / "logs"), "--command", command]
    run = [sys.executable, "-m", "tests.trust", *options]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False, timeout=50)
    return done.returncode, done.stdout


def test_all_green_is_exit_code_0(tmp_path: Path) -> None:
    code, output = trust(tmp_path, "true")
    assert code == 0 and output.count(" passed\n") == 3
    assert [line.split()[:3] for line in output.splitlines()[-2:]] == [["0", "2", "2"], ["2", "1", "1"]]


def test_a_red_run_stops_nothing_and_its_test_is_named(tmp_path: Path) -> None:
    (tmp_path / "red.sh").write_text("echo 'FAILED tests/a.py::test_b[x y] - AssertionError: no'; exit 1")
    code, output = trust(tmp_path, f"sh {tmp_path / 'red.sh'}")
    assert code == 1 and output.count("FAILED (exit code 1): tests/a.py::test_b[x y]\n") == 3
    assert output.splitlines()[-1] == "failed 3 of 3 times: tests/a.py::test_b[x y]"
