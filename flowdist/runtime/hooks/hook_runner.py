"""The process that runs a job's hooks: one command at a time, each with a JSON object on its stdin.

It is a process of its own so that no hook can be in the way of the job. The supervisor writes a line for each call into
its stdin; when that closes, the supervisor is gone or will not wait, and whatever runs is killed.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from typing import Any

import msgspec

from flowdist.runtime.processes.reaper import become_subreaper, kill_descendants

STDIN = 0
QUEUE_MAX = 100
PATIENCE_S = 10.0


class HookConfig(msgspec.Struct, frozen=True):
    """What to run and how long: `patience_s` seconds after the end of the job whatever still runs is killed."""

    argv: tuple[str, ...]
    cwd: str
    queue_max: int = QUEUE_MAX
    patience_s: float = PATIENCE_S


class _Runner:
    def __init__(self, config: HookConfig) -> None:
        self._config = config
        self._selector = selectors.DefaultSelector()
        self._selector.register(STDIN, selectors.EVENT_READ)
        self._buffer = b""
        self._queue: deque[tuple[str, bytes]] = deque()  # what it is about, and the object
        self._child: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._about, self._since = "", 0.0
        self._give_up: float | None = None  # set when the job has ended

    def run(self) -> None:
        """Until all is done after the end of the job, or patience is over, or stdin closes."""
        while self._give_up is None or self._child is not None or self._queue:
            if self._child is None and self._queue:
                self._start(*self._queue.popleft())
                continue
            wait_s = None if self._give_up is None else max(0.0, self._give_up - time.monotonic())
            ready = {key.fd for key, _ in self._selector.select(wait_s)}
            if self._pidfd in ready:
                self._ended()
            if STDIN in ready and not self._read():
                return
            if not ready and self._give_up is not None:
                _say(f"{self._about}: killed, {self._config.patience_s:g} s after the end of the job")
                return

    def _read(self) -> bool:
        data = os.read(STDIN, 1 << 16)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._hear(line)
        return bool(data)

    def _hear(self, line: bytes) -> None:
        call: dict[str, Any] = msgspec.json.decode(line)
        if call["event"] == "job_ended":
            self._give_up = time.monotonic() + self._config.patience_s
            self._queue.appendleft(("end of the job", line))  # what matters most should not be what time runs out on
        elif len(self._queue) < self._config.queue_max:
            self._queue.append((f"incident {call['incident']}", line))
        else:
            _say(f"incident {call['incident']}: left out, {len(self._queue)} wait already")

    def _start(self, about: str, line: bytes) -> None:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # what earlier ones have left
                pass
        _say(f"{about}: starts")
        with tempfile.TemporaryFile() as stdin:  # a pipe would block us where the command does not read
            stdin.write(line + b"\n")
            stdin.seek(0)
            try:
                self._child = subprocess.Popen(
                    self._config.argv, stdin=stdin, cwd=self._config.cwd, start_new_session=True
                )
            except OSError as error:
                _say(f"{about}: {self._config.argv[0]}: {error.strerror}")
                return
        self._about, self._since = about, time.monotonic()
        self._pidfd = os.pidfd_open(self._child.pid)
        self._selector.register(self._pidfd, selectors.EVENT_READ)

    def _ended(self) -> None:
        """What the command leaves in its group is killed before it is reaped, as with workers."""
        assert self._child is not None
        self._selector.unregister(self._pidfd)
        os.close(self._pidfd)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        code = self._child.wait()
        self._child, self._pidfd = None, -1
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name.removeprefix('SIG')}"
        _say(f"{self._about}: {how} after {time.monotonic() - self._since:.1f} s")


def _say(text: str) -> None:
    print(f"--- {text}", flush=True)


def main() -> None:
    become_subreaper()
    _Runner(msgspec.json.decode(sys.argv[1], type=HookConfig)).run()
    kill_descendants()


if __name__ == "__main__":
    main()
