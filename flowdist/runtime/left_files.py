"""Reading of files that workers leave: bounded in bytes and in time, and without an exception.

A worker may leave a folder, a pipe that no process writes, a device, a link to any file of the user, or a sparse file
of a terabyte. The processes that look there also renew leases: reading must neither fail, nor wait, nor take all
memory. No link is followed: what is read is shown, and may be sent to another host.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

NS_MAX = 1 << 63  # a file system may keep times that no message can carry


def open_regular(path: str | Path) -> int | None:
    """Open a regular file for reading, and return its descriptor; None for anything else, a link to a file too."""
    if _stat(path) is None:  # to open a device may have effects of its own
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):  # another file may have taken its place meanwhile
        return fd
    os.close(fd)
    return None


def read_from(path: str | Path, offset: int, bytes_max: int) -> bytes | None:
    """Return the bytes of a regular file from `offset` (negative: from its end) on; None if it cannot be read."""
    fd = open_regular(path)
    if fd is None:
        return None
    try:
        start = max(0, os.fstat(fd).st_size + offset) if offset < 0 else offset
        data = b""
        while len(data) < bytes_max and (more := os.pread(fd, bytes_max - len(data), start + len(data))):
            data += more
        return data
    except OSError:
        return None
    finally:
        os.close(fd)


def read_small(path: str | Path, bytes_max: int) -> bytes | None:
    """Return the content of a file; None if it has more than `bytes_max` bytes, or in the cases of `read_from`."""
    data = read_from(path, 0, bytes_max + 1)
    return data if data is not None and len(data) <= bytes_max else None


def read_number(path: str | Path) -> int | None:
    """Return the number that a file has as its text, such as a process id; None if it has none."""
    data = read_small(path, 32)
    with contextlib.suppress(ValueError):
        return int(data) if data is not None else None
    return None


def size_of(path: str | Path) -> int:
    """Return the size of a regular file in bytes; 0 if there is none."""
    found = _stat(path)
    return found.st_size if found is not None else 0


def modified_ns(path: str | Path) -> int | None:
    """Return when a regular file was last written, in ns since the epoch; None if there is none."""
    found = _stat(path)
    return found.st_mtime_ns if found is not None and 0 <= found.st_mtime_ns < NS_MAX else None


def _stat(path: str | Path) -> os.stat_result | None:
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def clean(text: str) -> str:
    """Return the text with `?` for each lone surrogate: JSON may name half of a character, which no message can."""
    return text.encode(errors="replace").decode()
