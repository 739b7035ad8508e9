"""Plan of a topology (`flowdist plan`): placement, start waves, policies and the restart table."""

from __future__ import annotations

from typing import Any

from flowdist.control.placement.placement import explain
from flowdist.graph import RoleGraph, RoleSpec, Rule, format_duration
from flowdist.graph.sizes import spelled
from flowdist.graph.warmth import cold_because
from flowdist.report.static.drawing import needs_words, seating_words
from flowdist.report.static.reasons import policy_text
from flowdist.report.static.rehearsal import Rehearsal
from flowdist.report.static.restarts import RestartTable, start_waves
from flowdist.report.static.survival import memory_lines, memory_of
from flowdist.text.printable import table


def plan_of(graph: RoleGraph, python: str = "python", ours: str = "") -> dict[str, Any]:
    """Return the plan as plain values. `python` means that in commands, and `ours` runs flowdist; empty: the same."""
    table = RestartTable(graph)
    rehearsal = Rehearsal(graph) if graph.cluster.given else None
    return {
        "waves": start_waves(graph),
        "placement": _placement(rehearsal),
        "memory": memory_of(rehearsal.job) if rehearsal is not None else {},
        "starts": {spec.name: _start_text(spec, python, ours or python) for spec in graph.roles},
        "restarts": {
            spec.name: {
                "failure": table.restart_set(spec.name, "failure"),
                "node_lost": table.restart_set(spec.name, "node_lost"),
            }
            for spec in graph.roles
        },
    }


def _start_text(spec: RoleSpec, python: str, ours: str) -> str:
    """Return in words whether workers of the role start warm or cold, and why."""
    if why := cold_because(spec, python, ours):
        return f"cold: {why}"
    text = "warm: forked where the script asks for its rank, or acts for the first time"
    return f"{text}, with {', '.join(spec.preload)} imported" if spec.preload else text


def _placement(rehearsal: Rehearsal | None) -> dict[str, str]:
    """Return the node of each replica, none without nodes; if the job does not fit, the key `""` has the reason."""
    if rehearsal is None:
        return {}
    if not rehearsal.job.admitted:
        return {"": explain(rehearsal.job, next(iter(rehearsal.job.roles.values())))}
    return rehearsal.seats()


def plan_text(graph: RoleGraph, plan: dict[str, Any]) -> str:
    """Return the text of a plan, as `plan_of` returned it, for the terminal."""
    heading = ("role", "kind", "replicas", "procs", "each replica needs", "gang", "primary")
    lines = [graph.name, "", "Roles", *table([heading, *map(_role_row, graph.roles)]), "", "Start waves"]
    for i, wave in enumerate(plan["waves"], 1):
        lines.append(f"  {i}. {', '.join(_with_gates(graph, name) for name in wave)}")
    for world in graph.worlds:
        names = " and ".join(world.roles)
        lines.append(f"     {names} are one world, {world.name}: they share RANKs, and restart together")
    lines += ["", "Placement", *_placement_lines(graph, plan["placement"])]
    if plan["memory"]:
        lines += ["", "Snapshots, and the nodes that hold the shards of each replica", *memory_lines(plan["memory"])]
    lines += ["", "Policies"]
    for spec in graph.roles:
        lines += [*_policy_lines(spec), f"    starts {plan['starts'][spec.name]}"]
    lines += ["", "If this happens, what restarts with it?"]
    rows: list[tuple[str, ...]] = [("", "a replica fails", "a replica's node is lost")]
    for spec in graph.roles:
        failure, lost = (plan["restarts"][spec.name][cause] for cause in ("failure", "node_lost"))
        rows.append((spec.name, "the job fails" if spec.restart is None else _set_text(failure), _set_text(lost)))
    lines += table(rows)
    for spec in graph.roles:
        for name in spec.address_edges:
            gate = spec.gate_on(name)
            if gate is not None and gate.on_restart == "reconnect":
                lines.append(f"  note: {spec.name} has the address of {name} in its command or env: ")
                lines[-1] += "it restarts if that address changes"
    return "\n".join(lines) + "\n"


def _role_row(spec: RoleSpec) -> tuple[str, ...]:
    low = f"{spec.min_replicas} to " if spec.min_replicas != spec.max_replicas else ""
    needs = ", ".join(needs_words(spec.resources)) + (", on the NUMA node of its GPU" if spec.numa else "")
    yes = {True: "yes", False: "no"}
    primary = yes[spec.primary] if spec.kind == "task" else "-"
    return (spec.name, spec.kind, f"{low}{spec.max_replicas}", str(spec.procs), needs, yes[spec.gang], primary)


def _with_gates(graph: RoleGraph, name: str) -> str:
    gates = graph.role(name).gates
    if not gates:
        return name
    return f"{name} (after {', '.join(f'{gate.role} {gate.condition}' for gate in gates)})"


def _placement_lines(graph: RoleGraph, placement: dict[str, str]) -> list[str]:
    if not graph.cluster.given:
        return ["  no nodes are given: this machine in run, one node large enough in simulate"]
    if "" in placement:
        return [f"  does not fit: {placement['']}"]
    return [
        f"  {node.name}: {', '.join(name for name, seat in placement.items() if seat == node.name) or 'spare'}"
        for node in graph.cluster.nodes
    ]


def _policy_lines(spec: RoleSpec) -> list[str]:
    policy = spec.restart
    text = "a failure fails the job; lost nodes and growth restart it without counting"
    if policy is not None:
        base, most = format_duration(policy.backoff_ns), format_duration(policy.backoff_max_ns)
        text = f"{policy_text(policy)}; back-off {base} to {most}"
    lines = [f"  {spec.name}: {text}", *(_rule_line(rule) for rule in (policy.rules if policy is not None else ()))]
    if spec.ready is not None:
        how = spec.ready.how + (f":{spec.ready.target}" if spec.ready.target else "")
        lines.append(f"    ready when {how}, within {format_duration(spec.ready_timeout_ns)}")
    if spec.versions is not None:
        behind = f"at most {spec.versions.max_staleness} behind" if spec.versions.max_staleness else "the latest one"
        lines.append(f"    needs a version of {spec.versions.role}, {behind}, before it is ready")
    lines.append("    " + ", ".join(f"{name} {format_duration(ns)}" for name, ns in _times(spec) if ns is not None))
    if rules := seating_words(spec):
        lines.append(f"    placed {', '.join(rules)}")
    if spec.parallel:
        sizes = range(spec.min_replicas, spec.max_replicas + 1, spec.step)
        shown = [str(size) for size in (sizes if len(sizes) <= 4 else (sizes[0], sizes[1], "...", sizes[-1]))]
        lines.append(f"    mesh {spelled(spec.parallel)}: forms with {', '.join(shown)} replicas and no others")
    return lines


def _rule_line(rule: Rule) -> str:
    """Return a rule of a policy in words: `on exit with code 2: fail`."""
    what: str = rule.kind or ("exit" if rule.exit is not None else "signal" if rule.signal else "any failure")
    what += f" with code {rule.exit}" if rule.exit is not None else f" SIG{rule.signal}" if rule.signal else ""
    return f"    on {what}: {rule.do}{'' if rule.counted else ', not counted'}"


def _times(spec: RoleSpec) -> list[tuple[str, int | None]]:
    """Return the times of a role in nanoseconds, by the names of the DSL; None for a limit that is not set."""
    gang = [("join_window", spec.join_window_ns), ("cooldown", spec.cooldown_ns)] if spec.gang else []
    times = [("grace", spec.grace_ns), ("stop_grace", spec.stop_grace_ns), ("drain", spec.drain_ns), *gang]
    limits = [("hang_after", spec.hang_after_ns), ("start_timeout", spec.start_timeout_ns)]
    return [*times, ("pending_timeout", spec.pending_timeout_ns), *limits]


def _set_text(extents: dict[str, str]) -> str:
    return ", ".join("that replica" if extent == "replica" else name for name, extent in extents.items())
