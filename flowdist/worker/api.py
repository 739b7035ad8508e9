"""The functions of `flowdist.worker` that report to flowdist and ask it. Standard library only.

A script may use any of them or none. Without flowdist, as under plain python or torchrun, reports go nowhere and
questions are answered for this process alone; `port` and `peers` have no answer and raise.
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flowdist.worker.agent_link import info, is_managed, link, stop_agreement
from flowdist.worker.save_timer import save_timer
from flowdist.worker.snapshots.vault_link import has_vault, named_snapshot
from flowdist.worker.step_counter import step_counter

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from flowdist.worker.snapshots.dcp import MemoryReader, MemoryWriter

ROLES = "roles"  # among the addresses of peers, whose names have a colon: the names of all roles
VERSION_MAX = 1 << 62  # of what a role publishes: as in `control.protocol.ids`, which workers do not import


def mesh(parallel: Mapping[str, int | str] | None = None, *, backends: Mapping[str, str] | None = None) -> DeviceMesh:
    """Return torch's DeviceMesh over the ranks of the world, by the dimensions that the role declares with `parallel=`.

    The process group is initialised if that has not been done: with NCCL if each worker has a GPU of its own, else with
    gloo. Calls in one generation return the same mesh.

    Args:
        parallel: The dimensions where the role declares none, as under torchrun: `{"dp": "elastic", "tp": 2}`.
        backends: Backends of single dimensions: `{"pp": "gloo"}`. The others use the backend of the world.

    Returns:
        A mesh with the sizes of this generation; `mesh["tp"]` is one dimension of it.

    Raises:
        RuntimeError: if there are no dimensions, if the world's size does not fit them, or if this torch supports no
            backend per dimension.
    """
    from flowdist.worker.device_mesh import mesh as make  # imports torch

    return make(parallel, backends=backends)


def backend() -> str:
    """Return the backend for `torch.distributed.init_process_group`.

    It is "nccl" if each worker has a GPU to itself, else "gloo": NCCL refuses two ranks on one GPU, which workers share
    by `gpu=0.5`, or by more procs than devices.
    """
    from flowdist.worker.device_mesh import backend as choose  # imports torch

    return choose()


def memory_writer(step: int) -> MemoryWriter:
    """Return a storage for `torch.distributed.checkpoint`, which saves to the memory of nodes instead of a disk::

        dcp.save(state, storage_writer=worker.memory_writer(step))

    A world of any size can load what was saved so. For the rest, see `snapshot`. If a rank has no room, `dcp.save`
    returns even so, and the step cannot be loaded. Without flowdist, or without a vault, nothing is saved.

    Args:
        step: How many steps are done, as for `progress`.
    """
    from flowdist.worker.snapshots.dcp import MemoryWriter  # imports torch

    return MemoryWriter(step)


def memory_reader() -> MemoryReader | None:
    """Return a storage for `torch.distributed.checkpoint` with the snapshot from which this generation goes on::

        reader = worker.memory_reader()
        if reader is not None:
            dcp.load(state, storage_reader=reader)
            step = reader.step

    None means that training goes on from a checkpoint, or begins: ask `latest()`. `dcp.load` raises an error if nobody
    has a good copy of a part that it needs, or the snapshot was taken by `snapshot`.
    """
    found = named_snapshot()
    if found is None:
        return None
    from flowdist.worker.snapshots.dcp import MemoryReader  # imports torch

    return MemoryReader(found)


def port(name: str) -> int:
    """Return the number of the role's port with this name. Later attempts of the replica on this node have the same.

    Raises:
        RuntimeError: if the role has no port of that name, or flowdist has not started this process.
    """
    variable = f"FLOWDIST_PORT_{name.upper().replace('-', '_')}"
    if variable not in os.environ:
        raise RuntimeError(
            f"no port {name!r}: declare it with ports=[{name!r}] in the topology ({variable} is not set)"
        )
    return int(os.environ[variable])


def checkpoint_dir() -> Path:
    """Return the folder for checkpoints, which all roles of the run share.

    Without flowdist it is `checkpoints` in the current folder. The folder may not exist yet then.
    """
    return Path(os.environ.get("FLOWDIST_CHECKPOINT_DIR", "checkpoints"))


def ready() -> None:
    """Report that this worker is ready, for a role with `ready_when="call"`.

    The replica is ready once all its workers have called this. Without flowdist the call does nothing.
    """
    link.send({"ready": True})


def publish_version(version: int) -> None:
    """Report that a version of what this role makes can be fetched, such as new weights (rule R23).

    First write the weights where others fetch them, then publish. The last published number is the one by which roles
    with `versions=` on this one measure how old their own is. Within a generation a number that is not higher changes
    nothing; after a restart from a checkpoint a lower one may be published again. One worker may publish for its whole
    role. A report is one small write to a socket; of many in a short time only the newest is used. If no role needs
    versions of this one, and without flowdist, the call does nothing.

    Args:
        version: A number that grows, such as the step whose weights these are.

    Raises:
        ValueError: if the version is negative or larger than 2**62.
        TypeError: if it is no whole number.
    """
    link.send({"published": version_of("publish_version", version)})


def acknowledge_version(version: int) -> None:
    """Report that this worker has received this version and uses it from now on (rule R23).

    Call this after the weights are in place: in each attempt anew, and for each newer version. A replica of a role with
    `versions=learner.version(max_staleness=2)` is ready once all its workers have acknowledged a version that the
    learner has published, and that is at most 2 lower than the last published one. Without `versions=`, and without
    flowdist, the call does nothing.

    Args:
        version: The number that the other role has published.

    Raises:
        ValueError: if the version is negative or larger than 2**62.
        TypeError: if it is no whole number.
    """
    link.send({"acknowledged": version_of("acknowledge_version", version)})


def version_of(function: str, version: int) -> int:
    """Return the version as an int. Raises TypeError or ValueError if it is no number that flowdist takes."""
    if isinstance(version, bool):
        raise TypeError(f"{function}({version}): a version is a whole number")
    try:
        number = operator.index(version)
    except TypeError:
        raise TypeError(f"{function}({version!r}): a version is a whole number") from None
    if not 0 <= number <= VERSION_MAX:
        raise ValueError(f"{function}({number}): a version is between 0 and 2**62")
    return number


def progress(step: int) -> None:
    """Report that this worker has done `step` steps.

    Faults can wait for a step, `hang_after` finds a worker whose steps stop (R15), and progress between changes of
    membership shows that the job does not merely re-form (R8). The first report of a generation shows that it has
    recovered. A report is one small write to a socket. Without flowdist the call does nothing.

    flowdist counts the optimizer steps of scripts that do not call this, where it can: see docs/worker.md.

    Args:
        step: How many steps this worker has done, those before its last restart included.
    """
    step_counter.stop()
    link.send({"progress": int(step)})


def log(**values: object) -> None:
    """Note values of a step, such as its loss, for `flowdist prove`, which compares them with a run without faults.

    It is for scripts whose loss is no tensor on which `backward()` is called. Otherwise the call does nothing.
    """


def should_stop(step: int) -> bool:
    """Return whether to save and end now, because a node of the world is drained or will be taken away.

    Call this before each step, on every rank. The answer turns true at one and the same step on every rank, so that a
    checkpoint saved then is consistent, and stays true. An exit afterwards counts as neither success nor failure; a
    worker that is still needed is started again elsewhere. A call costs two small system calls. When a node has to be
    left, one call waits until the step is agreed, for a few milliseconds. Without flowdist the answer is false.

    Args:
        step: The number of the step that would come next; it must not decrease.
    """
    return stop_agreement.should_stop(int(step))


def peers(role: str, port: str) -> list[str]:
    """Return the addresses `host:port` of all replicas of a role that this one depends on, in their order.

    The addresses change with re-formations: call this again after a connection error instead of keeping the list.

    Args:
        role: The role.
        port: The name of one of its `ports`.

    Raises:
        RuntimeError: if this role depends on no such role with such a port, or flowdist has not started this process.
    """
    file = os.environ.get("FLOWDIST_PEERS")
    if file is None:
        raise RuntimeError("peers() needs flowdist, which knows the addresses (FLOWDIST_PEERS is not set)")
    content: dict[str, list[str]] = json.loads(Path(file).read_text())
    return peers_among(content, role, port)


def peers_among(known: Mapping[str, list[str]], role: str, port: str) -> list[str]:
    """Return the addresses of a role at a port; the simulator calls this too, so that it raises the same error.

    Args:
        known: The addresses of all roles that the caller depends on, by `role:port`.
        role: The role.
        port: The name of one of its `ports`.

    Raises:
        RuntimeError: if there is no such role with such a port.
    """
    key = f"{role}:{port}"
    if key not in known:
        names = ", ".join(name for name in known if name != ROLES) or "none"
        raise RuntimeError(f"no addresses for {key}: depend on {role}, which needs ports=[{port!r}] (known: {names})")
    return known[key]


def commit(path: str | os.PathLike[str], *, step: int | None = None) -> bool:
    """Publish a complete checkpoint as the latest one.

    First write the checkpoint under a name of its own and force it to the disk (`os.fsync`), then commit. After a crash
    at any moment, `latest()` names a checkpoint that was complete and accepted. The controller accepts checkpoints of
    the present generation only: a worker that was paused and replaced cannot overwrite the work of its successor. For a
    gang one worker commits for all; without a gang each replica has a latest checkpoint of its own.

    Args:
        path: The file or folder of the checkpoint. A relative path starts at the current folder.
        step: The step whose state the checkpoint has; None: not known, which counts as 0. A role with `snapshots=`
            has to say it: of the two, a restart takes what is further.

    Returns:
        True if the checkpoint is the latest one now; False if this worker's generation is over. Without flowdist, True.

    Raises:
        ValueError: if the path is empty, or the step is missing where the role has snapshots in memory.
        FileNotFoundError: if there is no such file or folder, from which a worker could resume.
        RuntimeError: if another run owns the folder of checkpoints; see docs/resume.md.
        TimeoutError: if there is no answer within 30 s; the checkpoint may have been accepted or not.
    """
    if not os.fspath(path):
        raise ValueError("commit(''): the path of the checkpoint is empty; name the file or folder that was written")
    path = str(Path(path).absolute())
    if not Path(path).exists():
        raise FileNotFoundError(f"commit({path!r}): there is no such file or folder; write the checkpoint first")
    if step is None and has_vault():
        raise ValueError(
            f"commit({path!r}): this role has snapshots= in memory, and a restart goes on from what is further: "
            "say which step the checkpoint has, as in commit(path, step=step)"
        )
    step = int(step or 0)
    if not is_managed():
        _publish_alone(path, step)
        return True
    with save_timer.block("saving"):
        return link.commit({"path": path, "step": step, "generation": info().generation})


def latest(of: str | None = None) -> Path | None:
    """Return the path of the checkpoint that was committed last, in whatever attempt; None if there is none.

    Args:
        of: The role, `"trainer"`, or the replica of a role without gang, `"ps/0"`, whose checkpoint is wanted, as by an
            evaluator. None: this worker's own. Without flowdist `of` is ignored: all checkpoints are this worker's.

    Raises:
        RuntimeError: if the file that names the checkpoint is damaged. There may be a checkpoint then, so that to begin
            anew would lose it. Or if the job has no such role.
    """
    pointer = _pointer() if of is None or not is_managed() else checkpoint_dir() / of / "latest.json"
    try:
        named = json.loads(pointer.read_text(encoding="utf-8"))["path"]
    except FileNotFoundError:
        if of is not None and is_managed():
            _check_role(of)
        return None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise _damaged(pointer, f"{type(error).__name__}: {error}") from None
    if not isinstance(named, str) or not named:
        raise _damaged(pointer, "it names no path")
    return Path(named)


def _check_role(of: str) -> None:
    """Raise RuntimeError if the job has no role of this name, or of this replica."""
    file = os.environ.get("FLOWDIST_PEERS", "")
    roles: list[str] = json.loads(Path(file).read_text()).get(ROLES, []) if file else []
    if roles and of.partition("/")[0] not in roles:
        raise RuntimeError(f"latest({of!r}): there is no such role; the job has {', '.join(roles)}")


def _damaged(pointer: Path, why: str) -> RuntimeError:
    help = 'write {"path": "the path of the newest checkpoint"} into it; without the file, training begins anew'
    return RuntimeError(f"{pointer} is damaged, so that the latest checkpoint is not known ({why}); {help}")


def _pointer() -> Path:
    """Return the path of `latest.json`, the file that names the latest checkpoint of this worker."""
    return Path(os.environ.get("FLOWDIST_LATEST", checkpoint_dir() / "latest.json"))


def _publish_alone(path: str, step: int) -> None:
    """Write the file that names the latest checkpoint, atomically, as the agent does it under flowdist.

    Without flowdist no other generation can be there, so that no permission is needed.
    """
    pointer = _pointer()
    pointer.parent.mkdir(parents=True, exist_ok=True)
    temporary = pointer.with_name(f".{pointer.name}.{os.getpid()}")
    with temporary.open("w") as file:
        json.dump({"path": path, "step": step, "generation": info().generation}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(pointer)
