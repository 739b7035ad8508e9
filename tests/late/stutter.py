"""`python tests/late/stutter.py SECONDS COMMAND`: while the command runs, its processes stand still now and then.

One of all that it has started, whatever it is and wherever it is just then, gets no CPU for up to so many seconds. What
relies on two things that happen "at once" fails then, and what holds a lease does not. `make test-late`. Jobs whose
faults stop processes are left alone: one that was stopped twice would go on too early. A test that sends SIGSTOP itself
may still meet that.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

MARK = "FLOWDIST_STUTTER"
AT_ONCE = 3


def main() -> int:
    longest_s, command = float(sys.argv[1]), sys.argv[2:]
    mark = uuid.uuid4().hex
    with subprocess.Popen(command, env={**os.environ, MARK: mark}) as process:
        for _ in range(AT_ONCE if longest_s else 0):
            threading.Thread(target=_stutter, args=(f"{MARK}={mark}".encode(), longest_s), daemon=True).start()
        return process.wait()


def _stutter(mark: bytes, longest_s: float) -> None:
    while True:
        with contextlib.suppress(OSError, IndexError):  # it has ended
            pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
            pid = random.choice(pids)
            if (
                mark in (known := _read(pid, "environ").split(b"\0"))
                and _state(pid) != b"T"
                and not _stops(known, pids)
            ):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(longest_s * random.random() ** 2)
                os.kill(pid, signal.SIGCONT)
        time.sleep(0.002)


def _stops(environment: list[bytes], pids: list[int]) -> bool:
    """Whether the job that a process of this environment belongs to has such a fault."""
    job = [entry for entry in environment if entry.startswith(b"FLOWDIST_TEST_MARK=")]
    stopping = [pid for pid in pids if any(kind in _read(pid, "cmdline") for kind in (b":pause", b":hang"))]
    return bool(job) and any(job[0] in _read(pid, "environ") for pid in stopping)


def _state(pid: int) -> bytes:
    return _read(pid, "stat").rpartition(b")")[2].split()[0]


def _read(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    sys.exit(main())
