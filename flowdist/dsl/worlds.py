"""Joint worlds: several roles with one RANK space, which form, restart and end as one."""

from __future__ import annotations

from flowdist.dsl.problems import Problems
from flowdist.dsl.topology import Role, Topology
from flowdist.graph import JointWorld, RoleGraph


def check_worlds(topology: Topology, graph: RoleGraph, problems: Problems) -> None:
    specs = {spec.name: spec for spec in graph.roles}
    taken: dict[str, str] = {}
    for (name, members, site), world in zip(topology.worlds, graph.worlds, strict=True):

        def error(code: str, message: str, help: str, name: str = name) -> None:
            problems.error(code, f"world {name!r}: {message}", help, site.place())  # noqa: B023 - used at once

        if name in specs or any(other.name == name for other in graph.worlds if other is not world):
            error("FD144", "its name is taken by a role or a world", "give it a name of its own")
        if any(not isinstance(role, Role) or role.topology is not topology for role in members):
            error("FD135", "it has a member that is no role of this topology", "pass handles that role() returned")
        if len(set(world.roles)) < 2:
            error("FD144", "it has fewer than two roles", "name at least two: world('core', a, b)")
        for role in dict.fromkeys(world.roles):
            if role in taken:
                error("FD144", f"role {role!r} is in world {taken[role]!r} already", "make one world of the two")
            taken.setdefault(role, name)
        known = [specs[role] for role in world.roles if role in specs]
        for spec in known:
            if spec.kind == "service":
                error("FD144", f"{spec.name!r} is a service, but a world ends as one", 'make it kind="task"')
            elif not spec.gang:
                error("FD144", f"{spec.name!r} has no gang", "leave gang=False and the scope replica out")
        if len({spec.primary for spec in known}) > 1:
            error("FD144", "some of its roles are primary, but a world ends as one", "make primary= the same for all")
    _check_order(topology, graph, problems)


def _check_order(topology: Topology, graph: RoleGraph, problems: Problems) -> None:
    """No role of a world waits for another of it, directly or over other roles and worlds (R1)."""
    world_of = {role: world.name for world in graph.worlds for role in world.roles}
    waits: dict[str, set[str]] = {world_of.get(spec.name, spec.name): set() for spec in graph.roles}
    for spec in graph.roles:
        mine = world_of.get(spec.name, spec.name)
        waits[mine].update(world_of.get(gate.role, gate.role) for gate in spec.gates)
    sites = {name: site for name, _, site in topology.worlds}
    for world in graph.worlds:
        if _reaches(world, waits):
            message = f"world {world.name!r}: one of its roles waits for another of them, so that it can never start"
            help = "leave the gate out: all of a world start together"
            problems.error("FD145", message, help, sites[world.name].place())


def _reaches(world: JointWorld, waits: dict[str, set[str]]) -> bool:
    """Whether the world waits for itself."""
    todo, seen = list(waits.get(world.name, ())), set()
    while todo:
        name = todo.pop()
        if name == world.name:
            return True
        if name not in seen:
            seen.add(name)
            todo += waits.get(name, ())
    return False
