"""Events: what has happened, as the controller sees it. `Controller.handle` takes one at a time.

Every event about a replica carries the number of its attempt, so that the controller can ignore a late report about an
earlier attempt (R20). Agents report most of them; `NodeSuspected`, `NodeSilent` and `NodeHeard` come from the failure
detector, `...Requested` from the operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from flowdist.control.protocol.ids import (
    Activity,
    ExitCause,
    NodeName,
    OfAttempt,
    OfCopy,
    OfNode,
    OfStore,
    ProcessState,
    ReplicaId,
)
from flowdist.graph import FailureKind, NodeSpec

if TYPE_CHECKING:
    from typing_extensions import TypeIs


class ReplicaExited(OfAttempt, frozen=True, tag=True):
    """The workers of a replica ended, and the controller had not ordered them to stop.

    `kind` is None if all workers exited with 0 (R16). Otherwise `exit_code`, `signal` and `local_rank` are those of the
    worker that failed first, and `detail` is one line about its error. `cause` is "collective_timeout" if its process
    group gave up a collective: then a member of the world hangs, and this replica need not be the one (R15).
    """

    kind: FailureKind | None = None
    exit_code: int = 0
    signal: str | None = None  # without SIG: "KILL"
    local_rank: int = 0
    detail: str = ""
    suspended: bool = False  # some of its workers have left their generation and wait, as in ReplicaStopped
    cause: ExitCause = ""


class InventoryItem(msgspec.Struct, frozen=True):
    """State of one attempt of a replica, as its agent knows it; a join lists all of them.

    `ports` are (name, number) of each port of the attempt. `exited` is the agent's report if the attempt ended without
    an order to stop; None otherwise.
    """

    replica: ReplicaId
    attempt: int
    phase: str  # "starting" | "running" | "ready" | "suspended" | "stopped" | "exited"
    ports: tuple[tuple[str, int], ...] = ()
    exited: ReplicaExited | None = None


class CopyHeld(OfCopy, frozen=True, tag=True):
    """The vault of a node holds a copy of a shard, in full: an acknowledgement (R24).

    `node` is the holder, which need not be the node of the rank. `world_size` is that of the generation. All copies of
    one shard have the same number of `bytes` and the same digest.
    """

    node: NodeName
    world_size: int
    bytes: int
    digest: str


class NodeJoined(OfNode, frozen=True, tag=True):
    """The agent of a node connected, for the first time or again.

    `address` is where workers of other nodes reach this node. `incarnation` is higher than before if the agent has lost
    its workers since. `inventory` is every attempt that the agent knows. `is_warming`: the node still imports the
    modules that workers need; NodeWarm follows.
    """

    spec: NodeSpec
    address: str = "127.0.0.1"
    incarnation: int = 1
    inventory: tuple[InventoryItem, ...] = ()
    is_warming: bool = False
    bad_gpus: tuple[tuple[int, str], ...] = ()  # by number, with the reason
    vault_port: int = 0  # of the vault of the node (R24); 0: it has none, or none yet
    copies: tuple[CopyHeld, ...] = ()  # all that the vault holds


class NodeWarm(OfNode, frozen=True, tag=True):
    """The node has imported what workers need, or cannot import it: worlds need not wait for its imports any longer."""


class NodeLeft(OfNode, frozen=True, tag=True):
    """The agent of the node got SIGTERM, stopped its workers, and left the job. Nothing runs on the node any more."""


class NodeGone(OfNode, frozen=True, tag=True):
    """The agent of the node is dead and nothing runs on the node any more, as its guardian or supervisor has proven."""

    cause: str = "its agent died"


class NodeSuspected(OfNode, frozen=True, tag=True):
    """The heartbeats of the node are overdue. Until NodeHeard or NodeSilent, it may be the cause of other failures."""


class NodeSilent(OfNode, frozen=True, tag=True):
    """The lease of the node is over, plus the margin: its agent has fenced, and nothing runs on it any more."""


class NodeStandsStill(OfNode, frozen=True, tag=True):
    """Processes on the node are stopped, by SIGSTOP or a debugger: `who` names those of flowdist, with their numbers.

    Empty: they go on. Without its spawner a node can neither start nor end workers, nor notice their end; without its
    guardian nothing ends the node if its agent dies. `workers` are the replicas with a worker that is stopped.
    """

    who: str = ""
    workers: tuple[ReplicaId, ...] = ()


class GpuFailed(OfNode, frozen=True, tag=True):
    """A GPU of the node has an error; `gpu` is its number there, and `reason` says in words what is wrong.

    `xid` is the number of the error that NVIDIA's driver reported; 0: the error was noticed in another way.
    """

    gpu: int
    reason: str
    xid: int = 0


class NodeHeard(OfNode, frozen=True, tag=True):
    """A suspected or silent node sent a heartbeat. A suspected one is up; a silent one is lost until it joins anew.

    `up_ns` is when the node ran for certain what it ran, because its agent has returned an answer of that time; None:
    now. The heartbeat may have been on its way since.
    """

    up_ns: int | None = None


class StoreOpened(OfStore, frozen=True, tag=True):
    """The store of a generation listens on `port`, so that its members may start."""

    port: int


class StoreLost(OfStore, frozen=True, tag=True):
    """The store of a generation died, or could not be started; `detail` says how."""

    detail: str = ""


class VaultOpened(OfNode, frozen=True, tag=True):
    """The vault of the node, which holds copies of snapshots in memory, listens on `port` (R24). It holds nothing."""

    port: int


class VaultLost(OfNode, frozen=True, tag=True):
    """The vault of the node died, and all copies that it held are lost; `detail` says how."""

    detail: str = ""


class CopyBroken(OfCopy, frozen=True, tag=True):
    """A copy that the vault of `node` held does not have its digest any more, or is lost; `why` says how (R24)."""

    node: NodeName
    why: str = ""


class ReplicaStarted(OfAttempt, frozen=True, tag=True):
    """All workers of the replica run. `ports` are (name, number) of each port that its agent chose for it."""

    ports: tuple[tuple[str, int], ...] = ()


class ReplicaStartsCold(OfAttempt, frozen=True, tag=True):
    """Workers of the replica that should be forked from a prefix are new interpreters; `detail` says why."""

    detail: str


class ReplicaReady(OfAttempt, frozen=True, tag=True):
    """The replica passed its readiness check."""


class ReplicaProgressed(OfAttempt, frozen=True, tag=True):
    """Workers reported progress. `step` is that of the least advanced worker of the replica."""

    step: int


class ReplicaStepped(OfAttempt, frozen=True, tag=True):
    """Workers that report no progress took optimizer steps: `steps` of them since this attempt began.

    That is the count of the most advanced worker of the replica. The number of the script's own step is not known: it
    may have resumed from a checkpoint.
    """

    steps: int


class ReplicaSpent(OfAttempt, frozen=True, tag=True):
    """Workers have spent `ns` nanoseconds on saving or restoring checkpoints since this attempt began.

    That is the time of the worker that spent most: the others wait for it before their next step. The number is a sum,
    so that a report which is lost, or comes twice, falsifies nothing.
    """

    on: Activity
    ns: int


class ReplicaPublished(OfAttempt, frozen=True, tag=True):
    """A worker of the replica published a version of what its role makes, such as its weights (R23)."""

    version: int


class ReplicaAcknowledged(OfAttempt, frozen=True, tag=True):
    """All workers of the replica have at least this version of the role that its `versions=` names (R23)."""

    version: int


class Sampling(msgspec.Struct, frozen=True):
    """The rule by which steps take samples: the arguments of `flowdist.worker.samples` (R25)."""

    dataset_size: int
    global_batch: int
    micro_batch: int
    seed: int
    shuffle: bool = True


class ReplicaSampling(OfAttempt, frozen=True, tag=True):
    """A worker takes its share of the samples of all steps from `begin` on, as `rank` of `ranks` (R25)."""

    local_rank: int
    begin: int
    rank: int
    ranks: int
    sampling: Sampling


class ReplicaElastic(OfAttempt, frozen=True, tag=True):
    """All workers of the replica are inside elastic code, and can leave their generation without ending."""


class ReplicaStopped(OfAttempt, frozen=True, tag=True):
    """The attempt is over after a stop, which is neither success nor failure (R16).

    The controller ordered the stop, the workers agreed on it after AskStep, or the node itself stopped them. All have
    ended. `suspended`: some have not, but have left their generation and wait for the next start of the replica.
    """

    suspended: bool = False


class ReplicaUnkillable(OfAttempt, frozen=True, tag=True):
    """A worker of the replica still runs 30 s (`unkillable_after_ns`) after SIGKILL (R6). Its node is lost with it."""


class ReplicaStalled(OfAttempt, frozen=True, tag=True):
    """The workers of the replica showed no sign of life for `hang_after`, or no progress within `start_timeout` (R15).

    `by` is the sign that is missing, `for_ns` the limit that has passed, and `step` the last step of the least advanced
    worker (-1: none). `was_seen`: there was such a sign before, or steps were counted. `state` is that of a process of
    its workers: the most telling one.
    """

    by: Literal["progress", "output", "start"]
    for_ns: int
    step: int = -1
    was_seen: bool = True
    state: ProcessState = ""


class ReplicaRevived(OfAttempt, frozen=True, tag=True):
    """A replica that was reported as stalled shows a sign of life again."""


class StepTold(OfAttempt, frozen=True, tag=True):
    """The agent's answer to AskStep: the furthest step that a worker of the replica passed to should_stop().

    None: one of the workers never called it. From now on, a worker that calls it waits there for StopAtStep.
    """

    step: int | None


class ReplicaLeftStep(OfAttempt, frozen=True, tag=True):
    """Every worker of the replica has passed the agreed step, where should_stop() turned true, or has ended (R14)."""


class CheckpointOffered(OfAttempt, frozen=True, tag=True):
    """A worker asks to make its checkpoint at `path` the latest one (R19); AnswerCheckpoint follows."""

    generation: int
    path: str
    step: int = 0


class ScaleRequested(msgspec.Struct, frozen=True, tag=True):
    """The operator wants the role to have `replicas` replicas, or as many of them as find room."""

    role: str
    replicas: int


class DrainRequested(OfNode, frozen=True, tag=True):
    """The operator wants the node empty: its replicas move away at an agreed step, and nothing new is placed on it."""


class CordonRequested(OfNode, frozen=True, tag=True):
    """The operator wants nothing new on the node. What runs there continues."""


class UncordonRequested(OfNode, frozen=True, tag=True):
    """The operator wants the node to be used again, for whatever reason it was cordoned."""


class NodePreempted(OfNode, frozen=True, tag=True):
    """The node will be taken away `notice_ns` after this event."""

    notice_ns: int


class ControllerStarted(msgspec.Struct, frozen=True, tag=True):
    """A new controller process took over from the journal, as `epoch`, which is higher than any before (R21).

    `at` is the time by the clock of its host, as in the header of the record; empty in a simulation. Nothing is decided
    by it: the time of the job stands still until a run is resumed, so that readers need it anew.
    """

    epoch: int
    at: str = ""


class CancelRequested(msgspec.Struct, frozen=True, tag=True):
    """The operator wants the job to end, or the engine gives it no hosts: then its `outcome` is that it has failed.

    `now`: every worker is killed at once, without grace.
    """

    reason: str = "cancelled by the operator"
    now: bool = False
    outcome: Literal["cancelled", "failed"] = "cancelled"


class TimePassed(msgspec.Struct, frozen=True, tag=True):
    """Time has passed, and nothing else has happened; drivers send this at the time of `Controller.deadline`."""


AttemptEvent = (  # of one attempt of a replica
    ReplicaProgressed
    | ReplicaStepped
    | ReplicaSpent
    | ReplicaPublished
    | ReplicaAcknowledged
    | ReplicaSampling
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
    | NodeStandsStill
    | StoreOpened
    | StoreLost
    | CheckpointOffered
    | VaultOpened
    | VaultLost
    | CopyHeld
    | CopyBroken
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
    """Return whether the event is one of `AttemptEvent`, by its exact type (see `effects.is_order`)."""
    return type(event) in _OF_ATTEMPTS
