"""What is to be done. Effects with a `node` are orders for the agent of that node; drivers carry the rest out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from flowdist.control.protocol.ids import Addresses, NodeName, ReplicaId, WorldName

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Outcome = Literal["succeeded", "failed", "cancelled"]
Level = Literal["info", "warning", "error", "refused"]


class OpenStore(msgspec.Struct, frozen=True, tag=True):
    """Bind a fresh store for a generation. `eager` says that its workers will want it at once."""

    node: NodeName
    world: WorldName
    generation: int
    eager: bool = True


class CloseStore(msgspec.Struct, frozen=True, tag=True):
    node: NodeName
    world: WorldName
    generation: int


class StartReplica(msgspec.Struct, frozen=True, tag=True):
    """Start the workers of one replica. Ranks are those of its first worker, the others follow on.

    Sizes count workers, `group_` counts replicas of the world, `role_` spans the role. `gpus` are device numbers of
    the node. `addresses` are those of the roles that this one has a gate on, as far as they run.
    """

    node: NodeName
    replica: ReplicaId
    attempt: int
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


class StopReplica(msgspec.Struct, frozen=True, tag=True):
    """SIGTERM, then SIGKILL when `grace_ns` has passed; no SIGTERM at all when it is 0.

    With `dump` the first signal is SIGABRT: Python workers write the stacks of all their threads to their log (R15).
    With `in_place` its workers are to leave their generation and wait; only who has not when `grace_ns` has passed is
    killed. The next StartReplica of the replica on that node goes on with those who wait. Without `in_place` an attempt
    that waits ends.
    """

    node: NodeName
    replica: ReplicaId
    attempt: int
    grace_ns: int
    dump: bool = False
    in_place: bool = False


class AskStep(msgspec.Struct, frozen=True, tag=True):
    """The world is to stop soon (R14): say how far the workers are, and have them wait at their next should_stop()."""

    node: NodeName
    replica: ReplicaId
    attempt: int


class StopAtStep(msgspec.Struct, frozen=True, tag=True):
    """The step at which should_stop() turns true on every rank. None: they stop without having agreed on one."""

    node: NodeName
    replica: ReplicaId
    attempt: int
    step: int | None


class TellPeers(msgspec.Struct, frozen=True, tag=True):
    """Addresses that a running replica depends on have changed."""

    node: NodeName
    replica: ReplicaId
    attempt: int
    addresses: Addresses


class AnswerCheckpoint(msgspec.Struct, frozen=True, tag=True):
    """Whether an offered checkpoint is now the latest of the role."""

    node: NodeName
    replica: ReplicaId
    attempt: int
    path: str
    step: int
    accepted: bool
    reason: str = ""


class Notify(msgspec.Struct, frozen=True, tag=True):
    """A decision or a fact in words: the same text in the terminal, the record and the tests.

    `refused`: the operator asked for what cannot be, and nothing changes.
    """

    text: str
    level: Level = "info"


class FinishJob(msgspec.Struct, frozen=True, tag=True):
    """The job is over and nothing of it runs any more (R18)."""

    outcome: Outcome
    reason: str = ""


Order = OpenStore | CloseStore | StartReplica | StopReplica | AskStep | StopAtStep | TellPeers | AnswerCheckpoint
Effect = Order | Notify | FinishJob
_ORDERS = frozenset(get_args(Order))


def is_order(effect: Effect) -> TypeIs[Order]:
    """By its very type: isinstance asks the metaclass of each in turn, and takes ten times as long."""
    return type(effect) in _ORDERS
