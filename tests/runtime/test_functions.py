"""`run=`: functions as commands, on real processes, and `flowdist.worker.call`, which calls them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from flowdist.worker.call import main
from tests.runtime.harness import Job

TOPOLOGY = """
import helper
from flowdist import Topology, worker

t = Topology("functions", nodes=1)


def own():
    print(f"own function of {worker.info().role} in {__name__}", flush=True)


t.role("own", run=own)
t.role("text", run="helper:greet")
t.role("object", run=helper.greet, workdir="elsewhere")
"""
HELPER = """
from pathlib import Path
from flowdist import worker


def greet():
    print(f"{worker.info().role} is greeted in {Path.cwd().name}", flush=True)


def stumble():
    raise ValueError("over a stone")
"""


def prepare(folder: Path, topology: str) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "helper.py").write_text(HELPER)
    (folder / "topology.py").write_text(topology)


@pytest.mark.real
def test_functions_of_the_topology_and_of_a_module_next_to_it_are_called(tmp_path: Path) -> None:
    prepare(tmp_path, TOPOLOGY)
    with Job(tmp_path) as job:
        assert job.finish() == 0, job.text
        assert "own function of own in topology" in job.text
        assert f"text is greeted in {tmp_path.name}" in job.text and "object is greeted in elsewhere" in job.text
        assert job.alive() == []


@pytest.mark.real
def test_a_function_that_raises_fails_with_its_traceback_in_the_log(tmp_path: Path) -> None:
    prepare(tmp_path, TOPOLOGY.partition("t.role(")[0] + 't.role("main", run=helper.stumble)\n')
    with Job(tmp_path) as job:
        assert job.finish() == 1, job.text
        logs = [path.read_text() for path in (job.run_dir / "main/0").rglob("*") if path.is_file()]
        (log,) = [log for log in logs if "Traceback (most recent call last):" in log]
        assert log.rstrip().endswith("ValueError: over a stone")
        assert f'File "{tmp_path / "helper.py"}", line 11, in stumble' in log
        assert "main/0 failed on node0: exit code 1: ValueError: over a stone" in job.text and job.alive() == []


# flowdist.worker.call by itself


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):  # type: ignore[no-untyped-def]
    """Return a function that calls `main`; sys.path and sys.modules are restored afterwards."""
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.chdir(tmp_path)
    before = [*sys.modules]
    yield main
    for name in sys.modules.keys() - before:
        del sys.modules[name]


def test_a_module_is_found_in_the_current_folder_or_in_the_given_one(
    call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "here.py").write_text("def go(): print('here')")
    (tmp_path / "there").mkdir()
    (tmp_path / "there/far.py").write_text("def go(): print('far')")
    call("here:go")
    call("far:go", str(tmp_path / "there"))
    assert capsys.readouterr().out == "here\nfar\n"


def test_a_file_is_a_module_of_its_name_and_finds_what_lies_beside_it(
    call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "there").mkdir()
    (tmp_path / "there/beside.py").write_text("WORD = 'beside'")
    (tmp_path / "there/jobs.topology").write_text("import beside\nclass C: pass\ndef go(): print(beside.WORD, C)")
    call(f"{tmp_path / 'there/jobs.topology'}:go")
    assert capsys.readouterr().out == "beside <class 'jobs.C'>\n"
    assert isinstance(sys.modules["jobs"], ModuleType)  # what pickles a class of it finds it


@pytest.mark.parametrize("kind", ["async def go(): pass", "def go(): yield", "async def go(): yield"])
def test_a_function_that_returns_something_that_has_not_run_is_no_success(call, tmp_path: Path, kind: str) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "idle.py").write_text(kind)
    with pytest.raises(SystemExit, match=r"^idle:go returned a [a-z_]+: nothing of it has run$"):
        call("idle:go")


def test_an_exception_of_the_function_ends_the_process(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("import sys\ndef go(): sys.exit(7)\ndef fall(): {}['x']\n")

    def run(target: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "flowdist.worker.call", target],
            cwd=tmp_path,
            capture_output=True,
            check=False,
            text=True,
        )

    assert run("ends:go").returncode == 7
    done = run("ends:fall")
    assert done.returncode == 1 and done.stderr.rstrip().endswith("KeyError: 'x'")
    done = run("ends:gone")
    assert done.returncode == 1 and "has no attribute 'gone'" in done.stderr
