"""The error of a failed worker: from its error file if it has written one, else from the end of its output."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

TAIL_BYTES = 16 << 10
ABORT_BYTES, ABORT_LINES = 64 << 10, 500  # of stack traces, at most, after the line of NCCL that says why
OUT_OF_MEMORY = ("OutOfMemoryError", "MemoryError")

# What torch's process groups write when they give up a collective for which a peer has not come.
COLLECTIVE_TIMEOUT = re.compile(
    r"Watchdog caught collective operation timeout"  # NCCL; the process ends by SIGABRT
    r"|Timed out waiting \d+ms for (?:recv|send) operation"  # gloo
    r"|failed to pass monitoredBarrier in \d+ ms"
)


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


def last_lines(file: Path, count: int, tail_bytes: int = TAIL_BYTES) -> list[str]:
    """Return the last `count` lines of a log that are not blank, the oldest first.

    There are fewer if its last `tail_bytes` bytes have fewer. A file that cannot be read has no lines.
    """
    try:
        with file.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - tail_bytes))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line for line in lines if line.strip()][-count:]


def error_line(folder: Path, mask: Callable[[str], str] = str) -> str:
    """Return the error of a worker in one line, such as `ValueError: bad shape`; empty if it has left none.

    The line is the first of the message in its error file; without that file, the last line of its stderr, cut at 200
    characters. The text is masked before it is cut, because a part of a secret would not be recognised.

    Args:
        folder: The log folder of the worker.
        mask: Returns a text with the values of secrets hidden.
    """
    error = read_error_file(folder)
    if error is not None:
        return mask(str(error["message"])).splitlines()[0] if error["message"] else ""
    lines = last_lines(folder / "stderr.log", 1)
    return mask(lines[0]).strip()[:200] if lines else ""


def collective_timeout(folder: Path, mask: Callable[[str], str] = str, *, aborted: bool = False) -> str:
    """Return what the worker's process group wrote when it gave up a collective, in one line; empty if it did not.

    Only the error that the worker ended with counts: the message of its error file, or the last line of its stderr. A
    worker that NCCL aborted has no error file, and its stderr has stack traces after that line.

    Args:
        folder: The log folder of the worker.
        mask: Returns a text with the values of secrets hidden. The text is masked before it is cut.
        aborted: SIGABRT has ended the worker.
    """
    error = read_error_file(folder)
    if error is not None:
        lines = [str(error["message"])]
    else:
        lines = last_lines(folder / "stderr.log", ABORT_LINES if aborted else 1, ABORT_BYTES)
    for line in map(mask, lines):
        found = COLLECTIVE_TIMEOUT.search(line)
        if found is not None:
            return line[found.start() :].splitlines()[0][:200]
    return ""


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
