"""One worker of user code in a simulation: its context, in virtual time."""

from __future__ import annotations

import pickle
import random
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from flowdist.control.effects import StartReplica
from flowdist.model import stream_of
from flowdist.sim.checkpoints import Operation, View
from flowdist.worker import Info

if TYPE_CHECKING:
    from flowdist.sim.models import UserCode

PLAIN = (int, float, str, bytes, bool, type(None))  # what cannot be changed need not be copied


class Raised(NamedTuple):
    """User code ended with an exception. `line` is the last line of its traceback."""

    code: int
    line: str
    text: str


class ModelWorker:
    """What user code gets as its `ctx`: see `flowdist.model.Context`."""

    def __init__(self, code: UserCode, start: StartReplica, local_rank: int, procs: int, seed: int) -> None:
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
        self.samples.extend(samples)

    def log(self, **values: object) -> None:
        self.logged |= values

    def peers(self, role: str, port: str) -> list[str]:
        return self._code.addresses(role, port)

    def call(self, address: str, method: str, *args: Any) -> Any:
        return copied(self._code.call(address, method, copied(args)))


def attempt(function: Callable[..., Any], *args: Any) -> Any | Raised:
    """What user code returns; or what it raised, which is never ours to pass on."""
    try:
        return function(*args)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return Raised(code, f"SystemExit: {error.code}", "")
    except Exception as error:
        told = traceback.TracebackException.from_exception(error)
        del told.stack[0]  # this frame
        return Raised(1, list(told.format_exception_only())[-1].strip(), "".join(told.format()))


def copied(value: Any) -> Any:
    """As over a wire: nobody's changes reach the other."""
    return value if is_plain(value) else pickle.loads(pickle.dumps(value))


def is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(is_plain(item) for item in value)
    return isinstance(value, PLAIN)
