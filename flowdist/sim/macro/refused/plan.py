"""Refusals of faults, rates and orders: what macro mode cannot play of them, and what it can.

The wrong part of a fault or rate is underlined.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowdist.faults.grammar import Fault, Plan, Rate, refuse
from flowdist.graph import RoleGraph, RoleSpec, format_duration, parse_duration
from flowdist.sim.macro.refused.topology import why_nodes_alone

KINDS = {  # kinds of fault that it plays
    "node": ("kill", "lost", "add", "drain", "preempt"),
    "replica": ("kill", "exit", "oom", "slow", "scale"),
}
DEPARTURES = ("drain", "preempt")  # those after which the gang leaves a node in order
LEAST_AWAY_NS = 1_000_000_000  # the shortest duration of a fault: a node that is back sooner may join before it is lost

Refused = tuple[str, str]  # why a fault or a rate is not played, and what the user can do


def check_plan(plan: Plan, graph: RoleGraph, gangs: list[RoleSpec]) -> None:
    """Raise FaultError for the first fault or rate of the plan that macro mode cannot play with these gangs."""
    departs = departure_refused(plan, graph, gangs)
    for fault in plan.faults:
        _check_fault(fault, graph, gangs, departs)
    for rate in plan.rates:
        _check_rate(rate, graph, gangs, departs)


def orders_refused(plan: Plan, graph: RoleGraph, gangs: list[RoleSpec]) -> Iterator[tuple[str, str, Refused]]:
    """Yield each order of the operator that macro mode cannot play: its option, the text of it, and why."""
    for scale in plan.scales:
        if (refused := scale_refused(scale.role, gangs)) is not None:
            yield "--scale", f"{scale.role}={scale.replicas}@{format_duration(scale.at_ns)}", refused
    for order in plan.drains:
        if (refused := departure_refused(plan, graph, gangs)) is not None:
            yield "--drain", f"{order.node}@{format_duration(order.at_ns)}", refused


def departure_refused(plan: Plan, graph: RoleGraph, gangs: list[RoleSpec]) -> Refused | None:
    """Return why macro mode cannot let the gang leave a node in order, with this plan; None if it can.

    Each reason would keep members from their agreed step in a way that macro mode does not know.
    """
    gang = gangs[0]
    if len(graph.roles) > 1:
        other = next(role.name for role in graph.roles if role is not gang)
        return f"macro mode empties nodes only in jobs of one role, and this one has {other}", "leave --macro out"
    for field in ("hang_after", "start_timeout"):
        if getattr(gang, f"{field}_ns") is not None:
            return f"macro mode empties nodes only without {field}", f"leave {field} out, or --macro"
    faults: list[Fault | Rate] = [*plan.faults, *plan.rates]
    if any(each.kind == "lost" for each in faults):
        return "macro mode empties nodes only while none is cut off", "leave the faults `lost` out, or --macro"
    notices_ns = [parse_duration(each.arg) for each in faults if each.kind == "preempt"]
    longest_ns = max([gang.drain_ns, *notices_ns])
    timeout_ns = gang.workload.group_timeout_ns
    if gang.workload.collective == "hang" and timeout_ns is not None and longest_ns >= timeout_ns:
        text = "macro mode empties nodes only in less time than a collective takes to time out"
        return text, "give less notice, or less drain="
    return None


def scale_refused(role: str, gangs: list[RoleSpec]) -> Refused | None:
    """Return why macro mode cannot scale this role; None if it is the only gang, which it can."""
    if len(gangs) > 1:
        names = " and ".join(gang.name for gang in gangs)
        return f"macro mode scales the gang only in jobs of one, and this one has {names}", "leave --macro out"
    return None if role == gangs[0].name else (f"macro mode scales {gangs[0].name} alone", "leave --macro out")


def _check_rate(rate: Rate, graph: RoleGraph, gangs: list[RoleSpec], departs: Refused | None) -> None:
    """Raise FaultError if macro mode cannot play the rate. `departs` is what `departure_refused` has returned."""
    of_replicas = rate.subject in ("replica", *(role.name for role in graph.roles))
    refused = _unplayed(rate, rate.name, rate.subject, of_replicas=of_replicas)
    if refused is None and of_replicas:
        refused = _of_replicas(rate.subject, rate.kind, graph, gangs, f"{gangs[0].name}-{rate.kind}=...")
    if refused is None and rate.kind in DEPARTURES:
        refused = departs
    _refuse(rate, len(rate.name), refused)


def _check_fault(fault: Fault, graph: RoleGraph, gangs: list[RoleSpec], departs: Refused | None) -> None:
    """Raise FaultError if macro mode cannot play the fault. `departs` is what `departure_refused` has returned."""
    role, slash, rest = fault.target.partition("/")
    of_replicas = role == "all" or any(role == spec.name for spec in graph.roles)
    refused = _unplayed(fault, f"{fault.kind!r} of {fault.target}", fault.target, of_replicas=of_replicas)
    if refused is None and of_replicas:
        refused = _of_replicas(role, fault.kind, graph, gangs, f"{gangs[0].name}{slash}{rest}@...")
    if refused is None and fault.when.at_ns is None:
        refused = "macro mode knows faults at a time, and rates", "write node2@30s, or leave --macro out"
    if refused is None and fault.kind in DEPARTURES:
        refused = departs
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
    """Return why macro mode does not play faults of replicas alone, or an order to scale; None if it plays these.

    Args:
        who: A role, "all" or "replica".
        kind: The kind of fault.
        graph: The job.
        gangs: Its gangs, the first one first.
        instead: What the user can write instead.
    """
    if kind == "scale":
        return scale_refused(who, gangs)
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
