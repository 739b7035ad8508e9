"""Problems of a topology: each has a place, a stable code, a message, and a help line for the user."""

from __future__ import annotations

import difflib
import linecache
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, NamedTuple

from flowdist.dsl.problems.places import COMMAND_LINE, Place
from flowdist.errors import FlowdistError

MARK = "\ufdd0"  # text of a value that is not known: Unicode reserves this character for use inside programs
Severity = Literal["error", "warning"]
LIKENESS_MIN = 0.6  # of a name that was probably meant, by difflib: its own default
NAMED_MAX = 4  # number of roles that a message names; more are counted


class Related(NamedTuple):
    """Note of a problem about another value that takes part in it: `text` names it; `place` is None for a default."""

    text: str
    place: Place | None


class Problem(NamedTuple):
    """One error or warning about a topology.

    `code` is stable: FD1xx are errors, FD3xx warnings, FD9xx features that flowdist does not have yet. `help` tells the
    user what to write instead. `related` are notes about other values.
    """

    code: str
    message: str
    help: str
    place: Place
    severity: Severity = "error"
    related: tuple[Related, ...] = ()

    def format(self) -> str:
        """Return the text that the terminal shows: place, message, source line with a mark, notes, and help."""
        where = f"{place_text(self.place)}: " if self.place.file != COMMAND_LINE else ""
        lines = [f"{where}{self.severity}[{self.code}]: {self.message}"]
        source = linecache.getline(self.place.file, self.place.line).rstrip("\n")
        if source:
            width = max(1, self.place.end_column - self.place.column)
            lines += ["  |", f"  | {source}", f"  | {' ' * (self.place.column - 1)}{'^' * width}"]
        lines += [f"  = note: {text}{f', in {place_text(place)}' if place else ''}" for text, place in self.related]
        lines.append(f"  = help: {self.help}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """Return the JSON object that `--json` prints for the problem; it has `related` only if there are notes."""
        content: dict[str, object] = {
            "code": self.code,
            "severity": self.severity,
            **self.place._asdict(),
            "message": self.message,
            "help": self.help,
        }
        if self.related:
            content["related"] = [{"text": text, **(place._asdict() if place else {})} for text, place in self.related]
        return content


class TopologyProblems(FlowdistError):
    """Exception for a topology that cannot be compiled.

    Attributes:
        problems: All problems that were found, warnings included, in the order of the file.
    """

    def __init__(self, problems: Sequence[Problem], where: str = "in the topology") -> None:
        self.problems = tuple(problems)
        errors = [problem for problem in self.problems if problem.severity == "error"]
        super().__init__(f"{len(errors)} error{'s' * (len(errors) != 1)} {where}")
        for problem in errors:  # notebooks and tests show the notes of an exception
            self.add_note(problem.format())


class Problems:
    """Collector of the problems that the compiler finds.

    Several roles can come from one line of the user's file, and then have the same problem. It is kept once, with the
    names of all these roles.
    """

    def __init__(self) -> None:
        # The file has used a name that says nothing, such as `t.frobnicate()`: something may be missing
        self.has_unknowns = False
        self._wrong: set[tuple[str, str]] = set()  # owners and arguments that have errors
        # Each problem, with the names of the parts that have it.
        self._found: dict[tuple[str, str, Place], tuple[Problem, dict[str, None]]] = {}

    def error(self, code: str, message: str, help: str, place: Place, *, owner: str = "") -> None:
        """Add an error; `owner`, the part of the topology that has it, as `role 'trainer'`, begins the message."""
        self.report(Problem(code, message, help, place), owner=owner)

    def warn(self, code: str, message: str, help: str, place: Place, *, owner: str = "") -> None:
        """Add a warning; the arguments are those of `error`."""
        self.report(Problem(code, message, help, place, "warning"), owner=owner)

    def report(self, problem: Problem, *, owner: str = "") -> None:
        """Add a problem; `owner` is as for `error`."""
        message = problem.message.replace(MARK, "?").replace(repr(MARK)[1:-1], "?")
        problem = problem._replace(message=message)
        key = (problem.code, problem.message, problem.place)
        self._found.setdefault(key, (problem, {}))[1][owner] = None

    def mark_wrong(self, owner: str, argument: str) -> None:
        """Record that an argument has an error, and with a part such as `restart.scope` the argument `restart`, too."""
        while argument:
            self._wrong.add((owner, argument))
            argument = argument.rpartition(".")[0]

    def is_wrong(self, owner: str, *arguments: str) -> bool:
        """Return whether one of the arguments, or `*`, one that nobody understood, has an error."""
        return any((owner, argument) in self._wrong for argument in ("*", *arguments))

    def sorted(self) -> list[Problem]:
        """Return each problem once, by file and line; its message names the parts of the topology that have it."""
        named = [
            problem._replace(message=_of_all(list(owners), problem.message)) for problem, owners in self._found.values()
        ]
        return sorted(named, key=lambda p: (p.place.file, p.place.line, p.place.column, p.code))

    def raise_errors(self) -> None:
        """Raise TopologyProblems with all problems if there is an error; do nothing if there are only warnings."""
        if any(problem.severity == "error" for problem, _ in self._found.values()):
            raise TopologyProblems(self.sorted())


def _of_all(owners: Sequence[str], message: str) -> str:
    """Return the message after the names of its owners: `role 'a': message`, or `roles 'a', 'b' and 'c': message`."""
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


class Recording(NamedTuple):
    """Record that the words of a topology file make while it is executed: its problems, and its topologies so far."""

    problems: Problems
    topologies: list[Any]


_recording: ContextVar[Recording | None] = ContextVar("recording", default=None)


def current_recording() -> Recording | None:
    """Return the recording of the file that is executed; None if none is, as in a test that builds a topology."""
    return _recording.get()


@contextmanager
def recording(problems: Problems) -> Iterator[Recording]:
    """Record the mistakes in words of the DSL that are used inside the `with` statement, instead of raising them."""
    made = Recording(problems, [])
    token = _recording.set(made)
    try:
        yield made
    finally:
        _recording.reset(token)


def did_you_mean(
    word: str, known: Iterable[str], otherwise: str | None = None, likeness_min: float = LIKENESS_MIN
) -> str:
    """Return a help line for a wrong word: `did you mean "trainer"?` if a known name is similar.

    If none is, the line is `otherwise`, or if that is None a list of the known names. Similar are names whose ratio by
    difflib, from 0 to 1, is `likeness_min` at least.
    """
    known = [str(name) for name in known]  # a key of the user's dict may be of any type
    close = difflib.get_close_matches(str(word), known, n=1, cutoff=likeness_min)
    if close:
        return f'did you mean "{close[0]}"?'
    if otherwise is not None:
        return otherwise
    return f"known: {', '.join(known)}" if known else "there is none"


def place_text(place: Place) -> str:
    """Return a place as `file:line:column`; `<command line>` as it is."""
    return place.file if place.file == COMMAND_LINE else f"{shown_path(place.file)}:{place.line}:{place.column}"


def shown_path(file: str) -> str:
    """Return the path relative to the current folder; unchanged if the file is not below it."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file
