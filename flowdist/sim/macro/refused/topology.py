"""Refusals of jobs: the one field of the topology because of which macro mode cannot play a job, and what to change.

Reasons come in the order in which a user has to deal with them: which roles there are, how they depend on each other
and share nodes, what each role says, times of its workers last. The first one is reported. A field that is not named
here has to have its default, so that a new field is refused until macro mode knows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from flowdist.control.incidents.judge import matching_rule
from flowdist.control.job.state import Failure
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import MINUTE, SECOND, RestartPolicy, RoleGraph, RoleSpec, WorkloadSpec, format_duration
from flowdist.sim.macro.beside.groups import Group, gang_of, groups_of, joint_role
from flowdist.sim.macro.seats import seats_on

# Fields that macro mode follows, or that make no difference to a simulation. Any other has to have its default.
_ROLE = (
    "name command kind min_replicas max_replicas procs resources placement env secrets ports workdir gang primary "
    "restart state grace_ns stop_grace_ns drain_ns join_window_ns pending_timeout_ns finish_timeout_ns cooldown_ns "
    "preload warm workload hang_after_ns start_timeout_ns address_edges gates parallel "
    "numa count_steps virtual_local_rank"
)
_READY = "ready ready_timeout_ns"  # of roles beside the gang
_POLICY = "scope max_restarts within_ns then rules backoff_ns backoff_max_ns backoff_reset_ns wider"
_LOAD = (
    "steps step_ns step_times batch_workers step_spread startup_ns startup_spread warm_startup_ns warmup_ns restore_ns "
    "peer_restore_ns "
    "checkpoint_every_ns checkpoint_ns checkpoint_blocks_ns finish_ns stop_ns collective collective_timeout_ns"
)
_GRAPH = "name roles cluster options on_incident checkpoint_dir source domains worlds format"
_OPTIONS = (
    "heartbeat_ns lease_ns lease_margin_ns cause_window_ns min_uptime_ns free_incidents_max unkillable_after_ns "
    "controller_outage_ns bad_node_window_ns move_after cordon_after store_endpoint"
)
# Names that users write, of fields whose name in the graph is another one than that with `_ns` at its end.
_WRITTEN = {
    "ready": "ready_when",
    "import_ns": "import_time",
    "rejoin_ns": "rejoin_time",
    "stop_ns": "stop_time",
    "options": "",
}


class Refusal(NamedTuple):
    """Reason why macro mode cannot play a job.

    Attributes:
        role: The role that has the field; empty: the topology itself.
        field: The field as users write it, with a dot in a Workload, a Restart or the like: `workload.import_time`.
        value: Its value, as text.
        why: What macro mode cannot do with it.
        do: What the user can change.
    """

    role: str
    field: str
    value: str
    why: str
    do: str

    @property
    def text(self) -> str:
        """Return the reason as one line: `role trainer: gang=False: ...`."""
        owner = f"role {self.role}" if self.role else "the topology"
        return f"{owner}: {self.field}={self.value}: {self.why}"


def refusals(graph: RoleGraph) -> Iterator[Refusal]:
    """Yield each reason why macro mode cannot play the job, the most important one first; nothing if it can."""
    if (joint := joint_role(graph)) is not None:
        yield from _of_joint_world(joint, graph)
        return
    gang = gang_of(graph)
    if refusal := _no_gang(gang):
        yield refusal
        return
    groups = groups_of(graph)
    gangs = [group.gang for group in groups]
    for world in graph.worlds if len(graph.roles) > 1 else ():
        roles = f"({', '.join(world.roles)})"
        yield Refusal(
            "", f"world {world.name}", roles, "macro mode plays a joint world alone", "give each role its own world"
        )
    for role in graph.roles:
        if role not in gangs:
            yield from _second_world(role, gang)
    for domain in graph.domains:
        if len(domain.roles) > 1:
            roles = f"({', '.join(domain.roles)})"
            why = "macro mode plays roles that restart each for itself"
            yield Refusal("", f"restart_together {domain.name}", roles, why, "leave restart_together() out")
    for group in groups:
        for role in group.beside:
            yield from _beside(role, group.gang, graph)
    yield from _shared(graph)
    for role in graph.roles if len(graph.roles) > 1 else ():
        yield from _without_room(role, graph)
    for group in groups:
        yield from _policies(group.gang, graph)
        yield from _upstream(group, gangs, graph)
    for role in graph.roles:
        yield from _of_any(role, _ROLE if role in gangs else f"{_ROLE} {_READY}")
        yield from _of_workload(role)
    yield from _unknown("", "", graph, _GRAPH)
    yield from _unknown("", "", graph.options, _OPTIONS)


# Fields in which the roles of a joint world may differ.
_OWN = "name command min_replicas max_replicas restart pending_timeout_ns"


def _of_joint_world(joint: RoleSpec, graph: RoleGraph) -> Iterator[Refusal]:
    """Yield each reason why macro mode cannot play the joint world of all roles of the job. `joint` is their sum."""
    first = graph.roles[0]
    one = msgspec.structs.replace(joint, name=first.name)
    alone = msgspec.structs.replace(graph, roles=(one,), worlds=())
    for role in graph.roles[1:]:
        yield from _unlike(role.name, "", role, first, _OWN)
    for role in graph.roles:
        if role.gates:
            why = "macro mode plays a joint world without gates"
            yield Refusal(role.name, "depends_on", f"[{role.gates[0].role}]", why, "leave depends_on= out")
        if role.address_edges:
            yield _addresses(role, role.address_edges[0], "take flowdist.worker.peers()")
        if role.restart is not None and matching_rule(role.restart, Failure(ReplicaId(role.name, 0), "node_lost", "")):
            why = "macro mode knows no rule for lost nodes in a joint world"
            yield Refusal(role.name, "restart.rules", _rules(role.restart), why, "leave On('node_lost') out")
        yield from _policies(role, alone)
    if joint.min_replicas > sum(seats_on(one, node) for node in graph.cluster.nodes):
        yield Refusal(first.name, "replicas", _size(first), "the minima have no room", "add nodes")
    yield from refusals(alone)


def _unlike(role: str, prefix: str, given: Any, first: Any, own: str = "") -> Iterator[Refusal]:
    """Yield a reason for each field in which a role of a joint world differs from the first role, but not for `own`."""
    for field in msgspec.structs.fields(given):
        mine, other = getattr(given, field.name), getattr(first, field.name)
        if mine == other or field.name in own.split():
            continue
        if field.name in ("workload", "resources", "placement"):
            yield from _unlike(role, "workload." if field.name == "workload" else "", mine, other)
            continue
        name = prefix + _WRITTEN.get(field.name, field.name.removesuffix("_ns"))
        why = "macro mode plays a joint world of roles that differ in size and restart= alone"
        value = dict(mine) if name == "where" else mine
        text = repr(format_duration(mine)) if field.name.endswith("_ns") and isinstance(mine, int) else repr(value)
        yield Refusal(role, name, text, why, "write the same for all of them")


def _no_gang(role: RoleSpec) -> Refusal | None:
    """Return why the role that `gang_of` chose is no gang of a primary task; None if it is one."""
    why = "macro mode needs a gang of a primary task, a role whose replicas share one world"
    if role.kind != "task":
        return Refusal(role.name, "kind", repr(role.kind), why, "add a task with gang=True")
    if not role.primary:
        return Refusal(role.name, "primary", "False", why, "write primary=True")
    if not role.gang:
        return Refusal(role.name, "gang", "False", why, "write gang=True if its replicas train together")
    return None


def _second_world(role: RoleSpec, gang: RoleSpec) -> Iterator[Refusal]:
    """Yield why the role, which is no gang of a task, cannot be beside `gang` as it is."""
    if role.gang:
        why = "macro mode has no services whose replicas share one world"
        yield Refusal(role.name, "gang", "True", why, "write gang=False if its replicas work each for itself")
    elif role.kind == "task" and role.primary:
        why = f"macro mode ends the job with {gang.name} alone"
        yield Refusal(role.name, "primary", "True", why, "write primary=False if the job can succeed without it")


def _beside(role: RoleSpec, gang: RoleSpec, graph: RoleGraph) -> Iterator[Refusal]:
    """Yield each reason why macro mode cannot play this role beside the gang."""
    name = role.name
    for gate in role.gates:
        if (gate.role, gate.condition, gate.on_restart) != (gang.name, "started", "reconnect"):
            words = f"[{gate.role}.{gate.condition}(on_restart={gate.on_restart!r})]"
            why = f"beside {gang.name} macro mode plays only depends_on=[{gang.name}.started()]"
            yield Refusal(name, "depends_on", words, why, "write that, or leave depends_on= out")
    if role.address_edges:
        yield _addresses(role, role.address_edges[0], "take flowdist.worker.peers()")
    if (
        role.restart is not None
        and matching_rule(role.restart, Failure(ReplicaId(name, 0), "node_lost", "")) is not None
    ):
        why = "macro mode knows no rule for lost nodes beside the gang"
        yield Refusal(name, "restart.rules", _rules(role.restart), why, "leave On('node_lost') out")
    rooms = [seats_on(role, node) for node in graph.cluster.nodes]
    if role.max_replicas > 1 and max(rooms) > 1:
        why = f"macro mode has at most one replica of {name} on a node"
        yield Refusal(name, "apart", repr(name in role.placement.apart), why, "write apart=True")


def _without_room(role: RoleSpec, graph: RoleGraph) -> Iterator[Refusal]:
    """Yield a reason if the nodes that only this role can use have no room for its minimum."""
    if sum(seats_on(role, node) for node in graph.cluster.nodes) < role.min_replicas:
        why = "its minimum has no room on nodes of its own"
        yield Refusal(role.name, "replicas", _size(role), why, "give it more nodes")


def _shared(graph: RoleGraph) -> Iterator[Refusal]:
    """Yield a reason if two roles have room on the same node, for the first such node."""
    for node in graph.cluster.nodes:
        roles = [role for role in graph.roles if seats_on(role, node)]
        if len(roles) > 1:
            role, others = roles[-1], " and ".join(other.name for other in roles[:-1])
            why = f"{node.name} has room for {others}, too, and macro mode plays roles on nodes of their own"
            do = f"label the nodes, and write where={{'pool': '{role.name}'}}"
            yield Refusal(role.name, "where", repr(dict(role.placement.where)), why, do)
            return


def _policies(gang: RoleSpec, graph: RoleGraph) -> Iterator[Refusal]:
    """Yield each reason why macro mode cannot follow the restart policy of the gang."""
    for policy in gang.restart.chain() if gang.restart is not None else ():
        yield from _unknown(gang.name, "restart.", policy, _POLICY)
        if policy.then == "ignore" and gang.primary:
            yield Refusal(gang.name, "restart.then", "'ignore'", "macro mode ends with its gang", "write then='fail'")
        if any(rule.do == "ignore" for rule in policy.rules):
            why = "macro mode ends with its gang, which a rule ignores"
            yield Refusal(gang.name, "restart.rules", _rules(policy), why, "write do='fail'")
        if policy.scope == "job" and len(graph.roles) > 1:
            why = "macro mode restarts the gang without the roles beside it"
            yield Refusal(gang.name, "restart.scope", "'job'", why, "write Restart('role', ...)")
        if gang.gates and any(rule.kind in (None, "node_lost") for rule in policy.rules):
            why = f"macro mode knows no rule for lost nodes of a gang that depends on {gang.gates[0].role}"
            yield Refusal(
                gang.name, "restart.rules", _rules(policy), why, "give each rule a kind, none of them node_lost"
            )


def _upstream(group: Group, gangs: list[RoleSpec], graph: RoleGraph) -> Iterator[Refusal]:
    """Yield each reason why macro mode cannot play the gang of the group with the roles on which it has gates."""
    gang, names = group.gang, [role.name for role in gangs]
    for gate in gang.gates:
        words = f"[{gate.role}.{gate.condition}(on_restart={gate.on_restart!r})]"
        if gate.role in names:
            if (gate.condition, gate.on_restart) != ("started", "reconnect"):
                why = f"macro mode plays only depends_on=[{gate.role}.started()] of one gang on another"
                yield Refusal(gang.name, "depends_on", words, why, "write that, or leave depends_on= out")
        elif graph.role(gate.role).kind != "service":
            words = f"[{gate.role}.{gate.condition}()]"
            yield Refusal(gang.name, "depends_on", words, f"{gate.role} is no service", "leave depends_on= out")
        elif all(role.name != gate.role for role in group.beside):
            why = f"{gate.role} is beside another gang, and macro mode plays a service with one of them"
            yield Refusal(gang.name, "depends_on", words, why, "give each gang a service of its own")
        elif gate.on_restart == "reconnect" and gate.role in gang.address_edges:
            yield _addresses(gang, gate.role, "write on_restart='restart'")
        elif gate.on_restart == "reconnect" and gang.hang_after_ns is not None:
            why = f"macro mode does not know whether the gang counts as hanging while it waits for {gate.role}"
            yield _of_time(gang, "hang_after_ns", gang.hang_after_ns, why, "leave hang_after= out")
    for name in gang.address_edges:
        if name in names and name != gang.name:
            yield _addresses(gang, name, "take flowdist.worker.peers()")


def _of_any(role: RoleSpec, known: str) -> Iterator[Refusal]:
    """Yield each reason why macro mode cannot play this role, be it the gang or not.

    `known` are the names of the fields of the role that macro mode knows, separated by spaces.
    """
    if role.simulate:
        do = f"add --set {role.name}.simulate=none to the command: its times are those of workload="
        yield Refusal(role.name, "simulate", repr(role.simulate), "macro mode runs no user code", do)
    if role.placement.near:
        why = "macro mode does not place roles by each other"
        yield Refusal(role.name, "near", f"[{', '.join(role.placement.near)}]", why, "leave near= out")
    if role.placement.apart not in ((), (role.name,)):
        why = "macro mode does not place roles by each other"
        yield Refusal(role.name, "apart", f"[{', '.join(role.placement.apart)}]", why, "write apart=True")
    if role.step > 1 and role.ports:
        why = "macro mode does not know on which node a replica without a seat has its ports"
        yield Refusal(role.name, "ports", repr(list(role.ports)), why, "leave ports= or parallel= out")
    yield from _unknown(role.name, "", role, f"{known} simulate")
    yield from _unknown(role.name, "", role.placement, "strategy near apart where")


def _of_workload(role: RoleSpec) -> Iterator[Refusal]:
    """Yield each reason why macro mode cannot play the workload of the role within the timeouts of the role."""
    load = role.workload
    yield from _unknown(role.name, "workload.", load, _LOAD)
    if load.collective == "fail" and (reason := why_nodes_alone(role)):
        why = f"macro mode has {role.name} fail with its nodes alone, as {reason}"
        yield Refusal(role.name, "workload.collective", "'fail'", why, "write collective='wait' or 'hang'")
    if load.collective_timeout_ns is not None and load.collective_timeout_ns < 10 * MINUTE:
        why = "macro mode has a collective time out later than nodes are lost"
        yield _of_time(
            role, "workload.collective_timeout_ns", load.collective_timeout_ns, why, "leave it out, or write 10m"
        )
    for field in ("stop_grace_ns", "grace_ns", "drain_ns"):
        if getattr(role, field) <= load.stop_ns:
            why = (
                f"its workers, which take {format_duration(load.stop_ns)} to stop, would be killed before they end well"
            )
            yield _of_time(role, field, getattr(role, field), why, "give it more")
    if role.ready is not None and role.ready_timeout_ns <= 2 * (load.startup_ns + _restore_ns(load)) + MINUTE:
        yield _of_time(role, "ready_timeout_ns", role.ready_timeout_ns, "it may not get ready in time", "give it more")
    yield from _impatient(role)


def why_nodes_alone(role: RoleSpec) -> str:
    """Return why replicas of the gang may fail with their nodes alone; empty if they may fail by themselves too.

    A role on which the gang depends may be the cause of a failure (R7). And a gang that is ignored once its budget is
    used up ends, which macro mode does not play.
    """
    if role.gates:
        return f"it depends on {role.gates[0].role}"
    policies = role.restart.chain() if role.gang and role.restart is not None else ()
    return "its restart= ends with then='ignore'" if any(policy.then == "ignore" for policy in policies) else ""


def _impatient(role: RoleSpec) -> Iterator[Refusal]:
    """Yield each timeout of the role after which its healthy workers may count as hanging (R15)."""
    if role.kind == "service":
        if role.start_timeout_ns is not None:
            why = "services report no step, so each would count as hanging"
            yield _of_time(role, "start_timeout_ns", role.start_timeout_ns, why, "leave start_timeout= out")
        return
    load = role.workload
    up_ns = round(load.startup_ns * (1 + load.startup_spread)) + _restore_ns(load) + load.warmup_ns
    step_ns = round(2 * role.longest_step_ns * (1 + load.step_spread))
    quiet_ns = up_ns + step_ns + load.blocking_ns + load.finish_ns + SECOND  # no phase without a step lasts longer
    for field in ("hang_after_ns", "start_timeout_ns"):
        limit_ns = getattr(role, field)
        if limit_ns is not None and limit_ns <= quiet_ns:
            why = f"workers that start up and do their first step in {format_duration(quiet_ns)} may count as hanging"
            yield _of_time(role, field, limit_ns, why, f"give it more, or leave {field.removesuffix('_ns')}= out")


def _restore_ns(load: WorkloadSpec) -> int:
    """Return the longest time in which workers read a checkpoint, in ns."""
    return max(load.restore_ns, load.peer_restore_ns or 0)


def _addresses(role: RoleSpec, of: str, do: str) -> Refusal:
    """Return the refusal of a role whose command has addresses of the role `of`, which would restart it."""
    return Refusal(role.name, "command", repr(role.command[0]), f"it has addresses of {of} in its command", do)


def _of_time(role: RoleSpec, field: str, ns: int, why: str, do: str) -> Refusal:
    return Refusal(role.name, field.removesuffix("_ns"), repr(format_duration(ns)), why, do)


def _size(role: RoleSpec) -> str:
    return f"'{role.min_replicas}:{role.max_replicas}'"


def _rules(policy: RestartPolicy) -> str:
    """Return the rules of a policy roughly as the user writes them: `[On('oom', do='fail')]`."""
    return f"[{', '.join(f'On({rule.kind!r}, do={rule.do!r})' for rule in policy.rules)}]"


def _unknown(role: str, prefix: str, value: Any, known: str) -> Iterator[Refusal]:
    """Yield a refusal for each field of a struct that macro mode does not know and that differs from its default.

    Args:
        role: The role that has the struct; empty: the topology.
        prefix: What stands before the names of the fields, such as "workload.".
        value: The struct.
        known: The names of the fields that macro mode knows, separated by spaces.
    """
    names = known.split()
    for field in msgspec.structs.fields(value):
        given = getattr(value, field.name)
        if field.name not in names and given != field.default:
            is_time = field.name.endswith("_ns") and isinstance(given, int)
            name = prefix + _WRITTEN.get(field.name, field.name.removesuffix("_ns"))
            text = repr(format_duration(given)) if is_time else repr(given)
            yield Refusal(role, name, text, "macro mode does not play it", f"leave {name.rpartition('.')[2]}= out")
