"""What the pure agent is told by its node, and what it tells its node to do.

Inputs are facts about processes; outputs are orders to the process driver, real or simulated. Messages to and from
the controller (`messages.py`) are inputs and outputs of the same machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import msgspec

from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import Addresses, ReplicaId, WorldName
from flowdist.control.protocol.messages import ToAgent, ToController
from flowdist.graph import FailureKind

if TYPE_CHECKING:
    from typing_extensions import TypeIs


class Connected(msgspec.Struct, frozen=True, tag=True):
    """The connection to the controller is up (again)."""


class Disconnected(msgspec.Struct, frozen=True, tag=True):
    """The connection to the controller is lost. Workers go on until the lease runs out."""


class WarmedUp(msgspec.Struct, frozen=True, tag=True):
    """What workers of this node will want is imported, or it was found that it cannot be."""


class WorkersSpawned(msgspec.Struct, frozen=True, tag=True):
    """All workers of the attempt run; `ports` were chosen for it by name."""

    replica: ReplicaId
    attempt: int
    ports: tuple[tuple[str, int], ...] = ()


class SpawnedCold(msgspec.Struct, frozen=True, tag=True):
    """Workers of the attempt that were to be forked are started by exec."""

    replica: ReplicaId
    attempt: int
    detail: str


class SpawnFailed(msgspec.Struct, frozen=True, tag=True):
    """No worker of the attempt runs: its command could not be started."""

    replica: ReplicaId
    attempt: int
    detail: str = ""


class WorkerExited(msgspec.Struct, frozen=True, tag=True):
    """One worker ended. `kind` tells an oom apart where the driver can see it.

    `raised_ns` is when it wrote down what it failed of, by the driver's clock; None: it did not, or nobody looked.
    """

    replica: ReplicaId
    attempt: int
    local_rank: int
    exit_code: int = 0
    signal: str | None = None
    kind: FailureKind | None = None
    detail: str = ""
    raised_ns: int | None = None


class WorkerReady(msgspec.Struct, frozen=True, tag=True):
    """A worker called flowdist.worker.ready()."""

    replica: ReplicaId
    attempt: int
    local_rank: int


class WorkerElastic(msgspec.Struct, frozen=True, tag=True):
    """A worker has entered flowdist.worker.elastic(), or with `inside` false is about to leave it."""

    replica: ReplicaId
    attempt: int
    local_rank: int
    inside: bool = True


class WorkerSuspended(msgspec.Struct, frozen=True, tag=True):
    """A worker has left its generation, and waits to be told of the next."""

    replica: ReplicaId
    attempt: int
    local_rank: int


class ProbePassed(msgspec.Struct, frozen=True, tag=True):
    """The readiness check of the attempt (tcp, http, file, log) passed."""

    replica: ReplicaId
    attempt: int


class WorkerProgressed(msgspec.Struct, frozen=True, tag=True):
    replica: ReplicaId
    attempt: int
    local_rank: int
    step: int


class WorkerOffered(msgspec.Struct, frozen=True, tag=True):
    """A worker called flowdist.worker.commit(path)."""

    replica: ReplicaId
    attempt: int
    generation: int
    path: str
    step: int


class SignsSeen(msgspec.Struct, frozen=True, tag=True):
    """The answer to LookForSigns: when a worker of the attempt wrote output last, on the agent's clock; None: never."""

    replica: ReplicaId
    attempt: int
    output_ns: int | None = None


class WorkersAsked(msgspec.Struct, frozen=True, tag=True):
    """The answer to AskWorkers: the furthest step that a worker asked should_stop() about; None: one never asked."""

    replica: ReplicaId
    attempt: int
    step: int | None


class WorkerLeftStep(msgspec.Struct, frozen=True, tag=True):
    """A worker that was told to stop at a step has gone on from there."""

    replica: ReplicaId
    attempt: int
    local_rank: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The controller's host is up, and nobody listens there: it is being restarted (R21).

    `is_local`: that host is this one. Over a network a refusal proves nothing: a firewall, or a host that has just
    booted, refuses for a controller that lives, and that replaces the node once its lease is over.
    """

    is_local: bool


class StoreBound(msgspec.Struct, frozen=True, tag=True):
    world: WorldName
    generation: int
    port: int


class StoreExited(msgspec.Struct, frozen=True, tag=True):
    """The store host ended, asked or not."""

    world: WorldName
    generation: int
    detail: str = ""


class PreemptionNoticed(msgspec.Struct, frozen=True, tag=True):
    """The node will be taken away after `notice_ns`."""

    notice_ns: int


class GpuFaulted(msgspec.Struct, frozen=True, tag=True):
    """Something is wrong with a GPU of the node, as in GpuFailed."""

    gpu: int
    reason: str
    xid: int = 0


class LeaveRequested(msgspec.Struct, frozen=True, tag=True):
    """The agent got SIGTERM: stop what runs, then leave."""


class AgentTimePassed(msgspec.Struct, frozen=True, tag=True):
    """The deadline that the agent named has come."""


WorkerNews = (  # of an attempt whose workers run
    WorkerProgressed
    | WorkerOffered
    | WorkerReady
    | WorkerElastic
    | WorkerSuspended
    | ProbePassed
    | SignsSeen
    | WorkersAsked
    | WorkerLeftStep
)
_WORKER_NEWS = frozenset(get_args(WorkerNews))
AgentInput = (
    Connected
    | Disconnected
    | WarmedUp
    | WorkersSpawned
    | SpawnedCold
    | SpawnFailed
    | WorkerExited
    | WorkerNews
    | Refused
    | StoreBound
    | StoreExited
    | PreemptionNoticed
    | GpuFaulted
    | LeaveRequested
    | AgentTimePassed
    | ToAgent
)


def is_worker_news(event: object) -> TypeIs[WorkerNews]:
    """By its very type, as `effects.is_order`."""
    return type(event) in _WORKER_NEWS


class Send(msgspec.Struct, frozen=True, tag=True):
    """To the controller; dropped by the driver while there is no connection."""

    message: ToController


class SpawnWorkers(msgspec.Struct, frozen=True, tag=True):
    """Start all workers of the attempt, answer WorkersSpawned or SpawnFailed; watch its readiness check, if any.

    The local ranks in `kept` run already: they have left their generation, and are told of this one.
    """

    start: StartReplica
    kept: tuple[int, ...] = ()


class LeaveGeneration(msgspec.Struct, frozen=True, tag=True):
    """Have the workers of the attempt leave their generation; each answers WorkerSuspended."""

    replica: ReplicaId
    attempt: int


class HurrySpawn(msgspec.Struct, frozen=True, tag=True):
    """The attempt is to end before it runs: what its workers still wait for is not waited for."""

    replica: ReplicaId
    attempt: int


class SignalWorkers(msgspec.Struct, frozen=True, tag=True):
    """Signal the process groups of all workers of the attempt that still run: "TERM", "ABRT" or "KILL"."""

    replica: ReplicaId
    attempt: int
    signal: str


class WritePeers(msgspec.Struct, frozen=True, tag=True):
    """Tell the workers of the attempt the addresses of the roles that they depend on."""

    replica: ReplicaId
    attempt: int
    addresses: Addresses


class AnswerWorker(msgspec.Struct, frozen=True, tag=True):
    """Answer a worker's commit. What is accepted is the latest checkpoint from now on."""

    replica: ReplicaId
    attempt: int
    path: str
    step: int
    accepted: bool
    reason: str = ""


class LookForSigns(msgspec.Struct, frozen=True, tag=True):
    """Answer SignsSeen: does the attempt do anything?"""

    replica: ReplicaId
    attempt: int


class AskWorkers(msgspec.Struct, frozen=True, tag=True):
    """Have the workers wait at their next should_stop(), and answer WorkersAsked."""

    replica: ReplicaId
    attempt: int


class TellWorkers(msgspec.Struct, frozen=True, tag=True):
    """The step at which should_stop() turns true. None: at once."""

    replica: ReplicaId
    attempt: int
    step: int | None


class BindStore(msgspec.Struct, frozen=True, tag=True):
    """Bind a listening socket and start a store host on it; answer StoreBound, later StoreExited."""

    world: WorldName
    generation: int
    eager: bool = True


class KillStore(msgspec.Struct, frozen=True, tag=True):
    world: WorldName
    generation: int


class EndAgent(msgspec.Struct, frozen=True, tag=True):
    """The agent process is done."""

    reason: str = ""


AgentOutput = (
    Send
    | SpawnWorkers
    | LeaveGeneration
    | HurrySpawn
    | SignalWorkers
    | WritePeers
    | AnswerWorker
    | LookForSigns
    | AskWorkers
    | TellWorkers
    | BindStore
    | KillStore
    | EndAgent
)
