"""The role graph: a compiled topology, that is all roles with their domains, worlds, nodes and options.

Every field holds the user's value or the default that applies to it, so that a reader of the graph needs to know no
defaults. Durations are nanoseconds (`_ns`), memory is bytes. Mappings are tuples of pairs in the order in which the
user wrote them, so that equal graphs have equal bytes.
"""

from __future__ import annotations

import msgspec

from flowdist.graph.nodes import Cluster, NodeSpec
from flowdist.graph.options import JobOptions
from flowdist.graph.roles import Gate, RoleSpec


class Domain(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Roles that restart together."""

    name: str
    roles: tuple[str, ...]


class JointWorld(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Roles that share one RANK space and one process group, and restart together."""

    name: str
    roles: tuple[str, ...]


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
