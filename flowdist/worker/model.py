"""The interface of a worker that can be simulated and run, `Context`, and the loop that runs such a worker for real.

    class Worker:                        # a task; every method but restore and step may be left out
        def __init__(self, ctx): ...     # a fresh start
        def restore(self): ...           # read the latest checkpoint; return the number of steps that are done
        def step(self, step): ...        # do one step; return this rank's part for the other ranks
        def combine(self, step, parts)   # get the parts of all ranks, in the order of their ranks
        def checkpoint(self, step)       # write this rank's part; no rank waits for another
        def publish(self, step)          # every rank's part is written: commit
        def committed(self, step, accepted)
        def state(self): ...             # a dict of what has to be the same whatever failures there were

`flowdist simulate` runs the class of a role's `simulate=` in virtual time; `run(Worker, ...)` runs the same class in a
worker process, with `flowdist.worker`. Standard library only.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import flowdist.worker.api as worker
from flowdist.worker.agent_link import Info, info
from flowdist.worker.sampling import Samples
from flowdist.worker.save_timer import restoring, saving

if TYPE_CHECKING:
    import random

Exchange = Callable[[Any], list[Any]]
Call = Callable[[str, str, tuple[Any, ...]], Any]


class Store(Protocol):
    """The folder of a role's checkpoints, which all its replicas share. It has no subfolders.

    `rename` is atomic. `write` is not: a worker that dies in it leaves a torn file, and the old content is lost.
    """

    def write(self, name: str, data: bytes) -> None:
        """Write a file, or overwrite it; its content is on the disk when this returns.

        Raises:
            OSError: if the disk is full.
        """

    def read(self, name: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError if there is none."""

    def rename(self, name: str, to: str) -> None:
        """Rename a file, and replace `to` if it exists. Raises FileNotFoundError if there is no such file."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of the files that begin with the prefix, sorted."""


class Context(Protocol):
    """The surroundings of a worker: its identity `info`, its checkpoints `store`, and the calls below."""

    @property
    def info(self) -> Info: ...

    @property
    def store(self) -> Store: ...

    def commit(self, name: str, step: int) -> None:
        """Publish a checkpoint. The worker's method `committed(step, accepted)` is called with the result.

        The checkpoint is accepted unless this worker's generation is over, as when the worker was paused and replaced.

        Args:
            name: The file in the store.
            step: How many steps the checkpoint has.
        """

    def latest(self) -> str | None:
        """Return the name of the checkpoint that was committed last, in whatever attempt; None if there is none."""

    def publish_version(self, version: int) -> None:
        """Report that a version of what this role makes can be fetched: see `flowdist.worker.publish_version`."""

    def acknowledge_version(self, version: int) -> None:
        """Report that this worker uses this version: see `flowdist.worker.acknowledge_version`."""

    def random(self, purpose: str, n: int = 0, *, shared: bool = False) -> random.Random:
        """Return a stream of random numbers, at its beginning. It is the same in every attempt.

        Args:
            purpose: Each purpose has a stream of its own.
            n: Each number, such as that of a step, has a stream of its own.
            shared: Whether all ranks of the role have the same stream; else each rank has its own.
        """

    def consume(self, *samples: object) -> None:
        """Note that this rank uses these samples in this step. A simulation checks that each is used exactly once."""

    def samples(self, dataset_size: int, *, global_batch: int, **options: Any) -> Samples:
        """Return which samples each step uses, with any number of ranks: see `flowdist.worker.samples`."""

    def log(self, **values: object) -> None:
        """Log values of this step, such as its loss. A simulation compares rank 0's with a run without faults."""

    def peers(self, role: str, port: str) -> list[str]:
        """Return the addresses of all replicas of a service that this role depends on, in the order of their numbers.

        Args:
            role: The service.
            port: The name of one of its `ports`.
        """

    def call(self, address: str, method: str, *args: Any) -> Any:
        """Call a method of a service's replica and return its result.

        Args:
            address: An address from `peers`.
            method: The name of the method; in a simulation, of the service's model.
            args: The arguments of the method.

        Raises:
            ConnectionError: if no replica is at the address.
        """


def stream_of(info: Info, seed: int, purpose: str, n: int, shared: bool) -> random.Random:
    """Return the stream of random numbers that `Context.random` returns for this worker.

    The stream depends on the seed, the purpose, `n`, the role in `info` and, unless `shared`, the rank in the role.
    """
    import hashlib  # here, because every worker imports this module, and few need these two
    import random

    entity = info.role if shared else f"{info.role}.{info.role_rank}"
    key = hashlib.blake2b(f"{seed}/{entity}/{purpose}/{n}".encode(), digest_size=16).digest()
    return random.Random(int.from_bytes(key))


class Folder:
    """A `Store` in a folder of a real disk. The folder is made if it does not exist."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, data: bytes) -> None:
        check_data(name, data)
        with self.path(name).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def read(self, name: str) -> bytes:
        return self.path(name).read_bytes()

    def rename(self, name: str, to: str) -> None:
        self.path(name).replace(self.path(to))
        folder = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def remove(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)

    def names(self, prefix: str = "") -> list[str]:
        return sorted(path.name for path in self._path.iterdir() if path.name.startswith(prefix))

    def path(self, name: str) -> Path:
        """Return the path of a file in this folder of checkpoints, whether or not the file exists.

        Raises:
            ValueError: if the name is no plain file name, for example because it has a slash.
        """
        check_name(name)
        return self._path / name


def steps_done(restored: Any, latest: str | None) -> int:
    """Check what a model's `restore()` has returned, and return it as the number of steps that are done.

    Args:
        restored: What `restore()` has returned; None counts as 0 if there is no checkpoint.
        latest: The name of the latest checkpoint; None if there is none.

    Raises:
        TypeError: if `restored` is no whole number, as when `restore()` reads a checkpoint but returns no step.
        ValueError: if `restored` is negative.
    """
    if restored is None and latest is None:
        return 0
    try:
        done = operator.index(restored)
    except TypeError:
        what = f"it returned {restored!r:.80}" + (f" beside the checkpoint {latest!r}" if latest is not None else "")
        raise TypeError(f"restore() has to return how many steps are done; {what}") from None
    if done < 0:
        raise ValueError(f"restore() has to return how many steps are done; it returned {done}")
    return done


def check_data(name: str, data: object) -> None:
    """Raise TypeError if the data are not bytes: an int, for one, would be written as that many zero bytes."""
    if not isinstance(data, bytes | bytearray | memoryview):
        help = "; encode it: text.encode()" if isinstance(data, str) else ""
        raise TypeError(f"write({name!r}, ...) takes bytes, not {type(data).__name__}{help}")


def check_name(name: str) -> None:
    """Raise ValueError if the name is no plain file name: if it is empty, `.` or `..`, or has a slash."""
    if not name or "/" in name or name in (".", ".."):
        raise ValueError(f"{name!r} is no plain file name: checkpoints of a role are in one folder")


class RealContext:
    """`Context` of a real worker process. It uses the functions of `flowdist.worker`, and the user's transport.

    Args:
        call: The transport: `call(address, method, args)` calls a service; None if the worker calls none.
        seed: Seeds `random`.
    """

    def __init__(self, call: Call | None = None, seed: int = 0) -> None:
        self.info = info()
        self.store = Folder(worker.checkpoint_dir() / self.info.role)
        self._call, self._seed = call, seed
        self.model: Any = None  # the user's object whose `committed` is called; set before the first commit

    def commit(self, name: str, step: int) -> None:
        accepted = worker.commit(self.store.path(name), step=step)
        tell_committed(self.model, step, accepted)

    def latest(self) -> str | None:
        path = worker.latest()
        return path.name if path is not None else None

    def publish_version(self, version: int) -> None:
        worker.publish_version(version)

    def acknowledge_version(self, version: int) -> None:
        worker.acknowledge_version(version)

    def random(self, purpose: str, n: int = 0, *, shared: bool = False) -> random.Random:
        return stream_of(self.info, self._seed, purpose, n, shared)

    def consume(self, *samples: object) -> None:
        pass  # checked in simulations only

    def samples(self, dataset_size: int, *, global_batch: int, **options: Any) -> Samples:
        return Samples(dataset_size, global_batch=global_batch, **options)

    def log(self, **values: object) -> None:
        worker.log(**values)

    def peers(self, role: str, port: str) -> list[str]:
        return worker.peers(role, port)

    def call(self, address: str, method: str, *args: Any) -> Any:
        if self._call is None:
            raise RuntimeError(f"call({address!r}, ...) needs a transport: run(..., call=my_call)")
        return self._call(address, method, args)


def tell_committed(model: Any, step: int, accepted: bool) -> None:
    """Call `committed(step, accepted)` of the model, if the model has that method."""
    if hasattr(model, "committed"):
        model.committed(step, accepted)


def alone(part: Any) -> list[Any]:
    """Return a list of `part` alone: the exchange of parts in a world of one worker."""
    return [part]


def run(
    model: Callable[[Context], Any],
    *,
    steps: int,
    checkpoint_every: int,
    exchange: Exchange | None = None,
    call: Call | None = None,
    seed: int = 0,
) -> Any:
    """Run the class of a task in this worker: restore, then do steps, with a checkpoint every few of them.

    If the job has to leave a node, the loop ends early, after a checkpoint.

    Args:
        model: The class of the task, whose methods are described in `flowdist.worker.model`.
        steps: How many steps the task has.
        checkpoint_every: How many steps there are between two checkpoints.
        exchange: Returns what every rank has passed, in the order of the ranks, once all have called it; for example
            a function around `torch.distributed.all_gather_object`. A world of one worker needs none.
        call: `call(address, method, args)` calls a service; None if the worker calls none.
        seed: Seeds `ctx.random`.

    Returns:
        The object that was made of the class, after its last step.

    Raises:
        RuntimeError: if a world of several workers has no exchange, or if its ranks resume from different steps.
    """
    ctx = RealContext(call, seed)
    if exchange is None:
        if ctx.info.world_size > 1:
            raise RuntimeError(f"a world of {ctx.info.world_size} workers needs run(..., exchange=...)")
        exchange = alone
    ctx.model = it = model(ctx)
    with restoring():
        step = steps_done(it.restore(), ctx.latest())
    starts = exchange(step)
    if len(set(starts)) > 1:
        raise RuntimeError(f"the ranks resume from different steps: {', '.join(map(str, starts))}")
    while step < steps:
        if worker.should_stop(step):
            _save(it, step, exchange)
            break
        parts = exchange(it.step(step))
        if hasattr(it, "combine"):
            it.combine(step, parts)
        step += 1
        worker.progress(step)
        if step % checkpoint_every == 0:
            _save(it, step, exchange)
    return it


def _save(it: Any, step: int, exchange: Exchange) -> None:
    """Have the model write this rank's part of a checkpoint, wait for all ranks, and have the model publish it."""
    with saving():
        if hasattr(it, "checkpoint"):
            it.checkpoint(step)
        exchange(None)  # returns when every rank's part is written
        if hasattr(it, "publish"):
            it.publish(step)
