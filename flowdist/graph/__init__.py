"""The role graph: frozen values that the DSL writes and everything else reads."""

from flowdist.graph.capacity import Capacity, add, fits, needed, offered, slots, subtract
from flowdist.graph.codec import decode_graph, encode_graph
from flowdist.graph.model import (
    Cluster,
    Domain,
    FailureKind,
    Gate,
    JobOptions,
    NodeSpec,
    Readiness,
    Resources,
    RestartPolicy,
    RoleGraph,
    RoleSpec,
    Rule,
    WorkloadSpec,
)
from flowdist.graph.units import HOUR, MINUTE, MS, SECOND, format_duration, format_memory

__all__ = [
    "HOUR",
    "MINUTE",
    "MS",
    "SECOND",
    "Capacity",
    "Cluster",
    "Domain",
    "FailureKind",
    "Gate",
    "JobOptions",
    "NodeSpec",
    "Readiness",
    "Resources",
    "RestartPolicy",
    "RoleGraph",
    "RoleSpec",
    "Rule",
    "WorkloadSpec",
    "add",
    "decode_graph",
    "encode_graph",
    "fits",
    "format_duration",
    "format_memory",
    "needed",
    "offered",
    "slots",
    "subtract",
]
