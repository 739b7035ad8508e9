"""Checks between roles: gates, addresses, restart scopes, room on the nodes, the end of the job, and joint worlds."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence

from flowdist.dsl.check.room import check_fits, check_limits, check_limits_of_job, check_minima
from flowdist.dsl.frozen import Unknown, has_unknown
from flowdist.dsl.problems.problem import Problems, did_you_mean
from flowdist.dsl.read.commands import macros_of
from flowdist.dsl.read.fields import DOUBLE, NAME, Fields, owner_of
from flowdist.dsl.read.parallel import check_parallel
from flowdist.dsl.read.placement import check_placement
from flowdist.dsl.read.snapshots import check_snapshots
from flowdist.dsl.topology import Gate, Role, Topology
from flowdist.graph import Gate as GateSpec
from flowdist.graph import RoleGraph, RoleSpec


def check_graph(topology: Topology, graph: RoleGraph, problems: Problems, *, by_engine: bool) -> None:
    """Add every contradiction between roles, and with the nodes, which with `by_engine` are as large as needed."""
    specs: dict[str, RoleSpec] = {}
    for role, spec in zip(topology.roles, graph.roles, strict=True):
        specs.setdefault(spec.name, spec)
        fields = Fields.of_role(role, problems)
        for gate in spec.gates:
            _check_gate(fields, spec, gate, specs)
        _check_versions(fields, spec, specs)
        _check_addresses(fields, spec, specs)
        _check_scope(fields, spec, graph)
        _check_ignore(fields, spec)
        if not by_engine:
            check_fits(fields, spec, graph)
        check_placement(fields, spec, graph)
        check_snapshots(fields, spec, graph)
        check_parallel(fields, specs[spec.name], graph)
        _check_start_timeout(fields, spec)
        check_limits(fields, spec)
    if not by_engine:
        check_minima(topology, graph, problems)
    check_limits_of_job(topology, graph, problems)
    _check_can_end(topology, graph, problems)


def _check_gate(fields: Fields, spec: RoleSpec, gate: GateSpec, specs: dict[str, RoleSpec]) -> None:
    """Add errors for a gate on a role that is not declared before, or that never meets the condition (FD115 to FD117).

    A role that keeps running while its upstream role restarts without its state adds an error, too (FD118).
    """
    upstream = specs.get(gate.role)
    if fields.problems.is_wrong(f"role {gate.role!r}", DOUBLE) or fields.is_wrong(DOUBLE):
        return
    if upstream is None or upstream is spec:
        help = "declare it before the roles that depend on it; a cycle of gates can never start"
        _gate_error(fields, gate, "FD117", f"it waits for {gate.role!r}, which is not declared before it", help)
        return
    is_wrong = functools.partial(fields.problems.is_wrong, owner_of(upstream))
    if gate.condition == "ready" and not upstream.has_readiness and not is_wrong("ready_when", "versions"):
        help = f'give {gate.role!r} a ready_when=, such as "tcp:PORT" or "call", or wait for started()'
        message = f"it waits for {gate.role!r} to be ready, which has no readiness check"
        _gate_error(fields, gate, "FD115", message, help)
    if gate.condition == "succeeded" and upstream.kind == "service":
        message = f"it waits for service {gate.role!r} to succeed, but services never end"
        _gate_error(fields, gate, "FD116", message, f'wait for {gate.role}.ready(), or make it kind="task"')
    keeps_running = gate.on_restart == "reconnect" and not fields.is_wrong("depends_on.on_restart")
    if keeps_running and upstream.state == "memory":
        message = f"role {gate.role!r} keeps its state in memory and restarts without it, but this role keeps running"
        help = f'write on_restart="restart", or state="checkpoint" on {gate.role!r}'
        _gate_error(fields, gate, "FD118", message, help)


def _gate_error(fields: Fields, gate: GateSpec, code: str, message: str, help: str) -> None:
    """Add an error at the element of `depends_on=` in the user's file from which the gate comes."""
    items = fields.items("depends_on", Gate, Role)
    roles = [item.role.name if isinstance(item, Gate) else getattr(item, "name", None) for item in items]
    fields.error(code, "depends_on", message, help, fields.element("depends_on", roles.index(gate.role)))


def _check_versions(fields: Fields, spec: RoleSpec, specs: dict[str, RoleSpec]) -> None:
    """Add an error if the role that is to publish versions has several worlds, whose numbers would differ (FD170)."""
    publisher = specs.get(spec.versions.role) if spec.versions is not None else None
    if publisher is None or publisher.gang or publisher.max_replicas == 1 or fields.is_wrong("versions"):
        return
    if not fields.problems.is_wrong(owner_of(publisher), "gang", "replicas", "kind", "restart"):
        message = f"the replicas of {publisher.name!r} have no common version: each is a world of its own"
        help = f"make {publisher.name!r} a gang (gang=True), or give it one replica"
        fields.error("FD170", "versions", message, help)


def _check_addresses(fields: Fields, spec: RoleSpec, specs: dict[str, RoleSpec]) -> None:
    """Add errors for macros with addresses of a role on which this role has no gate (FD122), or which lacks the port.

    A gate with on_restart="reconnect" adds a warning: a changed address restarts the role (FD302).
    """
    for where, macro in macros_of(fields, spec.command, spec.env):
        if not macro.startswith("addresses:"):
            continue
        _, _, rest = macro.partition(":")
        role, _, port = rest.partition(":")
        gate = spec.gate_on(role)
        if fields.is_wrong(where, "depends_on"):
            pass
        elif gate is None:
            message = f"it uses the address of {role!r} but does not depend on it"
            fields.error("FD122", where, message, f"write depends_on=[{role}.started()] or {role}.ready()")
        elif gate.on_restart == "reconnect":
            message = f"it reads the address of {role!r} at its start; if the address changes, it is restarted"
            fields.warn("FD302", where, message, 'read it from flowdist.worker.peers(), or write on_restart="restart"')
        upstream = specs.get(role)
        if upstream is None or fields.is_wrong(where) or fields.problems.is_wrong(owner_of(upstream), "ports"):
            continue
        if port not in upstream.ports:
            fields.error("FD119", where, f"role {role!r} has no port {port!r}", did_you_mean(port, upstream.ports))


def _check_scope(fields: Fields, spec: RoleSpec, graph: RoleGraph) -> None:
    """Add an error for scope "domain" if no domain has the role (FD128), and for "replica" if it is a gang (FD129)."""
    policy = spec.restart
    if policy is None:
        return
    has_domain = graph.domain_of(spec.name) is not None or fields.problems.is_wrong(owner_of(graph), "domains")
    is_sure = not has_domain and not fields.problems.has_unknowns and not fields.is_wrong("restart.scope")
    if is_sure and any(each.scope == "domain" for each in policy.chain()):
        message = 'it restarts its "domain", but no restart_together() names it'
        fields.error("FD128", "restart.scope", message, f'write t.restart_together("core", {spec.name}, ...)')
    if policy.scope == "replica" and spec.gang and not fields.is_wrong("gang"):
        message = 'Restart("replica") with gang=True: a gang restarts as one'
        fields.error("FD129", "gang", message, 'write Restart("role"), or gang=False')


def _check_ignore(fields: Fields, spec: RoleSpec) -> None:
    """Add an error if failures of a primary gang may be ignored (FD130): it cannot run without the ignored replica."""
    policy = spec.restart
    if policy is None or not spec.primary or not spec.gang or fields.is_wrong("kind", "primary", "gang", "restart"):
        return
    if any(each.then == "ignore" for each in policy.chain()) or any(rule.do == "ignore" for rule in policy.rules):
        message = "a primary gang cannot go on without a member whose failure is ignored"
        fields.error("FD130", "restart", message, "write primary=False or gang=False, or fail instead")


def _check_start_timeout(fields: Fields, spec: RoleSpec) -> None:
    """Add a warning for a `start_timeout=` of a service (FD307): readiness does not count as progress."""
    if spec.start_timeout_ns is not None and spec.kind == "service":
        message = "a service that never calls progress() within this time counts as hanging, even if it is ready"
        instead = "ready_timeout=" if spec.ready is not None else "ready_when= and ready_timeout="
        fields.warn("FD307", "start_timeout", message, f"write {instead} instead, or call it")


def _check_can_end(topology: Topology, graph: RoleGraph, problems: Problems) -> None:
    """Add an error for a topology without a role, or without a primary task: its job would never end (FD127)."""
    if problems.has_unknowns:  # such as a call of t.frobnicate(), which may have been meant to declare a role
        return
    if not graph.roles:
        help = 'write t.role("trainer", ["python", "train.py"])'
        problems.error("FD127", f"topology {topology.name!r} has no role", help, topology.site.place())
    elif not any(spec.kind == "task" and spec.primary for spec in graph.roles):
        message = f"topology {topology.name!r}: the job can never end: it has no primary task"
        help = 'make one role kind="task" with primary=True'
        problems.error("FD127", message, help, topology.site.place("name"))


def check_worlds(topology: Topology, graph: RoleGraph, problems: Problems) -> None:
    """Add an error to `problems` for each joint world that its name, its roles or their gates make impossible."""
    specs = {spec.name: spec for spec in graph.roles}
    names = set(specs)
    taken: dict[str, str] = {}  # role -> world, of the worlds so far
    for name, members, site in topology.worlds:
        for code, message, help, at in _problems_of_world(name, members, topology, specs, names, taken, problems):
            problems.error(code, f"world {name!r}: {message}", help, site.place(at))
        names.add(name)
        for role in members:
            if isinstance(role, Role):
                taken.setdefault(role.name, name)
    for (name, _, site), world in zip(topology.worlds, graph.worlds, strict=True):
        if world.roles and any(gate.role in world.roles for gate in graph.gates_before(world.roles[0])):
            message = f"world {name!r}: one of its roles waits for another, so the world can never start"
            help = "leave the gate out: all roles of a world start together"
            problems.error("FD145", message, help, site.place())


def _problems_of_world(
    name: str,
    members: Sequence[object],
    topology: Topology,
    specs: Mapping[str, RoleSpec],
    names: Collection[str],
    taken: Mapping[str, str],
    known: Problems,
) -> Iterator[tuple[str, str, str, str]]:
    """Yield the problems of one joint world: code, message, help, and the argument of the call to report each at.

    `names` are those of all roles and of earlier worlds, `taken` has the world of each role in one of these, and
    what is in `known` already is not reported once more.
    """
    if has_unknown(name):
        pass
    elif not NAME.fullmatch(name):
        yield "FD102", "its name cannot be used", "use lower case letters, digits and hyphens", "name"
    elif name in names:
        yield "FD144", "a role or another world has its name", "give it a name of its own", "name"
    if len({id(role) for role in members}) < 2:
        yield "FD144", "it has fewer than two roles", "name at least two: world('core', a, b)", ""
    primary = set()
    for i, role in enumerate(members):
        if isinstance(role, Unknown):
            continue
        if not isinstance(role, Role) or role.topology is not topology:
            yield "FD135", f"{role!r} is not a role of this topology", "pass handles that role() returned", str(i)
            continue
        spec = specs[role.name]
        if not known.is_wrong(owner_of(role), "primary"):
            primary.add(spec.primary)
        if role.name in taken:
            message = f"role {role.name!r} is in world {taken[role.name]!r} already"
            yield "FD144", message, "make one world of the two", str(i)
        if known.is_wrong(owner_of(role), "kind", "gang", "restart"):
            continue
        if spec.kind == "service":
            yield "FD144", f"{role.name!r} is a service, but a world ends as one", 'make it kind="task"', str(i)
        elif not spec.gang:
            yield "FD144", f"{role.name!r} has no gang", 'leave out gang=False and Restart("replica")', str(i)
    if len(primary) > 1:
        yield "FD144", "some of its roles are primary, but a world ends as one", "make primary= the same for all", ""
