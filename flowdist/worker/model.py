"""What a worker is written against that can be simulated and run: `Context`, and the loop that runs it for real.

    class Worker:                        # a task; every method but restore and step may be left out
        def __init__(self, ctx): ...     # a fresh start
        def restore(self): ...           # read the latest checkpoint; returns the number of steps that are done
        def step(self, step): ...        # do one; returns what the other ranks are to have of it
        def combine(self, step, parts)   # what all ranks have returned, in the order of their ranks
        def checkpoint(self, step)       # write this rank's part; no rank waits for another
        def publish(self, step)          # every rank's part is written: commit
        def committed(self, step, accepted)
        def state(self): ...             # a dict: what has to be the same whatever happened on the way

`flowdist simulate` runs the class of a role's `simulate=` in virtual time; `run(Worker, ...)` runs the same class in a
worker process, with `flowdist.worker`. Standard library only.
"""

from __future__ import annotations

import hashlib
import operator
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from flowdist.worker import api as worker
from flowdist.worker.agent_link import Info

Exchange = Callable[[Any], list[Any]]
Call = Callable[[str, str, tuple[Any, ...]], Any]


class Store(Protocol):
    """The folder of a role's checkpoints, which all its replicas share.

    `write` is not atomic: whoever dies in it leaves a torn file, and what was there before is gone. `rename` is.
    """

    def write(self, name: str, data: bytes) -> None:
        """On the disk when it returns. OSError when the disk is full."""

    def read(self, name: str) -> bytes:
        """FileNotFoundError when there is no such file."""

    def rename(self, name: str, to: str) -> None:
        """Replaces `to`. FileNotFoundError when there is no such file."""

    def remove(self, name: str) -> None:
        """Nothing when there is no such file."""

    def names(self, prefix: str = "") -> list[str]:
        """Sorted."""


class Context(Protocol):
    """What a worker asks, and tells. `info` says who it is: its ranks, sizes, generation and attempt."""

    @property
    def info(self) -> Info: ...

    @property
    def store(self) -> Store: ...

    def commit(self, name: str, step: int) -> None:
        """Publish a checkpoint of so many steps; `committed(step, accepted)` hears whether it is the latest now.

        It is not when this worker's generation is over, as of one that was paused and replaced.
        """

    def latest(self) -> str | None:
        """The name that was committed last, by whatever attempt; None when there is none."""

    def random(self, purpose: str, n: int = 0, *, shared: bool = False) -> random.Random:
        """A stream of its own for each rank, purpose and number, from its beginning; the same in every attempt.

        Args:
            shared: The same on all ranks of the role.
        """

    def consume(self, *samples: object) -> None:
        """This rank uses these samples in this step. A simulation checks that each is used exactly once."""

    def log(self, **values: object) -> None:
        """Something of this step, such as its loss. What rank 0 logs is compared with a run without faults."""

    def peers(self, role: str, port: str) -> list[str]:
        """The addresses of all replicas of a service that this role depends on, in order."""

    def call(self, address: str, method: str, *args: Any) -> Any:
        """Push to, or pull from, that replica: a method of its model. ConnectionError when it is not there."""


def stream_of(info: Info, seed: int, purpose: str, n: int, shared: bool) -> random.Random:
    """Numbers that depend on these alone; of `info` on the role and the rank in it, or on the role."""
    entity = info.role if shared else f"{info.role}.{info.role_rank}"
    key = hashlib.blake2b(f"{seed}/{entity}/{purpose}/{n}".encode(), digest_size=16).digest()
    return random.Random(int.from_bytes(key))


class Folder:
    """A store on a real disk."""

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
        """ValueError for a name with a slash: the simulated store has no folders either."""
        check_name(name)
        return self._path / name


def steps_done(restored: Any, latest: str | None) -> int:
    """What `restore()` has returned: how many steps are done. None is 0, where there is no checkpoint.

    TypeError for what is no number, as of a method that reads a checkpoint and forgets to return its step.
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
    """TypeError for what are no bytes: `bytes(5)` would be five of them."""
    if not isinstance(data, bytes | bytearray | memoryview):
        help = "; encode it: text.encode()" if isinstance(data, str) else ""
        raise TypeError(f"write({name!r}, ...) takes bytes, not {type(data).__name__}{help}")


def check_name(name: str) -> None:
    """ValueError for what is no plain file name."""
    if not name or "/" in name or name in (".", ".."):
        raise ValueError(f"{name!r} is no plain file name: checkpoints of a role are in one folder")


class RealContext:
    """A worker process's context: `flowdist.worker`, and the user's transport.

    Args:
        call: How a service is called; None: there is none.
        seed: Of `random`.
    """

    def __init__(self, call: Call | None = None, seed: int = 0) -> None:
        self.info = worker.info()
        self.store = Folder(worker.checkpoint_dir() / self.info.role)
        self._call, self._seed = call, seed
        self.model: Any = None  # hears whether its checkpoints were accepted

    def commit(self, name: str, step: int) -> None:
        accepted = worker.commit(self.store.path(name), step=step)
        tell_committed(self.model, step, accepted)

    def latest(self) -> str | None:
        path = worker.latest()
        return path.name if path is not None else None

    def random(self, purpose: str, n: int = 0, *, shared: bool = False) -> random.Random:
        return stream_of(self.info, self._seed, purpose, n, shared)

    def consume(self, *samples: object) -> None:
        pass  # there is no run without faults to compare with

    def log(self, **values: object) -> None:
        pass

    def peers(self, role: str, port: str) -> list[str]:
        return worker.peers(role, port)

    def call(self, address: str, method: str, *args: Any) -> Any:
        if self._call is None:
            raise RuntimeError(f"call({address!r}, ...) needs a transport: run(..., call=my_call)")
        return self._call(address, method, args)


def tell_committed(model: Any, step: int, accepted: bool) -> None:
    """If it wants to know."""
    if hasattr(model, "committed"):
        model.committed(step, accepted)


def alone(part: Any) -> list[Any]:
    """The exchange of a world of one."""
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
    """Run the class of a task as this worker: restore, step, checkpoint, stop where the job has to leave a node.

    Args:
        steps: Until it is done.
        checkpoint_every: Steps between checkpoints.
        exchange: Gives what every rank has passed, in the order of the ranks, and so makes them wait for each other:
            `torch.distributed.all_gather_object`, for one. A world of one worker needs none.
        call: `call(address, method, args)`, how a service is called.
        seed: Of `ctx.random`.

    Returns:
        The worker, after its last step.

    Raises:
        RuntimeError: without an exchange in a world of several workers; when ranks resume from different steps.
    """
    ctx = RealContext(call, seed)
    if exchange is None:
        if ctx.info.world_size > 1:
            raise RuntimeError(f"a world of {ctx.info.world_size} workers needs run(..., exchange=...)")
        exchange = alone
    ctx.model = it = model(ctx)
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
    if hasattr(it, "checkpoint"):
        it.checkpoint(step)
    exchange(None)  # every rank's part is written
    if hasattr(it, "publish"):
        it.publish(step)
