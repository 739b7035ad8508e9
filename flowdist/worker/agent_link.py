"""A worker's side of the socket to its agent, and who it is. Standard library only: see `flowdist.worker`."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

COMMIT_TIMEOUT_S = 30.0
NAMING_TIMEOUT_S = 30.0


class Info(NamedTuple):
    """Who this worker is. Sizes count workers; `source_rank` is the rank that state is broadcast from."""

    role: str
    replica: str
    replica_index: int
    rank: int
    world_size: int
    local_rank: int
    role_rank: int
    role_world_size: int
    generation: int
    attempt: int
    run_id: str
    source_rank: int


def is_managed() -> bool:
    """Whether flowdist started this process."""
    return "FLOWDIST_SOCKET" in os.environ


def info() -> Info:
    """Who this worker is; one worker of one, generation 1, where nobody says otherwise."""
    env = os.environ
    replica = env.get("FLOWDIST_REPLICA", "worker/0")

    def number(name: str, default: int) -> int:
        return int(env.get(name, default))

    return Info(
        role=env.get("FLOWDIST_ROLE", env.get("ROLE_NAME", "worker")),
        replica=replica,
        replica_index=int(replica.rpartition("/")[2]),
        rank=number("RANK", 0),
        world_size=number("WORLD_SIZE", 1),
        local_rank=number("LOCAL_RANK", 0),
        role_rank=number("ROLE_RANK", number("RANK", 0)),
        role_world_size=number("ROLE_WORLD_SIZE", number("WORLD_SIZE", 1)),
        generation=number("FLOWDIST_GENERATION", number("TORCHELASTIC_RESTART_COUNT", 0) + 1),
        attempt=number("FLOWDIST_ATTEMPT", 1),
        run_id=env.get("FLOWDIST_RUN_ID", env.get("TORCHELASTIC_RUN_ID", "local")),
        source_rank=number("FLOWDIST_SOURCE_RANK", 0),
    )


def hello() -> dict[str, Any]:
    """The first thing that a worker says on a connection."""
    return {
        "replica": os.environ["FLOWDIST_REPLICA"],
        "attempt": int(os.environ["FLOWDIST_ATTEMPT"]),
        "local_rank": int(os.environ["LOCAL_RANK"]),
    }


class Link:
    """The connection to the agent. A forked child, such as a DataLoader's, opens its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._pid = 0

    def send(self, message: dict[str, Any]) -> None:
        """Tell the agent. If it is gone, so will be this worker in a moment: nothing to raise here."""
        if not is_managed():
            return
        with self._lock:
            try:
                self._connected().sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                self._close()

    def commit(self, offer: dict[str, Any]) -> bool:
        with self._lock:
            try:
                link = self._connected()
                link.settimeout(COMMIT_TIMEOUT_S)
                link.sendall(json.dumps({"commit": offer}).encode() + b"\n")
                with link.makefile("rb") as answers:
                    answer = answers.readline()
                link.settimeout(None)
            except TimeoutError:
                self._close()
                raise TimeoutError(f"commit({offer['path']!r}): no answer in {COMMIT_TIMEOUT_S:g} s") from None
            except OSError:
                answer = b""
        if not answer:
            self._close()
            return False  # the agent is gone: whoever takes over decides without this worker
        return bool(json.loads(answer)["commit"]["accepted"])

    def _connected(self) -> socket.socket:
        if self._socket is not None and self._pid == os.getpid():
            return self._socket
        link = socket.socket(socket.AF_UNIX)
        try:
            link.connect(os.environ["FLOWDIST_SOCKET"])
        except OSError:
            link.close()
            raise
        link.sendall(json.dumps({"hello": hello()}).encode() + b"\n")
        self._socket, self._pid = link, os.getpid()
        return link

    def close(self) -> None:
        """What comes next opens it anew: for the attempt that the environment names by then."""
        with self._lock:
            self._close()

    def renew_after_fork(self) -> None:
        """A thread of the parent may have held the lock while it forked."""
        self._lock, self._socket = threading.Lock(), None

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Stop:
    """This worker's side of the agreement on a last step: runtime/notice.py is the agent's."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._asked: int | None = None  # the file, once open
        self._stop_at: int | None = None
        self._has_left = False
        self.has_come = False  # a call of should_stop() was answered with True

    def renew(self) -> None:
        """For another attempt in this process."""
        if self._asked is not None:
            os.close(self._asked)
        self._asked = self._stop_at = None
        self._has_left = self.has_come = False

    def leave(self) -> None:
        """The agreed step is behind this worker."""
        if not self._has_left:
            self._has_left = True
            self._link.send({"left": True})

    def ask(self, step: int) -> bool:
        notice = os.environ.get("FLOWDIST_NOTICE")
        if notice is None:
            return False
        if self._stop_at is None:
            if self._asked is None:
                self._asked = os.open(os.environ["FLOWDIST_ASKED"], os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.pwrite(self._asked, step.to_bytes(8, "little", signed=True), 0)
            if not Path(notice).exists():
                return False
            self._stop_at = self._wait(Path(notice), step)
        if self._stop_at is not None and step > self._stop_at:
            self.leave()
        self.has_come = self._stop_at is not None and step >= self._stop_at
        return self.has_come

    def _wait(self, notice: Path, step: int) -> int | None:
        """Until the step is named, which is a message to the controller and back. None if nobody names one."""
        until = time.monotonic() + NAMING_TIMEOUT_S
        while time.monotonic() < until:
            content = json.loads(notice.read_text())
            if "stop_at" in content:
                return step if content["stop_at"] is None else int(content["stop_at"])
            time.sleep(0.001)
        return None


link = Link()
stop = Stop(link)
os.register_at_fork(after_in_child=link.renew_after_fork)
