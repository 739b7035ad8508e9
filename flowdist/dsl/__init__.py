"""Words of a topology file, such as `Topology`, `Node` and `Restart`, and the compiler that makes a role graph of them.

The compiler reports all problems of a topology at once, each at its place in the user's file. Nothing here runs a job,
and user code is executed only to build the topology.
"""

from flowdist.dsl.topology import Gate, Role, Template, Topology, Version
from flowdist.dsl.words import Node, On, Resources, Restart, Secret, Snapshots, Workload

__all__ = [
    "Gate", "Node", "On", "Resources", "Restart", "Role", "Secret", "Snapshots", "Template", "Topology", "Version",
    "Workload",
]  # fmt: skip
