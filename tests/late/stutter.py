"""`python tests/late/stutter.py SECONDS COMMAND`: while the command runs, its processes stand still now and then.

One of all that it has started, whatever it is and wherever it is just then, gets no CPU for up to so many seconds. What
relies on two things that happen "at once" fails then, and what holds a lease does not. `make test-late`. A test that
stops processes itself may find one to go on that it has stopped: such a failure may be this tool's.
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
        with contextlib.suppress(OSError):
            pid = int(random.choice([entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()]))
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") and _state(pid) != "T":
                os.kill(pid, signal.SIGSTOP)
                time.sleep(longest_s * random.random() ** 2)
                os.kill(pid, signal.SIGCONT)
        time.sleep(0.002)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


if __name__ == "__main__":
    sys.exit(main())
