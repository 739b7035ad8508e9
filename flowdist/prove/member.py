"""A worker process as the lane sees it: its connection, its process, and the listener of its calls."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
from collections.abc import Container
from pathlib import Path
from typing import Any

from flowdist.prove import calls
from flowdist.prove.history import Attempt, Worker
from flowdist.runtime.worker_env.worker_errors import error_line

_PACKET = 1 << 16
_FILES_MAX = 4
_LOOK_S = 1.0
_TRACEBACK = 1 << 15  # characters at the end of stderr in which a traceback is looked for
_STARTTIME = 19  # field of /proc/PID/stat, counted after the name; in ticks, rounded down


class Member:
    """A worker that has connected to the gate. `loners` are the roles without a gang, each replica of which is a world.

    `replicas` is how many its role has, and `world_size` how many workers its world has.

    `attempt` is what it has done, None as long as it waits at the gate. It `is_held` in front of its end.
    """

    def __init__(self, link: socket.socket, loners: Container[str] = ()) -> None:
        self.link, self._loners = link, loners
        self._received = b""
        self.worker = Worker("", -1)
        self.world: tuple[str, ...] = ()
        self.world_size = self.replicas = 0
        self.run_id = ""
        self._pid = 0
        self.pidfd = self.listener = -1
        self._onlooker: socket.socket | None = None
        self.attempt: Attempt | None = None
        self.is_held = False
        self.is_killed = False

    def hear(self) -> list[dict[str, Any]] | None:
        """Return the messages that have come; None if the worker has closed its connection.

        The listener comes with the first message after the worker was released, and is kept as `listener`.
        """
        try:
            data, files, _, _ = socket.recv_fds(self.link, _PACKET, _FILES_MAX)
        except OSError:
            return None
        for fd in files:
            self.listener = fd
            calls.hasten(fd)
        if not data:
            return None
        *lines, self._received = (self._received + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def say(self, **message: Any) -> None:
        """Answer the worker, which waits."""
        try:
            self.link.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return  # it was killed

    def introduce(self, hello: dict[str, Any]) -> bool:
        """Take what the worker says of itself; return whether it is still there."""
        self._pid = hello["pid"]
        self.worker = Worker(hello["FLOWDIST_ROLE"], int(hello["RANK"] or 0))
        self.world = (hello["MASTER_PORT"], hello["FLOWDIST_GENERATION"])
        self.world_size = int(hello["WORLD_SIZE"] or 1)
        if self.worker.role in self._loners:
            index = int(hello["FLOWDIST_REPLICA"].rpartition("/")[2])
            self.worker = Worker(self.worker.role, index * self.world_size + int(hello["LOCAL_RANK"] or 0))
            self.world = (hello["FLOWDIST_REPLICA"], hello["FLOWDIST_GENERATION"])
        self.run_id = hello["FLOWDIST_RUN_ID"]
        self.replicas = int(hello["ROLE_WORLD_SIZE"] or 1) // int(hello["LOCAL_WORLD_SIZE"] or 1)
        try:
            self.pidfd = os.pidfd_open(self._pid)
        except OSError:
            return False
        return True

    def take_onlooker(self, pid: int, link: socket.socket) -> None:
        """Keep the connection to the thread that tells the state of a worker, if it is this one's."""
        if pid == self._pid:
            self._onlooker = link
            link.settimeout(_LOOK_S)

    def look(self) -> dict[str, str]:
        """Return digests of what the worker has in its variables, by their names; nothing if it does not answer."""
        if self._onlooker is None:
            return {}
        answer = b""
        try:
            self._onlooker.sendall(b"\n")
            while not answer.endswith(b"\n"):
                answer += (more := self._onlooker.recv(_PACKET))
                if not more:
                    return {}
        except OSError:
            self._onlooker.close()
            self._onlooker = None  # what it says later is of another time
            return {}
        state: dict[str, str] = json.loads(answer)
        return state

    def stop(self) -> None:
        """Stop the worker with all of its processes; it is to be killed next."""
        self._signal(signal.SIGSTOP)

    def kill(self) -> None:
        """Kill the worker with all of its processes."""
        self.is_killed = True
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.pidfd >= 0:
            with contextlib.suppress(OSError):
                os.killpg(self._pid, number)

    def began_s(self) -> float:
        """Return when the process was forked, in seconds since the machine's start; infinity if it is gone."""
        try:
            fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return float("inf")
        return (int(fields[_STARTTIME]) + 1) / os.sysconf("SC_CLK_TCK")

    def owns(self, tid: int) -> bool:
        """Return whether a thread is the worker's own, and not of a child."""
        try:
            lines = Path(f"/proc/{tid}/status").read_text().splitlines()
        except OSError:
            return False
        return f"Tgid:\t{self._pid}" in lines

    def last_words(self) -> str:
        """Return the line about its error that the worker, which is about to end, has left."""
        try:
            return error_line(Path(f"/proc/{self._pid}/fd/2").readlink().parent)
        except OSError:
            return ""

    def failed_at(self, folder: Path) -> str:
        """Return the line of the user's script that the traceback of the worker, which is about to end, names last."""
        try:
            text = Path(f"/proc/{self._pid}/fd/2").read_text(errors="replace")[-_TRACEBACK:]
        except OSError:
            return ""
        found = re.findall(rf'File "{re.escape(str(folder))}/(\S+)", line (\d+)', text)
        return ":".join(found[-1]) if found else ""

    def close(self) -> None:
        """Close all descriptors."""
        for fd in (self.pidfd, self.listener):
            if fd >= 0:
                os.close(fd)
        self.pidfd = self.listener = -1
        self.link.close()
        if self._onlooker is not None:
            self._onlooker.close()
