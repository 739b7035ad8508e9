"""The workers of user code in a simulation: the context that each model gets, and the state of worlds and services."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.events import Sampling
from flowdist.sim.user_code import answers
from flowdist.sim.user_code.answers import copied, sample_of
from flowdist.sim.user_code.checkpoints import Disk, Operation, View
from flowdist.sim.user_code.workload import WorldModel
from flowdist.worker import Info, model
from flowdist.worker.api import version_of
from flowdist.worker.model import stream_of
from flowdist.worker.sampling import Samples

OURS = (__file__, answers.__file__, model.__file__)  # frames of these files are left out at the top of tracebacks


class Raised(NamedTuple):
    """An exception of user code, as values."""

    code: int  # the exit code of the worker: 1, or what `SystemExit` says
    line: str  # the last line of the traceback: type and message
    text: str  # the traceback, without frames of flowdist at its top; empty for SystemExit
    place: str = ""  # file, line and method in the user's file (for a wrong return value its first line), or empty

    @property
    def placed(self) -> str:
        """The line, followed by the place if it is known: `ValueError: no, at model.py:12 in step()`."""
        return f"{self.line}, at {self.place}" if self.place else self.line


class Surroundings(Protocol):
    """The rest of the job, as user code sees it through `models.UserCode`; `latest` are checkpoints by world."""

    disk: Disk
    latest: dict[str, str]

    def offer_soon(self, worker: ModelWorker, operation: Operation) -> None: ...
    def tell(self, worker: ModelWorker, event: io.WorkerInput) -> None: ...
    def addresses(self, caller: str, role: str, port: str) -> list[str]: ...
    def call(self, address: str, method: str, args: tuple[Any, ...]) -> Any: ...


class ModelWorker:
    """One simulated worker, and the `ctx` that its model gets: see `flowdist.worker.model.Context`."""

    def __init__(self, code: Surroundings, start: StartReplica, local_rank: int, seed: int) -> None:
        self._code, self.start, self.local_rank, self._seed = code, start, local_rank, seed
        self.replica, self.attempt, self.world = start.replica, start.attempt, start.world
        self.info = Info(
            role=start.replica.role,
            replica=str(start.replica),
            replica_index=start.replica.index,
            rank=start.rank + local_rank,
            world_size=start.world_size,
            local_rank=local_rank,
            role_rank=start.role_rank + local_rank,
            role_world_size=start.role_world_size,
            generation=start.generation,
            attempt=start.attempt,
            run_id="simulated",
            source_rank=start.source_rank,
        )
        self.store = View(code.disk, start.replica)
        self.model: Any = None
        self.consumed: list[object] = []  # passed to `consume` in the present step
        self.logged: dict[str, object] = {}  # passed to `log` in the present step

    def make(self, model: Callable[[Any], Any]) -> None:
        """Make the worker's model: call the user's class with this object as its `ctx`."""
        self.model = model(self)

    def commit(self, name: str, step: int) -> None:
        """Add the commit to the checkpoint that is being recorded, or pass it to the agent if none is."""
        operation = Operation("commit", name, int(step))
        if self.store.records is not None:
            self.store.records.append(operation)
        else:
            self._code.offer_soon(self, operation)

    def latest(self) -> str | None:
        """Return the name of the checkpoint of this world that was accepted last; None if there is none."""
        return self._code.latest.get(self.world)

    def publish_version(self, version: int) -> None:
        """Report that a version of what this role makes can be fetched (R23)."""
        number = version_of("publish_version", version)
        self._code.tell(self, io.WorkerPublished(self.replica, self.attempt, self.local_rank, number))

    def acknowledge_version(self, version: int) -> None:
        """Report that this worker uses a version of the role that its own role needs (R23)."""
        number = version_of("acknowledge_version", version)
        self._code.tell(self, io.WorkerAcknowledged(self.replica, self.attempt, self.local_rank, number))

    def random(self, purpose: str, n: int = 0, *, shared: bool = False) -> random.Random:
        """Return a stream of random numbers, the same in every attempt: see `Context.random`."""
        return stream_of(self.info, self._seed, purpose, n, shared)

    def samples(self, dataset_size: int, *, global_batch: int, **options: Any) -> Samples:
        """Return which samples each step uses; the controller hears of it as in a real run (R25)."""
        return _Samples(self, dataset_size, global_batch=global_batch, **options)

    def tell_sampling(self, begin: int, rank: int, ranks: int, **rule: Any) -> None:
        """Report from which step on this worker takes its share of the samples, and by which rule."""
        who = (self.replica, self.attempt, self.local_rank)
        self._code.tell(self, io.WorkerSampling(*who, begin, rank, ranks, Sampling(**rule)))

    def consume(self, *samples: object) -> None:
        """Note that this rank uses these samples in the present step; TypeError for one that is not hashable."""
        self.consumed.extend(map(sample_of, samples))

    def log(self, **values: object) -> None:
        """Note copies of these values as logged in the present step; a name that is logged again is replaced."""
        self.logged |= {name: copied(value) for name, value in values.items()}  # as the model may change its arrays

    def peers(self, role: str, port: str) -> list[str]:
        """Return the addresses, for `call`, of all replicas of the role with a node; RuntimeError as `worker.peers`."""
        return self._code.addresses(self.info.role, role, port)

    def call(self, address: str, method: str, *args: Any) -> Any:
        """Call a method of a service's model with copies, and return a copy; ConnectionError if that fails."""
        return copied(self._code.call(address, method, copied(args)))


class _Samples(Samples):
    """The samples of a simulated worker, which reports to the agent of its node."""

    def __init__(self, worker: ModelWorker, dataset_size: int, *, global_batch: int, **options: Any) -> None:
        self._worker = worker
        super().__init__(dataset_size, global_batch=global_batch, **options)

    def _who(self) -> Info:
        return self._worker.info

    def _tell(self, sampling: dict[str, Any]) -> None:
        self._worker.tell_sampling(**sampling)


@dataclass(slots=True)
class Playing:
    """State of the user code of one generation of a world."""

    world: str
    model: WorldModel
    workers: list[ModelWorker]  # in the order of their ranks
    done: int = 0  # steps of the task that are played, or were done before this generation
    has_failed: bool = False  # a model has raised, and none is called any more
    busy: int = 0  # ranks that still write their part of the present checkpoint
    saving: int = 0  # the step of that checkpoint
    unsaved: int = -1  # the step of the last checkpoint that a full disk refused; -1: none
    pump: int = 0  # the number of the scheduled step: entries of the queue with a lower number do nothing


@dataclass(slots=True)
class Serving:
    """State of the user code of one attempt of a service's replica."""

    worker: ModelWorker
    is_there: bool = True  # its processes run, so that it can be called
    has_failed: bool = False  # the model has raised in `restore`, `checkpoint` or `publish`; it is not called for them
    saves: int = 0  # checkpoints that it has begun
    unsaved: int = -1  # not set for services: each checkpoint that a full disk refuses is noted


def attempt(function: Callable[..., Any], *args: Any) -> Any | Raised:
    """Call user code, and return what it returns, or a `Raised` for an exception of type `Exception` or SystemExit."""
    try:
        return function(*args)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return Raised(code, f"SystemExit: {error.code}", "")
    except Exception as error:
        told = traceback.TracebackException.from_exception(error)
        while told.stack and told.stack[0].filename in OURS:
            del told.stack[0]
        place = _place(told.stack) or _blamed(function, args)
        return Raised(1, list(told.format_exception_only())[-1].strip(), "".join(told.format()), place)


def _place(stack: traceback.StackSummary) -> str:
    """Return `file:line in method()` of the innermost frame in the user's file, that of the first frame, or ""."""
    own = [frame for frame in stack if frame.filename == stack[0].filename]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}()" if own else ""


def _blamed(check: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """Return `file:line in method()` of the method of `args[0]` that has returned what the check refuses, or ""."""
    method = next((name for each, name in answers.CHECKED if each is check), "")
    code = getattr(getattr(args[0], method, None), "__code__", None) if method else None
    return f"{Path(code.co_filename).name}:{code.co_firstlineno} in {method}()" if code is not None else ""
