"""Scope of macro mode: the job that it plays, and the times of the parts of a recovery, taken from the simulator."""

from __future__ import annotations

from typing import NamedTuple

from flowdist.faults.grammar import Plan
from flowdist.graph import JobOptions, RoleGraph, RoleSpec
from flowdist.sim.engine.imports import SPAWN_NS
from flowdist.sim.engine.machines import PROOF_NS
from flowdist.sim.engine.network import LATENCY_NS
from flowdist.sim.engine.node import BIND_NS, KILL_NS
from flowdist.sim.macro.refused import check_job, check_plan
from flowdist.sim.macro.seats import seats_on


class Times(NamedTuple):
    """Durations of the parts of a recovery, in ns:

    fault       known    stopped   start                  formed    begins                        next fault
      |           |         |        |                      |         |                               |
      +-detection-+---re-formation---+-----------start-up-------------+--productive, checkpoints, lost-+
    """

    message: int  # one way between controller and agent
    proof: int  # from the death of a node to the proof of it
    stop: int  # from an incident to the report that all members on living nodes have stopped
    open: int  # from that report to the order to start: the store of the new generation is opened meanwhile
    started: int  # from the order to start to the report that the processes run
    up: int  # from the order to start to the moment at which all processes run, and their start-up begins
    fence: int  # from the last heartbeat that was answered to the end of the workers of a node that is cut off
    silent: int  # from that heartbeat to the loss of the node, as the controller sees it


class Scope(NamedTuple):
    """Job that macro mode plays: one gang. A node has a number, its place in `nodes`."""

    graph: RoleGraph
    role: RoleSpec  # the gang
    nodes: tuple[str, ...]  # all that may ever join: those of the topology, then those that the plan adds
    seats: tuple[int, ...]  # by node: how many replicas it has room for
    times: Times


def scope_of(graph: RoleGraph, plan: Plan) -> Scope:
    """Check that macro mode can play the job and the plan, and return what it needs to know of them.

    Raises:
        MacroRefused: for a job, or an order of the operator, that macro mode does not play.
        FaultError: for a fault or a rate that it does not play, with the place underlined.
    """
    check_job(graph)
    check_plan(plan, graph)
    (gang,) = graph.roles
    first = graph.cluster.nodes[0]
    added = [add.node for add in plan.adds] + [fault.target for fault in plan.faults if fault.kind == "add"]
    names = [node.name for node in graph.cluster.nodes] + added
    specs = (*graph.cluster.nodes, *[first] * len(added))
    return Scope(graph, gang, tuple(names), tuple(seats_on(gang, node) for node in specs), _times(graph.options, gang))


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
