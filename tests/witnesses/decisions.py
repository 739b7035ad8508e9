"""Decisions of the controller in the order of a record, and the comparison of two such stories.

A decision is a value: what was decided, about whom, and the rest that has to be the same. All come from the effects
and from the state that a replay of the record has after each line. Messages are not read.

Two stories are the same if each has the decisions of the other, and in the same order up to ties. A tie is declared as:

    two decisions about different worlds, which in both records are at most TIE_NS apart.

Which of two such decisions comes first depends on processes that run beside each other, and none of them has waited for
the other. Decisions about one world are never tied.

Two more things are ties, and are not compared:

* which of several peers is heard first that fail because of another: an incident of a replica that no fault has hit is
  named after its world;
* whether a worker that ends by itself still gets an order to stop: one that leaves at an agreed step (R14), one whose
  process group fails with a member (`collective="fail"`), and one that has finished at most TIE_NS before its world is
  stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from flowdist.control.job.state import Incident, JobState
from flowdist.control.protocol.effects import (
    AskStep,
    Decided,
    FinishJob,
    OpenStore,
    StartReplica,
    StopAtStep,
    StopReplica,
)
from flowdist.control.protocol.events import ReplicaExited
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import MS, format_duration
from flowdist.record.journal import FaultLine, Header, Line, Record
from flowdist.record.replay import Replay

TIE_NS = 300 * MS
Key = tuple[str, str, tuple[Any, ...]]


class Decision(NamedTuple):
    """One decision: what was decided, about whom, the rest that has to be the same, and the time in ns.

    `worlds` are the worlds that it concerns; () stands for the whole job.
    """

    what: str
    about: str
    rest: tuple[Any, ...]
    worlds: frozenset[str]
    t_ns: int

    @property
    def key(self) -> Key:
        """Return everything but the time."""
        return self.what, self.about, self.rest

    def __str__(self) -> str:
        rest = "; ".join(", ".join(map(str, each)) if isinstance(each, tuple) else str(each) for each in self.rest)
        return f"{format_duration(self.t_ns // MS * MS):>8}  {self.what} {self.about}{': ' if rest else ''}{rest}"


def decisions_of(header: Header, lines: Iterable[Line]) -> list[Decision]:
    """Return the decisions of a record in their order, and the faults that were injected among them."""
    story = _Story(header)
    for line in lines:
        story.hear(line)
    return story.end()


class _Story:
    """One pass through a record: `hear` takes each line in order."""

    def __init__(self, header: Header) -> None:
        self._replay = Replay(header)
        self._hit: set[str] = set()  # what faults were injected into
        self._roots: dict[int, str] = {}
        self._found: list[Decision] = []
        self._ordered: set[tuple[str, str, int]] = set()  # an order is repeated after a lost connection
        self._left: set[tuple[ReplicaId, int]] = set()  # attempts that leave at an agreed step
        self._finished: dict[ReplicaId, int] = {}  # when replicas have finished
        self._before = _Standing({}, {}, {}, None)
        self._at = 0

    def hear(self, line: Line) -> None:
        """Note what a line decides."""
        self._replay.hear(line)
        if isinstance(line, FaultLine):
            self._at = line.t_ns
            self._hit.add(line.hit.partition(".")[0])
            self._add("fault hits", line.hit, (line.spec.partition("@")[2].partition(":")[2] or "kill",), [line.hit])
        if not isinstance(line, Record):
            return
        self._at = line.t_ns
        if isinstance(line.event, ReplicaExited) and line.event.kind is None:
            self._finished[line.event.replica] = line.t_ns
        opened = len(self._before.closed)
        for incident in self._replay.job.incidents[opened:]:
            self._roots[incident.number] = self._root(incident)
            self._add("incident opens:", self._roots[incident.number], (incident.kind,), incident.worlds)
        self._orders(line)
        now = _Standing.of(self._replay.job)
        self._changes(now)
        self._before = now

    def _add(self, what: str, about: object, rest: tuple[Any, ...] = (), worlds: Iterable[str] = ()) -> None:
        self._found.append(Decision(what, str(about), rest, frozenset(worlds), self._at))

    def _orders(self, line: Record) -> None:
        """Note the orders of a line, those for the members of one world as one decision."""
        starts: dict[str, list[StartReplica]] = {}
        stops: dict[tuple[str, str], list[str]] = {}
        job = self._replay.job
        for effect in line.effects:
            match effect:
                case StartReplica() if self._is_new("start", effect.replica, effect.attempt):
                    starts.setdefault(effect.world, []).append(effect)
                case StopReplica() if self._ends_by_itself(effect):
                    pass
                case StopReplica() if self._is_new(f"stop {effect.grace_ns}", effect.replica, effect.attempt):
                    how = f"{'in place' if effect.in_place else format_duration(effect.grace_ns)} to obey"
                    stops.setdefault((job.replicas[effect.replica].world, how), []).append(str(effect.replica))
                case AskStep() if self._is_new("ask", effect.replica, effect.attempt):
                    world = job.replicas[effect.replica].world
                    self._add("step is asked of", effect.replica, (), [world])
                case StopAtStep() if self._is_new("agree", effect.replica, effect.attempt):
                    what = "leaves at once:" if effect.step is None else "leaves at an agreed step:"
                    self._add(what, effect.replica, (), [job.replicas[effect.replica].world])
                    if effect.step is not None:
                        self._left.add((effect.replica, effect.attempt))
                case OpenStore() if self._is_new("open", effect.world, effect.generation):
                    self._add("generation forms:", effect.world, (effect.generation,), [effect.world])
                case Decided(level="refused"):
                    event = line.event
                    about = getattr(event, "role", None) or getattr(event, "node", "")
                    self._add("refused:", about, (type(event).__name__,))
                case FinishJob():
                    self._add("job is over:", effect.outcome)
                case _:
                    pass
        for (world, how), members in stops.items():
            just = [
                str(each.id)
                for each in job.members_of(job.worlds[world])
                if self._at - self._finished.get(each.id, -TIE_NS - 1) <= TIE_NS
            ]
            self._add("stops", world, (tuple(sorted({*members, *just})), how), [world])
        for world, orders in starts.items():
            places = tuple(f"{order.replica} as rank {order.rank} on {order.node}" for order in orders)
            self._add("starts", world, (orders[0].generation, places), [world])

    def _ends_by_itself(self, stop: StopReplica) -> bool:
        """Return whether a replica may end without the order: see the top."""
        fails = self._replay.job.role_of(stop.replica).spec.workload.collective == "fail"
        return fails or (stop.replica, stop.attempt) in self._left

    def _root(self, incident: Incident) -> str:
        """Return what an incident is named after."""
        worlds = {str(replica.id): replica.world for replica in self._replay.job.replicas.values()}
        is_peer = incident.kind in ("exit", "signal") and incident.root not in self._hit
        return f"a member of {worlds[incident.root]}" if is_peer and incident.root in worlds else incident.root

    def _is_new(self, what: str, about: object, number: int) -> bool:
        key = (what, str(about), number)
        is_new = key not in self._ordered
        self._ordered.add(key)
        return is_new

    def _changes(self, now: _Standing) -> None:
        """Note what the state says that was decided by the line."""
        for number, result in now.closed.items():
            if result is not None and self._before.closed.get(number) is None:
                incident = self._replay.job.incident(number)
                worlds = incident.worlds if incident.restarted else [incident.root]  # another one has taken it over
                self._add("incident closes:", self._roots[number], result, worlds)
        for node, why in now.cordoned.items():
            if bool(why) != bool(self._before.cordoned.get(node)):
                self._add("cordon" if why else "cordon is lifted:", node)
        for role, outcome in now.outcomes.items():
            if outcome != self._before.outcomes.get(role):
                self._add("role is over:", role, (outcome,), self._replay.job.roles[role].worlds)
        if now.ending != self._before.ending:
            self._add("job is to end:", now.ending)

    def end(self) -> list[Decision]:
        return self._found


class _Standing(NamedTuple):
    """What the state says about decisions: of each incident how it was closed (None: it is open), cordoned nodes,
    outcomes of roles, and the end of the job that was decided.
    """

    closed: dict[int, tuple[Any, ...] | None]
    cordoned: dict[str, str]
    outcomes: dict[str, str | None]
    ending: str | None

    @classmethod
    def of(cls, job: JobState) -> _Standing:
        return cls(
            {one.number: None if one.is_open else _closing(one) for one in job.incidents},
            {name: node.cordoned for name, node in job.nodes.items() if node.cordoned},
            {name: role.outcome for name, role in job.roles.items() if role.outcome},
            job.ending,
        )


def _closing(incident: Incident) -> tuple[Any, ...]:
    restarted = tuple(sorted(str(replica) for replica in incident.restarted))
    moved = tuple(sorted(f"{replica} to {node}" for replica, node in incident.moved.items()))
    return (
        f"restarted {', '.join(restarted) or 'nothing'}",
        f"charged to {incident.charged_to or 'nobody'}",
        *(f"moved {each}" for each in moved),
    )


# Comparison.


class Difference(NamedTuple):
    """The first difference between two stories: in words, and the number of the decision in each of them."""

    text: str
    a: int
    b: int


def first_difference(a: Sequence[Decision], b: Sequence[Decision]) -> Difference | None:
    """Return the first difference between two stories that is no tie; None if they are the same."""
    place_a, place_b = _places(a), _places(b)
    only_a = next((n for key, n in place_a.items() if key not in place_b), None)
    only_b = next((n for key, n in place_b.items() if key not in place_a), None)
    if only_a is not None or only_b is not None:
        one = "nothing else" if only_a is None else str(a[only_a]).strip()
        other = "nothing else" if only_b is None else str(b[only_b]).strip()
        return Difference(f"[{one}] beside [{other}]", _or_near(only_a, a, b, only_b), _or_near(only_b, b, a, only_a))
    for (key, n), (later, m) in combinations(place_a.items(), 2):
        if place_b[key] > place_b[later] and not _is_tie((a[n], a[m]), (b[place_b[key]], b[place_b[later]])):
            return Difference(f"[{str(a[n]).strip()}] comes before, or after, [{str(a[m]).strip()}]", n, place_b[later])
    return None


def _places(story: Sequence[Decision]) -> dict[tuple[Key, int], int]:
    """Return the place of each decision, by its key and how often the same was decided before."""
    seen = Counter[Key]()
    places = {}
    for n, decision in enumerate(story):
        places[decision.key, seen[decision.key]] = n
        seen[decision.key] += 1
    return places


def _is_tie(pair: tuple[Decision, Decision], other: tuple[Decision, Decision]) -> bool:
    """Return whether two decisions may come in either order: see the rule at the top."""
    is_close = all(abs(one.t_ns - two.t_ns) <= TIE_NS for one, two in (pair, other))
    return is_close and not pair[0].worlds & pair[1].worlds


def _or_near(n: int | None, story: Sequence[Decision], other: Sequence[Decision], m: int | None) -> int:
    """Return `n`, or if it is None, the place in the story nearest in time to the decision `m` of the other."""
    if n is not None:
        return n
    assert m is not None
    return min(range(len(story)), key=lambda k: abs(story[k].t_ns - other[m].t_ns), default=0)
