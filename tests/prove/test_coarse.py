"""`flowdist prove` where the kernel refuses seccomp: fewer points, which still find what a restart does wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flowdist.prove import calls
from tests.choosing import few
from tests.prove import forbidding
from tests.prove.scripts.planted import BUGS
from tests.prove.test_prove import SCRIPT, planted

pytestmark = pytest.mark.real

PUBLISHED = 'os.replace(f"out/{rank}.new", f"out/{rank}.json")'
COMMITS = (PUBLISHED, f'{PUBLISHED}; worker.commit(f"out/{{rank}}.json", step=step + 1)')


def proved(folder: Path, *options: str) -> dict[str, Any]:
    """Return what `flowdist prove --json` says of the script where seccomp is refused."""
    words = [sys.executable, forbidding.__file__, sys.executable, "-m", "flowdist", "prove", "train.py", "--json"]
    done = subprocess.run([*words, *options], cwd=folder, capture_output=True, text=True, check=False)
    answer: dict[str, Any] = json.loads(done.stdout or "{}")
    assert done.returncode in (0, 2, 3), done.stderr
    return answer


def test_the_kernel_refuses_the_filter_there() -> None:
    program = "from tests.prove.forbidding import forbid; from flowdist.prove import calls; forbid(); calls.install()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "Unsupported" in done.stderr and "Operation not permitted" in done.stderr
    assert issubclass(calls.Unsupported, OSError)


def test_a_right_script_shows_nothing_at_steps_and_reads(tmp_path: Path) -> None:
    answer = proved(planted(tmp_path))
    assert answer["found"] == [] and "Operation not permitted" in answer["coarse"] and answer["saved"] == ["out"]
    assert (
        len([name for name in answer["points"] if name.startswith("step")]) == 13
    )  # each step, and one twice in a row
    assert {"last step", "end", "step1:twice", "restore:trainer.0:read1:out/0.json"} < set(answer["points"])
    assert all(tried["came"] for tried in answer["tried"] if not tried["point"].startswith("restore:trainer.1"))


def test_a_commit_is_a_point_before_and_after(tmp_path: Path) -> None:
    answer = proved(planted(tmp_path, COMMITS), "--procs", "1", "--budget", "20s")
    assert answer["found"] == []
    names = {tried["point"] for tried in answer["tried"]}
    assert {f"save2:trainer.0:commit2:out/0.json:{when}" for when in ("before", "after")} < names


@pytest.mark.parametrize(
    ("right", "wrong", "kind"),
    few(
        [
            ("random.setstate((state[0]", "# ((state[0]", "the end"),
            ('os.path.exists(f"out/{rank}.json")', "False", "no resume"),
            ("begun, total, state = json", "begun, _, state = json", "the end"),
            ("range(begun, 12)", "range(min(begun + 1, 12), 12)", "steps"),
        ]
    ),
)
def test_what_a_restart_does_wrong_is_found(tmp_path: Path, right: str, wrong: str, kind: str) -> None:
    (found, *_) = proved(planted(tmp_path, (right, wrong)), "--fail-fast")["found"]
    assert found["kind"] == kind


def test_a_file_that_a_child_has_written_belongs_to_the_save(tmp_path: Path) -> None:
    """No hook of Python sees it: the folder is searched for it."""
    moved = ('os.replace(f"out/{rank}.new", f"out/{rank}.json")', 'os.system(f"mv out/{rank}.new out/{rank}.json")')
    answer = proved(planted(tmp_path, moved), "--only", "step6")
    assert answer["found"] == [] and answer["saved"] == ["out"] and answer["tried"][0]["came"]


def test_a_sampler_that_has_lost_its_position_is_found(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    _, script, _, replacements, _ = next(bug for bug in BUGS if bug[1] == "ddp.py" and bug[2] == "samples")
    text = (Path(__file__).parent / "scripts" / script).read_text()
    for old, new in replacements:
        text = text.replace(old, new)
    (tmp_path / "train.py").write_text(text)
    (found, *_) = proved(tmp_path, "--fail-fast")["found"]
    assert found["kind"] == "data again"


def test_a_script_that_ends_by_other_ways_is_held_at_its_end(tmp_path: Path) -> None:
    for at, ending in enumerate(("os._exit(0)", "raise SystemExit(0)", "__import__('sys').exit()")):
        folder = tmp_path / str(at)
        folder.mkdir()
        (folder / "train.py").write_text(SCRIPT + ending + "\n")
        answer = proved(folder, "--only", "step6", "--only", "end")
        assert answer["found"] == [] and [tried["came"] for tried in answer["tried"]] == [True, True]


def test_a_script_that_fails_is_refused_with_its_error(tmp_path: Path) -> None:
    (problem,) = proved(planted(tmp_path, ("begun, total = 0, 0.0", "begun, total = 0, 1 / 0")))["problems"]
    assert "without any fault, the script fails: ZeroDivisionError" in problem["message"]


def test_a_script_that_writes_elsewhere_is_refused_before_it_has(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "folder"
    elsewhere.mkdir()
    folder.mkdir()
    writes = f'os.makedirs("out", exist_ok=True); open("{elsewhere}/x", "w")'
    (problem,) = proved(planted(folder, ('os.makedirs("out", exist_ok=True)', writes)))["problems"]
    assert f"writes {elsewhere}/x, which is outside of the copy of its folder" in problem["message"]
    assert list(elsewhere.iterdir()) == []


def test_results_of_an_earlier_training_are_left_alone(tmp_path: Path) -> None:
    (planted(tmp_path) / "out").mkdir()
    (tmp_path / "out/0.json").write_text(json.dumps([8, 3.5, []]))
    answer = proved(tmp_path, "--only", "step6")
    assert answer["left_alone"] == ["out"] and answer["found"] == []
    assert (tmp_path / "out/0.json").read_text() == json.dumps([8, 3.5, []])


def test_a_loss_of_power_is_refused_there(tmp_path: Path) -> None:
    (problem,) = proved(planted(tmp_path), "--power")["problems"]
    assert "--power" in problem["message"] and "Operation not permitted" in problem["message"]
