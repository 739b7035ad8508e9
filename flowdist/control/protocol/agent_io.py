"""The inputs and outputs of the pure agent.

Inputs are facts about processes and connections, and the messages of the controller (`messages`). Outputs are orders to
the process driver, real or simulated, and messages to the controller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import msgspec

from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import Addresses, OfAttempt, WorldName
from flowdist.control.protocol.messages import ToAgent, ToController
from flowdist.graph import FailureKind

if TYPE_CHECKING:
    from typing_extensions import TypeIs


class Connected(msgspec.Struct, frozen=True, tag=True):
    """The connection to the controller is up, for the first time or again."""


class Disconnected(msgspec.Struct, frozen=True, tag=True):
    """The connection to the controller is lost. Workers keep running until the lease is over."""


class WarmedUp(msgspec.Struct, frozen=True, tag=True):
    """The modules that the workers of this node need are imported, or it is known that they cannot be."""


class WorkersSpawned(OfAttempt, frozen=True, tag=True):
    """All workers of the attempt run. `ports` are the ports that were chosen for it, by name."""

    ports: tuple[tuple[str, int], ...] = ()


class SpawnedCold(OfAttempt, frozen=True, tag=True):
    """Workers of the attempt that should be forked from a warm process are started by exec; `detail` says why."""

    detail: str


class SpawnFailed(OfAttempt, frozen=True, tag=True):
    """No worker of the attempt runs, because its command could not be started."""

    detail: str = ""


class WorkerExited(OfAttempt, frozen=True, tag=True):
    """One worker ended.

    `kind` tells an out-of-memory kill apart where the driver can see it. `raised_ns` is when the worker wrote down the
    error that ended it, on the driver's clock; None if it wrote none down.
    """

    local_rank: int
    exit_code: int = 0
    signal: str | None = None
    kind: FailureKind | None = None
    detail: str = ""
    raised_ns: int | None = None


class WorkerReady(OfAttempt, frozen=True, tag=True):
    """A worker called flowdist.worker.ready()."""

    local_rank: int


class WorkerElastic(OfAttempt, frozen=True, tag=True):
    """A worker has entered flowdist.worker.elastic(), or with `inside` false is about to leave it."""

    local_rank: int
    inside: bool = True


class WorkerSuspended(OfAttempt, frozen=True, tag=True):
    """A worker has left its generation, and waits for the next one."""

    local_rank: int


class ProbePassed(OfAttempt, frozen=True, tag=True):
    """The readiness check of the attempt (tcp, http, file or log) passed."""


class WorkerProgressed(OfAttempt, frozen=True, tag=True):
    """A worker called flowdist.worker.progress(step)."""

    local_rank: int
    step: int


class WorkerOffered(OfAttempt, frozen=True, tag=True):
    """A worker called flowdist.worker.commit(path)."""

    generation: int
    path: str
    step: int


class SignsSeen(OfAttempt, frozen=True, tag=True):
    """The answer to LookForSigns: when a worker of the attempt wrote output last, on the agent's clock; None: never."""

    output_ns: int | None = None


class WorkersAsked(OfAttempt, frozen=True, tag=True):
    """The answer to AskWorkers: the last step that a worker passed to should_stop(); None if one never called it."""

    step: int | None


class WorkerLeftStep(OfAttempt, frozen=True, tag=True):
    """A worker that was told to stop at a step has left that step."""

    local_rank: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The host of the controller is up and nothing listens there: the controller is being restarted (R21).

    `is_local`: that host is this one. Over a network a refusal proves nothing: a firewall, or a host that has just
    booted, refuses for a controller that lives, and that replaces the node once its lease is over.
    """

    is_local: bool


class StoreBound(msgspec.Struct, frozen=True, tag=True):
    """A store host listens on this port."""

    world: WorldName
    generation: int
    port: int


class StoreExited(msgspec.Struct, frozen=True, tag=True):
    """A store host ended, on order or not."""

    world: WorldName
    generation: int
    detail: str = ""


class PreemptionNoticed(msgspec.Struct, frozen=True, tag=True):
    """The node will be taken away after `notice_ns`."""

    notice_ns: int


class GpuFaulted(msgspec.Struct, frozen=True, tag=True):
    """A GPU of the node has reported an error: see GpuFailed."""

    gpu: int
    reason: str
    xid: int = 0


class LeaveRequested(msgspec.Struct, frozen=True, tag=True):
    """The agent got SIGTERM: it stops its workers, then leaves the job."""


class AgentTimePassed(msgspec.Struct, frozen=True, tag=True):
    """The deadline of the agent has come."""


WorkerInput = (  # of one attempt
    WorkersSpawned
    | SpawnFailed
    | WorkerExited
    | WorkerProgressed
    | WorkerOffered
    | WorkerReady
    | WorkerElastic
    | WorkerSuspended
    | ProbePassed
    | SignsSeen
    | WorkersAsked
    | WorkerLeftStep
)
_WORKER_INPUTS = frozenset(get_args(WorkerInput))
AgentInput = (
    Connected
    | Disconnected
    | WarmedUp
    | SpawnedCold
    | WorkerInput
    | Refused
    | StoreBound
    | StoreExited
    | PreemptionNoticed
    | GpuFaulted
    | LeaveRequested
    | AgentTimePassed
    | ToAgent
)


def is_worker_input(event: object) -> TypeIs[WorkerInput]:
    """Return whether this is an input about the workers of an attempt; by the exact type, as `effects.is_order`."""
    return type(event) in _WORKER_INPUTS


class Send(msgspec.Struct, frozen=True, tag=True):
    """Send a message to the controller. The driver drops it while there is no connection."""

    message: ToController


class SpawnWorkers(msgspec.Struct, frozen=True, tag=True):
    """Start all workers of the attempt, and watch its readiness check if it has one.

    Answered by WorkersSpawned or SpawnFailed. The local ranks in `kept` run already: they are suspended, and are told
    of the new generation.
    """

    start: StartReplica
    kept: tuple[int, ...] = ()


class LeaveGeneration(OfAttempt, frozen=True, tag=True):
    """Have the workers of the attempt leave their generation; each answers with WorkerSuspended."""


class HurrySpawn(OfAttempt, frozen=True, tag=True):
    """Do not wait for anything that the start of the attempt still waits for: it is to end before it runs."""


class SignalWorkers(OfAttempt, frozen=True, tag=True):
    """Send a signal (TERM, ABRT or KILL) to the process groups of all workers of the attempt that still run."""

    signal: str


class WritePeers(OfAttempt, frozen=True, tag=True):
    """Tell the workers of the attempt the addresses of the roles that they depend on."""

    addresses: Addresses


class AnswerWorker(OfAttempt, frozen=True, tag=True):
    """Answer the commit of a worker. A checkpoint that is accepted is the latest one from now on."""

    path: str
    step: int
    accepted: bool
    reason: str = ""


class LookForSigns(OfAttempt, frozen=True, tag=True):
    """Look for signs of life of the attempt, and answer with SignsSeen."""


class AskWorkers(OfAttempt, frozen=True, tag=True):
    """Have the workers wait at their next should_stop(), and answer with WorkersAsked."""


class TellWorkers(OfAttempt, frozen=True, tag=True):
    """Tell the workers the step at which should_stop() turns true. None: at once."""

    step: int | None


class BindStore(msgspec.Struct, frozen=True, tag=True):
    """Bind a listening socket and start a store host on it. Answered by StoreBound, and by StoreExited when it ends."""

    world: WorldName
    generation: int
    eager: bool = True


class KillStore(msgspec.Struct, frozen=True, tag=True):
    """End a store host."""

    world: WorldName
    generation: int


class EndAgent(msgspec.Struct, frozen=True, tag=True):
    """End the agent process."""

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
