"""Completion in the shell: the line of docs/install.md, and what the shell then asks for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowdist import Topology
from flowdist.dsl.compile import compile_topology
from flowdist.dsl.problems.problem import Problems
from flowdist.runtime.run_folder.folder import new_run


def answer(shell: str, cwd: Path | None = None, **asked: str) -> str:
    """Return what flowdist says to a shell."""
    env = {**os.environ, "_FLOWDIST_COMPLETE": shell, **asked}
    command = [sys.executable, "-c", "from flowdist.cli.main import main; main()"]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(shell: str) -> None:
    assert f"_FLOWDIST_COMPLETE={shell}_complete" in answer(f"{shell}_source")


def words(line: str, cwd: Path) -> list[str]:
    """Return what bash offers for the last word of a command line; the line ends with a space if that is empty."""
    said = answer("bash_complete", cwd, COMP_WORDS=f"flowdist {line}", COMP_CWORD=str(len(f"{line}.".split())))
    return [item.partition(",")[2] for item in said.split()]


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """Two runs in `runs`, of which neither goes on; the newest first."""
    names = []
    for name in ("old", "new"):
        t = Topology(name, nodes=2)
        t.role("ps", ["ps"])
        t.role("trainer", ["train"], replicas="1:3x2")
        names.append(new_run(tmp_path / "runs", compile_topology(t, Problems())).name)
    return names[::-1]


@pytest.mark.parametrize("verb", ["status", "report", "cancel", "logs --run", "ui", "why", "diff a", "run --resume"])
def test_runs_are_completed(tmp_path: Path, runs: list[str], verb: str) -> None:
    assert words(f"{verb} ", tmp_path) == ["latest", *runs]
    assert words(f"{verb} {runs[1][:4]}", tmp_path) == [runs[1]]


def test_roles_nodes_sizes_and_replicas_are_those_of_the_run(tmp_path: Path, runs: list[str]) -> None:
    assert words("logs ", tmp_path) == words(f"logs --run {runs[1]} ", tmp_path) == ["ps", "trainer"]
    assert words("logs trainer/", tmp_path) == ["trainer/0", "trainer/1", "trainer/2"]
    assert words("logs trainer/1.", tmp_path) == ["trainer/1.0", "trainer/1.1"]
    assert words("scale ", tmp_path) == ["ps=1", "trainer=1", "trainer=2", "trainer=3"]
    assert words("scale ps=1 tr", tmp_path) == ["trainer=1", "trainer=2", "trainer=3"]
    assert words("scale trainer = ", tmp_path) == ["1", "2", "3"], "bash divides words at ="
    assert words("drain ", tmp_path) == words("cordon node0 ", tmp_path) == ["node0", "node1"]
    assert words("uncordon node1", tmp_path) == ["node1"]


def test_without_a_run_nothing_is_completed_and_nothing_is_said(tmp_path: Path) -> None:
    assert words("scale ", tmp_path) == words("drain ", tmp_path) == words("logs tr", tmp_path) == []
    assert answer("bash_complete", tmp_path, COMP_WORDS="flowdist timeline tr", COMP_CWORD="2") == "file,tr\n"


def test_verbs_options_and_choices_are_completed() -> None:
    assert answer("bash_complete", COMP_WORDS="flowdist sim", COMP_CWORD="1") == "plain,simulate\n"
    assert "plain,--explore\n" in answer("bash_complete", COMP_WORDS="flowdist simulate --exp", COMP_CWORD="2")
    assert answer("bash_complete", COMP_WORDS="flowdist timeline --format per", COMP_CWORD="3") == "plain,perfetto\n"
