"""What users write, and how it becomes a role graph."""

from flowdist.dsl.topology import Gate, Role, Template, Topology
from flowdist.dsl.words import Node, On, Resources, Restart, Secret, Workload

__all__ = ["Gate", "Node", "On", "Resources", "Restart", "Role", "Secret", "Template", "Topology", "Workload"]
