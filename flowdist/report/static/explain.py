"""What would follow from a failure, and why: told from the graph alone, before anything happens.

What restarts is taken from the restart table (`restarts.py`); here each role of it gets the edge, domain or scope that
brings it in. Nothing is asked of control, so that the tests can hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flowdist.graph import Gate, RoleGraph, RoleSpec, format_duration
from flowdist.report.static.failing import Failing
from flowdist.report.static.judging import Verdict, charge_of, ended_text, judge, upstream_of
from flowdist.report.static.reasons import (
    Scopes,
    mates_of,
    restarting,
    spared_of,
    to_succeed_before,
    uncertain,
    why_not_running,
)
from flowdist.report.static.restarts import Cause, Extent, restart_set, start_waves
from flowdist.report.static.room import room_note, short_without

SCOPES = ("replica", "role", "domain", "job")  # from narrow to wide
Hits = dict[str, list[tuple[int, Verdict]]]  # by role: each replica that fails or is lost, and what is made of it


def explanation_of(graph: RoleGraph, failing: Failing, seats: Mapping[str, str]) -> dict[str, Any]:
    """The explanation as plain values, for --json and for tests. Durations in seconds.

    Args:
        graph: The topology.
        failing: What fails.
        seats: By replica, the node that it is on; asked only when a node is lost.
    """
    if failing.kind == "controller":
        return _taken_over(graph, failing)
    cause: Cause = "node_lost" if failing.nodes else "failure"
    needed: list[str] = []
    if failing.kind == "drained":
        failing, needed = _drained(graph, failing, seats)
    if needed and not failing.nodes:
        return _found(graph, failing, {}, "refused", needed)
    hits = _hits(graph, failing, seats)
    outcome = _outcome(graph, hits)
    found = _found(graph, failing, hits, outcome, needed + _notes(graph, failing, hits, outcome, seats))
    everything: dict[str, Extent] = {spec.name: "role" for spec in graph.roles}
    if outcome == "fail":
        return found | {"stops": _stops(graph, everything, hits, failing)}
    scopes = _scopes(hits)
    extents, reasons = restarting(graph, scopes, cause)
    spared = spared_of(graph, scopes, extents, cause)
    gone = {entry["role"] for entry in found["ended"] if entry["who"] == entry["role"]}
    stops = {name: extent for name, extent in extents.items() if name not in spared and name not in gone}
    ifs = uncertain(graph, scopes, extents, cause)
    stuck = _stuck(graph, stops, hits)
    missing = [name for name in stuck if graph.role(name).primary and graph.role(name).kind == "task"]
    if missing:
        note = f"the job cannot do without {', '.join(missing)}: {stuck[missing[0]]}"
        stopped = _stops(graph, everything, hits, failing)
        return found | {"outcome": "fail", "ended": [], "stops": stopped, "notes": [*found["notes"], note]}
    found["notes"] += _late_notes(graph, stuck, hits)
    alive = {name: extent for name, extent in stops.items() if name not in stuck}
    payers = _payers(graph, failing, hits)
    if payers:
        levels = [verdict.level for _, verdict in hits[payers[0]] if verdict.counted]
        one = failing.kind == "node_lost"  # one incident, whoever was there
        found["charged"] = charge_of(graph, graph.role(payers[0]), levels[:1] if one else levels)
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


def _found(graph: RoleGraph, failing: Failing, hits: Hits, outcome: str, notes: list[str]) -> dict[str, Any]:
    """Every key that there is, with what is known before it is looked at what restarts."""
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
    """The controller is no part of what it controls (R21)."""
    outage = format_duration(graph.options.controller_outage_ns)
    because = f"agents keep their workers for {outage} while no controller listens"
    going_on = [{"role": spec.name, "who": spec.name, "told": False, "because": because} for spec in graph.roles]
    notes = ["the next controller reads the journal; what has happened since then it hears from the agents"]
    return _found(graph, failing, {}, "takeover", notes) | {"goes_on": going_on}


def _drained(graph: RoleGraph, failing: Failing, seats: Mapping[str, str]) -> tuple[Failing, list[str]]:
    """The nodes that may go, one after the other, and why the others may not."""
    may_go: list[str] = []
    needed = []
    for node in failing.nodes:
        is_used = node in seats.values()
        role = short_without(graph, [*may_go, node], seats) if is_used else ""
        if role:
            note = f"{node} is needed: {room_note(graph, graph.role(role), [*may_go, node], seats)}"
            needed.append(note.partition(": it waits")[0])
        else:
            may_go.append(node)
    return failing._replace(nodes=tuple(may_go)), needed


def _hits(graph: RoleGraph, failing: Failing, seats: Mapping[str, str]) -> Hits:
    """Each replica is judged after those before it: a role without gang pays for each of its replicas.

    Once one of them restarts the whole role, the others are part of that incident.
    """
    cause: Cause = "node_lost" if failing.nodes else "failure"
    hits: Hits = {}
    for spec in graph.roles:
        if failing.nodes:
            indices = [i for i in range(spec.max_replicas) if seats.get(f"{spec.name}/{i}") in failing.nodes]
        elif spec.name == failing.role:
            indices = list(range(spec.max_replicas)) if failing.number is None else [failing.number]
        else:
            continue
        used, whole = 0, False
        for index in indices:
            verdict = judge(spec, failing, used)
            if whole:
                verdict = hits[spec.name][-1][1]._replace(counted=False)
            elif failing.kind != "node_lost" and verdict.action == "restart":
                used += verdict.counted
                whole = restart_set(graph, spec.name, cause, verdict.scope)[spec.name] == "role"
            hits.setdefault(spec.name, []).append((index, verdict))
    return hits


def _payers(graph: RoleGraph, failing: Failing, hits: Hits) -> list[str]:
    """Who has a replica that counts; of those on a lost node the one that was seated first is at the head.

    Minima are seated before what grows.
    """
    first = {
        role: min(index >= graph.role(role).min_replicas for index, verdict in those if verdict.counted)
        for role, those in hits.items()
        if any(verdict.counted for _, verdict in those)
    }
    return sorted(first, key=lambda role: first[role]) if failing.kind == "node_lost" else list(first)


def _scopes(hits: Hits) -> Scopes:
    """By role that restarts, the widest scope of those that its replicas restart by: it has the others in it."""
    found = {}
    for role, those in hits.items():
        scopes = [verdict.scope for _, verdict in those if verdict.action == "restart"]
        if scopes:
            found[role] = max(scopes, key=SCOPES.index)
    return found


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
    """The last replica's that pays or cannot: it is the one that finds the budget used up, if any does."""
    verdicts = [verdict for _, verdict in those]
    verdict = next((each for each in reversed(verdicts) if each.counted or each.exhausted), verdicts[-1])
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
    """What is ended because its failure is ignored. A gang ends with its member, a joint world with it."""
    found: list[dict[str, str]] = []
    for role, those in hits.items():
        ignored = [index for index, verdict in those if verdict.action == "ignore"]
        if ignored:
            spec = graph.role(role)
            who = mates_of(graph, role) if spec.gang else (_names(role, ignored),)
            roles = mates_of(graph, role) if spec.gang else (role,)
            because = ended_text(graph, spec)
            found += [{"role": name, "who": text, "because": because} for name, text in zip(roles, who, strict=True)]
    return found


def _stuck(graph: RoleGraph, stops: Mapping[str, Extent], hits: Hits) -> dict[str, str]:
    """Roles that cannot start (again), since a gate of theirs waits for something that has been ended for good."""
    stuck: dict[str, str] = {}
    before = {spec.name for spec in graph.roles if to_succeed_before(graph, spec.name) & hits.keys()}  # not started yet
    for _ in graph.roles:  # a joint world can hold up what was there before it: at most once for each role
        for spec in graph.roles:
            for gate in spec.gates:
                waits = gate.condition == "succeeded" or spec.name in stops or spec.name in before
                if waits and (gate.role in stuck or _is_over(graph, gate.role, hits)):
                    few = "which does not start" if gate.role in stuck else "of which too few are left"
                    so_far = "succeed" if gate.condition == "succeeded" else f"be {gate.condition}"
                    because = f"it waits for {gate.role} to {so_far}, {few}: it cannot start, and is ended, too"
                    stuck.setdefault(spec.name, because)
            for mate in mates_of(graph, spec.name) if spec.name in stuck else ():
                stuck.setdefault(mate, f"it is in one world with {spec.name}, which cannot start, and is ended, too")
    return {spec.name: stuck[spec.name] for spec in graph.roles if spec.name in stuck}


def _late_notes(graph: RoleGraph, stuck: Mapping[str, str], hits: Hits) -> list[str]:
    """Roles that are stuck if they have not started by then, which depends on more than the topology."""
    notes = []
    for spec in graph.roles:
        over = [gate.role for gate in spec.gates if _is_over(graph, gate.role, hits)]
        waits = sorted(to_succeed_before(graph, spec.name))
        if over and waits and spec.name not in stuck:
            end = "the job fails" if spec.primary and spec.kind == "task" else "it is ended, too"
            names = " and ".join(waits)
            notes.append(f"if {spec.name} still waits for {names} to succeed, it cannot start without {over[0]}: {end}")
    return notes


def _is_over(graph: RoleGraph, role: str, hits: Hits) -> bool:
    """Whether what is ignored closes the gates on the role for good, by itself or in its joint world."""
    return any(_too_few_left(graph.role(mate), hits.get(mate, [])) for mate in mates_of(graph, role))


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
    still_runs = failing.kind in ("unready", "hang") or failing.is_announced
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
                grace_ns = spec.grace_ns if failing.is_announced else spec.stop_grace_ns
                layer.append({"role": name, "who": who, "grace_s": grace_ns / 1e9})
        if layer:
            layers.append(layer)
    return layers


def _starts(graph: RoleGraph, alive: Mapping[str, Extent], hits: Hits) -> list[list[dict[str, Any]]]:
    """The waves in which the set starts again: only gates on what restarts are closed, a joint world starts as one."""
    gates = {
        name: [gate for mate in mates_of(graph, name) for gate in graph.role(mate).gates if gate.role in alive]
        for name in alive
    }
    depth = dict.fromkeys(alive, 0)
    for _ in alive:  # a joint world can lift what was there before it: at most once for each role
        for name in alive:
            depth[name] = max((1 + depth[gate.role] for gate in gates[name]), default=0)
    waves: list[list[dict[str, Any]]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in alive:
        after = list(dict.fromkeys(f"{gate.role} {gate.condition}" for gate in gates[name]))
        waves[depth[name]].append({"role": name, "who": _who(name, alive[name], hits), "after": after})
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
    if not failing.nodes:
        notes = [note for role, those in hits.items() if (note := _excuse(graph, role, those))]
        return notes + (_hang_notes(graph.role(failing.role)) if failing.kind == "hang" else [])
    options = graph.options
    notes = _order_notes(graph, failing, hits)
    if len(failing.nodes) > 1 and any(verdict.rule for those in hits.values() for _, verdict in those):
        notes.append(
            "such losses are noticed one after the other: whom the first has stopped no rule is asked about at "
            "the next, and each that is an incident of its own pays for itself"
        )
    if failing.spec.endswith(":lost"):
        silence, margin = format_duration(options.lease_ns + options.lease_margin_ns), options.lease_margin_ns
        notes.append(
            f"a silent node counts as lost after {silence}; its agent has killed what runs there "
            f"{format_duration(2 * margin)} before that"
        )
    if outcome != "restart":
        return notes
    short = [role for role, those in hits.items() if any(verdict.action == "restart" for _, verdict in those)]
    notes += [room_note(graph, graph.role(role), failing.nodes, seats) for role in short]
    if len(short) > 1:
        notes.append("that room is counted for each role alone")
    payers = _payers(graph, failing, hits)
    if len(payers) > 1 and failing.kind == "preempted":
        notes.append(f"each world leaves by itself, and pays by itself: {', '.join(payers)}")
    elif len(payers) > 1:
        notes.append(f"one incident, one charge: of {', '.join(payers)} the one pays that was seated there first")
    if short and failing.kind != "drained":
        most, uptime = options.free_incidents_max, format_duration(options.min_uptime_ns)
        notes.append(f"more than {most} such losses in a row, without progress or {uptime} of health, fail the job")
    return notes


def _hang_notes(spec: RoleSpec) -> list[str]:
    notes = ["the stacks of its Python workers go to their logs before they are stopped"]
    if spec.gang and spec.max_replicas > 1:
        notes.append("one rank that hangs stalls its gang: of those that stand still the least advanced is blamed")
    return notes


def _order_notes(graph: RoleGraph, failing: Failing, hits: Hits) -> list[str]:
    """How a node is left that was announced to go away (R14)."""
    if not failing.is_announced or not hits:
        return []
    specs = [graph.role(mate) for role in hits for mate in mates_of(graph, role)]
    drain, grace = (format_duration(max(ns)) for ns in zip(*((s.drain_ns, s.grace_ns) for s in specs), strict=True))
    text = "before that, where every rank of a world asks should_stop(step), all of them stop at one step"
    if failing.kind == "drained":
        return [f"{text}, for which they have {drain}; where nobody asks, it goes on at once"]
    are = "is" if len(failing.nodes) == 1 else "are"
    return [f"{text}; at the latest {grace} before {', '.join(failing.nodes)} {are} taken away"]


def _excuse(graph: RoleGraph, role: str, those: list[tuple[int, Verdict]]) -> str:
    """A used-up budget fails the job only if nothing upstream turns out to be the cause (R7)."""
    names = " or ".join(upstream_of(graph, role))
    if not names or not any(verdict.exhausted and verdict.action == "fail" for _, verdict in those):
        return ""
    window = format_duration(graph.options.cause_window_ns)
    return f"unless {names} fails within {window} too: that is then the cause, and pays"
