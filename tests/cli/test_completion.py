"""Completion in the shell: the line of docs/install.md, and what the shell then asks for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def answer(shell: str, cwd: Path | None = None, **asked: str) -> str:
    """Return what flowdist says to a shell."""
    env = {**os.environ, "_FLOWDIST_COMPLETE": shell, **asked}
    command = [sys.executable, "-c", "from flowdist.cli.main import main; main()"]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(shell: str) -> None:
    assert f"_FLOWDIST_COMPLETE={shell}_complete" in answer(f"{shell}_source")


def test_verbs_options_and_choices_are_completed() -> None:
    assert answer("bash_complete", COMP_WORDS="flowdist sim", COMP_CWORD="1") == "plain,simulate\n"
    assert "plain,--explore\n" in answer("bash_complete", COMP_WORDS="flowdist simulate --exp", COMP_CWORD="2")
    assert answer("bash_complete", COMP_WORDS="flowdist timeline --format per", COMP_CWORD="3") == "plain,perfetto\n"
