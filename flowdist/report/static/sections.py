"""Sections of an explanation: the order of stops and starts, and the roles that a failure does not restart."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from flowdist.graph import Gate, RoleGraph, RoleSpec, format_duration
from flowdist.report.static.happening import Seen
from flowdist.report.static.rehearsal import names_of
from flowdist.report.static.restarts import Extent, RestartTable

Layers = list[list[dict[str, Any]]]


def stop_layers_of(graph: RoleGraph, seen: Seen, extents: Mapping[str, Extent], late: Mapping[str, Seen]) -> Layers:
    """Return what the controller stops, in layers, dependents first; each entry with its grace in seconds.

    A replica that has ended by itself, or was lost with its node, gets no order to stop.

    Args:
        graph: The topology.
        seen: What the failure leads to.
        extents: The roles that restart.
        late: The roles that restart only at a later moment, each with what the failure leads to then.
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
    """Return the waves in which the roles that restart start again; each entry with the gates on roles that restart.

    The arguments are those of `stop_layers_of`.
    """
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

    `told` of an entry marks a role with a gate on a role that restarts: it reconnects.

    Args:
        graph: The topology.
        seen: What the failure leads to.
        restarts: The roles that restart.
        told: Roles that are left out because another section of the explanation lists them.
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
