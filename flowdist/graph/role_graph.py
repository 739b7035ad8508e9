"""The role graph: a compiled topology, that is all roles with their domains, worlds, nodes and options.

Every field holds the user's value or the default that applies to it, so that a reader of the graph needs to know no
defaults. Durations are nanoseconds (`_ns`), memory is bytes. Mappings are tuples of pairs in the order in which the
user wrote them, so that equal graphs have equal bytes.
"""

from __future__ import annotations

import msgspec

from flowdist.graph.nodes import Cluster, NodeSpec
from flowdist.graph.roles import Gate, RoleSpec
from flowdist.graph.units import MINUTE, MS, SECOND


class Domain(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Roles that restart together."""

    name: str
    roles: tuple[str, ...]


class JointWorld(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Roles that share one RANK space and one process group, and restart together."""

    name: str
    roles: tuple[str, ...]


class JobOptions(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Timeouts and limits that belong to the job rather than to a role."""

    heartbeat_ns: int = 500 * MS
    lease_ns: int = 4 * SECOND
    lease_margin_ns: int = 1 * SECOND  # agents fence this long before a lease ends, nodes are lost after (R19)
    cause_window_ns: int = 2 * SECOND  # R7
    min_uptime_ns: int = 60 * SECOND  # R8
    free_incidents_max: int = 5  # R8
    unkillable_after_ns: int = 30 * SECOND  # R6
    controller_outage_ns: int = 10 * MINUTE  # how long agents keep their workers without a controller (R21)
    bad_node_window_ns: int = 60 * MINUTE  # R22
    move_after: int = 2  # failures of one kind of a replica on one node before it runs elsewhere (R22)
    cordon_after: int = 3  # failures of one kind on one node before the node is cordoned (R22)

    @property
    def silent_after_ns(self) -> int:
        """Silence after which a node is lost, in ns: by then its agent has fenced its workers (R19)."""
        return self.lease_ns + self.lease_margin_ns

    @property
    def suspect_after_ns(self) -> int:
        """Silence after which a node is suspected, in ns: halfway between a late heartbeat and the agent's fencing."""
        return min(self.silent_after_ns, (self.heartbeat_ns + self.lease_ns - self.lease_margin_ns) // 2)


class RoleGraph(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A compiled topology. Roles are in the order of their declaration, and gates point to earlier roles."""

    name: str
    roles: tuple[RoleSpec, ...]
    domains: tuple[Domain, ...] = ()
    cluster: Cluster = Cluster()
    options: JobOptions = JobOptions()
    on_incident: tuple[str, ...] = ()  # command of the hook; empty: none
    checkpoint_dir: str = ""  # empty: checkpoints/ in the folder of the run
    source: str = ""  # path of the topology file, absolute
    worlds: tuple[JointWorld, ...] = ()
    format: int = 1

    def on(self, node: NodeSpec) -> RoleGraph:
        """Return the graph as the node runs it: each role with the number of workers that a replica has there."""
        if not node.procs:
            return self
        roles = tuple(msgspec.structs.replace(role, procs=role.procs_on(node)) for role in self.roles)
        return msgspec.structs.replace(self, roles=roles)

    def role(self, name: str) -> RoleSpec:
        """Return the role of that name.

        Raises:
            KeyError: There is no such role.
        """
        for role in self.roles:
            if role.name == name:
                return role
        raise KeyError(name)

    def dependents(self, name: str) -> tuple[tuple[RoleSpec, Gate], ...]:
        """Return the roles that have a gate on the role `name`, each with that gate."""
        return tuple((role, gate) for role in self.roles for gate in role.gates if gate.role == name)

    def domain_of(self, name: str) -> Domain | None:
        """Return the restart domain of the role; None if it is in none."""
        return next((domain for domain in self.domains if name in domain.roles), None)

    def world_of(self, name: str) -> JointWorld | None:
        """Return the joint world of the role; None if it shares its ranks with no other role."""
        return next((world for world in self.worlds if name in world.roles), None)

    def mates_of(self, name: str) -> tuple[str, ...]:
        """Return the roles of the joint world that the role is in, or the role alone."""
        world = self.world_of(name)
        return world.roles if world is not None else (name,)

    def to_succeed_before(self, name: str) -> set[str]:
        """Return the roles that have to succeed before this one can start. A joint world starts as one."""
        found: set[str] = set()
        todo = list(dict.fromkeys(self.mates_of(name)))
        for other in todo:  # grows while it is walked
            for gate in self.role(other).gates:
                found.update(self.mates_of(gate.role) if gate.condition == "succeeded" else ())
                todo += [mate for mate in self.mates_of(gate.role) if mate not in todo]
        return found


_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder(RoleGraph)


def encode_graph(graph: RoleGraph) -> bytes:
    """Encode the graph as compact JSON; equal graphs give equal bytes."""
    return _ENCODER.encode(graph)


def decode_graph(data: bytes | str) -> RoleGraph:
    """Decode a graph from JSON.

    Raises:
        msgspec.DecodeError: The data is no role graph.
    """
    return _DECODER.decode(data)
