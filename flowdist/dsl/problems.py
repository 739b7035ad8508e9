"""What is wrong with a topology: all of it at once, each with its place, a stable code and what to write instead."""

from __future__ import annotations

import difflib
import linecache
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from flowdist.dsl.places import COMMAND_LINE, Place
from flowdist.errors import FlowdistError


class Problem(NamedTuple):
    """`code` is stable: FD1xx errors in the topology, FD3xx warnings, FD9xx what nothing honours yet."""

    code: str
    message: str
    help: str
    place: Place
    severity: Literal["error", "warning"] = "error"

    def format(self) -> str:
        """The lines that the terminal shows, the argument underlined."""
        where = f"{_relative(self.place.file)}:{self.place.line}:{self.place.column}: "
        if self.place.file == COMMAND_LINE:
            where = ""
        lines = [f"{where}{self.severity}[{self.code}]: {self.message}"]
        source = linecache.getline(self.place.file, self.place.line).rstrip("\n")
        if source:
            width = max(1, self.place.end_column - self.place.column)
            lines += ["  |", f"  | {source}", f"  | {' ' * (self.place.column - 1)}{'^' * width}"]
        lines.append(f"  = help: {self.help}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """The form of `--json`."""
        return {
            "code": self.code,
            "severity": self.severity,
            "file": self.place.file,
            "line": self.place.line,
            "column": self.place.column,
            "end_column": self.place.end_column,
            "message": self.message,
            "help": self.help,
        }


class TopologyProblems(FlowdistError):
    """A topology cannot be compiled. `problems` are all that was found, in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        errors = [problem for problem in self.problems if problem.severity == "error"]
        super().__init__(f"{len(errors)} error{'s' * (len(errors) != 1)} in the topology")


class Problems:
    """Where the compiler writes down what it finds."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def error(self, code: str, message: str, help: str, place: Place) -> None:
        self.found.append(Problem(code, message, help, place))

    def warn(self, code: str, message: str, help: str, place: Place) -> None:
        self.found.append(Problem(code, message, help, place, "warning"))

    def sorted(self) -> list[Problem]:
        return sorted(dict.fromkeys(self.found), key=lambda p: (p.place.file, p.place.line, p.place.column, p.code))

    def raise_errors(self) -> None:
        """TopologyProblems if there is an error among them."""
        if any(problem.severity == "error" for problem in self.found):
            raise TopologyProblems(self.sorted())


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean "trainer"?`, or the list of what there is."""
    known = list(known)
    close = difflib.get_close_matches(str(word), known, n=1)
    if close:
        return f'did you mean "{close[0]}"?'
    return f"known: {', '.join(known)}" if known else "there is none"


def _relative(file: str) -> str:
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file
