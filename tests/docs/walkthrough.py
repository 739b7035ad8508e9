"""Pages that a reader follows step by step: their files are written, their commands run, their outputs compared.

A block of Python whose first line is a comment with a file name is that file. In a block `console` each line that
begins with `$ ` is a command; the lines below it are parts of its output, in their order. `...` stands for anything,
also at the end of a line. Numbers, durations and names of runs may differ, except in the output of EXACT commands.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w./-]+\.\w+)\n")
RUN = re.compile(r"-\d{8}-\d{6}-[0-9a-f]{4}\b")
NUMBER = re.compile(r"\d+(\.\d+)?((ms|[smhd])(?=\d|\b)(\d+(?=[ms]))?)*")
EXACT = ("flowdist check", "flowdist plan", "flowdist explain", "flowdist simulate")  # whose output is always the same
LIMIT_S = 240.0


class File(NamedTuple):
    """A file that the reader saves."""

    name: str
    text: str


class Command(NamedTuple):
    """A command that the reader types, and the lines that the page shows of its output."""

    line: str
    shown: tuple[str, ...]


def steps_of(page: str) -> Iterator[File | Command]:
    """Yield the files and commands of a page, in their order."""
    for language, text in BLOCK.findall(page):
        if language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                line, *shown = part.rstrip("\n").split("\n")
                yield Command(line, tuple(shown))
        elif found := FILE.match(text):
            yield File(found[1], text)


def follow(page: str, folder: Path) -> list[str]:
    """Do the steps of a page in an empty folder.

    Returns:
        What was not as the page says, in words: one text for each command.
    """
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    wrong = []
    for step in steps_of(page):
        if isinstance(step, File):
            (folder / step.name).parent.mkdir(parents=True, exist_ok=True)
            (folder / step.name).write_text(step.text)
            continue
        done = subprocess.run(
            ["bash", "-c", step.line],
            check=False,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
        )
        missing = missing_in(done.stdout, step.shown, is_exact=step.line.startswith(EXACT))
        if missing or (done.returncode and not step.shown):
            wrong.append(f"$ {step.line}: {missing or 'it fails'}\n{done.stdout}")
    return wrong


def missing_in(output: str, shown: tuple[str, ...], *, is_exact: bool = False) -> str:
    """Return the first line of the page that does not follow those before it in the output; empty if all do."""
    plain = _spaced if is_exact else _general
    lines = iter([plain(line) for line in output.splitlines()])
    for line in shown:
        wanted, gap, _ = plain(line).partition("...")
        if wanted and not any(found == wanted or (gap and found.startswith(wanted)) for found in lines):
            return line
    return ""


def _spaced(line: str) -> str:
    return " ".join(line.split())


def _general(line: str) -> str:
    """Return a line without what differs from run to run."""
    return _spaced(NUMBER.sub("#", RUN.sub("-#", line)))
