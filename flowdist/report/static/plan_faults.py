"""Problems of a plan of faults: a notice too short to save, a wait that is over too soon, no room left.

The rules of timeouts are those of `dsl.check.timeouts`, for each fault by itself. A plan with new nodes is not judged:
only the run can show where they help.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from flowdist.dsl.check.timeouts import is_guess, leave_ns, leave_text, less, more, related_to
from flowdist.dsl.problems.places import CLI, Place
from flowdist.dsl.problems.problem import Problem
from flowdist.dsl.read.fields import Arguments
from flowdist.faults.grammar import Fault, Plan, Rate
from flowdist.faults.kinds import having
from flowdist.faults.rates import entities
from flowdist.graph import RoleGraph, RoleSpec, format_duration, parse_duration
from flowdist.graph.capacity import slots_on

FOR_GOOD = (*having("takes-node"), "pause")  # faults that take a node away, without /DURATION for good


class Hit(NamedTuple):
    """A fault of the plan that takes nodes away, or one that a rate will draw."""

    spec: str  # the fault or rate, as the user wrote it
    where: str  # `file:line`, empty for the command line
    kind: str
    nodes: frozenset[str]
    notice_ns: int  # of a preemption; 0 for other kinds
    away_ns: int | None  # until the nodes are back; None: they do not come back


def problems_of_plan(plan: Plan, graph: RoleGraph, arguments: Arguments) -> list[Problem]:
    """Return the problems of timeouts with a plan, one of each code for each role, reported at the fault."""
    found: dict[tuple[str, str], Problem] = {}
    for hit in _hits(plan, graph) if not plan.new_nodes else ():
        for spec in graph.roles:
            for rule in (_notice_too_short, _back_too_late):
                problem = rule(graph, spec, hit, arguments)
                if problem is not None:
                    message = f"{arguments.owner(spec.name)}: {problem.message}"
                    found.setdefault((problem.code, spec.name), problem._replace(message=message))
    return list(found.values())


def _hits(plan: Plan, graph: RoleGraph) -> Iterator[Hit]:
    """Yield the faults of the plan that take nodes away, and one fault of each such rate: of its first node."""
    names = [node.name for node in graph.cluster.nodes]
    both: tuple[Fault | Rate, ...] = (*plan.faults, *plan.rates)
    for each in both:
        if each.kind not in FOR_GOOD:
            continue
        notice = parse_duration(each.arg) if each.kind == "preempt" else 0
        if isinstance(each, Fault):
            nodes = nodes_hit(each, graph)
        elif each.duration_ns is not None or notice:
            nodes = [name for name in entities(each, graph, names) if name in names][:1]
        else:
            nodes = []
        if nodes:
            yield Hit(each.spec, each.where, each.kind, frozenset(nodes), notice, each.duration_ns)


def _notice_too_short(graph: RoleGraph, spec: RoleSpec, hit: Hit, arguments: Arguments) -> Problem | None:
    """FD330: the notice of a preemption, less the time to stop, is over before the world has saved (R14)."""
    mates, need = graph.mates_of(spec.name), leave_ns(spec)
    grace = max(other.grace_ns for other in graph.roles if other.name in mates)
    others = frozenset(node.name for node in graph.cluster.nodes) - hit.nodes
    runs_there = room_without(graph, spec, others) > 0
    left = max(0, hit.notice_ns - grace)
    if hit.kind != "preempt" or spec.kind != "task" or left >= need or not runs_there:
        return None
    if left > 0 and is_guess(spec):  # how long a step takes is not known
        return None
    notice = format_duration(hit.notice_ns)
    message = (
        f"a notice of {notice} ({hit.spec}) is too short to save: less grace={format_duration(grace)}, for workers to "
        f"stop, it leaves {format_duration(left)}, but up to {format_duration(need)} pass until the step is done and "
        f"its checkpoint is complete ({leave_text(spec)})"
    )
    help = f"give a notice of {format_duration(more((grace + need) * 5 // 4))} or more"
    if (shorter := (hit.notice_ns - need) * 3 // 4) > 0:
        help += f', or write grace="{format_duration(less(shorter))}" or less'
    values = (("grace", grace), ("workload.checkpoint_time", spec.workload.checkpoint_ns))
    related = tuple(related_to(arguments, spec.name, name, ns) for name, ns in values)
    return Problem("FD330", message, help, _place(hit.where), "warning", related)


def _back_too_late(graph: RoleGraph, spec: RoleSpec, hit: Hit, arguments: Arguments) -> Problem | None:
    """FD331: a role waits for a node that is known to come back, but not as long as that takes (R12)."""
    pending = spec.pending_timeout_ns
    if hit.away_ns is None or room_without(graph, spec, hit.nodes) >= spec.min_replicas:
        return None
    waits = _waits_ns(graph, spec, hit)
    if waits <= pending or room_without(graph, spec, ()) < spec.min_replicas:
        return None
    names = ", ".join(sorted(hit.nodes))
    away = format_duration(hit.away_ns)
    message = (
        f"pending_timeout={format_duration(pending)} is over before {names} comes back after {away} ({hit.spec}): "
        f"without it there is no room for the minimum of {spec.min_replicas}, and the job fails"
    )
    least = more(max(waits, hit.away_ns) * 5 // 4)
    help = f'write pending_timeout="{format_duration(least)}" or more, or a shorter duration of the fault'
    related = (related_to(arguments, spec.name, "pending_timeout", pending),)
    return Problem("FD331", message, help, _place(hit.where), "warning", related)


def _waits_ns(graph: RoleGraph, spec: RoleSpec, hit: Hit) -> int:
    """Return how long the role waits at least for the nodes of a hit to come back, in ns.

    It waits from when the nodes are known to be lost: at once after a proven death, a lease later if they fall silent,
    and when the world has left a node that is taken away.
    """
    assert hit.away_ns is not None
    if hit.kind in ("lost", "pause"):
        return hit.away_ns - graph.options.silent_after_ns
    leaves_ns = min(max(0, hit.notice_ns - spec.grace_ns), leave_ns(spec))
    return hit.away_ns + hit.notice_ns - leaves_ns


def _place(where: str) -> Place:
    """Return the place of a fault from its `file:line`; the command line if that is empty."""
    file, _, line = where.rpartition(":")
    return Place(file, int(line), 1) if line.isdecimal() else CLI


def stranding(plan: Plan, graph: RoleGraph) -> str:
    """Return a warning about the first fault of a plan that leaves a role without room for its minimum; empty: none.

    A plan with nodes that join gives no warning, and neither do roles that take room from each other: only the run can
    show that.
    """
    lost: set[str] = set()
    for fault in plan.faults if not plan.new_nodes else ():
        if fault.kind not in FOR_GOOD or fault.duration_ns is not None:
            continue
        lost.update(nodes_hit(fault, graph))
        short = next((spec for spec in graph.roles if room_without(graph, spec, lost) < spec.min_replicas), None)
        if short is not None:
            back = f"a node comes back only with a /DURATION ({fault.spec}/30s)"
            wait = f"it will wait up to {format_duration(short.pending_timeout_ns)} (pending_timeout) for one"
            return (
                f"after {fault.spec} no room is left for the minimum of {short.name}, and {back}: "
                f"{wait}, then the job fails"
            )
    return ""


def nodes_hit(fault: Fault, graph: RoleGraph) -> list[str]:
    """Return the nodes that a fault names, by their name or a label."""
    return [node.name for node in graph.cluster.nodes if fault.target == node.name or fault.label in node.labels]


def room_without(graph: RoleGraph, spec: RoleSpec, lost: Collection[str]) -> int:
    """Return how many replicas of the role fit on the nodes that are not lost, if no other role takes room there.

    Which neighbours a replica has is not known, so `near` does not count, and `apart` only among those of the role.
    """
    nodes = graph.cluster.nodes if graph.cluster.given else ()
    rooms = [slots_on(spec, node) for node in nodes if node.name not in lost]
    return sum(min(room, 1) if spec.name in spec.placement.apart else room for room in rooms)
