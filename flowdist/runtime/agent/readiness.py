"""Readiness checks of replicas, which the agent repeats until they pass."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path

from flowdist.graph import Readiness

PAUSE_S = 0.05


async def until_ready(
    check: Readiness, address: str, ports: Mapping[str, int], workdir: str, folder: Path, since_ns: int
) -> None:
    """Repeat the readiness check of an attempt every PAUSE_S until it passes.

    There is no timeout: the caller cancels this coroutine when the attempt ends. A check of kind `call` never passes
    here, because the worker itself reports that it is ready.

    Args:
        check: The kind of the check, and its target.
        address: The address of the replica's node, for `tcp` and `http`.
        ports: The ports at which the replica listens, by name, for `tcp` and `http`.
        workdir: The folder that a target of `file` is relative to.
        folder: The folder of the attempt, in which the check `log` searches the output of all workers.
        since_ns: When the attempt was started, in ns on the wall clock: an older target of `file` belongs to an earlier
            attempt and does not count.
    """
    while not await _passes(check, address, ports, workdir, folder, since_ns):
        await asyncio.sleep(PAUSE_S)


async def _passes(
    check: Readiness, address: str, ports: Mapping[str, int], workdir: str, folder: Path, since_ns: int
) -> bool:
    match check.how:
        case "tcp":
            return await _answers(address, ports[check.target], None)
        case "http":
            port, _, path = check.target.partition("/")
            return await _answers(address, ports[port], "/" + path)
        case "file":
            file = Path(workdir, check.target)
            return file.exists() and file.stat().st_mtime_ns >= since_ns
        case "log":
            pattern = re.compile(check.target)
            return any(_matches(pattern, file) for file in sorted(folder.glob("*/std*.log")))
        case _:
            return False  # "call": the worker itself reports that it is ready


def _matches(pattern: re.Pattern[str], file: Path) -> bool:
    with file.open(errors="replace") as lines:
        return any(pattern.search(line) for line in lines)


async def _answers(address: str, port: int, path: str | None) -> bool:
    """Return whether a connection to the port succeeds and, unless `path` is None, an HTTP GET of it gives no error.

    An HTTP status of 400 or more is an error, and so is no status within 5 s.
    """
    try:
        reader, writer = await asyncio.open_connection(address, port)
    except OSError:
        return False
    try:
        if path is None:
            return True
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
        status = await asyncio.wait_for(reader.readline(), 5)
        return len(status.split()) > 1 and status.split()[1].isdigit() and int(status.split()[1]) < 400
    except (OSError, TimeoutError):
        return False
    finally:
        writer.close()
