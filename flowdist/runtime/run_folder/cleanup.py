"""Removal of what several processes may remove at once. The guardian imports it: standard library only."""

from __future__ import annotations

import contextlib
from pathlib import Path

CONTROL = "control.sock"  # the socket of the controller


def remove_folder(folder: Path) -> None:
    """Remove a folder and the files in it, as far as possible. A folder in it stays, and no error is raised.

    Another process may remove the same folder meanwhile, or may have removed it.
    """
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
        folder.rmdir()


def remove_sockets(folder: Path, run_dir: Path) -> None:
    """Remove the sockets of a run, and the folder that was made for them if they are not in the folder of the run.

    The supervisor does so at the end of the run, and the guardians if it was killed: several at one time, so that files
    may be gone already.
    """
    for path in folder.glob("*.sock"):
        path.unlink(missing_ok=True)
    if folder != run_dir:
        (run_dir / CONTROL).unlink(missing_ok=True)
        remove_folder(folder)
