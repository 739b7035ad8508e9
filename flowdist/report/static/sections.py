"""Sections of an explanation: the order of stops and starts, what a failure does not restart, and notes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from flowdist.graph import Gate, RoleGraph, RoleSpec, format_duration
from flowdist.report.static.failing import Failing
from flowdist.report.static.happening import Hit, Seen
from flowdist.report.static.reasons import upstream_of
from flowdist.report.static.rehearsal import names_of
from flowdist.report.static.restarts import Extent, RestartTable

Layers = list[list[dict[str, Any]]]
Hits = Mapping[str, list[Hit]]  # by role: the replicas that are hit


def stop_layers_of(graph: RoleGraph, seen: Seen, extents: Mapping[str, Extent], late: Mapping[str, Seen]) -> Layers:
    """Return what the controller stops, in layers, dependents first; each entry with its grace in seconds.

    A replica that has ended by itself, or was lost with its node, gets no order to stop. `late` has the roles that
    restart only at a later moment, each with what the failure leads to then.
    """
    layers: dict[int, list[dict[str, Any]]] = {}
    for spec in graph.roles:
        moment = late.get(spec.name, seen)
        stops = [stop for stop in moment.stops if stop.replica.role == spec.name]
        if stops:
            indices = sorted({stop.replica.index for stop in stops})
            who = spec.name if set(moment.before[spec.name]) <= set(indices) else f"the rest of {spec.name}"
            who = names_of(spec.name, indices) if extents.get(spec.name) == "replica" else who
            entry = {"role": spec.name, "who": who, "grace_s": max(stop.grace_ns for stop in stops) / 1e9}
            layers.setdefault(seen.job.roles[spec.name].depth, []).append(entry)
    return [layers[depth] for depth in sorted(layers, reverse=True)]


def start_waves_of(graph: RoleGraph, seen: Seen, extents: Mapping[str, Extent], late: Mapping[str, Seen]) -> Layers:
    """Return the waves in which roles start again; each entry with the gates on roles that restart."""
    waves: dict[int, list[dict[str, Any]]] = {}
    placed: dict[str, int] = {}  # by role: the number of its wave
    for spec in graph.roles:
        number = _wave_of(spec.name, late.get(spec.name, seen))
        if spec.name not in extents or number is None:
            continue
        gates = [gate for mate in graph.mates_of(spec.name) for gate in graph.role(mate).gates if gate.role in extents]
        if spec.name in late:  # its moment is another one than that of the roles that it waits for
            number = max([number, *(placed[gate.role] + 1 for gate in gates if gate.role in placed)])
        placed[spec.name] = number
        after = list(dict.fromkeys(f"{gate.role} {gate.condition}" for gate in gates))
        indices = late.get(spec.name, seen).restarted[spec.name]
        who = names_of(spec.name, indices) if extents[spec.name] == "replica" else spec.name
        waves.setdefault(number, []).append({"role": spec.name, "who": who, "after": after})
    return [waves[number] for number in sorted(waves)]


def _wave_of(role: str, seen: Seen) -> int | None:
    """Return the number of the last wave in which replicas of the role start again; None if none does."""
    indices = seen.restarted.get(role, ())
    waves = [
        number
        for number, wave in enumerate(seen.waves)
        if any(start.replica.role == role and start.replica.index in indices for start in wave)
    ]
    return max(waves, default=None)


def running_on(graph: RoleGraph, seen: Seen, restarts: Collection[str], told: Collection[str]) -> list[dict[str, Any]]:
    """Return the roles and replicas that keep running, each with the reason.

    `told` of an entry marks a role with a gate on a role that restarts: it reconnects. The roles in the argument `told`
    are left out, because another section of the explanation lists them.
    """
    hit = dict.fromkeys(each.replica.role for each in seen.hits)
    found: list[dict[str, Any]] = []
    for spec in graph.roles:
        if spec.name in hit and (rest := seen.kept.get(spec.name)):
            because = "replicas of a role without gang restart one by one"
            who = names_of(spec.name, rest)
            found.append({"role": spec.name, "who": who, "told": False, "because": because})
        elif spec.name not in hit and spec.name not in restarts and spec.name not in told:
            found.append(_other_role(graph, spec, restarts, hit))
    return found


def _other_role(graph: RoleGraph, spec: RoleSpec, restarts: Collection[str], hit: Iterable[str]) -> dict[str, Any]:
    """Return the entry of a role outside the restart set: why it keeps running, or why it does not run yet."""
    gates = [gate for gate in spec.gates if gate.role in restarts]
    told: list[Gate] = []
    because = why_not_running(graph, spec.name, hit)
    if because is None:
        told = [gate for gate in gates if gate.condition != "succeeded"]
        if told:
            because = _reconnects(graph, spec, told)
        elif gates:
            because = f"it waits for {', '.join(gate.role for gate in gates)} to succeed: it has not started by then"
        else:
            because = _untouched(graph, spec.name, restarts)
    return {"role": spec.name, "who": spec.name, "told": bool(told), "because": because}


def _reconnects(graph: RoleGraph, spec: RoleSpec, gates: list[Gate]) -> str:
    """Return the reason for which a role keeps running although the roles of these gates restart."""
    names = ", ".join(gate.role for gate in gates)
    text = f'its gate on {names} says on_restart="reconnect"'
    baked_in = [gate.role for gate in gates if gate.role in spec.address_edges]
    served = [gate.role for gate in gates if graph.role(gate.role).ports and gate.role not in baked_in]
    if served:
        text += f"; it receives the new addresses of {', '.join(served)} if these change"
    if baked_in:
        text += f"; it has the address of {', '.join(baked_in)} in its command or env: it restarts if that changes"
    if spec.restart is None:
        return text
    if RestartTable(graph).restart_set(spec.name, "failure").keys() & {gate.role for gate in gates}:
        return f"{text}; if it fails before they run again, all of this restarts once more with it (R6)"
    free = f"costs nothing within {format_duration(graph.options.cause_window_ns)}"
    return f"{text}; if it fails meanwhile, it restarts in an incident of its own, which {free} (R7)"


def _untouched(graph: RoleGraph, name: str, restarts: Iterable[str]) -> str:
    """Return the reason for which no restart leads to the role."""
    needed_by = [other for other in restarts if any(gate.role == name for gate in graph.role(other).gates)]
    if needed_by:
        return f"{', '.join(needed_by)} {'depends' if len(needed_by) == 1 else 'depend'} on it, and not the reverse"
    return "no gate, domain or scope leads to it"


def why_not_running(graph: RoleGraph, name: str, running: Iterable[str]) -> str | None:
    """Return in words why the role `name` does not run while the roles in `running` do; None if no gate says that."""
    for other in running:
        if other in graph.to_succeed_before(name):
            return f"it has not started by then: it waits for {other} to succeed"
        if name in graph.to_succeed_before(other):
            return f"it has succeeded by then, as {other} waits for that: it does not run again because of others"
    return None


# Notes.


def notes_of(graph: RoleGraph, failing: Failing, hits: Hits, seen: Seen, outcome: str) -> list[str]:
    """Return notes on a failure, one sentence each, about what the other sections of the explanation do not say."""
    if not failing.nodes:
        notes = [note for role, those in hits.items() if (note := _excuse(graph, role, those))]
        return notes + (_hang_notes(graph.role(failing.role)) if failing.kind == "hang" else [])
    notes = _order_notes(graph, failing, hits) + _loss_notes(graph, failing, hits)
    return notes + (_restart_notes(graph, failing, hits, seen) if outcome == "restart" else [])


def _room_note(spec: RoleSpec, seen: Seen) -> str:
    """Return in words whether a role continues without the lost nodes, and how much room there is for it."""
    left = len(seen.before.get(spec.name, [])) - sum(hit.replica.role == spec.name for hit in seen.hits)
    size = seen.count(spec.name)
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
    """Return the note on a role that cannot start any more, since a role that it has a gate on is over for good."""
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
    """Return a note on a used-up budget: a failure upstream would be the cause, and pay instead (R7); else empty."""
    names = " or ".join(upstream_of(graph, role))
    if not names or not any(hit.verdict.exhausted and hit.verdict.action == "fail" for hit in those):
        return ""
    window = format_duration(graph.options.cause_window_ns)
    return f"unless {names} fails within {window} as well: that is then the cause, and is charged"
