"""Errors that the user can correct, as exceptions that the command line prints without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SHOWN_MAX = 20  # names in a help line: clusters have hundreds of nodes


class FlowdistError(Exception):
    """Error that the user can correct. `exit_code` is the exit code of the command line, `help` says what to do."""

    exit_code = 2

    def __init__(self, message: str, *, help: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.help = help
        if help:
            self.add_note(f"help: {help}")  # shown if the exception reaches a notebook or a test


class JobFailed(FlowdistError):
    """The job has failed."""

    exit_code = 1


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a help line for an unknown word: the most similar known word, or the known words if none is similar."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1)
    more = f" and {len(known) - SHOWN_MAX} more" if len(known) > SHOWN_MAX else ""
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known[:SHOWN_MAX])}{more}"


def underlined(text: str, start: int, end: int) -> str:
    """Return the text, and a line of marks below its characters from `start` to before `end`."""
    return f"\n  {text}\n  {' ' * start}{'^' * max(1, end - start)}"
