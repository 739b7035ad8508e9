"""A row of the table: a fault, what is promised, and the function that plays it and returns what was observed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """One row.

    Args:
        name: By which `--row` finds it.
        fault: What happens.
        promise: What is promised for that case.
        play: Plays the fault in an empty folder and returns in a few words what was observed. It raises Broken if the
            promise was not kept.
        is_quick: `make test` plays it too.
        limit_s: It counts as broken after so long.
        needs_mount: It mounts a small file system, which needs a user namespace.
    """

    name: str
    fault: str
    promise: str
    play: Callable[[Path], str]
    is_quick: bool = False
    limit_s: float = 120.0
    needs_mount: bool = False
