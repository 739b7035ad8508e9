"""Atomic replacement of a file. The module is small, because workers and guardians import it."""

from __future__ import annotations

import json
import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes, *, durable: bool = False, mode: int | None = None) -> None:
    """Replace the content of a file, so that a reader sees either the old content or all of the new.

    If the file cannot be written, OSError is raised and the old content stays. With `durable` a crash of the machine
    cannot lose the new content, at some milliseconds. The mode None is what the umask leaves.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.rename(path)


def write_json(path: Path, content: object, *, durable: bool = False) -> None:
    """Write `content` to a file as JSON, as `write_atomically` does. Folders of the path that are missing are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(content), durable=durable)
