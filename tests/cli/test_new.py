"""`flowdist new`: each project is right from the start, and runs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flowdist.errors import FlowdistError
from flowdist.projects import PROVED, TEMPLATES, write_project

ROOT = Path(__file__).parents[2]
FAULTS = {"ddp": "trainer/1@step=trainer,60", "ps": "ps/0@step=trainer,20", "rl": "actor/0@step=learner,20"}
STEPS = {"ddp": 1000, "ps": 200, "rl": 200}


def run(*words: str, cwd: Path) -> str:
    """Run `python -m` with these words in a folder, and return its output; it has to succeed."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", *words],
        check=False,
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_project_is_right_its_scenarios_hold_and_its_tests_pass(template: str, tmp_path: Path) -> None:
    folder = tmp_path / "my-job"
    written = write_project(folder, template)
    assert folder / ".github/workflows/fault-tolerance.yml" in written and all(path.is_file() for path in written)
    assert "my-job: ok" in run("flowdist", "check", cwd=folder)
    for scenario in folder.glob("scenarios/*.toml"):
        run("flowdist", "simulate", str(scenario), cwd=folder)
    assert " passed" in run("pytest", "-q", "-p", "no:cacheprovider", cwd=folder)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("template", PROVED)
def test_the_points_that_its_workflow_tries_show_nothing(template: str, tmp_path: Path) -> None:
    if template == "ddp" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    write_project(tmp_path / "job", template)
    workflow = (tmp_path / "job/.github/workflows/fault-tolerance.yml").read_text()
    (line,) = re.findall(r"- run: (flowdist prove .*) --budget 5m", workflow)
    assert "nothing found" in run(*line.split(), "--budget", "10s", cwd=tmp_path / "job")


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_project_survives_a_kill(template: str, tmp_path: Path) -> None:
    if template == "ddp" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    write_project(tmp_path / "job", template)
    words = ("-p", f"steps={STEPS[template]}", "--fail", FAULTS[template])
    said = run("flowdist", "run", *words, cwd=tmp_path / "job")
    did = "re-formed" if template == "rl" else "recovered"  # an actor reports no steps
    assert "SUCCEEDED" in said and f"incident 1: {did}" in said


@pytest.mark.parametrize("name", ["Night", "1st", "a_b", "a" * 64, "x-", ".."])
def test_a_name_that_no_topology_may_have_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(FlowdistError, match="cannot be the name of a project"):
        write_project(tmp_path / name, "ddp")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job/mine").write_text("precious")
    (tmp_path / "file").write_text("precious")
    for name in ("job", "file"):
        with pytest.raises(FlowdistError, match=f"{name} is there already"):
            write_project(tmp_path / name, "ddp")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "job", "mine"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FlowdistError, match=r"file/job cannot be written: Not a directory"):
        write_project(tmp_path / "file/job", "ddp")


def test_the_command_says_what_it_has_written_and_what_comes_next(tmp_path: Path) -> None:
    said = run("flowdist", "new", "night", "--template", "ps", cwd=tmp_path)
    assert "night/topology.py\n" in said and "cd night && flowdist run" in said
    answer = json.loads(run("flowdist", "new", "day", "--json", cwd=tmp_path))
    assert answer["template"] == "ddp" and "day/train.py" in answer["files"]
