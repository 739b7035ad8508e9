"""Facts about failures and losses, as events record them, and incidents, as `incidents/` decides about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import Decided
from flowdist.control.protocol.ids import NodeName, ReplicaId, WorldName
from flowdist.graph import FailureKind

IncidentPhase = Literal["stopping", "starting", "closed"]
FREE = "a change of membership, not counted"


class Failure(NamedTuple):
    """Failure of one replica on `node`, by itself or in `Loss.lost`, at `at_ns`; `why` is one line for the user.

    `world` is set if it hangs and several members may be the one that does: nobody is blamed then.
    """

    replica: ReplicaId
    kind: FailureKind
    why: str
    exit_code: int = 0
    signal: str | None = None
    node: NodeName | None = None
    at_ns: int = 0
    was_told: bool = False  # the controller had ordered it to stop before its failure was reported
    has_timed_out: bool = False  # its process group gave up a collective, for which a member of its world never came
    world: WorldName = ""

    @property
    def root(self) -> str:
        """Return the name of what has failed: the replica, or its world if it is not known which member has."""
        return self.world or str(self.replica)

    @property
    def reason(self) -> str:
        """Return the failure as one sentence for notices: `trainer/1 failed on node1: exit code 3: ...`."""
        return f"{self.world}: {self.why}" if self.world else f"{self.replica} failed on {self.node}: {self.why}"


class Loss(NamedTuple):
    """Loss of replicas through no fault of their own: with a node, with a GPU, or by a stop without an order."""

    root: str  # the name of what is lost: a node, or a replica
    cause: str  # what has happened, in words
    lost: tuple[Failure, ...]  # the replicas
    node: NodeName | None = None  # that is lost with them; None if no node is
    is_told: bool = False  # the user gets a notice of the cause and the lost replicas
    is_blamed: bool = False  # the loss counts against the node (R22)
    also: tuple[WorldName, ...] = ()  # more worlds that re-form, whatever is decided about the lost replicas
    # Worlds of which a store or a seat is lost: those that open choose their members anew.
    unseated: tuple[WorldName, ...] = ()


class Change(NamedTuple):
    """Change of membership, or death of a store: these worlds have to re-form, and none of their replicas has failed.

    `kind` is the kind of the incident that follows, and `root` the node, replica or world that has changed. `reason`
    says in words what has happened, and `because` why no budget pays for it.
    """

    kind: str
    root: str
    reason: str
    worlds: tuple[WorldName, ...]
    because: str = FREE


class Ended(NamedTuple):
    """Report by an agent that an attempt has ended: a lost node reports nothing, so the node was not lost before."""

    replica: ReplicaId


class Connected(NamedTuple):
    """Connection of an agent, with the attempts `present` on its node; `is_added`: nothing ran there before."""

    event: ev.NodeJoined
    present: frozenset[tuple[ReplicaId, int]]
    is_added: bool


# Events from which something may follow, besides what is recorded in the state:
OfEnd = ev.ReplicaExited | ev.ReplicaStopped
OfNotice = ev.StepTold | ev.ReplicaLeftStep
OfReadiness = ev.ReplicaStarted | ev.ReplicaReady | ev.ReplicaPublished | ev.ReplicaAcknowledged
OfSteps = ev.ReplicaProgressed | ev.ReplicaStepped
OfNode = ev.NodeHeard | ev.NodePreempted | ev.GpuFailed | ev.ReplicaUnkillable
OfWorld = ev.StoreOpened | ev.CheckpointOffered | ev.CopyHeld
Operation = ev.ScaleRequested | ev.CancelRequested | ev.DrainRequested | ev.CordonRequested | ev.UncordonRequested
Reported = OfEnd | OfNotice | OfReadiness | OfSteps | OfNode | OfWorld | Operation
Fact = Failure | Loss | Change | Ended | Connected | Decided | Reported


class PastFailure(NamedTuple):
    """Earlier failure on a node: it counts against the node, and against the replica on this node (R22)."""

    at_ns: int
    kind: str
    replica: ReplicaId | None  # None: the node itself was lost
    node: NodeName


class Charge(NamedTuple):
    """Charge of a budget for the incident that opened at `opened_ns`: the role's own (level 0), or wider ones (R11)."""

    opened_ns: int
    level: int


class Deferred(NamedTuple):
    """Failure that is judged when it is known whether a node, or a peer that hangs, has caused it (R8, R15)."""

    failure: Failure
    caused: bool  # something upstream, or in the same incident, is the root cause
    is_final: bool  # by its expected verdict it would end the job, or its replica, instead of a restart
    blocks: bool  # the worlds of its incident do not restart before it is judged
    awaits_upstream: bool  # its budget is used up, and an upstream may still turn out to be the cause (R7)
    awaits_steps: bool  # all of its world has to stop first: then it is known which member is furthest behind (R15)
    own: int | None = None  # number of the incident that it opened, for which a budget may pay; None: it opened none


class OldRestore(NamedTuple):
    """Generation of a world that has restored an older checkpoint than the latest one, at `at_ns` (ns).

    `step` is the first one that `replica` reported as done, and `committed` that of the latest checkpoint.
    """

    at_ns: int
    world: WorldName
    generation: int
    replica: ReplicaId
    step: int
    committed: int

    @property
    def text(self) -> str:
        """Return it as one sentence for notices."""
        restored = f"restored step {self.step - 1} or an earlier one, although {self.committed} was committed"
        return f"generation {self.generation} of {self.world} {restored}: {self.replica} did step {self.step} again"


@dataclass(slots=True)
class Incident:
    """One cause with all worlds that restart because of it. A free incident is a change of membership (R8)."""

    number: int
    opened_ns: int
    kind: str  # a failure kind, or one of rules.CHOSEN_KINDS
    root: str  # what failed, left or came: "trainer/0", "node1"
    reason: str
    root_role: str | None = None  # the role whose budget is charged; None while that is not judged, and if none is
    counted: bool = False  # a budget pays for it
    level: int = 0  # of that budget: how often it was escalated (R11)
    backoffs: dict[int, int] = field(default_factory=dict)  # until when it waits (ns), by incident whose own it is
    backoff_ns: int = 0  # from the failure to the restart
    worlds: dict[WorldName, None] = field(default_factory=dict)  # the restart set
    awaited: dict[WorldName, None] = field(default_factory=dict)  # of these, those that have to stop, or to run again
    lost: dict[ReplicaId, str] = field(default_factory=dict)  # replicas that failed or were lost in it, and how
    bereft: dict[WorldName, None] = field(default_factory=dict)  # worlds that lost a member with its node
    restarted: dict[ReplicaId, None] = field(default_factory=dict)  # replicas that it made start a new attempt
    stayed: dict[ReplicaId, None] = field(default_factory=dict)  # of these, the ones whose workers all stayed in place
    moved: dict[ReplicaId, NodeName] = field(default_factory=dict)  # of these, the ones that left their node: to which
    suspects: dict[NodeName, int] = field(default_factory=dict)  # nodes that may have caused a failure: since when (ns)
    first_failed: dict[WorldName, NodeName] = field(default_factory=dict)  # by world: node of its first failed replica
    deferred: list[Deferred] = field(default_factory=list)  # failures that are not judged yet, in order of time
    phase: IncidentPhase = "stopping"
    closed_ns: int | None = None
    charged_to: str | None = None  # the role whose budget was charged; None while the incident is open, or if none is
    result: str = ""  # "re-formed", then "recovered", or why it did not; see `recovery.settled_result`
    unstepped: dict[WorldName, None] = field(default_factory=dict)  # worlds that have re-formed and not stepped yet
    stepped_ns: int | None = None  # when the last of its worlds took its first step (ns); None: unknown, or not yet

    @property
    def is_open(self) -> bool:
        return self.phase != "closed"

    @property
    def took_ns(self) -> int | None:
        """Return the time (ns) from its opening to its close, when its worlds ran again; None while it is open."""
        return None if self.closed_ns is None else self.closed_ns - self.opened_ns

    @property
    def recovered_ns(self) -> int | None:
        """Return the time (ns) from its opening to its first step, or if that is not known to its close; or None."""
        return self.took_ns if self.first_step_ns is None else self.first_step_ns

    @property
    def first_step_ns(self) -> int | None:
        """Return the time (ns) from its opening to the first step of its worlds; None if that is not known."""
        return None if self.stepped_ns is None else self.stepped_ns - self.opened_ns
