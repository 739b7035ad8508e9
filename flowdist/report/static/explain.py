"""Explanation of one failure: what would restart, stop and continue, computed from the role graph alone.

The set of roles that restart comes from the restart table (`restarts.py`), the reasons from `reasons.py`, the verdicts
from `judging.py`. No module here asks `flowdist.control`, so that the tests can compare the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flowdist.graph import Gate, RoleGraph, RoleSpec, format_duration
from flowdist.graph.policies import Scope
from flowdist.report.static.failing import Failing
from flowdist.report.static.judging import Verdict, charge_of, ended_text, judge
from flowdist.report.static.notes import Hits, is_over, late_notes, notes_of, payers_of, too_few_left
from flowdist.report.static.reasons import alone, restarting, spared_of, uncertain, why_not_running
from flowdist.report.static.restarts import Cause, Extent, restart_set, start_waves
from flowdist.report.static.room import room_note, short_without

SCOPES = ("replica", "role", "domain", "job")  # from narrow to wide


def explanation_of(graph: RoleGraph, failing: Failing, seats: Mapping[str, str]) -> dict[str, Any]:
    """Return the explanation of a failure as plain values, for --json and for tests; durations are in seconds.

    Args:
        graph: The topology.
        failing: What fails, and how.
        seats: The node of each replica, by the name of the replica. Only the loss of a node needs them.
    """
    if failing.kind == "controller":
        return _taken_over(graph, failing)
    needed: list[str] = []
    if failing.kind == "drained":
        failing, needed = _drained(graph, failing, seats)
    if needed and not failing.nodes:
        return _found(graph, failing, {}, "refused", needed)
    hits = _hits(graph, failing, seats)
    outcome = _outcome(graph, hits)
    found = _found(graph, failing, hits, outcome, needed + notes_of(graph, failing, hits, outcome, seats))
    if outcome == "fail":
        return found | {"stops": _stops_of_all(graph, hits, failing)}
    return found | _consequences(graph, failing, hits, found)


def _consequences(graph: RoleGraph, failing: Failing, hits: Hits, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of the explanation that depend on what restarts, unless the verdicts fail the job.

    If a role that the job needs cannot start any more, the job fails nevertheless: `outcome` is then `fail`.
    """
    scopes, cause = _scopes(hits), _cause(failing)
    extents, reasons = restarting(graph, scopes, cause)
    spared = spared_of(graph, scopes, extents, cause)
    for name, because in alone(graph, scopes, [name for name in extents if name not in spared], cause).items():
        extents[name], reasons[name] = "replica", because
    gone = {entry["role"] for entry in found["ended"] if entry["who"] == entry["role"]}
    stops = {name: extent for name, extent in extents.items() if name not in spared and name not in gone}
    stuck = _stuck(graph, stops, hits)
    missing = [name for name in stuck if graph.role(name).primary and graph.role(name).kind == "task"]
    if missing:
        notes = [*found["notes"], f"the job needs {', '.join(missing)}: {stuck[missing[0]]}"]
        return {"outcome": "fail", "ended": [], "stops": _stops_of_all(graph, hits, failing), "notes": notes}
    alive = {name: extent for name, extent in stops.items() if name not in stuck}
    ifs = uncertain(graph, scopes, extents, cause)
    return {
        "restarts": [
            {"role": name, "extent": extent, "who": _who(name, extent, hits)}
            | {"because": reasons[name], "if": ifs.get(name)}
            for name, extent in alive.items()
        ],
        "stuck": [
            {"role": name, "who": _who(name, stops.get(name, "role"), hits), "because": because}
            for name, because in stuck.items()
        ],
        "spared": [{"role": name, "who": name, "because": because} for name, because in spared.items()],
        "stops": _stops(graph, stops, hits, failing),
        "starts": _starts(graph, alive, hits),
        "charged": _charged(graph, failing, hits),
        "goes_on": _running_on(graph, stops, {**spared, **stuck}, gone, hits),
        "notes": found["notes"] + late_notes(graph, stuck, hits),
    }


def _cause(failing: Failing) -> Cause:
    return "node_lost" if failing.nodes else "failure"


def _charged(graph: RoleGraph, failing: Failing, hits: Hits) -> dict[str, Any] | None:
    """Return which budget pays for the restart, as `charge_of` does; None if no budget pays."""
    payers = payers_of(graph, failing, hits)
    if not payers:
        return None
    levels = [verdict.level for _, verdict in hits[payers[0]] if verdict.counted]
    is_one_incident = failing.kind == "node_lost"  # however many replicas were on the node
    return charge_of(graph, graph.role(payers[0]), levels[:1] if is_one_incident else levels)


def _found(graph: RoleGraph, failing: Failing, hits: Hits, outcome: str, notes: list[str]) -> dict[str, Any]:
    """Return every key of an explanation; those that depend on what restarts are empty, for the caller to fill in."""
    return {
        "fault": failing.spec,
        "how": failing.how,
        "hits": [f"{role}/{index}" for role, those in hits.items() for index, _ in those],
        "verdicts": [_verdict(graph.role(role), those) for role, those in hits.items()],
        "outcome": outcome,
        "ended": _ended(graph, hits) if outcome != "fail" else [],
        "restarts": [],
        "stuck": [],
        "spared": [],
        "announced": failing.is_announced,
        "stops": [],
        "starts": [],
        "charged": None,
        "goes_on": [],
        "notes": notes,
    }


def _taken_over(graph: RoleGraph, failing: Failing) -> dict[str, Any]:
    """Return the explanation for the death of the controller: no role is part of it (R21)."""
    outage = format_duration(graph.options.controller_outage_ns)
    because = f"agents keep their workers running for {outage} without a controller"
    running_on = [{"role": spec.name, "who": spec.name, "told": False, "because": because} for spec in graph.roles]
    notes = ["the next controller reads the journal, and the agents report what has happened since"]
    return _found(graph, failing, {}, "takeover", notes) | {"goes_on": running_on}


def _drained(graph: RoleGraph, failing: Failing, seats: Mapping[str, str]) -> tuple[Failing, list[str]]:
    """Return the failure with only those nodes that may be drained one after the other, and a note on each other node.

    A node may not be drained if the minimum of a role has no room without it (R14).
    """
    may_go: list[str] = []
    needed = []
    for node in failing.nodes:
        if node in seats.values() and (role := short_without(graph, [*may_go, node], seats)):
            note = f"{node} is needed: {room_note(graph, graph.role(role), [*may_go, node], seats)}"
            needed.append(note.partition(": it waits")[0])
        else:
            may_go.append(node)
    return failing._replace(nodes=tuple(may_go)), needed


def _hits(graph: RoleGraph, failing: Failing, seats: Mapping[str, str]) -> Hits:
    """Return, by role, the index of each replica that fails or is lost, and the verdict of the policy on it.

    Each replica is judged after the ones before it: a role without gang is charged for each of its replicas. Once a
    replica restarts the whole role, the replicas after it are part of the same incident.
    """
    hits: Hits = {}
    for spec in graph.roles:
        used, whole = 0, False
        for index in _indices_hit(spec, failing, seats):
            verdict = judge(spec, failing, used)
            if whole:
                verdict = hits[spec.name][-1][1]._replace(counted=False)
            elif failing.kind != "node_lost" and verdict.action == "restart":
                used += verdict.counted
                whole = restart_set(graph, spec.name, _cause(failing), verdict.scope)[spec.name] == "role"
            hits.setdefault(spec.name, []).append((index, verdict))
    return hits


def _indices_hit(spec: RoleSpec, failing: Failing, seats: Mapping[str, str]) -> list[int]:
    """Return the indices of the role's replicas that fail: those on the nodes, all of the role, one, or none."""
    if failing.nodes:
        return [i for i in range(spec.max_replicas) if seats.get(f"{spec.name}/{i}") in failing.nodes]
    if spec.name != failing.role:
        return []
    return list(range(spec.max_replicas)) if failing.number is None else [failing.number]


def _scopes(hits: Hits) -> dict[str, Scope]:
    """Return, for each role with replicas that restart, the widest scope of their verdicts.

    The widest scope contains the narrower ones.
    """
    scopes = {role: [v.scope for _, v in those if v.action == "restart"] for role, those in hits.items()}
    return {role: max(found, key=SCOPES.index) for role, found in scopes.items() if found}


def _outcome(graph: RoleGraph, hits: Hits) -> str:
    """Return the outcome for the job: `fail` beats `restart`, and that beats `ignore`, as in control.

    Ignored failures that leave too few replicas fail the job too. Without any replica hit, the outcome is `nothing`.
    """
    if any(_below_minimum(graph.role(role), those) for role, those in hits.items()):
        return "fail"
    actions = [verdict.action for those in hits.values() for _, verdict in those]
    return next((action for action in ("fail", "restart", "ignore") if action in actions), "nothing")


def _below_minimum(spec: RoleSpec, those: list[tuple[int, Verdict]]) -> bool:
    """Return whether ignored failures leave too few replicas of a role that the job needs."""
    return spec.primary and spec.kind == "task" and not spec.gang and too_few_left(spec, those)


def _verdict(spec: RoleSpec, those: list[tuple[int, Verdict]]) -> dict[str, Any]:
    """Return the verdict that is shown for a role, out of the verdicts on its replicas, as plain values.

    It is the verdict on the last replica that is charged or finds the budget used up; else that on the last replica.
    """
    verdicts = [verdict for _, verdict in those]
    verdict = next((each for each in reversed(verdicts) if each.counted or each.exhausted), verdicts[-1])
    because = verdict.because
    if _below_minimum(spec, those):
        because += f"; fewer than the {spec.min_replicas} replicas that {spec.name} needs are left: the job fails"
    return {
        "role": spec.name,
        "action": verdict.action,
        "counted": verdict.counted,
        "rule": verdict.rule or None,
        "exhausted": verdict.exhausted,
        "because": because,
    }


def _ended(graph: RoleGraph, hits: Hits) -> list[dict[str, str]]:
    """Return what ends for good because its failure is ignored, with the reason.

    A gang ends with its member, and a joint world with its gang.
    """
    found: list[dict[str, str]] = []
    for role, those in hits.items():
        ignored = [index for index, verdict in those if verdict.action == "ignore"]
        if ignored:
            spec = graph.role(role)
            ended = {mate: mate for mate in graph.mates_of(role)} if spec.gang else {role: _names(role, ignored)}
            because = ended_text(graph, spec)
            found += [{"role": name, "who": who, "because": because} for name, who in ended.items()]
    return found


def _stuck(graph: RoleGraph, stops: Mapping[str, Extent], hits: Hits) -> dict[str, str]:
    """Return the roles that cannot start (again), each with the reason.

    A gate of such a role waits for a role that has ended for good, or for a role that is stuck itself.
    """
    stuck: dict[str, str] = {}
    unstarted = {spec.name for spec in graph.roles if graph.to_succeed_before(spec.name) & hits.keys()}
    for _ in graph.roles:  # a joint world can hold up an earlier role: at most once for each role
        for spec in graph.roles:
            for gate in spec.gates:
                waits = gate.condition == "succeeded" or spec.name in stops or spec.name in unstarted
                if waits and (gate.role in stuck or is_over(graph, gate.role, hits)):
                    stuck.setdefault(spec.name, _stuck_text(gate, gate.role in stuck))
            for mate in graph.mates_of(spec.name) if spec.name in stuck else ():
                because = f"it is in one world with {spec.name}, which cannot start, and is ended as well"
                stuck.setdefault(mate, because)
    return {spec.name: stuck[spec.name] for spec in graph.roles if spec.name in stuck}


def _stuck_text(gate: Gate, never_starts: bool) -> str:
    why = "which does not start" if never_starts else "of which too few are left"
    so_far = "succeed" if gate.condition == "succeeded" else f"be {gate.condition}"
    return f"it waits for {gate.role} to {so_far}, {why}: it cannot start, and is ended as well"


def _who(role: str, extent: Extent, hits: Hits) -> str:
    """Return the name of the role, or the names of the replicas that restart alone: `ps/0`."""
    if extent == "role":
        return role
    return _names(role, [index for index, verdict in hits[role] if verdict.action == "restart"])


def _names(role: str, indices: Iterable[int]) -> str:
    return ", ".join(f"{role}/{index}" for index in indices)


def _stops(graph: RoleGraph, alive: Mapping[str, Extent], hits: Hits, failing: Failing) -> list[list[dict[str, Any]]]:
    """Return what the controller stops, in layers, dependents first; each entry with its grace in seconds.

    A replica that has ended by itself, or was lost with its node, needs no stop.
    """
    layers = []
    for wave in reversed(start_waves(graph)):
        layer = []
        for spec in (graph.role(name) for name in wave if name in alive):
            if who := _to_stop(spec, alive[spec.name], hits, failing):
                grace_ns = spec.grace_ns if failing.is_announced else spec.stop_grace_ns
                layer.append({"role": spec.name, "who": who, "grace_s": grace_ns / 1e9})
        if layer:
            layers.append(layer)
    return layers


def _stops_of_all(graph: RoleGraph, hits: Hits, failing: Failing) -> list[list[dict[str, Any]]]:
    """Return the layers in which the whole job is stopped: all roles but those that cannot run when the failure comes.

    Such a role has not started yet or has succeeded already, whichever role that is hit runs then.
    """
    running = [
        spec.name
        for spec in graph.roles
        if spec.name in hits or not hits or any(why_not_running(graph, spec.name, [hit]) is None for hit in hits)
    ]
    return _stops(graph, dict.fromkeys(running, "role"), hits, failing)


def _to_stop(spec: RoleSpec, extent: Extent, hits: Hits, failing: Failing) -> str:
    """Return in words what of the role still runs and has to be stopped; empty if nothing does."""
    still_runs = failing.kind in ("unready", "hang") or failing.is_announced
    if extent == "replica":
        return _who(spec.name, "replica", hits) if still_runs else ""
    over = 0 if still_runs else len(hits.get(spec.name, []))
    if over == 0:
        return spec.name
    return f"the rest of {spec.name}" if over < spec.max_replicas else ""


def _starts(graph: RoleGraph, alive: Mapping[str, Extent], hits: Hits) -> list[list[dict[str, Any]]]:
    """Return the waves in which the restart set starts again: only gates on roles that restart are closed (R1)."""
    waves: list[list[dict[str, Any]]] = []
    for names in start_waves(graph, alive):
        waves.append([])
        for name in names:
            gates = [gate for mate in graph.mates_of(name) for gate in graph.role(mate).gates if gate.role in alive]
            after = list(dict.fromkeys(f"{gate.role} {gate.condition}" for gate in gates))
            waves[-1].append({"role": name, "who": _who(name, alive[name], hits), "after": after})
    return waves


def _running_on(
    graph: RoleGraph, alive: Mapping[str, Extent], spared: Mapping[str, str], gone: set[str], hits: Hits
) -> list[dict[str, Any]]:
    """Return the roles and replicas that keep running, each with the reason.

    `told` marks a role with a gate on a role that restarts: it reconnects.

    Args:
        graph: The topology.
        alive: The roles that stop, by extent.
        spared: Roles that are left out because another section of the explanation lists them.
        gone: Roles that have ended for good.
        hits: The verdicts on the replicas that are hit.
    """
    found = []
    for spec in graph.roles:
        found += _rest_of_role(spec, alive, gone, hits)
        if not any(spec.name in names for names in (alive, spared, gone, hits)):
            found.append(_other_role(graph, spec, alive, hits))
    return found


def _rest_of_role(spec: RoleSpec, alive: Mapping[str, Extent], gone: set[str], hits: Hits) -> list[dict[str, Any]]:
    """Return the replicas that keep running of a role of which only single replicas restart or end."""
    name = spec.name
    if alive.get(name) != "replica" and (name in alive or name not in hits or name in gone):
        return []
    hit = [index for index, _ in hits[name]]
    rest = [index for index in range(spec.max_replicas) if index not in hit]
    because = "replicas of a role without gang restart one by one"
    return [{"role": name, "who": _names(name, rest), "told": False, "because": because}] if rest else []


def _other_role(graph: RoleGraph, spec: RoleSpec, alive: Mapping[str, Extent], hits: Hits) -> dict[str, Any]:
    """Return the entry of a role outside the restart set: why it keeps running, or why it does not run yet."""
    gates = [gate for gate in spec.gates if gate.role in alive]
    told: list[Gate] = []
    because = why_not_running(graph, spec.name, hits)
    if because is None:
        told = [gate for gate in gates if gate.condition != "succeeded"]
        if told:
            because = _reconnects(graph, spec, told)
        elif gates:
            because = f"it waits for {', '.join(gate.role for gate in gates)} to succeed: it has not started by then"
        else:
            because = _untouched(graph, spec.name, alive)
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
    if restart_set(graph, spec.name, "failure").keys() & {gate.role for gate in gates}:
        return f"{text}; if it fails before they run again, all of this restarts once more with it (R6)"
    free = f"costs nothing within {format_duration(graph.options.cause_window_ns)}"
    return f"{text}; if it fails meanwhile, it restarts in an incident of its own, which {free} (R7)"


def _untouched(graph: RoleGraph, name: str, alive: Iterable[str]) -> str:
    """Return the reason for which no restart leads to the role."""
    needed_by = [other for other in alive if any(gate.role == name for gate in graph.role(other).gates)]
    if needed_by:
        return f"{', '.join(needed_by)} {'depends' if len(needed_by) == 1 else 'depend'} on it, and not the reverse"
    return "no gate, domain or scope leads to it"
