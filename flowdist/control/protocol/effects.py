"""Effects: what the controller wants done. Those with a `node` are orders for its agent; drivers carry out the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from flowdist.control.protocol.ids import Addresses, NodeName, ReplicaId, WorldName

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Outcome = Literal["succeeded", "failed", "cancelled"]
Level = Literal["info", "warning", "error", "refused"]


class AttemptOrder(msgspec.Struct, frozen=True):
    """Base of the orders about one attempt of a replica on a node."""

    node: NodeName
    replica: ReplicaId
    attempt: int


class OpenStore(msgspec.Struct, frozen=True, tag=True):
    """Bind a fresh store for a generation. `eager`: its workers will connect at once."""

    node: NodeName
    world: WorldName
    generation: int
    eager: bool = True


class CloseStore(msgspec.Struct, frozen=True, tag=True):
    """Close the store of a generation."""

    node: NodeName
    world: WorldName
    generation: int


class StartReplica(AttemptOrder, frozen=True, tag=True):
    """Start the workers of one replica.

    Ranks are those of its first worker; the others follow. Sizes count workers, `group_` counts replicas of the world,
    and `role_` spans the role. `gpus` are device numbers of the node. `addresses` are those of the roles on which this
    one has a gate, as far as they run.
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
    """Ask how far the workers are: their world is to stop soon (R14). They wait at their next should_stop()."""


class StopAtStep(AttemptOrder, frozen=True, tag=True):
    """Set the step at which should_stop() turns true on every rank. None: they stop without an agreed step."""

    step: int | None


class TellPeers(AttemptOrder, frozen=True, tag=True):
    """Tell a running replica that addresses on which it depends have changed."""

    addresses: Addresses


class AnswerCheckpoint(AttemptOrder, frozen=True, tag=True):
    """Answer an offered checkpoint: `accepted` if it is now the latest one of the role."""

    path: str
    step: int
    accepted: bool
    reason: str = ""


class Notify(msgspec.Struct, frozen=True, tag=True):
    """Show a decision or a fact in words. The same text reaches the terminal, the record and the tests.

    Level `refused`: the operator asked for something impossible, and nothing changes.
    """

    text: str
    level: Level = "info"


class FinishJob(msgspec.Struct, frozen=True, tag=True):
    """End the job. Nothing of it runs any more (R18)."""

    outcome: Outcome
    reason: str = ""


Order = OpenStore | CloseStore | StartReplica | StopReplica | AskStep | StopAtStep | TellPeers | AnswerCheckpoint
Effect = Order | Notify | FinishJob
_ORDERS = frozenset(get_args(Order))


def is_order(effect: Effect) -> TypeIs[Order]:
    """Return whether the effect is an order for an agent.

    By the exact type: isinstance asks the metaclass of each type in turn, and takes ten times as long.
    """
    return type(effect) in _ORDERS
