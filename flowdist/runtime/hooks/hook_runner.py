"""The process that runs a job's hooks: one command at a time, each with a JSON object on its stdin.

It is a process of its own so that no hook can delay the job. The supervisor writes one line per call into its stdin.
When stdin closes, the supervisor is gone or does not wait any longer, and a hook that still runs is killed.
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
from flowdist.runtime.processes.spawn_protocol import describe_exit
from flowdist.runtime.umask import users_umask
from flowdist.runtime.wire.framing import LineBuffer

STDIN = 0
QUEUE_MAX = 100
PATIENCE_S = 10.0


class HookConfig(msgspec.Struct, frozen=True):
    """Configuration of the process that runs hooks."""

    argv: tuple[str, ...]  # the user's command
    cwd: str  # the folder in which the command runs
    queue_max: int = QUEUE_MAX  # calls that may wait; further calls are dropped, and the log says so
    patience_s: float = PATIENCE_S  # how long hooks may run after the end of the job


class _Runner:
    """Queue of the calls of a hook, and the process of the call that runs."""

    def __init__(self, config: HookConfig) -> None:
        self._config = config
        self._selector = selectors.DefaultSelector()
        self._selector.register(STDIN, selectors.EVENT_READ)
        self._lines = LineBuffer()
        self._queue: deque[tuple[str, bytes]] = deque()  # the subject of a call, and its JSON object
        self._child: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._subject, self._started_s = "", 0.0
        self._deadline_s: float | None = None  # set when the job has ended

    def run(self) -> None:
        """Run the hook once per call on stdin, one at a time, until the job has ended and all calls are done.

        This ends `patience_s` after the job's end, or when stdin closes, at the latest. A hook may still run then.
        """
        while self._deadline_s is None or self._child is not None or self._queue:
            if self._child is None and self._queue:
                self._start(*self._queue.popleft())
                continue
            wait_s = None if self._deadline_s is None else max(0.0, self._deadline_s - time.monotonic())
            ready = {key.fd for key, _ in self._selector.select(wait_s)}
            if self._pidfd in ready:
                self._ended()
            if STDIN in ready and not self._read():
                return
            if not ready and self._deadline_s is not None:
                _log(f"{self._subject}: killed, {self._config.patience_s:g} s after the end of the job")
                return

    def _read(self) -> bool:
        """Queue the calls that have arrived on stdin. Return False if stdin is closed."""
        data = os.read(STDIN, 1 << 16)
        for line in self._lines.feed(data):
            self._enqueue(line)
        return bool(data)

    def _enqueue(self, line: bytes) -> None:
        call: dict[str, Any] = msgspec.json.decode(line)
        if call["event"] == "job_ended":
            self._deadline_s = time.monotonic() + self._config.patience_s
            self._queue.appendleft(("end of the job", line))  # first: the time may not last for all calls
        elif len(self._queue) < self._config.queue_max:
            self._queue.append((f"incident {call['incident']}", line))
        else:
            _log(f"incident {call['incident']}: not run, {len(self._queue)} calls wait already")

    def _start(self, subject: str, line: bytes) -> None:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # orphans of earlier hooks
                pass
        _log(f"{subject}: starts")
        with tempfile.TemporaryFile() as stdin:  # a pipe would block this process if the command does not read
            stdin.write(line + b"\n")
            stdin.seek(0)
            try:
                self._child = subprocess.Popen(
                    self._config.argv,
                    stdin=stdin,
                    cwd=self._config.cwd,
                    start_new_session=True,
                    umask=users_umask(os.environ),
                )
            except OSError as error:
                _log(f"{subject}: {self._config.argv[0]}: {error.strerror}")
                return
        self._subject, self._started_s = subject, time.monotonic()
        self._pidfd = os.pidfd_open(self._child.pid)
        self._selector.register(self._pidfd, selectors.EVENT_READ)

    def _ended(self) -> None:
        """Reap the hook that has ended, and log its exit. The rest of its process group is killed first."""
        assert self._child is not None
        self._selector.unregister(self._pidfd)
        os.close(self._pidfd)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        code = self._child.wait()
        self._child, self._pidfd = None, -1
        _log(f"{self._subject}: {describe_exit(code)} after {time.monotonic() - self._started_s:.1f} s")


def _log(text: str) -> None:
    print(f"--- {text}", flush=True)


def main() -> None:
    """Run one job's hooks and kill what is left; the argument is a HookConfig as JSON, calls arrive on stdin."""
    become_subreaper()
    _Runner(msgspec.json.decode(sys.argv[1], type=HookConfig)).run()
    kill_descendants()


if __name__ == "__main__":
    main()
