"""Scope of macro mode: the jobs and faults that it plays, and the times of the parts of a recovery, from the simulator.

All other jobs are refused, with the one field. A field that is not on the white list has to have its default, so that a
new field is refused until macro mode knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from flowdist.errors import FlowdistError
from flowdist.faults.grammar import Fault, Plan, Rate, refuse
from flowdist.faults.kinds import carried_out
from flowdist.graph import MINUTE, SECOND, RoleGraph, RoleSpec, format_duration
from flowdist.graph.capacity import slots_on
from flowdist.sim.engine.network import LATENCY_NS
from flowdist.sim.engine.node import BIND_NS, KILL_NS, PROOF_NS, SPAWN_NS

CAN = carried_out("fast")
LEAST_AWAY_NS = SECOND  # a node that is back sooner may join before it is lost
HELP = "flowdist simulate without --macro plays it, each message of it: give it a shorter --until"


class Times(NamedTuple):
    """Durations of the parts of a recovery, in ns: detection, re-formation (members stop, a store opens), start-up."""

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
    slots: tuple[int, ...]  # by node: how many replicas it has room for, by resources and labels
    times: Times


def scope_of(graph: RoleGraph, plan: Plan) -> Scope:
    """Return what macro mode needs to know of a job and a plan.

    MacroRefused for a job, or an order of the operator, that it does not play, FaultError for a fault or a rate.
    """
    for refusal in _refusals(graph):
        raise MacroRefused(f"macro mode does not play this job:\n  {refusal.text}", refusal=refusal)
    _check_plan(plan, graph)
    (gang,) = graph.roles
    first = graph.cluster.nodes[0]
    added = [add.node for add in plan.adds] + [fault.target for fault in plan.faults if fault.kind == "add"]
    names = [node.name for node in graph.cluster.nodes] + added
    specs = (*graph.cluster.nodes, *[first] * len(added))
    options = graph.options
    times = Times(
        message=LATENCY_NS,
        proof=PROOF_NS,
        stop=2 * LATENCY_NS + gang.workload.stop_ns,
        open=2 * LATENCY_NS + BIND_NS,
        started=2 * LATENCY_NS + SPAWN_NS,
        up=LATENCY_NS + SPAWN_NS,
        fence=options.lease_ns - options.lease_margin_ns + KILL_NS,
        silent=LATENCY_NS + options.silent_after_ns,
    )
    return Scope(graph, gang, tuple(names), tuple(slots_on(gang, node) for node in specs), times)


class Refusal(NamedTuple):
    """Field because of which macro mode does not play a job."""

    role: str  # that has the field; empty: the topology itself
    field: str  # as users write it, with a dot in a Workload or a Restart: `workload.import_time`
    value: str  # as text

    @property
    def text(self) -> str:
        """Return the field as one line: `role trainer: gang=False`."""
        owner = f"role {self.role}" if self.role else "the topology"
        return f"{owner}: {self.field}={self.value}"


class MacroRefused(FlowdistError):
    """Error for a job that macro mode does not play. `flowdist simulate` without --macro does."""

    def __init__(self, message: str, *, help: str = HELP, refusal: Refusal | None = None) -> None:
        super().__init__(message, help=help)
        self.refusal = refusal  # the field of the topology that is the reason; None: an order of the operator is


Played = Callable[[Any, RoleSpec], bool]  # whether macro mode plays this value of a field, in this role


def _fields(names: str, **limited: Played) -> Mapping[str, Played | None]:
    """Return a list of fields: `names` are played with any value (None), the others if their function says so."""
    return {**dict.fromkeys(names.split()), **limited}


def _outlasts_stop(ns: int, role: RoleSpec) -> bool:
    """Return whether workers that are told to stop end well before they are killed."""
    return ns > role.workload.stop_ns


def _is_patient(ns: int | None, role: RoleSpec) -> bool:
    """Return whether no healthy worker counts as hanging after this time without a step (R15)."""
    load = role.workload
    up_ns = round(load.startup_ns * (1 + load.startup_spread)) + load.warmup_ns
    up_ns += max(load.restore_ns, load.peer_restore_ns or 0)
    step_ns = round(2 * role.longest_step_ns * (1 + load.step_spread))
    return ns is None or ns > up_ns + step_ns + load.blocking_ns + load.finish_ns + SECOND


_GRAPH = _fields(
    "name cluster options on_incident checkpoint_dir source domains format", roles=lambda roles, _: len(roles) == 1
)
_OPTIONS = _fields(
    "heartbeat_ns lease_ns lease_margin_ns cause_window_ns min_uptime_ns free_incidents_max unkillable_after_ns "
    "controller_outage_ns bad_node_window_ns move_after cordon_after store_endpoint"
)
_ROLE = _fields(
    "name command min_replicas max_replicas procs resources placement env secrets workdir restart state drain_ns "
    "join_window_ns pending_timeout_ns finish_timeout_ns cooldown_ns preload warm workload address_edges parallel numa "
    "count_steps virtual_local_rank",
    kind=lambda kind, _: kind == "task",
    gang=lambda gang, _: gang,
    primary=lambda primary, _: primary,
    ports=lambda ports, role: role.step == 1 or not ports,  # the node of a replica without a seat has its ports
    grace_ns=_outlasts_stop,
    stop_grace_ns=_outlasts_stop,
    hang_after_ns=_is_patient,
    start_timeout_ns=_is_patient,
)
_PLACEMENT = _fields("strategy where", apart=lambda apart, role: apart in ((), (role.name,)))
_POLICY = _fields(
    "scope max_restarts within_ns backoff_ns backoff_max_ns backoff_reset_ns wider",
    then=lambda then, _: then != "ignore",
    rules=lambda rules, _: all(rule.do != "ignore" for rule in rules),
)
_LOAD = _fields(
    "steps step_ns step_times batch_workers step_spread startup_ns startup_spread warm_startup_ns warmup_ns restore_ns "
    "peer_restore_ns checkpoint_every_ns checkpoint_ns checkpoint_blocks_ns finish_ns stop_ns collective",
    collective_timeout_ns=lambda ns, _: ns is None or ns >= 10 * MINUTE,  # later than nodes are lost
)
# Names that users write, of fields whose name in the graph is another one than that with `_ns` at its end.
_WRITTEN = {"ready": "ready_when", "import_ns": "import_time", "rejoin_ns": "rejoin_time"}


def _refusals(graph: RoleGraph) -> Iterator[Refusal]:
    """Yield each field because of which macro mode does not play the job."""
    if len(graph.roles) > 1:
        yield Refusal("", "roles", f"({', '.join(role.name for role in graph.roles)})")
        return
    (role,) = graph.roles
    yield from _unlisted(role, "", role, _ROLE)
    yield from _unlisted(role, "", role.placement, _PLACEMENT)
    for policy in role.restart.chain() if role.restart is not None else ():
        yield from _unlisted(role, "restart.", policy, _POLICY)
    yield from _unlisted(role, "workload.", role.workload, _LOAD)
    for value, listed in ((graph, _GRAPH), (graph.options, _OPTIONS)):
        yield from (refusal._replace(role="") for refusal in _unlisted(role, "", value, listed))


def _unlisted(role: RoleSpec, prefix: str, value: Any, listed: Mapping[str, Played | None]) -> Iterator[Refusal]:
    """Yield each field of a struct whose value is neither its default nor listed; `prefix` is for its name."""
    for field in msgspec.structs.fields(value):
        name, given = field.name, getattr(value, field.name)
        is_played = listed.get(name)
        if is_played(given, role) if is_played else name in listed or given == field.default:
            continue
        is_time = name.endswith("_ns") and isinstance(given, int)
        text = repr(format_duration(given) if is_time else given)
        yield Refusal(role.name, prefix + _WRITTEN.get(name, name.removesuffix("_ns")), text)


def _check_plan(plan: Plan, graph: RoleGraph) -> None:
    """Raise FaultError for the first fault or rate, or MacroRefused for an order, that macro mode does not play."""
    for scale in plan.scales:
        raise MacroRefused(f"macro mode does not play --scale {scale.role}={scale.replicas}")
    for drain in plan.drains:
        raise MacroRefused(f"macro mode does not play --drain {drain.node}")
    (gang,) = graph.roles
    for fault in plan.faults:
        of_replicas = fault.target.partition("/")[0] in ("all", gang.name)
        name, end = f"{fault.kind!r} of {fault.target}", len(fault.spec)
        _check_kind(fault, fault.target, name, end, of_replicas=of_replicas)
        if fault.when.at_ns is None:
            refuse(fault.spec, 0, end, "macro mode plays faults at a time, and rates", HELP, fault.where)
        _check_length(fault, fault.duration_ns, graph)
    for rate in plan.rates:
        of_replicas = rate.subject in ("replica", gang.name)
        _check_kind(rate, rate.subject, rate.name, len(rate.name), of_replicas=of_replicas)
        _check_length(rate, rate.repair.low_ns if rate.repair is not None else rate.duration_ns, graph)


def _check_kind(what: Fault | Rate, target: str, name: str, end: int, *, of_replicas: bool) -> None:
    """Raise FaultError, with the text up to `end` underlined, if macro mode plays no such fault of such a target."""
    played = CAN["replica" if of_replicas else "node"]
    if target == "controller" or what.kind not in played:
        message = f"macro mode does not play {name}, but {', '.join(played)}"
        refuse(what.spec, 0, end, message, HELP, what.where)


def _check_length(what: Fault | Rate, shortest_ns: int | None, graph: RoleGraph) -> None:
    """Raise FaultError for a node that may be back before it is lost, and for slow members in two cases.

    These are members that could count as hanging, or be slower than drawn.
    """
    (gang,) = graph.roles
    least_ns = graph.options.lease_ns if what.kind == "lost" else LEAST_AWAY_NS
    if what.kind == "slow" and (gang.hang_after_ns is not None or gang.workload.step_spread):
        field = "hang_after" if gang.hang_after_ns is not None else "workload.step_spread"
        message = f"macro mode slows {gang.name} down only without {field}"
    elif what.kind != "slow" and shortest_ns is not None and shortest_ns < least_ns:
        message = f"macro mode has such a node back after {format_duration(least_ns)} at the earliest"
    else:
        return
    refuse(what.spec, 0, len(what.spec), message, HELP, what.where)
