"""Notes of an explanation: detection times, room on other nodes, and what else decides the outcome."""

from __future__ import annotations

from collections.abc import Mapping

from flowdist.graph import RoleGraph, RoleSpec, format_duration
from flowdist.report.static.failing import Failing
from flowdist.report.static.judging import Verdict, upstream_of
from flowdist.report.static.room import room_note

Hits = dict[str, list[tuple[int, Verdict]]]  # by role: the index of each replica that is hit, and its verdict


def notes_of(graph: RoleGraph, failing: Failing, hits: Hits, outcome: str, seats: Mapping[str, str]) -> list[str]:
    """Return notes on a failure, one sentence each, about what the other sections of the explanation do not say.

    Args:
        graph: The topology.
        failing: What fails.
        hits: The verdicts on the replicas that are hit.
        outcome: `fail`, `restart`, `ignore` or `nothing`.
        seats: The node of each replica.
    """
    if not failing.nodes:
        notes = [note for role, those in hits.items() if (note := _excuse(graph, role, those))]
        return notes + (_hang_notes(graph.role(failing.role)) if failing.kind == "hang" else [])
    notes = _order_notes(graph, failing, hits) + _loss_notes(graph, failing, hits)
    return notes + (_restart_notes(graph, failing, hits, seats) if outcome == "restart" else [])


def _loss_notes(graph: RoleGraph, failing: Failing, hits: Hits) -> list[str]:
    """Return notes on how the controller notices and charges the loss of the nodes."""
    notes = []
    if len(failing.nodes) > 1 and any(verdict.rule for those in hits.values() for _, verdict in those):
        notes.append(
            "such losses are noticed one after the other: no rule applies to replicas that an earlier loss has "
            "stopped, and each loss that is an incident of its own is charged by itself"
        )
    if failing.spec.endswith(":lost"):
        lease_ns, margin_ns = graph.options.lease_ns, graph.options.lease_margin_ns
        notes.append(
            f"a silent node counts as lost after {format_duration(lease_ns + margin_ns)}; its agent kills its workers "
            f"{format_duration(2 * margin_ns)} before that"
        )
    return notes


def _restart_notes(graph: RoleGraph, failing: Failing, hits: Hits, seats: Mapping[str, str]) -> list[str]:
    """Return notes on whether the lost replicas find room elsewhere, and which budget pays for them."""
    short = [role for role, those in hits.items() if any(verdict.action == "restart" for _, verdict in those)]
    notes = [room_note(graph, graph.role(role), failing.nodes, seats) for role in short]
    if len(short) > 1:
        notes.append("that room is counted for each role by itself")
    payers = payers_of(graph, failing, hits)
    if len(payers) > 1 and failing.kind == "preempted":
        notes.append(f"each world leaves by itself and is charged by itself: {', '.join(payers)}")
    elif len(payers) > 1:
        notes.append(f"one incident, one charge: of {', '.join(payers)} it is the role that was placed there first")
    if short and failing.kind != "drained":
        most, uptime = graph.options.free_incidents_max, format_duration(graph.options.min_uptime_ns)
        notes.append(f"more than {most} such losses in a row, without progress or {uptime} of health, fail the job")
    return notes


def payers_of(graph: RoleGraph, failing: Failing, hits: Hits) -> list[str]:
    """Return the roles that are charged, or could be; the first one pays. Empty if the restart is not charged.

    A lost node is charged once, to the role that was placed there first: minima are placed before growth.
    """
    first = {
        role: min(index >= graph.role(role).min_replicas for index, verdict in those if verdict.counted)
        for role, those in hits.items()
        if any(verdict.counted for _, verdict in those)
    }
    return sorted(first, key=lambda role: first[role]) if failing.kind == "node_lost" else list(first)


def late_notes(graph: RoleGraph, stuck: Mapping[str, str], hits: Hits) -> list[str]:
    """Return notes on roles that cannot start any more, if they have not started before the failure.

    The topology alone does not say whether they have.

    Args:
        graph: The topology.
        stuck: Roles that cannot start in any case, which need no note.
        hits: The verdicts on the replicas that are hit.
    """
    notes = []
    for spec in graph.roles:
        over = [gate.role for gate in spec.gates if is_over(graph, gate.role, hits)]
        waits = sorted(graph.to_succeed_before(spec.name))
        if over and waits and spec.name not in stuck:
            end = "the job fails" if spec.primary and spec.kind == "task" else "it is ended as well"
            names = " and ".join(waits)
            notes.append(f"if {spec.name} still waits for {names} to succeed, it cannot start without {over[0]}: {end}")
    return notes


def is_over(graph: RoleGraph, role: str, hits: Hits) -> bool:
    """Return whether ignored failures keep the gates on the role closed for good.

    They do if they leave too few replicas of the role, or of another role of its joint world.
    """
    return any(too_few_left(graph.role(mate), hits.get(mate, [])) for mate in graph.mates_of(role))


def too_few_left(spec: RoleSpec, those: list[tuple[int, Verdict]]) -> bool:
    """Return whether ignored failures leave fewer replicas of the role than its minimum. A gang ends with its member.

    `those` are the indices of the replicas that are hit, with their verdicts.
    """
    ignored = sum(verdict.action == "ignore" for _, verdict in those)
    return ignored > 0 and (spec.gang or spec.max_replicas - ignored < spec.min_replicas)


def _hang_notes(spec: RoleSpec) -> list[str]:
    notes = ["its Python workers write their stacks to their logs before they are stopped"]
    if spec.gang and spec.max_replicas > 1:
        notes.append(
            "one rank that hangs stalls its gang: the least advanced of the stalled ranks is blamed, unless several are"
        )
    return notes


def _order_notes(graph: RoleGraph, failing: Failing, hits: Hits) -> list[str]:
    """Return a note on how the replicas leave a node whose loss is announced (R14); no note for another failure."""
    if not failing.is_announced or not hits:
        return []
    specs = [graph.role(mate) for role in hits for mate in graph.mates_of(role)]
    drain, grace = (format_duration(max(ns)) for ns in zip(*((s.drain_ns, s.grace_ns) for s in specs), strict=True))
    text = "before that, a world in which every rank asks should_stop(step) stops at one step"
    if failing.kind == "drained":
        return [f"{text}, within {drain}; a world that does not ask is stopped at once"]
    are = "is" if len(failing.nodes) == 1 else "are"
    return [f"{text}; at the latest {grace} before {', '.join(failing.nodes)} {are} taken away"]


def _excuse(graph: RoleGraph, role: str, those: list[tuple[int, Verdict]]) -> str:
    """Return a note on a used-up budget: a failure upstream would be the cause, and its role would pay instead (R7).

    Empty if no budget is used up, or the role depends on no other.
    """
    names = " or ".join(upstream_of(graph, role))
    if not names or not any(verdict.exhausted and verdict.action == "fail" for _, verdict in those):
        return ""
    window = format_duration(graph.options.cause_window_ns)
    return f"unless {names} fails within {window} as well: that is then the cause, and is charged"
