"""What would follow from a failure, and why: told from the graph alone, before anything happens.

What restarts is taken from the restart table (`restarts.py`); here each role of it gets the edge, domain or scope that
brings it in. Nothing is asked of control, so that the tests can hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flowdist.graph import Gate, RoleGraph, RoleSpec, fits, format_duration, needed, offered, slots, subtract
from flowdist.report.failing import Failing
from flowdist.report.judging import Verdict, charge_of, ended_text, judge, upstream_of
from flowdist.report.reasons import restarting, spared_of, uncertain, why_not_running
from flowdist.report.restarts import Cause, Extent, restart_set, start_waves

Hits = dict[str, list[tuple[int, Verdict]]]  # by role: each replica that fails or is lost, and what is made of it


def explanation_of(graph: RoleGraph, failing: Failing, seats: Mapping[str, str]) -> dict[str, Any]:
    """The explanation as plain values, for --json and for tests. Durations in seconds.

    Args:
        graph: The topology.
        failing: What fails.
        seats: By replica, the node that it is on; asked only when a node is lost.
    """
    cause: Cause = "node_lost" if failing.node else "failure"
    hits = _hits(graph, failing, seats)
    outcome = _outcome(graph, hits)
    found: dict[str, Any] = {
        "fault": failing.spec,
        "how": failing.how,
        "hits": [f"{role}/{index}" for role, those in hits.items() for index, _ in those],
        "verdicts": [_verdict(graph.role(role), those) for role, those in hits.items()],
        "outcome": outcome,
        "ended": _ended(graph, hits) if outcome != "fail" else [],
        "restarts": [],
        "stuck": [],
        "spared": [],
        "stops": [],
        "starts": [],
        "charged": None,
        "goes_on": [],
        "notes": _notes(graph, failing, hits, outcome, seats),
    }
    everything: dict[str, Extent] = {spec.name: "role" for spec in graph.roles}
    if outcome == "fail":
        return found | {"stops": _stops(graph, everything, hits, failing)}
    restarted = [role for role, those in hits.items() if any(verdict.action == "restart" for _, verdict in those)]
    extents, reasons = restarting(graph, restarted, cause)
    spared = spared_of(graph, restarted, extents, cause)
    gone = {entry["role"] for entry in found["ended"] if entry["who"] == entry["role"]}
    stops = {name: extent for name, extent in extents.items() if name not in spared and name not in gone}
    ifs = uncertain(graph, restarted, extents, cause)
    stuck = _stuck(graph, stops, hits)
    needed = [name for name in stuck if graph.role(name).primary and graph.role(name).kind == "task"]
    if needed:
        note = f"the job cannot do without {', '.join(needed)}: {stuck[needed[0]]}"
        stopped = _stops(graph, everything, hits, failing)
        return found | {"outcome": "fail", "ended": [], "stops": stopped, "notes": [*found["notes"], note]}
    alive = {name: extent for name, extent in stops.items() if name not in stuck}
    payers = [role for role, those in hits.items() if any(verdict.counted for _, verdict in those)]
    if payers:
        spec = graph.role(payers[0])
        each = extents[spec.name] == "replica" and cause == "failure"
        times = sum(verdict.counted for _, verdict in hits[spec.name]) if each else 1
        found["charged"] = charge_of(graph, spec, times)
    return found | {
        "restarts": [
            {
                "role": name,
                "extent": extent,
                "who": _who(name, extent, hits),
                "because": reasons[name],
                "if": ifs.get(name),
            }
            for name, extent in alive.items()
        ],
        "stuck": [
            {"role": name, "who": _who(name, stops.get(name, "role"), hits), "because": because}
            for name, because in stuck.items()
        ],
        "spared": [{"role": name, "who": name, "because": because} for name, because in spared.items()],
        "stops": _stops(graph, stops, hits, failing),
        "starts": _starts(graph, alive, hits),
        "goes_on": _going_on(graph, stops, {**spared, **stuck}, gone, hits),
    }


def _hits(graph: RoleGraph, failing: Failing, seats: Mapping[str, str]) -> Hits:
    """Each replica is judged after those before it: a role without gang pays for each of its replicas."""
    hits: Hits = {}
    for spec in graph.roles:
        if failing.node:
            indices = [i for i in range(spec.max_replicas) if seats.get(f"{spec.name}/{i}") == failing.node]
        elif spec.name == failing.role:
            indices = list(range(spec.max_replicas)) if failing.number is None else [failing.number]
        else:
            continue
        alone = not failing.node and restart_set(graph, spec.name, "failure")[spec.name] == "replica"
        for used, index in enumerate(indices):
            verdict = judge(spec, failing, used if alone else 0)
            hits.setdefault(spec.name, []).append((index, verdict))
    return hits


def _outcome(graph: RoleGraph, hits: Hits) -> str:
    """Fail beats restart beats ignore, as in the job."""
    if any(_below_minimum(graph.role(role), those) for role, those in hits.items()):
        return "fail"
    actions = [verdict.action for those in hits.values() for _, verdict in those]
    return next((action for action in ("fail", "restart", "ignore") if action in actions), "nothing")


def _below_minimum(spec: RoleSpec, those: list[tuple[int, Verdict]]) -> bool:
    """Whether what is ignored leaves too few of a role that the job cannot do without."""
    return spec.primary and spec.kind == "task" and not spec.gang and _too_few_left(spec, those)


def _verdict(spec: RoleSpec, those: list[tuple[int, Verdict]]) -> dict[str, Any]:
    """The last replica's: it is the one that finds the budget used up, if any does."""
    _, verdict = those[-1]
    because = verdict.because
    if _below_minimum(spec, those):
        because += f"; that leaves fewer than the {spec.min_replicas} that {spec.name} needs: the job fails"
    return {
        "role": spec.name,
        "action": verdict.action,
        "counted": verdict.counted,
        "rule": verdict.rule or None,
        "exhausted": verdict.exhausted,
        "because": because,
    }


def _ended(graph: RoleGraph, hits: Hits) -> list[dict[str, str]]:
    """What is ended because its failure is ignored. A gang ends with its member."""
    found = []
    for role, those in hits.items():
        ignored = [index for index, verdict in those if verdict.action == "ignore"]
        if ignored:
            spec = graph.role(role)
            who = role if spec.gang else _names(role, ignored)
            found.append({"role": role, "who": who, "because": ended_text(graph, spec)})
    return found


def _stuck(graph: RoleGraph, stops: Mapping[str, Extent], hits: Hits) -> dict[str, str]:
    """Roles that cannot start (again), since a gate of theirs waits for something that has been ended for good."""
    stuck: dict[str, str] = {}
    for spec in graph.roles:  # gates point to earlier roles
        for gate in spec.gates:
            waits = gate.condition == "succeeded" or spec.name in stops
            if waits and (gate.role in stuck or _too_few_left(graph.role(gate.role), hits.get(gate.role, []))):
                few = "which does not start" if gate.role in stuck else "of which too few are left"
                so_far = "succeed" if gate.condition == "succeeded" else f"be {gate.condition}"
                stuck.setdefault(
                    spec.name, f"it waits for {gate.role} to {so_far}, {few}: it cannot start, and is ended, too"
                )
    return stuck


def _too_few_left(spec: RoleSpec, those: list[tuple[int, Verdict]]) -> bool:
    """Whether what is ignored closes the gates on the role for good. A gang ends with its member."""
    ignored = sum(verdict.action == "ignore" for _, verdict in those)
    return ignored > 0 and (spec.gang or spec.max_replicas - ignored < spec.min_replicas)


def _who(role: str, extent: Extent, hits: Hits) -> str:
    """`trainer`, or the replicas that restart alone: `ps/0`."""
    if extent == "role":
        return role
    return _names(role, [index for index, verdict in hits[role] if verdict.action == "restart"])


def _names(role: str, indices: Iterable[int]) -> str:
    return ", ".join(f"{role}/{index}" for index in indices)


def _stops(graph: RoleGraph, alive: Mapping[str, Extent], hits: Hits, failing: Failing) -> list[list[dict[str, Any]]]:
    """Who is told to stop, dependents first. What has ended by itself, or is gone with its node, needs no telling."""
    still_runs = failing.kind == "unready"
    layers = []
    for wave in reversed(start_waves(graph)):
        layer = []
        for name in (name for name in wave if name in alive):
            spec = graph.role(name)
            over = [] if still_runs else [index for index, _ in hits.get(name, [])]
            if alive[name] == "replica":
                who = _who(name, "replica", hits) if still_runs else ""
            else:
                who = name if not over else f"the rest of {name}" if len(over) < spec.max_replicas else ""
            if who:
                layer.append({"role": name, "who": who, "grace_s": spec.stop_grace_ns / 1e9})
        if layer:
            layers.append(layer)
    return layers


def _starts(graph: RoleGraph, alive: Mapping[str, Extent], hits: Hits) -> list[list[dict[str, Any]]]:
    """The waves in which the set starts again: only gates on what restarts too are closed."""
    depth: dict[str, int] = {}
    waves: list[list[dict[str, Any]]] = []
    for spec in graph.roles:  # gates point to earlier roles
        if spec.name not in alive:
            continue
        gates = [gate for gate in spec.gates if gate.role in alive]
        depth[spec.name] = 1 + max((depth[gate.role] for gate in gates), default=-1)
        if depth[spec.name] == len(waves):
            waves.append([])
        who = _who(spec.name, alive[spec.name], hits)
        after = [f"{gate.role} {gate.condition}" for gate in gates]
        waves[depth[spec.name]].append({"role": spec.name, "who": who, "after": after})
    return waves


def _going_on(
    graph: RoleGraph, alive: Mapping[str, Extent], spared: Mapping[str, str], gone: set[str], hits: Hits
) -> list[dict[str, Any]]:
    """Who keeps running. `told` is true for those with a gate on something that restarts."""
    found = []
    for spec in graph.roles:
        name = spec.name
        if alive.get(name) == "replica" or (name not in alive and name in hits and name not in gone):
            hit = [index for index, _ in hits[name]]
            rest = [index for index in range(spec.max_replicas) if index not in hit]
            if rest:
                who, because = _names(name, rest), "replicas of a role without gang restart each for itself"
                found.append({"role": name, "who": who, "told": False, "because": because})
        if name in alive or name in spared or name in gone or name in hits:
            continue
        gates = [gate for gate in spec.gates if gate.role in alive]
        waits = why_not_running(graph, name, hits)
        told = [gate for gate in gates if gate.condition != "succeeded"] if waits is None else []
        if waits is None and gates and not told:
            waits = f"it waits for {', '.join(gate.role for gate in gates)} to succeed: until then it has not started"
        because = waits or (_reconnects(graph, spec, told) if told else _untouched(graph, name, alive))
        found.append({"role": name, "who": name, "told": bool(told), "because": because})
    return found


def _reconnects(graph: RoleGraph, spec: RoleSpec, gates: list[Gate]) -> str:
    names = ", ".join(gate.role for gate in gates)
    text = f'its gate on {names} says on_restart="reconnect"'
    baked_in = [gate.role for gate in gates if gate.role in spec.address_edges]
    served = [gate.role for gate in gates if graph.role(gate.role).ports and gate.role not in baked_in]
    if served:
        text += f"; it is told the addresses of {', '.join(served)} should they change"
    if baked_in:
        text += f"; it has the address of {', '.join(baked_in)} in its command or env: should that change, it restarts"
    return text


def _untouched(graph: RoleGraph, name: str, alive: Iterable[str]) -> str:
    needed_by = [other for other in alive if any(gate.role == name for gate in graph.role(other).gates)]
    if needed_by:
        return f"{', '.join(needed_by)} {'depends' if len(needed_by) == 1 else 'depend'} on it, not it on them"
    return "no gate, domain or scope leads to it"


def _notes(graph: RoleGraph, failing: Failing, hits: Hits, outcome: str, seats: Mapping[str, str]) -> list[str]:
    """What has no place elsewhere: an excuse; how a node's loss is noticed, and whether there is room without it."""
    if not failing.node:
        return [note for role, those in hits.items() if (note := _excuse(graph, role, those))]
    options = graph.options
    notes = []
    if failing.spec.endswith(":lost"):
        silence, margin = format_duration(options.lease_ns + options.lease_margin_ns), options.lease_margin_ns
        notes.append(
            f"a silent node counts as lost after {silence}; its agent has killed what runs there "
            f"{format_duration(2 * margin)} before that"
        )
    if outcome != "restart":
        return notes
    short = [role for role, those in hits.items() if any(verdict.action == "restart" for _, verdict in those)]
    notes += [_room_note(graph, graph.role(role), failing.node, seats) for role in short]
    if len(short) > 1:
        notes.append("that room is counted for each role alone")
    payers = [role for role, those in hits.items() if any(verdict.counted for _, verdict in those)]
    if len(payers) > 1:
        notes.append(f"one incident, one charge: of {', '.join(payers)} the one pays that was seated there first")
    if short:
        most, uptime = options.free_incidents_max, format_duration(options.min_uptime_ns)
        notes.append(f"more than {most} such losses in a row, without progress or {uptime} of health, fail the job")
    return notes


def _excuse(graph: RoleGraph, role: str, those: list[tuple[int, Verdict]]) -> str:
    """A used-up budget fails the job only if nothing upstream turns out to be the cause (R7)."""
    names = " or ".join(upstream_of(graph, role))
    if not names or not any(verdict.exhausted and verdict.action == "fail" for _, verdict in those):
        return ""
    window = format_duration(graph.options.cause_window_ns)
    return f"unless {names} fails within {window} too: that is then the cause, and pays"


def _room_note(graph: RoleGraph, spec: RoleSpec, node: str, seats: Mapping[str, str]) -> str:
    """Whether the role goes on with those that are left, or needs a seat elsewhere, and whether there is one."""
    left = sum(replica.partition("/")[0] == spec.name and seat != node for replica, seat in seats.items())
    least = spec.min_replicas
    room = min(_room(graph, spec, node, seats), spec.max_replicas - left)
    left_text = f"{spec.name} has {left} of {spec.max_replicas} left, and needs {least}"
    room_text = f"the other nodes have room for {room} more" if room else "the other nodes have no room for more"
    if left >= least:
        return f"{left_text}: it goes on at once; {room_text}"
    if left + room >= least:
        return f"{left_text}; {room_text}: it goes on there"
    wait = format_duration(spec.pending_timeout_ns)
    return f"{left_text}; {room_text}: it waits up to {wait} for a node, then the job fails"


def _room(graph: RoleGraph, spec: RoleSpec, lost: str, seats: Mapping[str, str]) -> int:
    """How many replicas of the role fit beside what is seated on the other nodes."""
    need, count = needed(spec.resources), 0
    for node in graph.cluster.nodes if graph.cluster.given else ():
        free = offered(node)
        for replica, seat in seats.items():
            if seat == node.name:
                free = subtract(free, needed(graph.role(replica.partition("/")[0]).resources))
        if node.name != lost and fits(need, free):
            count += slots(need, free)
    return count
