"""What can go wrong by a user's hand, as exceptions that the command line prints without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SHOWN_MAX = 20  # of the names that there are: clusters have hundreds of nodes


class FlowdistError(Exception):
    """Something that the user can put right. `exit_code` is what the command line returns for it."""

    exit_code = 2

    def __init__(self, message: str, *, help: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.help = help
        if help:
            self.add_note(f"help: {help}")  # where it is raised into a notebook or a test


class JobFailed(FlowdistError):
    """The job ended, but not well."""

    exit_code = 1


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A help line for a word that is not among those that are known: the nearest of them, or all."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1)
    more = f" and {len(known) - SHOWN_MAX} more" if len(known) > SHOWN_MAX else ""
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known[:SHOWN_MAX])}{more}"


def underlined(text: str, start: int, end: int) -> str:
    """The text with marks under a part of it, on two lines of their own."""
    return f"\n  {text}\n  {' ' * start}{'^' * max(1, end - start)}"
