"""Scope of macro mode: which jobs it plays, and with which times, taken from the topology and the simulator.

A job that it cannot play exactly is refused, with one field of the topology: see `refused`.
"""

from __future__ import annotations

from typing import NamedTuple

from flowdist.errors import FlowdistError
from flowdist.faults.grammar import Plan
from flowdist.graph import JobOptions, RoleGraph, RoleSpec
from flowdist.sim.engine.imports import SPAWN_NS
from flowdist.sim.engine.machines import PROOF_NS
from flowdist.sim.engine.network import LATENCY_NS
from flowdist.sim.engine.node import BIND_NS, KILL_NS
from flowdist.sim.macro.beside.groups import gangs_of, groups_of, joint_role
from flowdist.sim.macro.refused.plan import check_plan, orders_refused
from flowdist.sim.macro.refused.topology import Refusal, refusals
from flowdist.sim.macro.seats import seats_on


class MacroRefused(FlowdistError):
    """Error for a job that macro mode cannot play exactly. `flowdist simulate` without --macro can.

    Attributes:
        refusal: The field of the topology that is the reason; None: the reason is an order of the operator.
    """

    def __init__(self, message: str, *, help: str, refusal: Refusal | None = None) -> None:
        super().__init__(message, help=help)
        self.refusal = refusal


class Times(NamedTuple):
    """Durations of the parts of a recovery, in ns. `steady_state` has the timeline."""

    message: int  # one way between controller and agent
    proof: int  # from the death of a node to the proof of it
    stop: int  # from an incident to the report that all members on living nodes have stopped
    open: int  # from that report to the order to start: the store of the new generation is opened meanwhile
    started: int  # from the order to start to the report that the processes run
    up: int  # from the order to start to the moment at which all processes run, and their start-up begins
    fence: int  # from the last heartbeat that was answered to the end of the workers of a node that is cut off
    silent: int  # from that heartbeat to the loss of the node, as the controller sees it


class Scope(NamedTuple):
    """Job that macro mode plays: a gang, auxiliary roles on nodes of their own, and other gangs with theirs.

    A node has a number, its place in `nodes`.
    """

    graph: RoleGraph
    role: RoleSpec  # the gang
    nodes: tuple[
        str, ...
    ]  # names of all nodes that may ever join: those of the topology, then those that the plan adds
    seats: tuple[int, ...]  # by node: how many replicas of the gang it has room for
    times: Times
    beside: tuple[tuple[RoleSpec, tuple[int, ...]], ...] = ()  # auxiliary roles, each with the same for that role
    parts: tuple[RoleSpec, ...] = ()  # the roles of the gang's joint world, of which `role` is the sum; else empty
    others: tuple[Scope, ...] = ()  # of the other gangs, each with the roles beside it; these have no others


def scope_of(graph: RoleGraph, plan: Plan) -> Scope:
    """Check that macro mode can play the job and the plan, and return what it needs to know of them.

    Raises:
        MacroRefused: for a job that macro mode cannot play exactly, with the field of the topology that is the most
            important reason, and for a `--scale` or `--drain` that it cannot play.
        FaultError: for a fault or a rate that it cannot play, with the place underlined.
    """
    for refusal in refusals(graph):
        help = f"{refusal.do}; or leave --macro out"
        raise MacroRefused(f"macro mode cannot play this job:\n  {refusal.text}", help=help, refusal=refusal)
    gangs = gangs_of(graph)
    check_plan(plan, graph, gangs)
    for flag, text, refused in orders_refused(plan, graph, gangs):
        raise MacroRefused(f"{flag} {text}: {refused[0]}", help=refused[1])
    first = graph.cluster.nodes[0]
    added = [add.node for add in plan.adds] + [fault.target for fault in plan.faults if fault.kind == "add"]
    names = [node.name for node in graph.cluster.nodes] + added
    specs = (*graph.cluster.nodes, *[first] * len(added))
    rooms = {role.name: tuple(seats_on(role, node) for node in specs) for role in graph.roles}
    if (joint := joint_role(graph)) is not None:
        room = tuple(seats_on(graph.roles[0], node) for node in specs)
        return Scope(graph, joint, tuple(names), room, _times(graph.options, joint), (), graph.roles)
    scopes = []
    for gang, others in groups_of(graph):
        beside = tuple((role, rooms[role.name]) for role in others)
        scopes.append(Scope(graph, gang, tuple(names), rooms[gang.name], _times(graph.options, gang), beside))
    return scopes[0]._replace(others=tuple(scopes[1:]))


def _times(options: JobOptions, gang: RoleSpec) -> Times:
    """Return the durations, from the constants of the simulator, the lease of the job and the gang's workload."""
    return Times(
        message=LATENCY_NS,
        proof=PROOF_NS,
        stop=2 * LATENCY_NS + gang.workload.stop_ns,
        open=2 * LATENCY_NS + BIND_NS,
        started=2 * LATENCY_NS + SPAWN_NS,
        up=LATENCY_NS + SPAWN_NS,
        fence=options.lease_ns - options.lease_margin_ns + KILL_NS,
        silent=LATENCY_NS + options.lease_ns + options.lease_margin_ns,
    )
