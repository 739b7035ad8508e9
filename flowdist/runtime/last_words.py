"""The end of one of flowdist's own processes by an unexpected exception: what it prints, and how others read that.

The module imports neither asyncio nor msgspec, because guardians use it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import NoReturn

from flowdist.runtime.left_files import read_from, size_of
from flowdist.runtime.replaced import replacement
from flowdist.text.printable import one_line

NOT_BEGUN, NOT_FOUND = "Traceback (most recent call last)", ": No module named "  # of a process without last words
MARK = "flowdist: unexpected exception: "
TAIL_BYTES = 16 << 10
WORDS_MAX = 300  # characters


def print_unexpected(error: BaseException) -> None:
    """Print the traceback of an exception to stderr, and below it one line for `last_words`."""
    with contextlib.suppress(Exception):  # the log may be on a full disk
        sys.excepthook(type(error), error, error.__traceback__)
        print(f"{MARK}{in_words(error)}", file=sys.stderr, flush=True)


def die_of(error: BaseException) -> NoReturn:
    """Print an unexpected exception as `print_unexpected` does, and end this process at once with os.EX_SOFTWARE."""
    print_unexpected(error)
    os._exit(os.EX_SOFTWARE)


def in_words(error: BaseException) -> str:
    """Return an exception in one line of printable characters, WORDS_MAX at most.

    It names a likely limit of processes, or another version of this package in its place: the exception does not.
    """
    text = " ".join(str(error).split())
    if isinstance(error, BlockingIOError) or str(error) == "can't start new thread":
        text += " (a limit of processes or threads? see `ulimit -u`)"
    whole = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if cause := replacement():
        whole = f"{cause} ({whole})"
    return one_line(whole[:WORDS_MAX])[:WORDS_MAX]


def last_words(log: Path, since: int = 0) -> str:
    """Return the exception that has ended a process, as its log from `since` on has named it last.

    Empty if none is named, as of a killed one; or that this package was replaced, so that the process has not begun.
    """
    start = max(since, size_of(log) - TAIL_BYTES)
    lines = (read_from(log, start, TAIL_BYTES) or b"").decode(errors="replace").splitlines()
    found = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    if not found and any(line.startswith(NOT_BEGUN) or NOT_FOUND in line for line in lines):
        return replacement()
    return found[-1][:WORDS_MAX] if found else ""
