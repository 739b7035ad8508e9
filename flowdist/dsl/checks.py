"""What is wrong between roles: gates, addresses, domains, and whether the job fits its nodes and can end at all."""

from __future__ import annotations

from flowdist.dsl.commands import macros_of
from flowdist.dsl.fields import Fields
from flowdist.dsl.places import Place
from flowdist.dsl.problems import Problems, did_you_mean
from flowdist.dsl.topology import Gate, Role, Topology
from flowdist.graph import Gate as GateSpec
from flowdist.graph import RoleGraph, RoleSpec, add, fits, format_memory, needed, offered, subtract

# after these, sizes or the order of the roles are unknown: no room would be a guess
_NO_SIZE = ("FD103", "FD104", "FD105", "FD112", "FD114", "FD117")


def check_graph(topology: Topology, graph: RoleGraph, problems: Problems) -> None:
    specs: dict[str, RoleSpec] = {}
    for role, spec in zip(topology.roles, graph.roles, strict=True):
        specs.setdefault(spec.name, spec)
        fields = Fields.of_role(role, problems)
        for gate in spec.gates:
            _check_gate(fields, spec, gate, specs, _gate_place(fields, gate.role))
        _check_addresses(fields, spec, specs)
        _check_scope(fields, spec, graph)
        _check_ignore(fields, spec)
        _check_fits(fields, spec, graph)
    _check_minima(topology, graph, problems)
    _check_can_end(topology, graph, problems)


def _gate_place(fields: Fields, role: str) -> Place:
    for i, item in enumerate(fields.items("depends_on", Gate, Role)):
        if (item.role.name if isinstance(item, Gate) else getattr(item, "name", None)) == role:
            return fields.element("depends_on", i)
    return fields.place("depends_on")


def _check_gate(fields: Fields, spec: RoleSpec, gate: GateSpec, specs: dict[str, RoleSpec], place: Place) -> None:
    upstream = specs.get(gate.role)
    if upstream is None or upstream is spec:
        help = "declare it before the roles that depend on it; a circle of gates can never start"
        fields.error_at(place, "FD117", f"it waits for {gate.role!r}, which is not declared before it", help)
        return
    if gate.condition == "ready" and upstream.ready is None:
        help = f'give {gate.role!r} a ready_when=, such as "tcp:PORT" or "call", or wait for started()'
        message = f"it waits for {gate.role!r} to be ready, which has no readiness check"
        fields.error_at(place, "FD115", message, help)
    if gate.condition == "succeeded" and upstream.kind == "service":
        message = f"it waits for service {gate.role!r} to succeed, but services never end"
        fields.error_at(place, "FD116", message, f'wait for {gate.role}.ready(), or make it kind="task"')
    if gate.on_restart == "reconnect" and upstream.state == "memory":
        message = f"role {gate.role!r} keeps its state in memory and comes back blank, yet this one keeps running"
        fields.error_at(place, "FD118", message, f'write on_restart="restart", or state="checkpoint" on {gate.role!r}')


def _check_addresses(fields: Fields, spec: RoleSpec, specs: dict[str, RoleSpec]) -> None:
    for where, macro in macros_of(fields, spec.command, spec.env):
        if not macro.startswith("addresses:"):
            continue
        _, _, rest = macro.partition(":")
        role, _, port = rest.partition(":")
        gate = spec.gate_on(role)
        if gate is None:
            message = f"it uses the address of {role!r} without depending on it"
            fields.error("FD122", where, message, f"write depends_on=[{role}.started()] or {role}.ready()")
        elif gate.on_restart == "reconnect":
            message = f"it takes the address of {role!r} at its start; should the address change, it is restarted"
            fields.warn("FD302", where, message, 'read it from flowdist.worker.peers(), or write on_restart="restart"')
        upstream = specs.get(role)
        if upstream is not None and port not in upstream.ports:
            fields.error("FD119", where, f"role {role!r} has no port {port!r}", did_you_mean(port, upstream.ports))


def _check_scope(fields: Fields, spec: RoleSpec, graph: RoleGraph) -> None:
    policy = spec.restart
    if policy is None:
        return
    if policy.scope == "domain" and graph.domain_of(spec.name) is None:
        message = 'it restarts its "domain", but no restart_together() names it'
        fields.error("FD128", "restart.scope", message, f'write t.restart_together("core", {spec.name}, ...)')
    if policy.scope == "replica" and spec.gang:
        message = 'Restart("replica") with gang=True: a gang restarts as one'
        fields.error("FD129", "gang", message, 'write Restart("role"), or gang=False')


def _check_ignore(fields: Fields, spec: RoleSpec) -> None:
    policy = spec.restart
    if policy is None or not spec.primary or not spec.gang:
        return
    if policy.then == "ignore" or any(rule.do == "ignore" for rule in policy.rules):
        message = "ignoring a failure would let a primary gang go on without its member"
        fields.error("FD130", "restart", message, "write primary=False or gang=False, or fail instead")


def _check_fits(fields: Fields, spec: RoleSpec, graph: RoleGraph) -> None:
    need = needed(spec.resources)
    nodes = graph.cluster.nodes
    if not graph.cluster.given:
        if need.gpu:
            help = f"write Topology(..., nodes=[Node(gpu={need.gpu})])"
            fields.error("FD114", "gpu", f"it asks for {need.gpu} gpu, but the nodes have no sizes", help)
        return
    if need.gpu and not any(node.gpu for node in nodes):
        help = f"write nodes={len(nodes)} * [Node(gpu={need.gpu})]"
        fields.error("FD114", "gpu", f"it asks for {need.gpu} gpu, but no node has one", help)
    elif not any(fits(need, offered(node)) for node in nodes):
        largest = max(nodes, key=lambda node: (node.gpu, node.cpu, node.memory))
        size = f"{largest.cpu:g} cpu, {largest.gpu} gpu, {format_memory(largest.memory)}"
        argument = next((name for name in ("cpu", "gpu", "memory") if fields.values.get(name) is not None), "resources")
        fields.error("FD112", argument, f"a replica is larger than any node ({size})", "ask for less, or larger nodes")


def _check_minima(topology: Topology, graph: RoleGraph, problems: Problems) -> None:
    """The minima of the roles that are alive together have seats on the nodes, filled as control fills them."""
    if not graph.cluster.given or problems.codes() & set(_NO_SIZE):
        return
    free = {node.name: offered(node) for node in graph.cluster.nodes}
    ended = {spec.name: _before_success(graph, spec) for spec in graph.roles}
    seats: list[tuple[str, str]] = []
    for role, spec in zip(topology.roles, graph.roles, strict=True):
        need = needed(spec.resources)
        trial = dict(free)
        for name, node in seats:
            if name in ended[spec.name]:
                trial[node] = add(trial[node], needed(graph.role(name).resources))
        for _ in range(spec.min_replicas):
            seat = next((name for name in trial if fits(need, trial[name])), None)
            if seat is None:
                fields = Fields.of_role(role, problems)
                message = f"its minimum of {spec.min_replicas} has no room beside the roles before it"
                fields.error("FD113", "replicas", message, "lower a minimum, or add nodes")
                return
            trial[seat] = subtract(trial[seat], need)
            if not ended[spec.name]:
                seats.append((spec.name, seat))
        if not ended[spec.name]:
            free = trial


def _before_success(graph: RoleGraph, spec: RoleSpec) -> dict[str, None]:
    found: dict[str, None] = {}
    known = {role.name: role for role in graph.roles}
    for gate in spec.gates:
        upstream = known.get(gate.role)
        if upstream is None or upstream is spec:
            continue
        if gate.condition == "succeeded":
            found[gate.role] = None
        found.update(_before_success(graph, upstream))
    return found


def _check_can_end(topology: Topology, graph: RoleGraph, problems: Problems) -> None:
    if not graph.roles:
        help = 'write t.role("trainer", ["python", "train.py"])'
        problems.error("FD127", f"topology {topology.name!r} has no role", help, topology.site.place())
    elif not any(spec.kind == "task" and spec.primary for spec in graph.roles):
        message = f"topology {topology.name!r}: the job can never end: it has no primary task"
        help = 'make one role kind="task" with primary=True'
        problems.error("FD127", message, help, topology.site.place("name"))
