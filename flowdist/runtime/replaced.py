"""The replacement of this package on the disk while a process of it runs, as by `pip install` of another version.

What such a process imports late, and the processes that it starts, are then of another version, or are missing. The
errors that follow from that name a module or an argument, and not their cause.
"""

from __future__ import annotations

import os
import re

from flowdist import _version


def _identity() -> tuple[int, int] | None:
    """Return what tells the file of the version from one that is written in its place; None: there is no such file."""
    try:
        found = os.stat(_version.__file__)  # noqa: PTH116  # pathlib is not needed by --help
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


_BEGAN = _identity()


def replacement() -> str:
    """Return in words that this package was replaced since this process has imported it; empty if it was not."""
    now = _identity()
    if now == _BEGAN:
        return ""
    try:
        with open(_version.__file__, encoding="utf-8") as file:  # noqa: PTH123
            found = re.search('__version__ = "(.+)"', file.read())
    except (OSError, UnicodeDecodeError):
        found = None
    installed = f"{found[1]} is installed now" if found else "none is installed now"
    return f"a package that was replaced meanwhile: flowdist {_version.__version__} was started, and {installed}"
