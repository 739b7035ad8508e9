"""Inputs and outputs of the pure agent (`control.agent`).

Inputs are facts about processes and connections, and messages of the controller (`messages`). Outputs are messages to
it, and orders to the driver, the real or simulated process around the agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import msgspec

from flowdist.control.protocol.effects import OfVault, StartReplica
from flowdist.control.protocol.events import Sampling
from flowdist.control.protocol.ids import (
    Activity,
    Addresses,
    ExitCause,
    OfAttempt,
    OfCopy,
    OfStore,
    ProcessState,
    ReplicaId,
)
from flowdist.control.protocol.messages import ToAgent, ToController
from flowdist.graph import FailureKind

if TYPE_CHECKING:
    from typing_extensions import TypeIs


class OfWorker(OfAttempt, frozen=True):
    """Base of the inputs that are about one worker of an attempt."""

    local_rank: int


class Connected(msgspec.Struct, frozen=True, tag=True):
    """The connection to the controller is up, for the first time or again."""


class Disconnected(msgspec.Struct, frozen=True, tag=True):
    """The connection to the controller is lost. Workers keep running until the agent's lease is over."""


class WarmedUp(msgspec.Struct, frozen=True, tag=True):
    """The modules that the workers of this node need are imported, or it is known that they cannot be."""


class WorkersSpawned(OfAttempt, frozen=True, tag=True):
    """All workers of the attempt run. `ports` are (name, number) of each port that the driver chose for the attempt."""

    ports: tuple[tuple[str, int], ...] = ()


class SpawnedCold(OfAttempt, frozen=True, tag=True):
    """Workers of the attempt that should be forked from a prefix are new interpreters; `detail` says why."""

    detail: str


class SpawnFailed(OfAttempt, frozen=True, tag=True):
    """No worker of the attempt runs, because its command could not be started."""

    detail: str = ""


class WorkerExited(OfWorker, frozen=True, tag=True):
    """One worker ended, by itself or not, with `exit_code` or by `signal` ("KILL").

    `kind` is set where the driver knows it better, such as out of memory; `detail` is one line. `raised_ns`: when it
    wrote its error down, on the driver's clock; None: it wrote none. `cause` "collective_timeout": its process group
    gave up a collective. `was_stopping`: should_stop() had returned True (R14).
    """

    exit_code: int = 0
    signal: str | None = None
    kind: FailureKind | None = None
    detail: str = ""
    raised_ns: int | None = None
    cause: ExitCause = ""
    was_stopping: bool = False


class WorkerReady(OfWorker, frozen=True, tag=True):
    """A worker called flowdist.worker.ready()."""


class WorkerElastic(OfWorker, frozen=True, tag=True):
    """A worker has entered flowdist.worker.elastic(), or with `inside` false is about to leave it."""

    inside: bool = True


class WorkerSuspended(OfWorker, frozen=True, tag=True):
    """A worker has left its generation, and waits for the next one."""


class ProbePassed(OfAttempt, frozen=True, tag=True):
    """The readiness check of the attempt (tcp, http, file or log) passed."""


class WorkerProgressed(OfWorker, frozen=True, tag=True):
    """A worker called flowdist.worker.progress(step)."""

    step: int


class WorkerStepped(OfWorker, frozen=True, tag=True):
    """A worker has taken `steps` optimizer steps in this attempt, as `worker.step_counter` has counted them."""

    steps: int


class WorkerSpent(OfWorker, frozen=True, tag=True):
    """A worker has spent `ns` nanoseconds on saving or restoring since its attempt began."""

    on: Activity
    ns: int


class WorkerPublished(OfWorker, frozen=True, tag=True):
    """A worker called flowdist.worker.publish_version(version)."""

    version: int


class WorkerAcknowledged(OfWorker, frozen=True, tag=True):
    """A worker called flowdist.worker.acknowledge_version(version)."""

    version: int


class WorkerSampling(OfWorker, frozen=True, tag=True):
    """A worker takes samples from step `begin` on: the fields are those of `events.ReplicaSampling`."""

    begin: int
    rank: int
    ranks: int
    sampling: Sampling


class WorkerOffered(OfAttempt, frozen=True, tag=True):
    """A worker called flowdist.worker.commit(path) in `generation`: it offers a checkpoint and waits for the answer."""

    generation: int
    path: str
    step: int


class SignsSeen(OfAttempt, frozen=True, tag=True):
    """The driver's answer to LookForSigns: when a worker last wrote output, in ns of the agent's clock; None: never.

    `state` is that of a process of its workers: "stopped" before "zombie" before "uninterruptible".
    """

    output_ns: int | None = None
    state: ProcessState = ""


class WorkersAsked(OfAttempt, frozen=True, tag=True):
    """The driver's answer to AskWorkers: the furthest step passed to should_stop(); None: a worker never called it."""

    step: int | None


class WorkerLeftStep(OfWorker, frozen=True, tag=True):
    """A worker for which should_stop() turned true has passed that step, the agreed one (R14)."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A connection to the controller was refused: the controller's host is up, and nothing listens there (R21).

    If that host `is_local`, a controller is being restarted. Over a network it proves nothing: a firewall, or a host
    that has just booted, refuses while the controller lives, and that one replaces the node once its lease is over.
    """

    is_local: bool


class StoreBound(OfStore, frozen=True, tag=True):
    """The driver's answer to BindStore: the store of this generation listens on `port`."""

    port: int


class StoreExited(OfStore, frozen=True, tag=True):
    """The process of the store of this generation ended, on order or not; `detail` says how."""

    detail: str = ""


class VaultBound(msgspec.Struct, frozen=True, tag=True):
    """The vault of the node, a new and empty one, listens on `port` (R24)."""

    port: int


class VaultExited(msgspec.Struct, frozen=True, tag=True):
    """The process of the vault ended, with all copies in it; `detail` says how."""

    detail: str = ""


class CopyStored(OfCopy, frozen=True, tag=True):
    """The vault holds a copy in full. The fields are those of `events.CopyHeld`."""

    world_size: int
    bytes: int
    digest: str


class CopyDamaged(OfCopy, frozen=True, tag=True):
    """The vault has dropped a copy without an order: its checksum is wrong, or as `why` says."""

    why: str = ""


class PreemptionNoticed(msgspec.Struct, frozen=True, tag=True):
    """The node will be taken away after `notice_ns`."""

    notice_ns: int


class GpuFaulted(msgspec.Struct, frozen=True, tag=True):
    """A GPU of the node has an error. The fields are those of `events.GpuFailed`."""

    gpu: int
    reason: str
    xid: int = 0


class StoodStill(msgspec.Struct, frozen=True, tag=True):
    """Processes on this node are stopped: `who` and `workers` are those of `events.NodeStandsStill`; empty: none is."""

    who: str = ""
    workers: tuple[ReplicaId, ...] = ()


class LeaveRequested(msgspec.Struct, frozen=True, tag=True):
    """The agent got SIGTERM: it stops its workers, then leaves the job."""


class AgentTimePassed(msgspec.Struct, frozen=True, tag=True):
    """The time that `Agent.deadline` returned has come, and nothing else has happened."""


WorkerInput = (  # of one attempt
    WorkersSpawned
    | SpawnFailed
    | WorkerExited
    | WorkerProgressed
    | WorkerStepped
    | WorkerSpent
    | WorkerPublished
    | WorkerAcknowledged
    | WorkerSampling
    | WorkerOffered
    | WorkerReady
    | WorkerElastic
    | WorkerSuspended
    | ProbePassed
    | SignsSeen
    | WorkersAsked
    | WorkerLeftStep
)
VaultInput = VaultBound | VaultExited | CopyStored | CopyDamaged
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
    | VaultInput
    | PreemptionNoticed
    | GpuFaulted
    | StoodStill
    | LeaveRequested
    | AgentTimePassed
    | ToAgent
)


def is_worker_input(event: object) -> TypeIs[WorkerInput]:
    """Return whether an input of the agent is about one attempt's workers, by its exact type (see `effects.is_order`).

    Subclasses do not count. SpawnedCold does not either: it is reported whatever attempt it is about.
    """
    return type(event) in _WORKER_INPUTS


class Send(msgspec.Struct, frozen=True, tag=True):
    """Send a message to the controller. The driver drops it while there is no connection."""

    message: ToController


class SpawnWorkers(msgspec.Struct, frozen=True, tag=True):
    """Start all workers of the attempt, and watch its readiness check; WorkersSpawned or SpawnFailed answers.

    Suspended workers of the local ranks `kept` run already: they get the new generation instead.
    """

    start: StartReplica
    kept: tuple[int, ...] = ()


class LeaveGeneration(OfAttempt, frozen=True, tag=True):
    """Tell the workers of the attempt to leave their generation without ending; each answers with WorkerSuspended."""


class HurrySpawn(OfAttempt, frozen=True, tag=True):
    """Give up starting workers of the attempt that still wait, for a GPU or a prefix: the attempt is to end."""


class SignalWorkers(OfAttempt, frozen=True, tag=True):
    """Send a signal (TERM, ABRT or KILL) to the process groups of all workers of the attempt that still run."""

    signal: str


class WritePeers(OfAttempt, frozen=True, tag=True):
    """Give the workers of the attempt the present addresses of the roles that their role has a gate on."""

    addresses: Addresses


class AnswerWorker(OfAttempt, frozen=True, tag=True):
    """Answer the worker that called commit(path): accepted, and made the latest one, or not for a `reason`."""

    path: str
    step: int
    accepted: bool
    reason: str = ""


class LookForSigns(OfAttempt, frozen=True, tag=True):
    """Look when the workers of the attempt wrote output last, and answer with SignsSeen (R15)."""


class AskWorkers(OfAttempt, frozen=True, tag=True):
    """Make each worker wait in its next should_stop() for TellWorkers, and answer with WorkersAsked at once (R14)."""


class TellWorkers(OfAttempt, frozen=True, tag=True):
    """Tell the workers at which step should_stop() turns true, so that those that wait in it go on. None: at once."""

    step: int | None


class BindStore(OfStore, frozen=True, tag=True):
    """Bind a listening socket for a generation's store, and start its process now (`eager`) or at the first connection.

    The driver answers with StoreBound, and with StoreExited when the process ends.
    """

    eager: bool = True


class KillStore(OfStore, frozen=True, tag=True):
    """End the process of the store of this generation."""


class VaultOrder(msgspec.Struct, frozen=True, tag=True):
    """Pass an order to the vault: who the buddies are, or which copies to drop (R24)."""

    order: OfVault


class EndAgent(msgspec.Struct, frozen=True, tag=True):
    """End the agent process: the agent has left, or the job is over, as `reason` says."""

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
    | VaultOrder
    | EndAgent
)
