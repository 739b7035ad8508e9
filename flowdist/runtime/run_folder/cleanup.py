"""Removal of a folder that several processes may remove at once. The guardian imports it: standard library only."""

from __future__ import annotations

import contextlib
from pathlib import Path


def remove_folder(folder: Path) -> None:
    """Remove a folder and the files in it, as far as possible. A folder in it stays, and no error is raised.

    Another process may remove the same folder meanwhile, or may have removed it.
    """
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
        folder.rmdir()
