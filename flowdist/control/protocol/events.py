"""What happened. Every event about a replica carries its attempt: news of an earlier one is ignored (R20)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from flowdist.control.protocol.ids import NodeName, ReplicaId, WorldName
from flowdist.graph import FailureKind, NodeSpec

if TYPE_CHECKING:
    from typing_extensions import TypeIs


class ReplicaExited(msgspec.Struct, frozen=True, tag=True):
    """A replica's processes ended unasked. `kind` is None for success: all its workers exited with 0 (R16).

    Otherwise code, signal and local rank are those of its first failing worker; `detail` is one line about it.
    """

    replica: ReplicaId
    attempt: int
    kind: FailureKind | None = None
    exit_code: int = 0
    signal: str | None = None  # without SIG: "KILL"
    local_rank: int = 0
    detail: str = ""
    suspended: bool = False  # some of its workers have left their generation and wait, as in ReplicaStopped


class InventoryItem(msgspec.Struct, frozen=True):
    """What an agent knows of one attempt of a replica. `exited` is set once it has ended unasked."""

    replica: ReplicaId
    attempt: int
    phase: str  # "starting" | "running" | "ready" | "suspended" | "stopped" | "exited"
    ports: tuple[tuple[str, int], ...] = ()
    exited: ReplicaExited | None = None


class NodeJoined(msgspec.Struct, frozen=True, tag=True):
    """An agent connected, for the first time or again. `incarnation` grows when it has lost what it ran.

    While `is_warming` it imports what its workers will want: NodeWarm follows.
    """

    node: NodeName
    spec: NodeSpec
    address: str = "127.0.0.1"
    incarnation: int = 1
    inventory: tuple[InventoryItem, ...] = ()
    is_warming: bool = False
    bad_gpus: tuple[tuple[int, str], ...] = ()  # by number, with the reason


class NodeWarm(msgspec.Struct, frozen=True, tag=True):
    """Workers that start on the node now are in user code within moments, or never will be: it waits for nothing."""

    node: NodeName


class NodeLeft(msgspec.Struct, frozen=True, tag=True):
    """An agent said goodbye; nothing of it runs any more."""

    node: NodeName


class NodeGone(msgspec.Struct, frozen=True, tag=True):
    """Proven by somebody who lives and knows: the node's agent is dead and nothing of it runs any more."""

    node: NodeName
    cause: str = "its agent died"


class NodeSuspected(msgspec.Struct, frozen=True, tag=True):
    """The node's heartbeats are overdue: who fails before it is heard, or silent, may fail because of it."""

    node: NodeName


class NodeSilent(msgspec.Struct, frozen=True, tag=True):
    """The lease of the node has run out, plus the margin: its agent has fenced, nothing of it runs any more."""

    node: NodeName


class GpuFailed(msgspec.Struct, frozen=True, tag=True):
    """Something is wrong with a GPU of the node, by its number there: `reason` in words.

    `xid` is the number of the error that its driver has reported; 0: it was noticed in another way.
    """

    node: NodeName
    gpu: int
    reason: str
    xid: int = 0


class NodeHeard(msgspec.Struct, frozen=True, tag=True):
    """A node that was overdue sent a heartbeat. One that was silent is of no use before it has joined anew."""

    node: NodeName


class StoreOpened(msgspec.Struct, frozen=True, tag=True):
    """The store of a generation is bound: its port may be told."""

    world: WorldName
    generation: int
    port: int


class StoreLost(msgspec.Struct, frozen=True, tag=True):
    """The store host of a generation died, or could not be started."""

    world: WorldName
    generation: int
    detail: str = ""


class ReplicaStarted(msgspec.Struct, frozen=True, tag=True):
    """All workers of the replica run. `ports` are those that the agent chose for it, by name."""

    replica: ReplicaId
    attempt: int
    ports: tuple[tuple[str, int], ...] = ()


class ReplicaStartsCold(msgspec.Struct, frozen=True, tag=True):
    """Its workers were to be forked from a process with their modules imported, and cannot be: `detail` says why."""

    replica: ReplicaId
    attempt: int
    detail: str


class ReplicaReady(msgspec.Struct, frozen=True, tag=True):
    """The replica passed its readiness check."""

    replica: ReplicaId
    attempt: int


class ReplicaProgressed(msgspec.Struct, frozen=True, tag=True):
    """A worker reported progress. `step` is the least advanced worker's of the replica."""

    replica: ReplicaId
    attempt: int
    step: int


class ReplicaElastic(msgspec.Struct, frozen=True, tag=True):
    """All workers of the replica are in elastic code: they can leave their generation and stay what they are."""

    replica: ReplicaId
    attempt: int


class ReplicaStopped(msgspec.Struct, frozen=True, tag=True):
    """All workers of the replica ended after a stop that it was told: neither success nor failure (R16).

    `suspended`: some of them did not end, but have left their generation, and wait for the next start of the replica.
    """

    replica: ReplicaId
    attempt: int
    suspended: bool = False


class ReplicaUnkillable(msgspec.Struct, frozen=True, tag=True):
    """A worker of the replica outlives SIGKILL (R6): its node is of no use any more."""

    replica: ReplicaId
    attempt: int


class ReplicaStalled(msgspec.Struct, frozen=True, tag=True):
    """No sign of the replica for `hang_after`, or no progress within `start_timeout` (R15).

    `by` says what was missed. `step` is how far it had come; `was_seen` whether there ever was such a sign: a rank that
    never prints is not stalled by its silence alone.
    """

    replica: ReplicaId
    attempt: int
    by: Literal["progress", "output", "start"]
    for_ns: int
    step: int = -1
    was_seen: bool = True


class ReplicaRevived(msgspec.Struct, frozen=True, tag=True):
    """A replica that had stalled shows a sign again."""

    replica: ReplicaId
    attempt: int


class StepTold(msgspec.Struct, frozen=True, tag=True):
    """The answer to AskStep: the last step that a worker of the replica asked should_stop() about.

    None: at least one of its workers never asked. From here on, a worker that asks waits for StopAtStep.
    """

    replica: ReplicaId
    attempt: int
    step: int | None


class ReplicaLeftStep(msgspec.Struct, frozen=True, tag=True):
    """All workers of the replica were told at the agreed step to stop, and have gone on from there or ended (R14)."""

    replica: ReplicaId
    attempt: int


class CheckpointOffered(msgspec.Struct, frozen=True, tag=True):
    """A worker asks to publish a checkpoint as the latest of its role (R19)."""

    replica: ReplicaId
    attempt: int
    generation: int
    path: str
    step: int = 0


class ScaleRequested(msgspec.Struct, frozen=True, tag=True):
    """The operator wants the role to have this many replicas."""

    role: str
    replicas: int


class DrainRequested(msgspec.Struct, frozen=True, tag=True):
    """The operator wants the node empty: what runs there moves away in order, and nothing new is placed on it."""

    node: NodeName


class CordonRequested(msgspec.Struct, frozen=True, tag=True):
    """The operator wants nothing new on the node; what runs there goes on."""

    node: NodeName


class UncordonRequested(msgspec.Struct, frozen=True, tag=True):
    """The operator wants the node to be used again, whatever it was cordoned for."""

    node: NodeName


class NodePreempted(msgspec.Struct, frozen=True, tag=True):
    """The node will be taken away after `notice_ns`."""

    node: NodeName
    notice_ns: int


class ControllerStarted(msgspec.Struct, frozen=True, tag=True):
    """A controller took over from a journal; its epoch is higher than any before (R21)."""

    epoch: int


class CancelRequested(msgspec.Struct, frozen=True, tag=True):
    """The operator wants the job to end. `now` skips every grace."""

    reason: str = "cancelled by the operator"
    now: bool = False


class TimePassed(msgspec.Struct, frozen=True, tag=True):
    """The deadline that the controller named has come."""


AttemptEvent = (  # of one attempt of a replica
    ReplicaProgressed
    | ReplicaStarted
    | ReplicaStartsCold
    | ReplicaReady
    | ReplicaElastic
    | ReplicaExited
    | ReplicaStopped
    | ReplicaUnkillable
    | ReplicaStalled
    | ReplicaRevived
    | StepTold
    | ReplicaLeftStep
)
_OF_ATTEMPTS = frozenset(get_args(AttemptEvent))
Event = (
    AttemptEvent
    | NodeJoined
    | NodeWarm
    | NodeLeft
    | NodeGone
    | NodeSuspected
    | NodeSilent
    | NodeHeard
    | GpuFailed
    | StoreOpened
    | StoreLost
    | CheckpointOffered
    | ScaleRequested
    | DrainRequested
    | CordonRequested
    | UncordonRequested
    | NodePreempted
    | ControllerStarted
    | CancelRequested
    | TimePassed
)


def is_of_attempt(event: Event) -> TypeIs[AttemptEvent]:
    """By its very type, as `effects.is_order`."""
    return type(event) in _OF_ATTEMPTS
