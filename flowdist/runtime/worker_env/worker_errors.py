"""The error of a failed worker: from its error file if it has written one, else from the end of its output."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flowdist.text.printable import printable, worker_line

TAIL_BYTES = 16 << 10
OUT_OF_MEMORY = ("OutOfMemoryError", "MemoryError")


def read_error_file(folder: Path) -> dict[str, Any] | None:
    """Return the content of the error file that torch's @record writes, as the texts `message` and `traceback`.

    Args:
        folder: The log folder of the worker.

    Returns:
        The two texts, of which `traceback` may be empty; None if the file is missing or has no message.
    """
    try:
        content = json.loads((folder / "error.json").read_text())
    except (OSError, ValueError):
        return None
    message = content.get("message") if isinstance(content, dict) else None
    if isinstance(message, str):
        return {"message": message, "traceback": ""}
    if not isinstance(message, dict):
        return None
    extra = message.get("extraInfo") or {}
    return {"message": str(message.get("message", "")), "traceback": str(extra.get("py_callstack", ""))}


def raised_ns(folder: Path) -> int | None:
    """Return when the worker wrote the error file in its log folder, in ns since the epoch; None if there is none."""
    try:
        return (folder / "error.json").stat().st_mtime_ns
    except OSError:
        return None


def last_lines(file: Path, count: int) -> list[str]:
    """Return the last `count` lines of a log that are not blank, the oldest first; fewer if its last 16 KiB have fewer.

    A file that cannot be read has no lines.
    """
    try:
        with file.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line for line in lines if line.strip()][-count:]


def error_line(folder: Path, mask: Callable[[str], str] = str) -> str:
    """Return the error of a worker in one line, such as `ValueError: bad shape`; empty if it has left none.

    The line is the first of the message in its error file; without that file, the last line of its stderr, cut at 200
    characters. The text is masked before it is cut, because a part of a secret would not be recognised. Colours and
    other control sequences are removed, as the line becomes a part of messages.

    Args:
        folder: The log folder of the worker.
        mask: Returns a text with the values of secrets hidden.
    """
    error = read_error_file(folder)
    if error is not None:
        return _plain(mask(str(error["message"])).splitlines()[0]) if error["message"] else ""
    lines = last_lines(folder / "stderr.log", 1)
    return _plain(mask(lines[0])).strip()[:200] if lines else ""


def _plain(line: str) -> str:
    return printable(worker_line(line, colours=False))


def is_out_of_memory(line: str) -> bool:
    """Return whether a line of `error_line` begins with the name of an out-of-memory error, of the host or of a GPU."""
    return line.split(":")[0].rpartition(".")[2].strip() in OUT_OF_MEMORY


def oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory so far; 0 if the kernel does not say.

    The count is that of this control group or, where the control group has none, of the whole machine.
    """
    for file in ("/sys/fs/cgroup/memory.events", "/proc/vmstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(file).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0
