"""What users write, and how it becomes a role graph."""

from flowdist.dsl.topology import Gate, Node, On, Resources, Restart, Role, Secret, Template, Topology, Workload

__all__ = ["Gate", "Node", "On", "Resources", "Restart", "Role", "Secret", "Template", "Topology", "Workload"]
