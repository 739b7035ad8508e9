"""Problems of a topology. Each has a place, a stable code, a message, and a help line that says what to write."""

from __future__ import annotations

import difflib
import linecache
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from flowdist.dsl.problems.places import COMMAND_LINE, Place
from flowdist.errors import FlowdistError

NAMED_MAX = 4  # roles that a problem of several roles names


class Problem(NamedTuple):
    """One problem. `code` is stable: FD1xx are errors, FD3xx warnings, FD9xx features that nothing honours yet."""

    code: str
    message: str
    help: str
    place: Place
    severity: Literal["error", "warning"] = "error"

    def format(self) -> str:
        """Return the lines that the terminal shows, with the argument underlined."""
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
        """Return the form that `--json` prints."""
        return {
            "code": self.code,
            "severity": self.severity,
            **self.place._asdict(),
            "message": self.message,
            "help": self.help,
        }


class TopologyProblems(FlowdistError):
    """The topology cannot be compiled. `problems` has all problems that were found, in the order of the file."""

    def __init__(self, problems: Sequence[Problem], where: str = "in the topology") -> None:
        self.problems = tuple(problems)
        errors = [problem for problem in self.problems if problem.severity == "error"]
        super().__init__(f"{len(errors)} error{'s' * (len(errors) != 1)} {where}")
        for problem in errors:  # shown if the exception reaches a notebook or a test
            self.add_note(problem.format())


class Problems:
    """Problems that the compiler has found so far.

    Roles that are made by one line of the user's file have the same problems: each is kept once, with all their names.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, Place], Problem] = {}
        self._owners: dict[tuple[str, str, Place], dict[str, None]] = {}  # the roles that have it, in order

    def error(self, code: str, message: str, help: str, place: Place, *, owner: str = "") -> None:
        """Add an error; `owner` is what has it, such as `role 'trainer'`."""
        self._add(Problem(code, message, help, place), owner)

    def warn(self, code: str, message: str, help: str, place: Place, *, owner: str = "") -> None:
        """Add a warning; `owner` is as in `error`."""
        self._add(Problem(code, message, help, place, "warning"), owner)

    def _add(self, problem: Problem, owner: str) -> None:
        key = (problem.code, problem.message, problem.place)
        self._found.setdefault(key, problem)
        self._owners.setdefault(key, {})[owner] = None

    def codes(self) -> set[str]:
        """Return the codes of all problems so far."""
        return {problem.code for problem in self._found.values()}

    def sorted(self) -> list[Problem]:
        """Return each problem once, in the order of the file; its message begins with the roles that have it."""
        named = [
            problem._replace(message=_of_all(list(self._owners[key]), problem.message))
            for key, problem in self._found.items()
        ]
        return sorted(named, key=lambda p: (p.place.file, p.place.line, p.place.column, p.code))

    def raise_errors(self) -> None:
        """Raise TopologyProblems if an error is among the problems."""
        if any(problem.severity == "error" for problem in self._found.values()):
            raise TopologyProblems(self.sorted())


def _of_all(owners: Sequence[str], message: str) -> str:
    """Return `role 'a': message`, or `roles 'a', 'b' and 'c': message`."""
    if not any(owners):
        return message
    if len(owners) == 1:
        return f"{owners[0]}: {message}"
    kind = owners[0].partition(" ")[0]
    if any(not name.startswith(f"{kind} ") for name in owners):
        return f"{', '.join(owners)}: {message}"
    names = [name.partition(" ")[2] for name in owners[:NAMED_MAX]]
    last = f"{len(owners) - NAMED_MAX} more" if len(owners) > NAMED_MAX else names.pop()
    return f"{kind}s {', '.join(names)} and {last}: {message}"


def did_you_mean(word: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """Return `did you mean "trainer"?`; if no known name is similar, `otherwise`, or by default the known names."""
    known = [str(name) for name in known]  # a key of the user's dict may be of any type
    close = difflib.get_close_matches(str(word), known, n=1)
    if close:
        return f'did you mean "{close[0]}"?'
    if otherwise is not None:
        return otherwise
    return f"known: {', '.join(known)}" if known else "there is none"


def _relative(file: str) -> str:
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file
