"""What a training script may ask of flowdist, and tell it. Standard library only; all of it is optional.

    from flowdist import worker

    worker.ready()                      # for ready_when="call"
    if worker.should_stop(step):        # true on every rank at one step, when the job has to leave a node
        save_and_exit()
    worker.progress(step)               # resets the row of free incidents, lets faults wait for a step
    path = worker.latest()              # the checkpoint to resume from, or None
    if worker.commit(path, step=step):  # publish a complete checkpoint, unless this generation is over
    worker.elastic(train, state)        # survive re-formations in this process: see flowdist/elastic.py

Without flowdist around, as under plain python or torchrun, every function does the sensible nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flowdist.worker.agent_link import Info, info, is_managed, link, stop
from flowdist.worker.elastic_state import ElasticState
from flowdist.worker.elastic_training import elastic

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = [
    "ElasticState",
    "Info",
    "backend",
    "checkpoint_dir",
    "commit",
    "elastic",
    "info",
    "is_managed",
    "latest",
    "mesh",
    "peers",
    "port",
    "progress",
    "ready",
    "should_stop",
]


def mesh(parallel: Mapping[str, int | str] | None = None, *, backends: Mapping[str, str] | None = None) -> DeviceMesh:
    """The world's ranks by the dimensions that the role declares with `parallel=`: see `device_mesh.mesh`."""
    from flowdist.worker.device_mesh import mesh as make  # torch: only here

    return make(parallel, backends=backends)


def backend() -> str:
    """The backend for `torch.distributed.init_process_group`: "nccl" when each worker has a GPU to itself, else "gloo".

    NCCL refuses two ranks on one GPU: workers that share one, by `gpu=0.5` or more procs than devices, get gloo.
    """
    from flowdist.worker.device_mesh import backend as choose  # torch: only here

    return choose()


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
    link.send({"ready": True})


def progress(step: int) -> None:
    """This worker has done so many steps. Cheap: one small write to a socket."""
    link.send({"progress": int(step)})


def should_stop(step: int) -> bool:
    """Whether to save and end now, because a node of the world is drained or will be taken away.

    Ask before each step, on every rank, with the number of the step that is to come. The answer turns true at one and
    the same step on every rank, so that a checkpoint taken then is whole; after that it stays true. Asking costs two
    small system calls. Exits after it has turned true are neither success nor failure: whoever is still needed is
    started again elsewhere.

    Args:
        step: The step that would come next; it must not decrease.
    """
    return stop.ask(int(step))


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

    Args:
        path: The file or folder; a relative one counts from the current folder, and is kept as an absolute one.
        step: The step whose state it is.

    Raises:
        FileNotFoundError: if nothing is there: whoever resumed from it would find nothing.
        TimeoutError: if nobody answers within 30 s; the checkpoint may have been accepted or not.
    """
    path = str(Path(path).absolute())
    if not Path(path).exists():
        raise FileNotFoundError(f"commit({path!r}): there is no such file or folder; write the checkpoint first")
    if not is_managed():
        _publish_alone(path, step)
        return True
    return link.commit({"path": path, "step": int(step), "generation": info().generation})


def latest(of: str | None = None) -> Path | None:
    """The checkpoint that was committed last, by whatever attempt; None if there is none.

    Args:
        of: Whose: `"trainer"`, as an evaluator asks; `"ps/0"` of a role without gang. Without it, this worker's own.
    """
    # alone there is one pointer for whoever runs
    pointer = _pointer() if of is None or not is_managed() else checkpoint_dir() / of / "latest.json"
    try:
        return Path(json.loads(pointer.read_text())["path"])
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
