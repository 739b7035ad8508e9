"""Scope of macro mode: which jobs it plays, and with which times, taken from the topology and the simulator.

A job that it cannot play truly is refused with all reasons. A field of the graph that it does not know is a reason as
well, unless the field has its default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from flowdist.control.incidents.judge import matching_rule
from flowdist.control.job.state import Failure
from flowdist.control.protocol.ids import ReplicaId
from flowdist.errors import FlowdistError
from flowdist.faults.grammar import Fault, Plan, Rate, refuse
from flowdist.graph import MINUTE, JobOptions, NodeSpec, RoleGraph, RoleSpec, format_duration
from flowdist.graph.capacity import fits, needed, offered, slots
from flowdist.sim.engine.machines import PROOF_NS
from flowdist.sim.engine.network import LATENCY_NS
from flowdist.sim.engine.node import BIND_NS, KILL_NS, SPAWN_NS, TERM_NS

KINDS = {"node": ("kill", "lost", "add"), "replica": ("kill", "exit", "oom")}  # kinds of fault that it plays
LEAST_AWAY_NS = 1_000_000_000  # the shortest duration of a fault: a node that is back sooner may join before it is lost

# Fields that macro mode follows, or that make no difference to it. Any other field has to have its default.
_ROLE = (
    "name command kind min_replicas max_replicas procs resources placement env secrets ports workdir gang primary "
    "restart state grace_ns stop_grace_ns drain_ns join_window_ns pending_timeout_ns finish_timeout_ns cooldown_ns "
    "preload learned_preload first_imports warm workload hang_after_ns start_timeout_ns address_edges"
)
_POLICY = "scope max_restarts within_ns then rules backoff_ns backoff_max_ns backoff_reset_ns wider"
_LOAD = "steps step_ns step_times batch_workers startup_ns startup_spread checkpoint_every_ns checkpoint_ns restore_ns"
_GRAPH = "name roles cluster options on_incident checkpoint_dir source domains worlds format"
_OPTIONS = (
    "heartbeat_ns lease_ns lease_margin_ns cause_window_ns min_uptime_ns free_incidents_max unkillable_after_ns "
    "controller_outage_ns bad_node_window_ns move_after cordon_after"
)


Refused = tuple[str, str]  # why a fault or a rate is not played, and what the user can do


class MacroRefused(FlowdistError):
    """Error for a job that macro mode cannot play truly. `flowdist simulate` without --macro can."""


class Times(NamedTuple):
    """Durations of the parts of a recovery, in ns. `steady_state` has the timeline."""

    message: int  # one way between controller and agent
    proof: int  # from the death of a node to the proof of it
    stop: int  # from an incident to the report that all members on living nodes have stopped
    open: int  # from that report to the order to start: the store of the new generation is opened meanwhile
    started: int  # from the order to start to the report that the processes run
    up: int  # from the order to start to the first step, without `startup_ns` and `restore_ns` of the workload
    fence: int  # from the last heartbeat that was answered to the end of the workers of a node that is cut off
    silent: int  # from that heartbeat to the loss of the node, as the controller sees it


class Scope(NamedTuple):
    """Job that macro mode plays: one gang, and auxiliary roles on nodes of their own.

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


def scope_of(graph: RoleGraph, plan: Plan) -> Scope:
    """Check that macro mode can play the job and the plan, and return what it needs to know of them.

    Raises:
        MacroRefused: for a job that macro mode cannot play truly, with all reasons, and for `--scale` and `--drain`.
        FaultError: for a fault or a rate that it cannot play, with the place underlined.
    """
    reasons = list(_reasons(graph))
    if reasons:
        text = "\n  ".join(reasons)
        raise MacroRefused(f"macro mode cannot play this job:\n  {text}", help="leave --macro out")
    gang = _gang_of(graph)
    for fault in plan.faults:
        _check_fault(fault, graph, gang)
    for what, given in (("--scale", plan.scales), ("--drain", plan.drains)):
        if given:
            raise MacroRefused(f"macro mode cannot play {what}", help="leave --macro out")
    for rate in plan.rates:
        _check_rate(rate, graph, gang)
    first = graph.cluster.nodes[0]
    added = [add.node for add in plan.adds] + [fault.target for fault in plan.faults if fault.kind == "add"]
    names = [node.name for node in graph.cluster.nodes] + added
    specs = (*graph.cluster.nodes, *[first] * len(added))
    rooms = {role.name: tuple(_seats(role, node) for node in specs) for role in graph.roles}
    beside = tuple((role, rooms[role.name]) for role in graph.roles if role is not gang)
    return Scope(graph, gang, tuple(names), rooms[gang.name], _times(graph.options), beside)


def _gang_of(graph: RoleGraph) -> RoleSpec:
    """Return the first gang of a primary task; without one the first role, for the text of the refusal."""
    return next((role for role in graph.roles if role.kind == "task" and role.gang and role.primary), graph.roles[0])


def _times(options: JobOptions) -> Times:
    """Return the durations, from the constants of the simulator and the lease of the job."""
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
    """Return how many replicas of the role the empty node has room for, by resources, labels and `apart`."""
    if not fits(needed(role.resources), offered(node)):
        return 0
    labels = dict(node.labels)
    if any(labels.get(key) != value for key, value in role.placement.where):
        return 0
    return 1 if role.placement.apart else slots(needed(role.resources), offered(node))


def _reasons(graph: RoleGraph) -> Iterator[str]:
    """Yield each reason why macro mode cannot play the job; nothing if it can."""
    gang = _gang_of(graph)
    if gang.kind != "task" or not gang.gang or not gang.primary:
        yield f"{gang.name} is no gang of a primary task"
        return
    yield from _unknown(graph, _GRAPH, "the topology")
    yield from _unknown(graph.options, _OPTIONS, "the options")
    for role in graph.roles:
        yield from _of_any(role, f"{_ROLE} gates" if role is gang else f"{_ROLE} gates ready ready_timeout_ns")
    for policy in gang.restart.chain() if gang.restart is not None else ():
        yield from _unknown(policy, _POLICY, f"{gang.name}'s restart policy")
        if policy.then == "ignore" or any(rule.do == "ignore" for rule in policy.rules):
            yield f"{gang.name} may be ignored"
        if policy.scope == "job" and len(graph.roles) > 1:
            yield f"a failure of {gang.name} restarts the whole job"
    for domain in graph.domains:
        if len(domain.roles) > 1:
            yield f"{' and '.join(domain.roles)} restart together: that is for protocol mode"
    for world in graph.worlds if len(graph.roles) > 1 else ():
        yield f"{' and '.join(world.roles)} share a world: that is for protocol mode"
    yield from _upstream(gang, graph)
    for role in graph.roles:
        if role is not gang:
            yield from _beside(role, gang, graph)
    yield from _shared(graph)


def _of_any(role: RoleSpec, known: str) -> Iterator[str]:
    """Yield each reason why macro mode cannot play this role, be it the gang or not.

    `known` are the names of the fields of the role that macro mode knows, separated by spaces.
    """
    if role.placement.near:
        yield f"{role.name} has to be near {', '.join(role.placement.near)}"
    if role.placement.apart not in ((), (role.name,)):
        yield f"{role.name} has to be apart from {', '.join(role.placement.apart)}"
    yield from _unknown(role, known, role.name)
    yield from _unknown(role.placement, "strategy near apart where", f"{role.name}'s placement")
    yield from _unknown(role.workload, _LOAD, f"{role.name}'s workload")
    for name, ns in (("stop_grace", role.stop_grace_ns), ("grace", role.grace_ns), ("drain", role.drain_ns)):
        if ns < TERM_NS:
            yield f"{role.name} has {name} = {format_duration(ns)}: its workers would be killed before they end well"


def _upstream(gang: RoleSpec, graph: RoleGraph) -> Iterator[str]:
    """Yield each reason why macro mode cannot play the gang with the roles on which it has gates."""
    for gate in gang.gates:
        if graph.role(gate.role).kind != "service":
            yield f"{gang.name} waits for {gate.role}, which is no service"
        elif gate.on_restart == "reconnect" and gate.role in gang.address_edges:
            yield f"{gang.name} has addresses of {gate.role} in its command: write on_restart='restart'"
    for policy in gang.restart.chain() if gang.restart is not None and gang.gates else ():
        if any(rule.kind in (None, "node_lost") for rule in policy.rules):
            yield f"{gang.name} depends on {gang.gates[0].role} and has a rule for lost nodes"


def _beside(role: RoleSpec, gang: RoleSpec, graph: RoleGraph) -> Iterator[str]:
    """Yield each reason why macro mode cannot play this role beside the gang."""
    name = role.name
    if role.gang:
        yield f"{name} is a gang, too: beside {gang.name} it plays roles with gang=False"
    if role.kind == "task" and role.primary:
        yield f"{name} is a primary task, too: write primary=False if the job can succeed without it"
    for gate in role.gates:
        if (gate.role, gate.condition, gate.on_restart) != (gang.name, "started", "reconnect"):
            words = f"depends_on=[{gate.role}.{gate.condition}(on_restart={gate.on_restart!r})]"
            yield f"{name} has {words}: it plays only depends_on=[{gang.name}.started()]"
    if role.address_edges:
        yield f"{name} has addresses of {', '.join(role.address_edges)} in its command: take flowdist.worker.peers()"
    load = role.workload
    if role.ready is not None and role.ready_timeout_ns <= 2 * (load.startup_ns + load.restore_ns) + MINUTE:
        yield f"{name} may not get ready in time: give it more ready_timeout"
    if matching_rule(role.restart, Failure(ReplicaId(name, 0), "node_lost", "")) is not None:
        yield f"{name} has a rule for lost nodes"
    rooms = [_seats(role, node) for node in graph.cluster.nodes]
    if role.max_replicas > 1 and max(rooms) > 1:
        yield f"several of {name} may be on one node: write apart=True"
    if sum(rooms) < role.min_replicas:
        yield f"{name} has no room for its minimum of {role.min_replicas} on nodes of its own"


def _shared(graph: RoleGraph) -> Iterator[str]:
    """Yield a reason if two roles have room on the same node, for the first such node."""
    for node in graph.cluster.nodes:
        names = [role.name for role in graph.roles if _seats(role, node)]
        if len(names) > 1:
            own = "it plays roles on nodes of their own; label the nodes and write where={...}"
            yield f"{node.name} has room for {' and '.join(names)}: {own}"
            return


def _unknown(value: Any, known: str, whose: str) -> Iterator[str]:
    """Yield a reason for each field of a struct that macro mode does not know and that differs from its default.

    Args:
        value: The struct.
        known: The names of the fields that macro mode knows, separated by spaces.
        whose: Of what the struct is a part, for the text: "the options".
    """
    names = known.split()
    for field in msgspec.structs.fields(value):
        if field.name not in names and getattr(value, field.name) != field.default:
            yield f"{whose} has {_words(field.name, getattr(value, field.name))}"


def _words(name: str, value: object) -> str:
    """Return a field and its value roughly as the user writes them: "grace = 5s"."""
    if isinstance(value, int) and name.endswith("_ns"):
        return f"{name.removesuffix('_ns')} = {format_duration(value)}"
    return f"{name} = {value!r}"


def _check_rate(rate: Rate, graph: RoleGraph, gang: RoleSpec) -> None:
    """Raise FaultError if macro mode cannot play the rate."""
    of_replicas = rate.subject in ("replica", *(role.name for role in graph.roles))
    refused = _unplayed(rate, rate.name, rate.subject, of_replicas=of_replicas)
    if refused is None and of_replicas:
        refused = _of_replicas(rate.subject, graph, gang, f"{gang.name}-{rate.kind}=...")
    _refuse(rate, len(rate.name), refused)


def _check_fault(fault: Fault, graph: RoleGraph, gang: RoleSpec) -> None:
    """Raise FaultError if macro mode cannot play the fault."""
    role, slash, rest = fault.target.partition("/")
    of_replicas = role == "all" or any(role == spec.name for spec in graph.roles)
    refused = _unplayed(fault, f"{fault.kind!r} of {fault.target}", fault.target, of_replicas=of_replicas)
    if refused is None and of_replicas:
        refused = _of_replicas(role, graph, gang, f"{gang.name}{slash}{rest}@...")
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


def _of_replicas(who: str, graph: RoleGraph, gang: RoleSpec, instead: str) -> Refused | None:
    """Return why macro mode does not play faults that hit replicas alone, not nodes; None if it plays these.

    Args:
        who: A role, "all" or "replica".
        graph: The job.
        gang: Its gang.
        instead: What the user can write instead.
    """
    if gang.gates:
        text = f"macro mode has {gang.name} fail with its nodes alone, as it depends on {gang.gates[0].role}"
        return text, "name nodes, or leave --macro out"
    if who != gang.name and len(graph.roles) > 1:
        return f"macro mode has roles beside {gang.name} fail with their nodes alone", f"write {instead}"
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
    if shortest_ns is not None and shortest_ns < LEAST_AWAY_NS:
        text = "macro mode has nodes back after a second at the earliest"
        refuse(what.spec, 0, len(what.spec), text, "write /1s or more", what.where)
