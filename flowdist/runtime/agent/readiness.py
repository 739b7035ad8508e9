"""Readiness checks of replicas, repeated until they pass. The caller cancels a check when its attempt ends."""

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
    """Repeat a readiness check until it passes.

    Args:
        check: The check.
        address: The address of the replica's node.
        ports: The ports at which the replica listens, by name.
        workdir: The folder that the name of a file is relative to.
        folder: The log folder of the attempt.
        since_ns: Wall clock of the attempt's start: a file that is older belongs to an earlier attempt.
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
    """Return whether a connection to the port succeeds and, if there is a path, a GET for it has a status below 400."""
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
