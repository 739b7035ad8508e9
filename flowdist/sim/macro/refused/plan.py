"""Refusals of faults and rates: the part of their text that macro mode cannot play, underlined, and what it can."""

from __future__ import annotations

from flowdist.faults.grammar import Fault, Plan, Rate, refuse
from flowdist.graph import RoleGraph, RoleSpec
from flowdist.sim.macro.refused.topology import why_nodes_alone

KINDS = {"node": ("kill", "lost", "add"), "replica": ("kill", "exit", "oom", "slow")}  # kinds of fault that it plays
LEAST_AWAY_NS = 1_000_000_000  # the shortest duration of a fault: a node that is back sooner may join before it is lost

Refused = tuple[str, str]  # why a fault or a rate is not played, and what the user can do


def check_plan(plan: Plan, graph: RoleGraph, gangs: list[RoleSpec]) -> None:
    """Raise FaultError for the first fault or rate of the plan that macro mode cannot play with these gangs."""
    for fault in plan.faults:
        _check_fault(fault, graph, gangs)
    for rate in plan.rates:
        _check_rate(rate, graph, gangs)


def _check_rate(rate: Rate, graph: RoleGraph, gangs: list[RoleSpec]) -> None:
    """Raise FaultError if macro mode cannot play the rate."""
    of_replicas = rate.subject in ("replica", *(role.name for role in graph.roles))
    refused = _unplayed(rate, rate.name, rate.subject, of_replicas=of_replicas)
    if refused is None and of_replicas:
        refused = _of_replicas(rate.subject, rate.kind, graph, gangs, f"{gangs[0].name}-{rate.kind}=...")
    _refuse(rate, len(rate.name), refused)


def _check_fault(fault: Fault, graph: RoleGraph, gangs: list[RoleSpec]) -> None:
    """Raise FaultError if macro mode cannot play the fault."""
    role, slash, rest = fault.target.partition("/")
    of_replicas = role == "all" or any(role == spec.name for spec in graph.roles)
    refused = _unplayed(fault, f"{fault.kind!r} of {fault.target}", fault.target, of_replicas=of_replicas)
    if refused is None and of_replicas:
        refused = _of_replicas(role, fault.kind, graph, gangs, f"{gangs[0].name}{slash}{rest}@...")
    if refused is None and fault.when.at_ns is None:
        refused = "macro mode knows faults at a time, and rates", "write node2@30s, or leave --macro out"
    _refuse(fault, len(fault.spec), refused)


def _unplayed(what: Fault | Rate, name: str, target: str, *, of_replicas: bool) -> Refused | None:
    """Return why macro mode does not play this kind of fault on its target, and what it plays; None if it plays it.

    Args:
        what: The fault or rate.
        name: What the text calls it.
        target: The target of the fault, or the subject of the rate.
        of_replicas: The target is a replica or a role, not a node.
    """
    known = KINDS["replica"] if of_replicas else KINDS["node"]
    if target != "controller" and what.kind in known:
        return None
    return f"macro mode cannot play {name}", f"it can: {', '.join(known)}"


def _of_replicas(who: str, kind: str, graph: RoleGraph, gangs: list[RoleSpec], instead: str) -> Refused | None:
    """Return why macro mode does not play faults that hit replicas alone, not nodes; None if it plays these.

    Args:
        who: A role, "all" or "replica".
        kind: The kind of fault.
        graph: The job.
        gangs: Its gangs, the first one first.
        instead: What the user can write instead.
    """
    hit = [role for role in graph.roles if who in (role.name, "all", "replica")]
    for gang in hit:
        if gang not in gangs:
            continue
        if why := why_nodes_alone(gang):
            return f"macro mode has {gang.name} fail with its nodes alone, as {why}", "name nodes, or leave --macro out"
        if kind == "slow" and (gang.hang_after_ns is not None or gang.workload.step_spread):
            field = "hang_after" if gang.hang_after_ns is not None else "workload.step_spread"
            return f"macro mode slows {gang.name} down only without {field}", f"leave {field} out, or --macro"
    if any(role not in gangs for role in hit):
        names = " and ".join(gang.name for gang in gangs)
        return f"macro mode has roles beside {names} fail with their nodes alone", f"write {instead}"
    return None


def _refuse(what: Fault | Rate, end: int, refused: Refused | None) -> None:
    """Raise FaultError if the fault or rate is refused, or if its duration is too short; else return.

    Args:
        what: The fault or rate.
        end: How many characters of its text are underlined, for `refused`.
        refused: Why it is refused; None: it is not.
    """
    if refused is not None:
        refuse(what.spec, 0, end, *refused, what.where)
    shortest_ns = what.repair.low_ns if isinstance(what, Rate) and what.repair is not None else what.duration_ns
    if what.kind != "slow" and shortest_ns is not None and shortest_ns < LEAST_AWAY_NS:
        text = "macro mode has nodes back after a second at the earliest"
        refuse(what.spec, 0, len(what.spec), text, "write /1s or more", what.where)
