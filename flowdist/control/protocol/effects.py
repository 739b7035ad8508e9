"""Effects: what the controller wants done.

Effects with a `node` are orders, which a driver sends to the agent of that node. The driver carries out the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from flowdist.control.protocol.ids import Addresses, NodeName, ReplicaId, SnapshotRef, WorldName

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Outcome = Literal["succeeded", "failed", "cancelled"]
Level = Literal["info", "warning", "error", "refused"]
What = Literal[
    "controller_back",
    "cordon_refused",
    "drain_refused",
    "failure_final",
    "failure_ignored",
    "gpu_kept",
    "gpu_lost",
    "incident_closed",
    "incident_excused",
    "incident_joined",
    "incident_judged",
    "incident_opened",
    "incident_recovered",
    "job_cancelled",
    "job_failed",
    "job_succeeded",
    "left_in_place",
    "node_cordoned",
    "node_goes_on",
    "node_joined",
    "node_leaves",
    "node_lost",
    "node_stands_still",
    "node_suspect",
    "node_used_again",
    "nodes_missing",
    "not_left",
    "old_restore",
    "replica_ready",
    "role_cold",
    "role_ended",
    "role_scaled",
    "role_succeeded",
    "samples_differ",
    "samples_left_out",
    "samples_repeated",
    "scale_refused",
    "snapshot_chosen",
    "snapshot_lost",
    "snapshots_given_up",
    "step_agreed",
    "version_stale",
    "waits_for_room",
    "worker_goes_on",
    "worker_stands_still",
    "world_forms",
]


class AttemptOrder(msgspec.Struct, frozen=True):
    """Base of the orders about one attempt of a replica on a node."""

    node: NodeName
    replica: ReplicaId
    attempt: int


class OpenStore(msgspec.Struct, frozen=True, tag=True):
    """Bind a fresh store for a generation of a world; the agent answers with StoreOpened.

    `eager`: the process of the store starts now, because several workers will connect; else at the first connection.
    """

    node: NodeName
    world: WorldName
    generation: int
    eager: bool = True


class CloseStore(msgspec.Struct, frozen=True, tag=True):
    """Close the store of a generation; the agent does not report its end."""

    node: NodeName
    world: WorldName
    generation: int


class StartReplica(AttemptOrder, frozen=True, tag=True):
    """Start the workers of one replica in a generation of its world; the agent reports ReplicaStarted.

    `rank` is that of the replica's first worker in the world, `role_rank` among the workers of its role; its other
    workers follow. `group_rank` is its place among the `group_world_size` replicas of the world. `source_rank` is the
    rank from which the other workers take the training state: the first worker of the replica that has been a member
    for longest. `master_addr` and `master_port` are those of the generation's store, `gpus` numbers on the node, and
    `addresses` the known ones of the roles that this one has a gate on. All members go on from `snapshot`; None: none
    is whole, or the latest checkpoint is further (R24).
    """

    world: WorldName
    generation: int
    rank: int
    world_size: int
    group_rank: int
    group_world_size: int
    role_rank: int
    role_world_size: int
    source_rank: int
    master_addr: str
    master_port: int
    gpus: tuple[int, ...] = ()
    addresses: Addresses = ()
    snapshot: SnapshotRef | None = None


class StopReplica(AttemptOrder, frozen=True, tag=True):
    """Stop the workers of one replica: SIGTERM, and SIGKILL after `grace_ns`; SIGKILL alone if that is 0.

    With `dump` the first signal is SIGABRT, so that Python workers write the stacks of all their threads to their log
    (R15). With `in_place` the workers are to leave their generation and wait; a worker that has not left after
    `grace_ns` is killed. The next StartReplica of the replica on that node continues with the suspended workers.
    Without `in_place` a suspended attempt ends.
    """

    grace_ns: int
    dump: bool = False
    in_place: bool = False


class AskStep(AttemptOrder, frozen=True, tag=True):
    """Ask how far the workers are (R14); StepTold answers, and they wait in should_stop() for StopAtStep."""


class StopAtStep(AttemptOrder, frozen=True, tag=True):
    """Set the step at which should_stop() turns true on every rank (R14); None, if there is no agreed one: at once."""

    step: int | None


class TellPeers(AttemptOrder, frozen=True, tag=True):
    """Give the workers of a running replica the new addresses of all roles that its role has a gate on (R5)."""

    addresses: Addresses


class AnswerCheckpoint(AttemptOrder, frozen=True, tag=True):
    """Answer a CheckpointOffered. `accepted`: the checkpoint is now the latest one; else `reason` says why not."""

    path: str
    step: int
    accepted: bool
    reason: str = ""


class SetBuddies(msgspec.Struct, frozen=True, tag=True):
    """Have the vault of a node give a copy of each shard of a world that workers there save to these others (R24).

    `buddies` are names of nodes, each with the address of its vault. The order replaces the last one for the world.
    """

    node: NodeName
    world: WorldName
    buddies: Addresses


class ReleaseCopies(msgspec.Struct, frozen=True, tag=True):
    """Have the vault of a node drop all copies of one snapshot: it is not needed any more, or does not count (R24)."""

    node: NodeName
    world: WorldName
    generation: int
    step: int


class Decided(msgspec.Struct, frozen=True, tag=True):
    """Decision, or a fact that a user has to know. The terminal, the record, hooks and tests show the same one.

    `what`, `about` and `incident` are stable: tools read them. `text`, one sentence, is for people, and may change. A
    decision whose `what` ends in `refused` answers an operator, and changes nothing. `about` is a replica, node, world
    or role, as users write it; empty: the job. `incident` is the number of the one that it is part of.
    """

    what: What
    about: str
    text: str
    level: Level = "info"
    incident: int | None = None


class FinishJob(msgspec.Struct, frozen=True, tag=True):
    """End the job: no attempt of it runs any more, and its outcome is decided (R18). It is the last effect of a job."""

    outcome: Outcome
    reason: str = ""


OfVault = SetBuddies | ReleaseCopies
Order = (
    OpenStore | CloseStore | StartReplica | StopReplica | AskStep | StopAtStep | TellPeers | AnswerCheckpoint | OfVault
)
Effect = Order | Decided | FinishJob
_ORDERS = frozenset(get_args(Order))


def is_order(effect: Effect) -> TypeIs[Order]:
    """Return whether the effect is an order for an agent, by its exact type.

    `isinstance` asks the metaclass of each type in turn, and takes ten times as long.
    """
    return type(effect) in _ORDERS
