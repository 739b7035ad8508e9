"""Why a worker failed, in one line: its error file if it wrote one, else the end of what it printed."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

TAIL_BYTES = 16 << 10
OUT_OF_MEMORY = ("OutOfMemoryError", "MemoryError")


def read_error_file(folder: Path) -> dict[str, Any] | None:
    """What @record of torch.distributed.elastic.multiprocessing.errors wrote: message and traceback."""
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
    """When the worker wrote its error file; None if it wrote none."""
    try:
        return (folder / "error.json").stat().st_mtime_ns
    except OSError:
        return None


def last_lines(file: Path, count: int) -> list[str]:
    """The last lines of a log that are not blank."""
    try:
        with file.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line for line in lines if line.strip()][-count:]


def one_line(folder: Path, mask: Callable[[str], str] = str) -> str:
    """`ValueError: bad shape`, or the empty string; masked before it is cut to its length."""
    error = read_error_file(folder)
    if error is not None:
        return mask(str(error["message"])).splitlines()[0] if error["message"] else ""
    lines = last_lines(folder / "stderr.log", 1)
    return mask(lines[0]).strip()[:200] if lines else ""


def is_out_of_memory(line: str) -> bool:
    """Whether the one line speaks of memory, of the host's or of a GPU's."""
    return line.split(":")[0].rpartition(".")[2].strip() in OUT_OF_MEMORY


def oom_kills() -> int:
    """How often the kernel has killed for want of memory: in our control group, else on the machine."""
    for file in ("/sys/fs/cgroup/memory.events", "/proc/vmstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(file).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def signal_name(code: int) -> str:
    """-9 -> KILL"""
    return signal.Signals(-code).name.removeprefix("SIG")
