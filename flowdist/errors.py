"""Errors that the user can correct. The command line prints them without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from flowdist.text.printable import printable

DIGITS = "0123456789"
SHOWN_MAX = 20  # known words in a help line: a cluster can have hundreds of nodes


class FlowdistError(Exception):
    """Error that the user can correct.

    Args:
        message: What is wrong.
        help: What to do about it; empty if there is nothing to say.

    Attributes:
        exit_code: Exit code of the command line for this error.
    """

    exit_code = 2

    def __init__(self, message: str, *, help: str = "") -> None:
        self.message, self.help = printable(message), printable(help)  # both may quote another host
        super().__init__(self.message)
        if help:
            self.add_note(f"help: {self.help}")  # notebooks and tests show the notes of an exception


class JobFailed(FlowdistError):
    """Error for a job that has ended as failed."""

    exit_code = 1


class RunBroken(FlowdistError):
    """Error for a run that flowdist could not continue: its own processes failed, and the job has no end.

    Such a run can be resumed.
    """

    exit_code = 70  # EX_SOFTWARE of sysexits.h


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a help line for an unknown word: the most similar known word, or the known words if none is similar.

    Of more than SHOWN_MAX known words the line has only the first ones.
    """
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {first_of(known)}"


def node_help(name: str, nodes: Iterable[str], known: Iterable[str] | None = None) -> str:
    """Return a help line for an unknown name that may be one of a node.

    A name that differs from a node's in the number alone, as node7, is no misspelling of any: the line has the nodes.

    Args:
        name: The unknown name.
        nodes: The names of the nodes.
        known: All names that may have been meant, as those of roles; None: the nodes.
    """
    nodes = list(nodes)
    stems = [node.rstrip(DIGITS) for node in nodes if node[-1:] in DIGITS]
    if not name or name[-1] not in DIGITS or name.rstrip(DIGITS) not in stems:
        return did_you_mean(name, nodes if known is None else known)
    return f"the nodes are {first_of(nodes)}" if len(nodes) > 1 else f"the only node is {nodes[0]}"


def first_of(names: list[str], most: int = SHOWN_MAX) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def underlined(text: str, start: int, end: int) -> str:
    """Return the text on a line of its own, and a line of `^` below its characters from `start` to before `end`."""
    return f"\n  {text}\n  {' ' * start}{'^' * max(1, end - start)}"
