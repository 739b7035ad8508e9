"""A folder that several processes may tidy up: whoever is the last of them alive. Light, for the guardian's sake."""

from __future__ import annotations

import contextlib
from pathlib import Path


def remove_folder(folder: Path) -> None:
    """It and the files in it; another process may be doing the same, or have done it."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
        folder.rmdir()
