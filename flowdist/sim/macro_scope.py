"""What macro mode can play, and with which numbers: all of them follow from the topology and from the simulator.

A job that it cannot play truly is refused with the reason; a field of the graph that it does not know is one, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from flowdist.errors import FlowdistError, underlined
from flowdist.faults import Fault, FaultError, Plan, located
from flowdist.graph import (
    JobOptions,
    NodeSpec,
    RoleGraph,
    RoleSpec,
    WorkloadSpec,
    fits,
    needed,
    offered,
    slots,
)
from flowdist.sim.network import LATENCY_NS
from flowdist.sim.node import BIND_NS, KILL_NS, SPAWN_NS, TERM_NS
from flowdist.sim.simulation import PROOF_NS

KINDS = {"node": ("kill", "lost", "add"), "replica": ("kill", "exit", "oom")}
LEAST_AWAY_NS = 1_000_000_000  # a node that is back sooner meets its own end

# What macro mode follows, or what makes no difference to it. Any other field has to have its default.
_ROLE = (
    "name command kind min_replicas max_replicas procs resources placement env secrets ports workdir gang primary "
    "restart state grace_ns stop_grace_ns drain_ns join_window_ns pending_timeout_ns finish_timeout_ns cooldown_ns "
    "preload warm workload hang_after_ns start_timeout_ns address_edges"
)
_POLICY = "scope max_restarts within_ns then rules backoff_ns backoff_max_ns backoff_reset_ns wider"
_LOAD = "steps step_ns startup_ns checkpoint_every_ns checkpoint_ns restore_ns"
_GRAPH = "name roles cluster options on_incident checkpoint_dir source domains format"
_OPTIONS = (
    "heartbeat_ns lease_ns lease_margin_ns cause_window_ns min_uptime_ns free_incidents_max unkillable_after_ns "
    "controller_outage_ns bad_node_window_ns move_after cordon_after"
)


class MacroRefused(FlowdistError):
    """Macro mode cannot play that truly; protocol mode, without --macro, can."""


class Times(NamedTuple):
    """How long each part of a recovery takes, in ns: messages, processes, and what the workload says."""

    message: int  # one way between controller and agent
    proof: int  # from the death of a node to the proof of it
    stop: int  # from an incident to the news that all who live have stopped
    open: int  # from there to the order to start: the store of the new generation
    started: int  # from the order to the news that the processes run
    up: int  # from the order to the first step, without restore
    fence: int  # from the last heartbeat that was answered to the end of the workers of a node that is cut off
    silent: int  # from there to the controller's verdict

    @property
    def stop_and_go(self) -> int:
        """From the death of a node to the order to start again, if nothing comes between."""
        return self.proof + self.stop + self.open


class Scope(NamedTuple):
    """What macro mode plays: one gang on equal nodes."""

    graph: RoleGraph
    role: RoleSpec
    nodes: tuple[str, ...]
    seats: tuple[int, ...]  # replicas that each node has room for
    times: Times


def scope_of(graph: RoleGraph, plan: Plan) -> Scope:
    """MacroRefused, or FaultError for a fault, where macro mode would not be true."""
    reasons = list(_reasons(graph))
    if reasons:
        text = "\n  ".join(reasons)
        raise MacroRefused(f"macro mode cannot play this job:\n  {text}", help="leave --macro out")
    role = graph.roles[0]
    for fault in plan.faults:
        _check_fault(fault, graph)
    for what, given in (("--scale", plan.scales), ("--drain", plan.drains)):
        if given:
            raise MacroRefused(f"macro mode cannot play {what}", help="leave --macro out")
    for rate in plan.rates:
        known = KINDS["replica"] if rate.subject in ("replica", role.name) else KINDS["node"]
        if rate.subject == "controller" or rate.kind not in known:
            text = f"macro mode cannot play {rate.name}" + underlined(rate.spec, 0, len(rate.name))
            raise located(FaultError(text, help=f"it can: {', '.join(known)}"), rate.where)
        if rate.duration_ns is not None and rate.duration_ns < LEAST_AWAY_NS:
            text = "macro mode has nodes back after a second at the earliest" + underlined(rate.spec, 0, len(rate.spec))
            raise located(FaultError(text, help="write /1s or more"), rate.where)
    first = graph.cluster.nodes[0]
    added = [add.node for add in plan.adds] + [fault.target for fault in plan.faults if fault.kind == "add"]
    names = [node.name for node in graph.cluster.nodes] + added
    seats = [_seats(role, node) for node in graph.cluster.nodes] + [_seats(role, first)] * len(added)
    return Scope(graph, role, tuple(names), tuple(seats), _times(graph.options, role.workload))


def _times(options: JobOptions, load: WorkloadSpec) -> Times:
    return Times(
        message=LATENCY_NS,
        proof=PROOF_NS,
        stop=2 * LATENCY_NS + TERM_NS,
        open=2 * LATENCY_NS + BIND_NS,
        started=2 * LATENCY_NS + SPAWN_NS,
        up=LATENCY_NS + SPAWN_NS,
        fence=options.lease_ns - options.lease_margin_ns + KILL_NS,
        silent=LATENCY_NS + options.lease_ns + options.lease_margin_ns,
    )


def _seats(role: RoleSpec, node: NodeSpec) -> int:
    if not fits(needed(role.resources), offered(node)):
        return 0
    labels = dict(node.labels)
    if any(labels.get(key) != value for key, value in role.placement.where):
        return 0
    return 1 if role.placement.apart else slots(needed(role.resources), offered(node))


def _reasons(graph: RoleGraph) -> Iterator[str]:
    if len(graph.roles) != 1:
        names = ", ".join(role.name for role in graph.roles)
        yield f"it has {len(graph.roles)} roles ({names}): edges between roles are for protocol mode"
    role = graph.roles[0]
    if role.kind != "task" or not role.gang or not role.primary:
        yield f"{role.name} is no gang of a primary task"
    if role.placement.near:
        yield f"{role.name} has to be near {', '.join(role.placement.near)}"
    if role.placement.apart not in ((), (role.name,)):
        yield f"{role.name} has to be apart from {', '.join(role.placement.apart)}"
    yield from _unknown(graph, _GRAPH, "the topology")
    yield from _unknown(graph.options, _OPTIONS, "the options")
    yield from _unknown(role, _ROLE, role.name)
    yield from _unknown(role.placement, "strategy near apart where", f"{role.name}'s placement")
    yield from _unknown(role.workload, _LOAD, f"{role.name}'s workload")
    for policy in role.restart.chain() if role.restart is not None else ():
        yield from _unknown(policy, _POLICY, f"{role.name}'s restart policy")
        if policy.then == "ignore" or any(rule.do == "ignore" for rule in policy.rules):
            yield f"{role.name} may be ignored"


def _unknown(value: Any, known: str, whose: str) -> Iterator[str]:
    """Fields that came after macro mode was written, or that it leaves out, and that say something."""
    names = known.split()
    for field in msgspec.structs.fields(value):
        if field.name not in names and getattr(value, field.name) != field.default:
            yield f"{whose} has {field.name.removesuffix('_ns')} = {getattr(value, field.name)!r}"


def _check_fault(fault: Fault, graph: RoleGraph) -> None:
    role = graph.roles[0].name
    known = KINDS["replica"] if fault.target.partition("/")[0] in (role, "all") else KINDS["node"]
    text, help = "", ""
    if fault.target == "controller" or fault.kind not in known:
        text, help = f"macro mode cannot play {fault.kind!r} of {fault.target}", f"it can: {', '.join(known)}"
    elif fault.when.at_ns is None:
        text, help = "macro mode knows faults at a time, and rates", "write node2@30s, or leave --macro out"
    elif fault.duration_ns is not None and fault.duration_ns < LEAST_AWAY_NS:
        text, help = "macro mode has nodes back after a second at the earliest", "write /1s or more"
    if text:
        raise located(FaultError(text + underlined(fault.spec, 0, len(fault.spec)), help=help), fault.where)
