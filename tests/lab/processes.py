"""Processes of a host: all that are in its network namespace, found in /proc."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Collection
from pathlib import Path

KILL_S = 20.0


def namespace_of(pid: int) -> int:
    """Return the number of the network namespace of a process; 0 if the process has ended or is not ours."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    return 0


def processes_in(namespaces: Collection[int]) -> list[int]:
    """Return the processes in any of these network namespaces, without zombies."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in pids if namespace_of(pid) in namespaces]


def kill_all(namespaces: Collection[int], but: Collection[int] = ()) -> list[int]:
    """Kill every process in these network namespaces, and wait until none is left.

    Args:
        namespaces: Numbers of network namespaces, as `namespace_of` returns them.
        but: Processes that are spared.

    Returns:
        The processes that are left after KILL_S; normally none. One that is killed may have started another one
        meanwhile, so that they are looked for until there are none.
    """
    until = time.monotonic() + KILL_S
    while (pids := [pid for pid in processes_in(namespaces) if pid not in but]) and time.monotonic() < until:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for_ends(pids, until - time.monotonic())
    return pids


def wait_for_ends(pids: Collection[int], seconds: float) -> None:
    """Wait until all of these processes have ended, but not longer than so many seconds."""
    until = time.monotonic() + seconds
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            end = os.pidfd_open(pid)
            select.select([end], [], [], max(0.0, until - time.monotonic()))
            os.close(end)


def signal_all(namespaces: Collection[int], number: signal.Signals, but: Collection[int] = ()) -> None:
    """Send a signal to every process in these network namespaces."""
    for pid in processes_in(namespaces):
        if pid not in but:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
