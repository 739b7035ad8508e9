"""Access to the folder of a run: its owner alone may read it, or with FLOWDIST_GROUP also a group of users.

The folder itself shuts others out, whatever is in it: its mode is 0700, or 2750 with a group. Sockets stay 0600: a user
who may read a run may not operate it.
"""

from __future__ import annotations

import os
from pathlib import Path

from flowdist.errors import FlowdistError

GROUP = "FLOWDIST_GROUP"  # the environment variable with the name of the group


def make_private(folder: Path) -> None:
    """Make a folder that only this user, and the group of FLOWDIST_GROUP if set, may enter.

    FileExistsError if it exists; FlowdistError if there is no such group, or this user does not belong to it.
    """
    name = os.environ.get(GROUP, "")
    group = _number_of(name) if name else None
    folder.mkdir(0o700)
    folder.chmod(0o700)  # whatever the umask
    if group is None:
        return
    try:
        os.chown(folder, -1, group)
    except PermissionError:
        folder.rmdir()
        help = "name one of your groups: id -Gn lists them"
        raise FlowdistError(f"{GROUP}={name}: you are not in that group", help=help) from None
    folder.chmod(0o2750)


def _number_of(group: str) -> int:
    """Return the number of a group of users. Raises FlowdistError if there is no such group."""
    import grp  # not on every system on which runs are read

    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        help = "name one of your groups: id -Gn lists them"
        raise FlowdistError(f"{GROUP}={group}: there is no such group", help=help) from None


def refuse_private(folder: Path) -> None:
    """Refuse a run that belongs to another user and is private: FlowdistError if this user may not read its folder."""
    if os.path.isdir(folder) and is_private(folder):  # noqa: PTH112  # Path.is_dir raises below a private folder
        help = f"ask that user; runs that are started with {GROUP}=NAME can be read by that group"
        raise FlowdistError(f"{folder.resolve().name} is private to the user {owner_of(folder)}", help=help)


def is_private(folder: Path) -> bool:
    """Return whether this user may not read the folder of a run, or may not see whether it is running."""
    lock = folder / "lock"
    if not os.access(folder, os.R_OK | os.X_OK, effective_ids=True):
        return True
    return lock.exists() and not os.access(lock, os.R_OK, effective_ids=True)


def owner_of(path: Path) -> str:
    """Return the name of the user to whom a file or folder belongs, or the user's number if that has no name."""
    try:
        return path.owner()
    except KeyError:
        return str(path.stat().st_uid)
