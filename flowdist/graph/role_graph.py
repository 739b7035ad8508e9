"""The role graph, a compiled topology: all roles with their domains, worlds, nodes and options.

Every field holds the user's value or the default that applies to it, so that code that reads the graph needs to know no
defaults. Durations are nanoseconds (`_ns`), memory is bytes. Mappings are tuples of pairs in the order in which the
user wrote them, so that equal graphs have equal bytes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from flowdist.graph.nodes import Cluster, NodeSpec
from flowdist.graph.roles import Gate, RoleSpec
from flowdist.graph.units import MINUTE, MS, SECOND, Endpoint4, Ns, Number, PositiveNs


class Domain(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Restart domain: roles that all restart when one of them fails whose policy has the scope "domain"."""

    name: str
    roles: tuple[str, ...]


class JointWorld(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """World of several roles: they share one RANK space and one process group, and form, restart and end together."""

    name: str
    roles: tuple[str, ...]


class JobOptions(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Timeouts in ns and limits of the whole job instead of one role; numbers such as R7 refer to docs/restarts.md."""

    heartbeat_ns: PositiveNs = 500 * MS
    lease_ns: PositiveNs = 4 * SECOND
    lease_margin_ns: Ns = 1 * SECOND  # agents fence so long before a lease ends; nodes are lost so long after (R19)
    cause_window_ns: Ns = 2 * SECOND  # in which a failure follows from one of an upstream role (R7)
    min_uptime_ns: Ns = 60 * SECOND  # after which a world without progress counts as healthy (R8)
    free_incidents_max: Number = 5  # changes of members in a row, without health, that a world survives (R8)
    unkillable_after_ns: Ns = 30 * SECOND  # from SIGKILL until the node of a worker that still lives is lost (R6)
    controller_outage_ns: Ns = 10 * MINUTE  # for which agents keep their workers without a controller (R21)
    bad_node_window_ns: Ns = 60 * MINUTE  # in which `move_after` and `cordon_after` count failures (R22)
    move_after: Number = 2  # failures of one kind of a replica on one node before it runs elsewhere (R22)
    cordon_after: Number = 3  # failures of one kind on one node before the node is cordoned (R22)
    store_endpoint: Endpoint4 = ""  # where the stores of all generations listen; empty: each at a port of its own

    @property
    def silent_after_ns(self) -> int:
        """Time without a heartbeat after which a node is lost, in ns; its agent has killed its workers then (R19)."""
        return self.lease_ns + self.lease_margin_ns

    @property
    def suspect_after_ns(self) -> int:
        """Time without a heartbeat after which a node is suspected, in ns.

        The time is halfway between the moment at which the next heartbeat is due and the one at which the agent fences.
        """
        return min(self.silent_after_ns, (self.heartbeat_ns + self.lease_ns - self.lease_margin_ns) // 2)


class RoleGraph(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A compiled topology: everything about a job that is known before it runs.

    Roles are in the order of their declaration, and gates point to earlier roles.
    """

    name: str
    roles: tuple[RoleSpec, ...]
    domains: tuple[Domain, ...] = ()
    cluster: Cluster = Cluster()
    options: JobOptions = JobOptions()
    on_incident: tuple[str, ...] = ()  # command of the hook; empty: none
    checkpoint_dir: str = ""  # empty: checkpoints/ in the folder of the run
    source: str = ""  # path of the topology file, absolute
    worlds: tuple[JointWorld, ...] = ()
    format: Literal[1] = 1

    def on(self, node: NodeSpec) -> RoleGraph:
        """Return the graph as one node sees it: `procs` of each role is the number of workers of a replica there."""
        if not node.procs:
            return self
        roles = tuple(msgspec.structs.replace(role, procs=role.procs_on(node)) for role in self.roles)
        return msgspec.structs.replace(self, roles=roles)

    def role(self, name: str) -> RoleSpec:
        """Return the role with that name; KeyError if there is none."""
        for role in self.roles:
            if role.name == name:
                return role
        raise KeyError(name)

    def dependents(self, name: str) -> tuple[tuple[RoleSpec, Gate], ...]:
        """Return the roles that have a gate on the role `name`, each with that gate."""
        return tuple((role, gate) for role in self.roles for gate in role.gates if gate.role == name)

    def holders_of(self, name: str) -> tuple[RoleSpec, ...]:
        """Return the roles that need versions of what the role `name` publishes (R23)."""
        return tuple(role for role in self.roles if role.versions is not None and role.versions.role == name)

    def domain_of(self, name: str) -> Domain | None:
        """Return the restart domain of the role; None if it is in none."""
        return next((domain for domain in self.domains if name in domain.roles), None)

    def world_of(self, name: str) -> JointWorld | None:
        """Return the joint world of the role; None if it shares its ranks with no other role."""
        return next((world for world in self.worlds if name in world.roles), None)

    def mates_of(self, name: str) -> tuple[str, ...]:
        """Return the names of the roles in the role's joint world, itself included; itself alone if it is in none."""
        world = self.world_of(name)
        return world.roles if world is not None else (name,)

    def to_succeed_before(self, name: str) -> set[str]:
        """Return the names of all roles that have to succeed before a role can start."""
        gates = [gate for gate in self.gates_before(name) if gate.condition == "succeeded"]
        return {mate for gate in gates for mate in self.mates_of(gate.role)}

    def gates_before(self, name: str) -> list[Gate]:
        """Return all gates that have to open before a role can start.

        Gates of the role count, and gates of the roles for which it waits in any way. The roles of a joint world start
        and succeed together, so a gate of one of them counts for all.
        """
        gates = {role.name: role.gates for role in self.roles}
        found: list[Gate] = []
        todo = list(dict.fromkeys(self.mates_of(name)))
        for other in todo:  # grows while it is walked
            found += gates.get(other, ())  # a world with a role of another topology is a problem, reported elsewhere
            for gate in gates.get(other, ()):
                todo += [mate for mate in self.mates_of(gate.role) if mate not in todo]
        return found
