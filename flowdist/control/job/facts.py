"""Facts about failures and losses, as events record them, and incidents, as `incidents/` decides about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from flowdist.control.protocol.ids import NodeName, ReplicaId, WorldName
from flowdist.graph import FailureKind

FREE = "a change of membership, not counted"


class Failure(NamedTuple):
    """Failure of one replica, by itself, at `at_ns` on `node`. `why` is one line: `exit code 3: ValueError: ...`."""

    replica: ReplicaId
    kind: FailureKind
    why: str
    exit_code: int = 0
    signal: str | None = None
    node: NodeName | None = None
    at_ns: int = 0
    was_told: bool = False  # the controller had told it to stop before it was known to have failed

    @property
    def reason(self) -> str:
        """Say what has happened, in the words of incidents and of the end of a job."""
        return f"{self.replica} failed on {self.node}: {self.why}"


class Loss(NamedTuple):
    """Loss of replicas through no fault of their own: with a node, with a GPU, or by a stop without an order.

    Args:
        root: What is lost: a node, or a replica.
        cause: What has happened, in words.
        lost: The replicas.
        node: The node that is lost with them; None if no node is.
        is_told: A notice names the cause and the lost replicas.
        is_blamed: The loss counts against the node (R22).
        also: Worlds that re-form whatever is decided about the lost replicas.
    """

    root: str
    cause: str
    lost: tuple[Failure, ...]
    node: NodeName | None = None
    is_told: bool = False
    is_blamed: bool = False
    also: tuple[WorldName, ...] = ()


class Change(NamedTuple):
    """Change of membership, or death of a store: these worlds re-form, and none of their replicas has failed."""

    kind: str
    root: str
    reason: str
    worlds: tuple[WorldName, ...]
    because: str = FREE


class Heard(NamedTuple):
    """Heartbeat of a suspected node, or a new connection of a node: the node is not lost."""

    node: NodeName


class Ended(NamedTuple):
    """End of an attempt, as reported by its node: the node was not lost before."""

    replica: ReplicaId


Fact = Failure | Loss | Change | Heard | Ended


class PastFailure(NamedTuple):
    """Failure of a replica on a node that counts against the two together, and against the node (R22)."""

    at_ns: int
    kind: str
    replica: ReplicaId | None  # None: the node itself was lost
    node: NodeName


class Charge(NamedTuple):
    """Charge of a budget for one incident. `level` is the number of escalations: 0 is the role's own budget (R11)."""

    opened_ns: int
    level: int


class Deferred(NamedTuple):
    """Failure that is judged when it is known whether a node that may have caused it is lost (R8)."""

    failure: Failure
    caused: bool  # something upstream, or in the same incident, is the root cause
    is_final: bool  # it would end the job, or its role, as it seems
    blocks: bool  # the worlds of its incident do not restart before it is judged
    awaits_upstream: bool  # its budget is used up, and an upstream may still take the blame (R7)
    own: int | None = None  # the incident that it opened, and is charged for


@dataclass(slots=True)
class Incident:
    """One cause with all worlds that restart because of it. A free incident is a change of membership (R8)."""

    number: int
    opened_ns: int
    kind: str  # a failure kind, or one of health.CHOSEN_KINDS
    root: str  # what failed, left or came: "trainer/0", "node1"
    reason: str
    root_role: str | None = None  # the role whose budget is charged; None while that is not judged, and if none is
    counted: bool = False
    level: int = 0  # of the budget: how often it was escalated (R11)
    backoff_ns: int = 0
    worlds: dict[WorldName, None] = field(default_factory=dict)  # the restart set
    awaited: dict[WorldName, None] = field(default_factory=dict)  # of these, not known yet to be gone, or to run again
    lost: dict[ReplicaId, str] = field(default_factory=dict)  # replicas that failed or were lost in it, and how
    bereft: dict[WorldName, None] = field(default_factory=dict)  # worlds that lost a member with its node
    restarted: dict[ReplicaId, None] = field(default_factory=dict)  # replicas that it made start a new attempt
    stayed: dict[ReplicaId, None] = field(default_factory=dict)  # of these, whose workers came to it in place
    suspects: dict[NodeName, int] = field(default_factory=dict)  # nodes that may have caused a failure: since when
    first_failed: dict[WorldName, NodeName] = field(default_factory=dict)  # where the first of a world failed
    deferred: list[Deferred] = field(default_factory=list)  # failures that are not judged yet, in order of time
    phase: Literal["stopping", "starting", "closed"] = "stopping"
    closed_ns: int | None = None
    charged_to: str | None = None
    result: str = ""  # "recovered", or why it did not

    @property
    def is_open(self) -> bool:
        return self.phase != "closed"
