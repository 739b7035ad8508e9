"""Notes of an explanation: detection times, room on other nodes, and what else decides the outcome."""

from __future__ import annotations

from collections.abc import Mapping

from flowdist.graph import RoleGraph, RoleSpec, format_duration
from flowdist.report.static.failing import Failing
from flowdist.report.static.happening import Hit, Seen
from flowdist.report.static.reasons import upstream_of

Hits = Mapping[str, list[Hit]]  # by role: the replicas that are hit


def notes_of(graph: RoleGraph, failing: Failing, hits: Hits, seen: Seen, outcome: str) -> list[str]:
    """Return notes on a failure, one sentence each, about what the other sections of the explanation do not say.

    Args:
        graph: The topology.
        failing: What fails.
        hits: The replicas that are hit, by role.
        seen: What the failure leads to.
        outcome: `fail`, `restart`, `ignore` or `nothing`.
    """
    if not failing.nodes:
        notes = [note for role, those in hits.items() if (note := _excuse(graph, role, those))]
        return notes + (_hang_notes(graph.role(failing.role)) if failing.kind == "hang" else [])
    notes = _order_notes(graph, failing, hits) + _loss_notes(graph, failing, hits)
    return notes + (_restart_notes(graph, failing, hits, seen) if outcome == "restart" else [])


def _room_note(spec: RoleSpec, seen: Seen) -> str:
    """Return in words whether a role continues without the lost nodes, and how much room there is for it."""
    left, size = _left(spec, seen), seen.count(spec.name)
    found = max(size, seen.job.roles[spec.name].seats) - left
    room = f"the other nodes have room for {found} more" if found > 0 else "the other nodes have no room for more"
    text = f"{spec.name} has {left} of {spec.max_replicas} left, and needs {spec.min_replicas}"
    if left >= spec.min_replicas:
        with_size = f" with {size}, as its mesh needs multiples of {spec.step}" if size < left and spec.step > 1 else ""
        return f"{text}: it continues at once{with_size}; {room}"
    if size >= spec.min_replicas:
        return f"{text}; {room}: it continues there"
    wait = format_duration(spec.pending_timeout_ns)
    return f"{text}; {room}: it waits up to {wait} for a node, then the job fails"


def _left(spec: RoleSpec, seen: Seen) -> int:
    return len(seen.before.get(spec.name, [])) - sum(hit.replica.role == spec.name for hit in seen.hits)


def _loss_notes(graph: RoleGraph, failing: Failing, hits: Hits) -> list[str]:
    """Return notes on how the controller notices and charges the loss of the nodes."""
    notes = []
    if len(failing.nodes) > 1 and any(hit.rule is not None for those in hits.values() for hit in those):
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


def _restart_notes(graph: RoleGraph, failing: Failing, hits: Hits, seen: Seen) -> list[str]:
    """Return notes on whether the lost replicas find room elsewhere, and which budget pays for them."""
    short = [role for role, those in hits.items() if any(hit.verdict.action == "restart" for hit in those)]
    notes = [_room_note(graph.role(role), seen) for role in short]
    charged = list(dict.fromkeys(role for role, _ in seen.charges))
    payers = [role for role, those in hits.items() if any(hit.verdict.counted for hit in those)]
    if len(charged) > 1 and failing.kind == "preempted":
        notes.append(f"each world leaves by itself and is charged by itself: {', '.join(charged)}")
    elif len(payers) > 1 and failing.kind == "node_lost":
        names = ", ".join(dict.fromkeys([*charged, *payers]))
        notes.append(f"one incident, one charge: of {names} it is the role that was placed there first")
    if short and failing.kind != "drained":
        most, uptime = graph.options.free_incidents_max, format_duration(graph.options.min_uptime_ns)
        notes.append(f"more than {most} such losses in a row, without progress or {uptime} of health, fail the job")
    return notes


def late_note(graph: RoleGraph, role: str, over: str, end: str) -> str:
    """Return the note on a role that cannot start any more if it has not started before the failure.

    Args:
        graph: The topology.
        role: The role.
        over: A role that it has a gate on, and that is over for good.
        end: What follows, in words.
    """
    waits = " and ".join(sorted(graph.to_succeed_before(role)))
    return f"if {role} still waits for {waits} to succeed, it cannot start without {over}: {end}"


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


def _excuse(graph: RoleGraph, role: str, those: list[Hit]) -> str:
    """Return a note on a used-up budget: a failure upstream would be the cause, and its role would pay instead (R7).

    Empty if no budget is used up, or the role depends on no other.
    """
    names = " or ".join(upstream_of(graph, role))
    if not names or not any(hit.verdict.exhausted and hit.verdict.action == "fail" for hit in those):
        return ""
    window = format_duration(graph.options.cause_window_ns)
    return f"unless {names} fails within {window} as well: that is then the cause, and is charged"
