"""A worker's identity, and the worker's side of the socket to its agent. Standard library only."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

COMMIT_TIMEOUT_S = 30.0
STOP_STEP_TIMEOUT_S = 30.0
HIGH_FD = 700  # as in runtime/prefix/link.py


class Info(NamedTuple):
    """The identity of this worker in its present generation.

    `rank` and `world_size` span the world, `role_rank` and `role_world_size` the role, `local_rank` the replica; all of
    them count workers, from 0. `replica_index` is the number in `replica`, such as 2 in `trainer/2`. `generation` and
    `attempt` count from 1. `source_rank` is the rank from which the others take the training state.
    """

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
    """Return whether flowdist has started this process."""
    return "FLOWDIST_SOCKET" in os.environ


def info() -> Info:
    """Return the identity of this worker in its present generation, read from the environment at each call.

    Without flowdist the role, the ranks, the sizes, the run id and the generation (restart count + 1) come from
    torchrun's variables; each rank is a replica of its own, `worker/RANK`, in attempt 1. Without these variables this
    worker is rank 0 in a world of one, generation 1.
    """
    env = os.environ
    replica = env.get("FLOWDIST_REPLICA", f"worker/{env.get('RANK', '0')}")

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
    """Return the first message of every connection to the agent, which identifies this worker."""
    return {
        "replica": os.environ["FLOWDIST_REPLICA"],
        "attempt": int(os.environ["FLOWDIST_ATTEMPT"]),
        "local_rank": int(os.environ["LOCAL_RANK"]),
    }


class AgentLink:
    """The connection to the agent, opened at its first use. A forked child, such as a DataLoader's, opens its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._pid = 0

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the agent; do nothing if flowdist has not started this process.

        No error is raised if the agent is gone: this worker will be killed in a moment.
        """
        if not is_managed():
            return
        with self._lock:
            try:
                self._connected().sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                self._close()

    def send_now(self, message: dict[str, Any]) -> None:
        """Send a message of a few bytes without waiting.

        It is for code that flowdist runs inside the user's own calls: whatever is wrong, no error is raised. The
        message is lost if the agent is gone or does not read, if another thread uses the connection, or if the script
        has changed the variables that identify this worker.
        """
        if not is_managed() or not self._lock.acquire(blocking=False):
            return
        try:
            self._connected().send(json.dumps(message).encode() + b"\n", socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass  # the agent does not read: nothing of so short a message is queued then
        except (OSError, KeyError, ValueError):
            self._close()
        finally:
            self._lock.release()

    def commit(self, offer: dict[str, Any]) -> bool:
        """Offer a checkpoint, and return whether the controller has accepted it; False if the agent is gone.

        Args:
            offer: The checkpoint's path, step and generation.

        Raises:
            RuntimeError: if another run owns the folder of checkpoints.
            TimeoutError: if there is no answer within COMMIT_TIMEOUT_S.
        """
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
            return False  # the agent is gone, and this worker's generation with it
        content = json.loads(answer)["commit"]
        if content.get("error"):
            raise RuntimeError(f"commit({offer['path']!r}): {content['error']}")
        return bool(content["accepted"])

    def _connected(self) -> socket.socket:
        if self._socket is not None and self._pid == os.getpid():
            return self._socket
        first = json.dumps({"hello": hello()}).encode() + b"\n"
        link = socket.socket(socket.AF_UNIX)
        try:
            link.connect(os.environ["FLOWDIST_SOCKET"])
        except OSError:
            link.close()
            raise
        link.sendall(first)
        self._socket, self._pid = _moved_high(link), os.getpid()
        return self._socket

    def close(self) -> None:
        """Close the connection. The next message opens a new one, for the attempt that the environment names then."""
        with self._lock:
            self._close()

    def renew_after_fork(self) -> None:
        """Forget the connection in a forked child, and make a new lock: a thread of the parent may hold the old one."""
        self._lock, self._socket = threading.Lock(), None

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _moved_high(link: socket.socket) -> socket.socket:
    """Return the connection with a high descriptor: the user's files get the numbers that they have elsewhere."""
    try:
        fd = fcntl.fcntl(link.fileno(), fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    except OSError:
        return link  # `ulimit -n` is lower
    link.close()
    return socket.socket(fileno=fd)


class StopAgreement:
    """This worker's side of the agreement of all ranks on one step at which they stop.

    The worker writes the step that it is about to do into a file, and then looks for the agent's notice. If there is a
    notice, the worker waits until the controller has set the step at which all ranks stop. The agent's side is
    `flowdist.runtime.worker_env.stop_notice`.
    """

    def __init__(self, link: AgentLink) -> None:
        self._link = link
        self._asked: int | None = None  # descriptor of the file for the step, once it is open
        self._stop_at: int | None = None
        self._has_reported = False
        self.is_reached = False  # the last call of should_stop() has returned True

    def reset(self) -> None:
        """Forget the agreement, because this process has become the worker of another attempt."""
        if self._asked is not None:
            os.close(self._asked)
        self._asked = self._stop_at = None
        self._has_reported = self.is_reached = False

    def report_passed(self) -> None:
        """Report to the agent that this worker has passed the agreed step. Further calls do nothing."""
        if not self._has_reported:
            self._has_reported = True
            self._link.send({"left": True})

    def should_stop(self, step: int) -> bool:
        """Return whether this worker has to stop before this step, as `flowdist.worker.should_stop` does.

        If the agent has given notice, this waits for the agreed step. From the call after that step on, the agent gets
        a report that the worker has passed it.
        """
        notice = os.environ.get("FLOWDIST_NOTICE")
        if notice is None:
            return False
        if self._stop_at is None:
            if self._asked is None:
                self._asked = os.open(os.environ["FLOWDIST_ASKED"], os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.pwrite(self._asked, step.to_bytes(8, "little", signed=True), 0)
            if not Path(notice).exists():
                return False
            self._stop_at = self._wait_for_step(Path(notice), step)
        if self._stop_at is not None and step > self._stop_at:
            self.report_passed()
        self.is_reached = self._stop_at is not None and step >= self._stop_at
        if self.is_reached and self._asked is not None:
            os.pwrite(self._asked, b"\1", 8)  # an exit from now on is neither success nor failure
        return self.is_reached

    def _wait_for_step(self, notice: Path, step: int) -> int | None:
        """Return the agreed step once the agent's notice has it, or `step` if that says that there is none.

        It takes one message to the controller and back. None: the notice says neither within STOP_STEP_TIMEOUT_S.
        """
        until = time.monotonic() + STOP_STEP_TIMEOUT_S
        while time.monotonic() < until:
            content = json.loads(notice.read_text())
            if "stop_at" in content:
                return step if content["stop_at"] is None else int(content["stop_at"])
            time.sleep(0.001)
        return None


link = AgentLink()
stop_agreement = StopAgreement(link)
os.register_at_fork(after_in_child=link.renew_after_fork)
