"""Readiness checks of replicas, which the agent repeats until they pass."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path

from flowdist.graph import Readiness, RoleSpec
from flowdist.runtime.left_files import read_from

PAUSE_S = 0.05
LOOK_BYTES = 256 << 10  # of each log, in one look: the agent has to renew its lease meanwhile
LINE_MAX = 16 << 10  # bytes; of a longer line, the pattern is searched in pieces that overlap by half


# State of a file: device, inode, bytes, time of the last write. Every write changes something, whatever the clock says.
FileState = tuple[int, int, int, int]


def file_state(file: Path) -> FileState | None:
    """Return the present state of a file; None if there is none that can be seen."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def awaited_file(role: RoleSpec) -> FileState | None:
    """Return the present state of the file for which the role's readiness check waits; None without file or check."""
    if role.ready is None or role.ready.how != "file":
        return None
    return file_state(Path(role.workdir, role.ready.target))


async def until_ready(
    check: Readiness, address: str, ports: Mapping[str, int], workdir: str, folder: Path, before: FileState | None
) -> None:
    """Repeat the readiness check of an attempt every PAUSE_S until it passes, or the caller cancels this.

    A check of kind `call` never passes here: the worker itself reports that it is ready. A `file`, relative to
    `workdir`, counts only if it is not as `before` the start (None: there was none): else it is of an earlier attempt.
    """
    search = LogSearch(check.target if check.how == "log" else "", folder)
    passes = False
    while not passes:
        match check.how:
            case "tcp":
                passes = await _answers(address, ports[check.target], None)
            case "http":
                port, _, path = check.target.partition("/")
                passes = await _answers(address, ports[port], "/" + path)
            case "file":
                passes = file_state(Path(workdir, check.target)) not in (None, before)
            case "log":
                passes = search.look()
            case _:
                pass  # "call": the worker itself reports that it is ready
        if not passes:
            await asyncio.sleep(PAUSE_S)


class LogSearch:
    """Search for a pattern in the lines of an attempt's logs while they grow; no byte is read twice."""

    def __init__(self, pattern: str, folder: Path) -> None:
        self._pattern, self._folder = re.compile(pattern), folder
        self._read: dict[Path, tuple[int, bytes]] = {}  # how many bytes, and the line that they leave incomplete

    def look(self) -> bool:
        """Return whether what was added to the logs, LOOK_BYTES of each at most, matches; a line may be incomplete."""
        return any(self._look_at(path) for path in sorted(self._folder.glob("*/std*.log")))

    def _look_at(self, path: Path) -> bool:
        offset, rest = self._read.get(path, (0, b""))
        data = read_from(path, offset, LOOK_BYTES)
        if not data:
            return False
        *lines, rest = (rest + data).replace(b"\r", b"\n").split(b"\n")
        self._read[path] = (offset + len(data), rest[-LINE_MAX // 2 :])
        texts = [line.decode(errors="replace") + "\n" for line in lines] + [rest.decode(errors="replace")]
        return any(self._pattern.search(piece) for text in texts for piece in _pieces(text))


def _pieces(line: str) -> list[str]:
    """Return the line, or if it is too long pieces of it that overlap by half: some patterns take the square of it."""
    if len(line) <= LINE_MAX:
        return [line]
    return [line[start : start + LINE_MAX] for start in range(0, len(line), LINE_MAX // 2)]


async def _answers(address: str, port: int, path: str | None) -> bool:
    """Return whether a connection to the port succeeds, and an HTTP GET of `path` (None: no GET) gives no error.

    A status of 400 or more is an error, and so is no status within 5 s, or a line without end.
    """
    try:
        reader, writer = await asyncio.open_connection(address, port)
    except OSError:
        return False
    try:
        if path is None:
            return True
        host = f"[{address}]" if ":" in address else address
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        status = await asyncio.wait_for(reader.readline(), 5)
        return len(status.split()) > 1 and status.split()[1].isdigit() and int(status.split()[1]) < 400
    except (OSError, TimeoutError, ValueError):
        return False
    finally:
        writer.close()
