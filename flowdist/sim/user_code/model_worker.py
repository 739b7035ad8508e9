"""The workers of user code in a simulation: the context that each gets, in virtual time, and groups of them."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from flowdist.control.protocol.effects import StartReplica
from flowdist.sim.user_code import answers
from flowdist.sim.user_code.answers import copied, sample_of
from flowdist.sim.user_code.checkpoints import Disk, Operation, View
from flowdist.sim.user_code.workload import WorldModel
from flowdist.worker import Info
from flowdist.worker.model import stream_of

OURS = (__file__, answers.__file__)  # frames that are left out of tracebacks


class Raised(NamedTuple):
    """The exception that ended user code.

    `line` is the last line of its traceback, `place` where it is in the user's file.
    """

    code: int
    line: str
    text: str
    place: str = ""


class Surroundings(Protocol):
    """The rest of the job, as far as a worker of user code can see it."""

    disk: Disk
    latest: dict[str, str]

    def offer_soon(self, worker: ModelWorker, operation: Operation) -> None:
        """Offer a commit that user code made outside of a checkpoint."""

    def addresses(self, role: str, port: str) -> list[str]:
        """Return an address such as `ps/0:store`, for `call`, for each replica of the role that is on a node, by
        index.

        `port` is the name of a port, and is not checked.
        """

    def call(self, address: str, method: str, args: tuple[Any, ...]) -> Any:
        """Call a method of the model of a service, and return what it returns."""


class ModelWorker:
    """A worker, and the `ctx` that its model gets: see `flowdist.worker.model.Context`."""

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
        self.samples: list[object] = []  # of the step that it is in
        self.logged: dict[str, object] = {}

    def make(self, model: Callable[[Any], Any]) -> None:
        self.model = model(self)

    def commit(self, name: str, step: int) -> None:
        operation = Operation("commit", name, int(step))
        if self.store.records is not None:
            self.store.records.append(operation)
        else:
            self._code.offer_soon(self, operation)

    def latest(self) -> str | None:
        return self._code.latest.get(self.world)

    def random(self, purpose: str, n: int = 0, *, shared: bool = False) -> random.Random:
        return stream_of(self.info, self._seed, purpose, n, shared)

    def consume(self, *samples: object) -> None:
        self.samples.extend(map(sample_of, samples))

    def log(self, **values: object) -> None:
        self.logged |= {name: copied(value) for name, value in values.items()}  # the model may change its arrays later

    def peers(self, role: str, port: str) -> list[str]:
        return self._code.addresses(role, port)

    def call(self, address: str, method: str, *args: Any) -> Any:
        return copied(self._code.call(address, method, copied(args)))


@dataclass(slots=True)
class Playing:
    """The user code of one generation of a world. `done` counts the steps that were played."""

    world: str
    model: WorldModel
    workers: list[ModelWorker]
    done: int = 0
    has_failed: bool = False
    busy: int = 0  # ranks that still write
    saving: int = 0  # the step of that checkpoint
    unsaved: int = -1  # the last step of which a file could not be written
    pump: int = 0  # entries of the queue with an earlier number do nothing


@dataclass(slots=True)
class Serving:
    """A replica of a service. `saves` counts its checkpoints."""

    worker: ModelWorker
    is_there: bool = True
    has_failed: bool = False
    saves: int = 0
    unsaved: int = -1


def attempt(function: Callable[..., Any], *args: Any) -> Any | Raised:
    """Call user code, and return what it returns or what it raised; its exceptions never pass through the simulator."""
    try:
        return function(*args)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return Raised(code, f"SystemExit: {error.code}", "")
    except Exception as error:
        told = traceback.TracebackException.from_exception(error)
        while told.stack and told.stack[0].filename in OURS:
            del told.stack[0]
        place = _place(told.stack)
        return Raised(1, list(told.format_exception_only())[-1].strip(), "".join(told.format()), place)


def _place(stack: traceback.StackSummary) -> str:
    """Return the last line in the file of the model itself, and not in a library that it calls, such as json."""
    own = [frame for frame in stack if frame.filename == stack[0].filename]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}()" if own else ""
