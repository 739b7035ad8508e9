"""Mutable records of the nodes, replicas, worlds and roles of a job, and their phases. They decide nothing.

The index of candidates stays sorted, so that a choice among ten thousand nodes costs what it costs among ten.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from flowdist.control.job.facts import Charge, PastFailure
from flowdist.control.protocol.effects import SetBuddies, StartReplica
from flowdist.control.protocol.events import CheckpointOffered, ReplicaExited, Sampling
from flowdist.control.protocol.ids import Addresses, NodeName, ProcessState, ReplicaId, SnapshotRef, WorldName
from flowdist.graph import Gate, NodeSpec, Placement, RoleSpec
from flowdist.graph.capacity import Capacity, Need

# Rank, the node's order, its name; the lowest is the best. The rank is the number of replicas that fit on the node,
# negative unless the role packs nodes.
Candidate = tuple[int, int, NodeName]


class CandidateIndex:
    """Nodes with room for one more replica of a given need and placement, sorted with the best node first.

    `slots` is how many replicas fit on all of them together. `is_picky`: the placement has rules besides room.
    """

    def __init__(self, need: Need, placement: Placement) -> None:
        self.need, self.placement = need, placement
        self.is_picky = bool(placement.where or placement.near or placement.apart)
        self.slots = 0
        self._found: dict[NodeName, Candidate] = {}
        self._sorted: list[Candidate] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CandidateIndex) and self._found == other._found

    __hash__ = None  # type: ignore[assignment]  # an index is mutable

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._sorted)

    def get(self, name: NodeName) -> Candidate | None:
        """Return the candidate of the node; None if the node is not in the index."""
        return self._found.get(name)

    def put(self, name: NodeName, candidate: Candidate | None) -> None:
        """Set the candidate of a node and adjust `slots`. None removes the node, if it is in the index."""
        was = self._found.get(name)
        if was == candidate:
            return
        if was is not None:
            del self._found[name]
            del self._sorted[bisect_left(self._sorted, was)]
            self.slots -= abs(was[0])
        if candidate is not None:
            insort(self._sorted, candidate)
            self._found[name] = candidate
            self.slots += abs(candidate[0])

    def after(self, candidate: Candidate | None) -> Candidate | None:
        """Return the best candidate that sorts after the given one, in the index or not; for None the best of all."""
        index = bisect_right(self._sorted, candidate) if candidate is not None else 0
        return self._sorted[index] if index < len(self._sorted) else None


ReplicaPhase = Literal[
    "waiting",  # nothing of it runs; it may be placed and start
    "starting",  # ordered to start; its node has not confirmed that
    "running",
    "ready",  # runs and has passed its readiness check
    "stopping",  # ordered to stop; its node has not confirmed that
    "gone",  # its attempt is over; its incident decides what comes next
    "succeeded",
    "ended",  # will not run again, without success: ignored, or stopped at the end
]
UP_PHASES: frozenset[str] = frozenset({"starting", "running", "ready"})
LIVE_PHASES: frozenset[str] = UP_PHASES | {"stopping"}
OVER_PHASES: frozenset[str] = frozenset({"succeeded", "ended"})
PHASES: tuple[ReplicaPhase, ...] = get_args(ReplicaPhase)

RoleOutcome = Literal["succeeded", "failed", "ignored", "stopped"]
Stall = Literal["", "progress", "output", "start"]  # the sign of life that a stalled replica misses; empty: not stalled
WorldPhase = Literal[
    "waiting",  # for gates, nodes, the join window or back-off
    "opening",  # members are chosen, the store is being bound
    "running",  # all members have the order to start
    "stopping",  # all members have the order to stop, to start again or to end
    "succeeded",
    "ended",
]


@dataclass(slots=True)
class Snapshot:
    """State of a world at one step of one generation, held in the memory of nodes (R24).

    `copies` are the acknowledged ones on usable nodes, with their digests: by rank, then by holder. `having` is how
    many ranks have at least 1, 2, ... copies. Only `add` and `remove` change them.
    """

    generation: int
    step: int
    world_size: int
    copies: dict[int, dict[NodeName, str]] = field(default_factory=dict)
    having: list[int] = field(default_factory=list)

    @property
    def age(self) -> tuple[int, int]:
        """Return a key by which snapshots of a world sort: the oldest is the lowest, whatever its step."""
        return self.generation, self.step

    @property
    def least(self) -> int:
        """Return how many copies each shard has at least; 0 if one has none, so that the snapshot is not whole."""
        return sum([many == self.world_size for many in self.having])

    def add(self, rank: int, holder: NodeName, digest: str) -> None:
        """Add a copy that is not there yet."""
        copies = self.copies.setdefault(rank, {})
        copies[holder] = digest
        if len(copies) > len(self.having):
            self.having.append(0)
        self.having[len(copies) - 1] += 1

    def remove(self, rank: int, holder: NodeName) -> None:
        """Remove a copy that is there."""
        self.having[len(self.copies[rank]) - 1] -= 1
        del self.copies[rank][holder]


NoticeKind = Literal["drained", "preempted"]


@dataclass(slots=True)
class Node:
    """Node that has joined, at least once.

    `usable` is false once the node is lost, has left, or has a worker that outlives SIGKILL; it may join again. `free`
    is its capacity less that of every placed replica, of processes that outlive SIGKILL, and of bad GPUs.
    """

    spec: NodeSpec
    address: str
    incarnation: int
    order: int  # ties in placement go to the lowest: listed nodes in their order, then others as they join
    free: Capacity
    usable: bool = True
    stands_still: str = ""  # processes of flowdist there that are stopped, in words; empty: none is
    stopped: tuple[ReplicaId, ...] = ()  # replicas there with a worker that is stopped
    cordoned: str = ""  # why no more replicas are placed on it; empty: it is not cordoned
    cordon_cause: str = ""  # the kind of the failures that led to the cordon; empty: another reason, or no cordon
    lost_because: str = ""  # why it is not usable, without its name
    awaits_inventory: bool = False  # a controller took over, and the node has not joined since (R21)
    is_leaving: bool = False  # drained or preempted: its replicas move to other nodes
    taken_at_ns: int = 0  # when it will be taken away, as its last notice said; 0: there was none
    replicas: dict[ReplicaId, None] = field(default_factory=dict)  # placed here
    stores: dict[WorldName, None] = field(default_factory=dict)  # worlds whose store is here
    # attempts with a worker that outlives SIGKILL, and their GPUs
    stuck: dict[tuple[ReplicaId, int], tuple[int, ...]] = field(default_factory=dict)
    failures: list[PastFailure] = field(default_factory=list)
    bad_gpus: dict[int, str] = field(default_factory=dict)  # by number: why it is given to no replica
    vault_port: int = 0  # of its vault (R24); 0: it has none

    @property
    def is_avoided(self) -> bool:
        """Return whether nothing more is placed on it, although it is usable."""
        return bool(self.cordoned or self.stands_still)


@dataclass(slots=True)
class Replica:
    """One replica of a role. `node` is where its attempt runs, or where its seat is kept; None without a seat."""

    id: ReplicaId
    world: WorldName
    phase: ReplicaPhase = "waiting"
    attempt: int = 0
    procs: int = 0  # number of its workers in its last generation
    node: NodeName | None = None
    gpus: tuple[int, ...] = ()
    ports: tuple[tuple[str, int], ...] = ()
    ports_node: NodeName | None = None  # where the ports were chosen: later attempts there keep them
    member_since: int = 0  # first generation of its present unbroken membership; 0: it is no member
    step: int = -1  # the last step that its present attempt reported; -1: none yet
    version: int = -1  # the version that its present attempt has acknowledged (R23); -1: none
    is_checked: bool = False  # its attempt has passed the check of its role
    was_refused: bool = False  # a notice says that the version of its attempt is too old
    admitted: tuple[int, int] | None = None  # its version, and the latest one, when its attempt became ready
    order: StartReplica | None = None  # the start order of its present attempt
    started_ns: int = 0  # when that order was given (ns)
    stop_grace_ns: int = 0  # grace of its last order to stop
    is_elastic: bool = False  # its workers can leave their generation without ending
    starts_in_place: int = 0  # number of attempts that began with suspended workers, none of them lost
    in_place: bool = False  # its last order to stop leaves its workers suspended
    stalled: Stall = ""  # what is missing (R15); empty: it has not stalled
    stalled_ns: int = 0  # when the stall was reported (ns)
    stalled_as: ProcessState = ""  # the state of its processes then
    known_addresses: Addresses = ()  # the addresses that were last sent to it
    failures: list[PastFailure] = field(default_factory=list)
    exited: ReplicaExited | None = None  # the report of its last failure; it names the worker that failed first

    @property
    def restarts(self) -> int:
        """Return how often the replica was started again, not counting starts that continued all suspended workers."""
        return max(0, self.attempt - 1 - self.starts_in_place)

    @property
    def is_live(self) -> bool:
        """Return whether an attempt runs, is about to run, or has not ended yet."""
        return self.phase in LIVE_PHASES

    @property
    def is_up(self) -> bool:
        """Return whether an attempt runs or is about to run, and has no order to stop."""
        return self.phase in UP_PHASES


@dataclass(slots=True)
class Notice:
    """Request to a world to leave some nodes in order (drained or preempted), and its members' answers so far (R14)."""

    nodes: dict[NodeName, NoticeKind]
    because: str  # of the last node that is preempted, or else of the first
    asked: dict[ReplicaId, None]  # members that have not answered yet
    steps: list[int | None] = field(default_factory=list)  # the answers so far; None: the member has no step
    is_answered: bool = False  # all have answered, and were told where to stop
    stop_at: int | None = None  # the step at which all stop; None: not chosen, or no agreed step
    staying: dict[ReplicaId, None] = field(default_factory=dict)  # members that have not left the agreed step yet

    @property
    def preempted(self) -> list[NodeName]:
        """Return those of the nodes that will be taken away."""
        return [name for name, kind in self.nodes.items() if kind == "preempted"]


class Counted(NamedTuple):
    """The steps from `begin` to `end`, exclusive, that a generation has done and that are in a checkpoint (R25).

    `seen` of the `ranks` that share a step have reported which samples they take; `differs`: not all by one rule.
    """

    generation: int
    begin: int
    end: int
    sampling: Sampling
    seen: int
    ranks: int
    differs: bool
    is_unknown: bool = False  # there was no committed state of the step at which it began


@dataclass(slots=True)
class Drawing:
    """How a generation takes samples: as its `first` replica has reported, and which ranks have (`seen`)."""

    generation: int
    begin: int
    sampling: Sampling
    ranks: int
    first: ReplicaId
    seen: dict[int, None]
    differs: bool = False  # another one has reported something else
    is_unknown: bool = False  # there was no committed state of the step at which it began


@dataclass(slots=True)
class World:
    """Unit of restart: a gang, or one replica. `pool` is every replica that may be a member, in order of ranks."""

    name: WorldName
    roles: tuple[str, ...]
    pool: tuple[ReplicaId, ...]
    order: int
    phase: WorldPhase = "waiting"
    generation: int = 0
    members: tuple[ReplicaId, ...] = ()  # of the present generation, in order of ranks
    store_node: NodeName | None = None
    store_port: int | None = None
    incident: int | None = None  # the open incident that it belongs to
    grow_at_once: bool = False  # the operator has scaled up: no cool-down (R13)
    formed_ns: int | None = None  # when all members of the present generation ran (ns); None: not yet
    step: int = -1  # the furthest step ever reported
    counted: int = 1  # the most optimizer steps that a member has ever taken in one attempt; fewer are no progress
    progressed: bool = False  # a new step was reported in the present generation
    stepped_ns: int | None = None  # when the present generation reported its first step (ns); None: not yet
    unstepped_in: int | None = None  # the closed incident that waits for that step
    free_row: int = 0  # free incidents in a row (R8)
    retiring: Literal["", "shrunk", "ended"] = ""  # why the world stops, if not for a restart
    notice: Notice | None = None
    hangs: bool = False  # it hangs: its stacks are written when it is stopped (R15)
    checkpoint: CheckpointOffered | None = None  # the latest that was accepted (R19)
    checkpoints: int = 0  # how many were accepted
    snapshots: dict[tuple[int, int], Snapshot] = field(default_factory=dict)  # by generation and step (R24)
    reads: SnapshotRef | None = None  # what the present generation goes on from; None: no snapshot, or it steps already
    is_unreadable: bool = False  # it has lost all holders of a shard whom its members know
    unread: int = 0  # charged restarts in a row of generations that had a snapshot to read and did not step
    buddies: dict[NodeName, SetBuddies] = field(default_factory=dict)  # the last order to each vault of the world
    has_other_nodes: bool = False  # nodes or vaults of the world have come or gone since its buddies were named
    has_state: bool = False  # some workers of the present generation have stayed in place, with their state
    drawing: Drawing | None = None  # how the last generation that reported it takes samples (R25)
    states: dict[int, None] = field(default_factory=dict)  # the steps of all states that were committed or read
    ledger: list[Counted] = field(default_factory=list)  # the steps in the latest checkpoint, in order
    counts: dict[ReplicaPhase, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    stalls: Counter[str] = field(default_factory=Counter)  # how many replicas have stalled, by what is missing

    def note_read(self) -> None:
        """Record that the present generation has read the snapshot that it goes on from."""
        self.reads, self.unread = None, 0

    @property
    def up(self) -> int:
        """Return how many replicas of the world run or are about to run, and have no order to stop."""
        return self.counts["starting"] + self.counts["running"] + self.counts["ready"]

    @property
    def live(self) -> int:
        """Return how many replicas of the world run, are about to run, or have not ended yet."""
        return self.up + self.counts["stopping"]

    @property
    def is_closing(self) -> bool:
        """Return whether a member has succeeded, so that the world does not grow, shrink or move any more (R17)."""
        return self.counts["succeeded"] > 0


@dataclass(slots=True)
class Role:
    """State of one role. `target` is the largest number of replicas, as the operator last set it."""

    spec: RoleSpec
    order: int
    target: int
    need: Need
    depth: int  # in start order: a role starts after all roles of lower depth that it has a gate on
    worlds: tuple[WorldName, ...]
    replicas: tuple[ReplicaId, ...]
    waiting: dict[WorldName, None]  # worlds of the role in phase waiting
    vacant: list[int]  # indexes of replicas that have no seat and may get one, in order
    candidates: CandidateIndex  # nodes that may take one more replica of the role
    dependents: tuple[tuple[str, Gate], ...]
    upstream: dict[str, None]  # every role that it depends on, over any number of gates
    after: dict[str, None]  # every role that has to succeed before it starts
    leaving: dict[WorldName, None] = field(default_factory=dict)  # worlds that end for good and still stop
    charges: list[Charge] = field(default_factory=list)
    spent: dict[int, list[int]] = field(default_factory=dict)  # by level: when incidents charged to it opened (ns)
    lost_in: list[int] = field(default_factory=list)  # numbers of the incidents in which one of its replicas was lost
    backoff_step: int = 0
    last_counted_ns: int | None = None
    addresses: dict[str, str] = field(default_factory=dict)  # by port, as the dependents know them
    stale: bool = False  # the addresses may have changed
    portless: dict[ReplicaId, None] = field(default_factory=dict)  # replicas with a seat whose ports are not chosen yet
    warning_sent: bool = False  # a notice says that the role finds no room
    has_stepped: bool = False  # a world of it has reported a step: each new generation is expected to
    version: int = -1  # the version that it has published last (R23); -1: none
    version_generation: int = 0  # the generation of its world that has published it
    highest_version: int = -1  # the highest that it has ever published
    is_cold: bool = False  # a notice says that its workers are not forked
    outcome: RoleOutcome | None = None
    scalings: int = 0  # how often the operator has set its target, to the same number or to another
    shown: tuple[bool, ...] = (False,) * 4  # started, ready, succeeded, lost: when its dependents were last marked
    has_minimum: bool = False  # whether it had its minimum when its own worlds were last marked
    seated: dict[ReplicaPhase, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))  # with a seat, by phase
    unseated: dict[ReplicaPhase, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))  # without one
    seats: int = 0  # replicas with a seat

    def count(self, phase: ReplicaPhase) -> int:
        """Return how many replicas of the role are in the phase."""
        return self.seated[phase] + self.unseated[phase]

    @property
    def occupied(self) -> int:
        """Return how many replicas have a seat, or have ended and need none."""
        return self.seats + self.unseated["succeeded"] + self.unseated["ended"]
