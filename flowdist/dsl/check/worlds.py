"""Checks of joint worlds: several roles that share one RANK space, and form, restart and end as one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from flowdist.dsl.frozen import Unknown, has_unknown
from flowdist.dsl.problems.problem import Problems
from flowdist.dsl.read.fields import NAME, owner_of
from flowdist.dsl.topology import Role, Topology
from flowdist.graph import JointWorld, RoleGraph, RoleSpec


def check_worlds(topology: Topology, graph: RoleGraph, problems: Problems) -> None:
    """Add an error to `problems` for each joint world that its name, its roles or their gates make impossible."""
    specs = {spec.name: spec for spec in graph.roles}
    names = set(specs)
    taken: dict[str, str] = {}  # role -> world, of the worlds so far
    for name, members, site in topology.worlds:
        for code, message, help, at in _problems_of(name, members, topology, specs, names, taken, problems):
            problems.error(code, f"world {name!r}: {message}", help, site.place(at))
        names.add(name)
        for role in members:
            if isinstance(role, Role):
                taken.setdefault(role.name, name)
    _check_order(topology, graph, problems)


def _problems_of(
    name: str,
    members: Sequence[object],
    topology: Topology,
    specs: Mapping[str, RoleSpec],
    names: Collection[str],
    taken: Mapping[str, str],
    known: Problems,
) -> Iterator[tuple[str, str, str, str]]:
    """Yield the problems of one joint world: code, message, help, and the argument of `Topology.world` to report it at.

    Args:
        name: Name of the world.
        members: What the user gave as its roles.
        specs: The compiled roles by name.
        names: Names of all roles and of the worlds before this one.
        taken: The world of each role that is in a world before this one.
        known: The problems so far: what is wrong already is not reported once more.
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


def _check_order(topology: Topology, graph: RoleGraph, problems: Problems) -> None:
    """Add an error for each world of which one role waits for another, directly or through other roles (FD145)."""
    world_of = {role: world.name for world in graph.worlds for role in world.roles}
    waits: dict[str, set[str]] = {world_of.get(spec.name, spec.name): set() for spec in graph.roles}
    for spec in graph.roles:
        mine = world_of.get(spec.name, spec.name)
        waits[mine].update(world_of.get(gate.role, gate.role) for gate in spec.gates)
    sites = {name: site for name, _, site in topology.worlds}
    for world in graph.worlds:
        if _reaches(world, waits):
            message = f"world {world.name!r}: one of its roles waits for another, so the world can never start"
            help = "leave the gate out: all roles of a world start together"
            problems.error("FD145", message, help, sites[world.name].place())


def _reaches(world: JointWorld, waits: dict[str, set[str]]) -> bool:
    """Return whether the world waits for itself; `waits` has what each world or single role waits for."""
    todo, seen = list(waits.get(world.name, ())), set()
    while todo:
        name = todo.pop()
        if name == world.name:
            return True
        if name not in seen:
            seen.add(name)
            todo += waits.get(name, ())
    return False
