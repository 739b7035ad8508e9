"""Events: what happened.

Every event about a replica carries its attempt, so that late news of an earlier attempt is ignored (R20).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from flowdist.control.protocol.ids import NodeName, OfAttempt, ReplicaId, WorldName
from flowdist.graph import FailureKind, NodeSpec

if TYPE_CHECKING:
    from typing_extensions import TypeIs


class ReplicaExited(OfAttempt, frozen=True, tag=True):
    """The processes of a replica ended without an order.

    `kind` is None for success: all workers exited with 0 (R16). Otherwise the code, the signal and the local rank are
    those of the worker that failed first, and `detail` is one line about it.
    """

    kind: FailureKind | None = None
    exit_code: int = 0
    signal: str | None = None  # without SIG: "KILL"
    local_rank: int = 0
    detail: str = ""
    suspended: bool = False  # some of its workers have left their generation and wait, as in ReplicaStopped


class InventoryItem(msgspec.Struct, frozen=True):
    """The state of one attempt of a replica, as its agent knows it. `exited` is set if it ended without an order."""

    replica: ReplicaId
    attempt: int
    phase: str  # "starting" | "running" | "ready" | "suspended" | "stopped" | "exited"
    ports: tuple[tuple[str, int], ...] = ()
    exited: ReplicaExited | None = None


class NodeJoined(msgspec.Struct, frozen=True, tag=True):
    """An agent connected, for the first time or again. `incarnation` grows when it has lost its workers.

    While `is_warming`, it imports the modules that its workers need; NodeWarm follows.
    """

    node: NodeName
    spec: NodeSpec
    address: str = "127.0.0.1"
    incarnation: int = 1
    inventory: tuple[InventoryItem, ...] = ()
    is_warming: bool = False
    bad_gpus: tuple[tuple[int, str], ...] = ()  # by number, with the reason


class NodeWarm(msgspec.Struct, frozen=True, tag=True):
    """Workers that start on the node from now on are in user code within moments, or never will be: do not wait."""

    node: NodeName


class NodeLeft(msgspec.Struct, frozen=True, tag=True):
    """An agent has left the job. Nothing runs on the node any more."""

    node: NodeName


class NodeGone(msgspec.Struct, frozen=True, tag=True):
    """The agent of the node is dead and nothing runs on it any more, as a living witness has proven."""

    node: NodeName
    cause: str = "its agent died"


class NodeSuspected(msgspec.Struct, frozen=True, tag=True):
    """The heartbeats of the node are overdue. Until it is heard or silent, a failure elsewhere may be its doing."""

    node: NodeName


class NodeSilent(msgspec.Struct, frozen=True, tag=True):
    """The lease of the node is over, plus the margin: its agent has fenced, and nothing runs on it any more."""

    node: NodeName


class GpuFailed(msgspec.Struct, frozen=True, tag=True):
    """A GPU of the node has reported an error; `gpu` is its number there, and `reason` says in words what is wrong.

    `xid` is the number that the driver has reported; 0: the error was noticed in another way.
    """

    node: NodeName
    gpu: int
    reason: str
    xid: int = 0


class NodeHeard(msgspec.Struct, frozen=True, tag=True):
    """A suspected or silent node sent a heartbeat. A silent one is of no use before it has joined anew."""

    node: NodeName


class StoreOpened(msgspec.Struct, frozen=True, tag=True):
    """The store of a generation is bound. Its port may be passed on."""

    world: WorldName
    generation: int
    port: int


class StoreLost(msgspec.Struct, frozen=True, tag=True):
    """The store host of a generation died, or could not be started."""

    world: WorldName
    generation: int
    detail: str = ""


class ReplicaStarted(OfAttempt, frozen=True, tag=True):
    """All workers of the replica run. `ports` are the ports that the agent chose for it, by name."""

    ports: tuple[tuple[str, int], ...] = ()


class ReplicaStartsCold(OfAttempt, frozen=True, tag=True):
    """Workers that should be forked from a process with their modules imported cannot be; `detail` says why."""

    detail: str


class ReplicaReady(OfAttempt, frozen=True, tag=True):
    """The replica passed its readiness check."""


class ReplicaProgressed(OfAttempt, frozen=True, tag=True):
    """Workers reported progress. `step` is that of the least advanced worker of the replica."""

    step: int


class ReplicaElastic(OfAttempt, frozen=True, tag=True):
    """All workers of the replica are inside elastic code, and can leave their generation without ending."""


class ReplicaStopped(OfAttempt, frozen=True, tag=True):
    """All workers of the replica ended after an order to stop: neither success nor failure (R16).

    `suspended`: some of them did not end. They have left their generation, and wait for the next start of the replica.
    """

    suspended: bool = False


class ReplicaUnkillable(OfAttempt, frozen=True, tag=True):
    """A worker of the replica outlives SIGKILL (R6). Its node is of no use any more."""


class ReplicaStalled(OfAttempt, frozen=True, tag=True):
    """The replica showed no sign for `hang_after`, or no progress within `start_timeout` (R15).

    `by` says what was missing, and `step` how far the replica had come. `was_seen`: there was such a sign before. A
    rank that never prints is not stalled by its silence alone.
    """

    by: Literal["progress", "output", "start"]
    for_ns: int
    step: int = -1
    was_seen: bool = True


class ReplicaRevived(OfAttempt, frozen=True, tag=True):
    """A stalled replica shows a sign of life again."""


class StepTold(OfAttempt, frozen=True, tag=True):
    """The answer to AskStep: the last step that a worker of the replica passed to should_stop().

    None: one of its workers never called it. From here on, a worker that calls it waits for StopAtStep.
    """

    step: int | None


class ReplicaLeftStep(OfAttempt, frozen=True, tag=True):
    """All workers of the replica stopped at the agreed step, and have left it or ended (R14)."""


class CheckpointOffered(OfAttempt, frozen=True, tag=True):
    """A worker asks to make a checkpoint the latest one of its role (R19)."""

    generation: int
    path: str
    step: int = 0


class ScaleRequested(msgspec.Struct, frozen=True, tag=True):
    """The operator wants the role to have this many replicas."""

    role: str
    replicas: int


class DrainRequested(msgspec.Struct, frozen=True, tag=True):
    """The operator wants the node empty. Its replicas move away in order, and nothing new is placed on it."""

    node: NodeName


class CordonRequested(msgspec.Struct, frozen=True, tag=True):
    """The operator wants nothing new on the node. What runs there continues."""

    node: NodeName


class UncordonRequested(msgspec.Struct, frozen=True, tag=True):
    """The operator wants the node to be used again, for whatever reason it was cordoned."""

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
    """The deadline of the controller has come."""


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
    """Return whether the event is about one attempt of a replica; by the exact type, as `effects.is_order`."""
    return type(event) in _OF_ATTEMPTS
