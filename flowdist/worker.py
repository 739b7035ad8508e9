"""What a training script may ask of flowdist, and tell it. Standard library only; all of it is optional.

    from flowdist import worker

    worker.ready()                      # for ready_when="call"
    if worker.should_stop(step):        # true on every rank at one step, when the job has to leave a node
        save_and_exit()
    worker.progress(step)               # resets the row of free incidents, lets faults wait for a step
    path = worker.latest()              # the checkpoint to resume from, or None
    if worker.commit(path, step=step):  # publish a complete checkpoint, unless this generation is over

Without flowdist around, as under plain python or torchrun, every function does the sensible nothing.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

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


def mesh(parallel: Mapping[str, int | str] | None = None, *, backends: Mapping[str, str] | None = None) -> DeviceMesh:
    """The world's ranks by the dimensions that the role declares with `parallel=`; see `flowdist.parallel.mesh`."""
    from flowdist.parallel import mesh as make  # torch: only here

    return make(parallel, backends=backends)


def port(name: str) -> int:
    """The number of one of the role's `ports`, the same for later attempts on this node.

    Raises:
        RuntimeError: if the role has no port of that name, or flowdist is not around.
    """
    variable = f"FLOWDIST_PORT_{name.upper().replace('-', '_')}"
    if variable not in os.environ:
        raise RuntimeError(
            f"no port {name!r}: declare it with ports=[{name!r}] in the topology ({variable} is not set)"
        )
    return int(os.environ[variable])


def checkpoint_dir() -> Path:
    """The folder that all roles of the run share for checkpoints; `checkpoints` where nobody says otherwise."""
    return Path(os.environ.get("FLOWDIST_CHECKPOINT_DIR", "checkpoints"))


def ready() -> None:
    """This worker is ready: for roles with `ready_when="call"`, once all workers of the replica have said so."""
    _link.send({"ready": True})


def progress(step: int) -> None:
    """This worker has done so many steps. Cheap: one small write to a socket."""
    _link.send({"progress": int(step)})


def should_stop(step: int) -> bool:
    """Whether to save and end now, because a node of the world is drained or will be taken away.

    Ask before each step, on every rank, with the number of the step that is to come. The answer turns true at one and
    the same step on every rank, so that a checkpoint taken then is whole; after that it stays true. Asking costs two
    small system calls. Exits after it has turned true are neither success nor failure: whoever is still needed is
    started again elsewhere.

    Args:
        step: The step that would come next; it must not decrease.
    """
    return _stop.ask(int(step))


def peers(role: str, port: str) -> list[str]:
    """The addresses `host:port` of all replicas of a role that this one depends on, in order.

    It follows re-formations: ask again after an error instead of keeping the answer.

    Raises:
        RuntimeError: if the role is no dependency with such a port, or flowdist is not around.
    """
    file = os.environ.get("FLOWDIST_PEERS")
    if file is None:
        raise RuntimeError("peers() needs flowdist: it is the one who knows the addresses (FLOWDIST_PEERS is not set)")
    content: dict[str, list[str]] = json.loads(Path(file).read_text())
    key = f"{role}:{port}"
    if key not in content:
        known = ", ".join(content) or "none"
        raise RuntimeError(f"no addresses for {key}: depend on {role}, which needs ports=[{port!r}] (known: {known})")
    return content[key]


def commit(path: str | os.PathLike[str], *, step: int = 0) -> bool:
    """Publish a complete checkpoint as the latest. False when this worker's generation is over.

    Write the checkpoint under a name of its own first and have it on the disk (`os.fsync`), then commit: after a crash
    at any moment, `latest()` names a checkpoint that was complete and accepted. The controller accepts offers of the
    present generation only, so that a worker that was paused and replaced cannot overwrite its successor's work.
    For a gang one worker commits for all; without a gang each replica has a latest checkpoint of its own.

    Raises:
        TimeoutError: if nobody answers within 30 s; the checkpoint may have been accepted or not.
    """
    path = str(path)
    if not is_managed():
        _publish_alone(path, step)
        return True
    return _link.commit({"path": path, "step": int(step), "generation": info().generation})


def latest() -> Path | None:
    """The checkpoint that was committed last, by whatever attempt; None if there is none."""
    try:
        return Path(json.loads(_pointer().read_text())["path"])
    except FileNotFoundError:
        return None


def _pointer() -> Path:
    return Path(os.environ.get("FLOWDIST_LATEST", checkpoint_dir() / "latest.json"))


def _publish_alone(path: str, step: int) -> None:
    """Without flowdist there is no other generation: the pointer is written here, atomically."""
    pointer = _pointer()
    pointer.parent.mkdir(parents=True, exist_ok=True)
    temporary = pointer.with_name(f".{pointer.name}.{os.getpid()}")
    with temporary.open("w") as file:
        json.dump({"path": path, "step": step, "generation": info().generation}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(pointer)


class _Link:
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
        hello = {
            "replica": os.environ["FLOWDIST_REPLICA"],
            "attempt": int(os.environ["FLOWDIST_ATTEMPT"]),
            "local_rank": int(os.environ["LOCAL_RANK"]),
        }
        link.sendall(json.dumps({"hello": hello}).encode() + b"\n")
        self._socket, self._pid = link, os.getpid()
        return link

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class _Stop:
    """This worker's side of the agreement on a last step: runtime/notice.py is the agent's."""

    def __init__(self) -> None:
        self._asked: int | None = None  # the file, once open
        self._stop_at: int | None = None
        self._has_left = False

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
        if self._stop_at is not None and step > self._stop_at and not self._has_left:
            self._has_left = True
            _link.send({"left": True})
        return self._stop_at is not None and step >= self._stop_at

    def _wait(self, notice: Path, step: int) -> int | None:
        """Until the step is named, which is a message to the controller and back. None if nobody names one."""
        until = time.monotonic() + NAMING_TIMEOUT_S
        while time.monotonic() < until:
            content = json.loads(notice.read_text())
            if "stop_at" in content:
                return step if content["stop_at"] is None else int(content["stop_at"])
            time.sleep(0.001)
        return None


_link = _Link()
_stop = _Stop()


def _renew_after_fork() -> None:
    """A thread of the parent may have held the lock while it forked."""
    global _link
    _link = _Link()


os.register_at_fork(after_in_child=_renew_after_fork)
