"""The role graph: frozen values that describe a job. The DSL makes them, and every other part of flowdist reads them.

The package also has the arithmetic on them that several packages need. It imports nothing else of flowdist.
"""

from flowdist.graph.capacity import WHOLE
from flowdist.graph.codec import decode_graph, encode_graph
from flowdist.graph.policies import FailureKind, RestartPolicy, Rule
from flowdist.graph.role_graph import (
    NODE_MEMBER,
    NODE_POOL,
    NODE_PROCS,
    Cluster,
    Domain,
    Gate,
    JobOptions,
    JointWorld,
    NodeSpec,
    Placement,
    Readiness,
    Resources,
    RoleGraph,
    RoleSpec,
    SecretRef,
    SnapshotSpec,
    VersionEdge,
    WorkloadSpec,
)
from flowdist.graph.units import (
    HOUR,
    MINUTE,
    MS,
    SECOND,
    NoUnitError,
    duration_help,
    format_duration,
    format_memory,
    parse_duration,
    parse_memory,
)

__all__ = [
    "HOUR",
    "MINUTE",
    "MS",
    "NODE_MEMBER",
    "NODE_POOL",
    "NODE_PROCS",
    "SECOND",
    "WHOLE",
    "Cluster",
    "Domain",
    "FailureKind",
    "Gate",
    "JobOptions",
    "JointWorld",
    "NoUnitError",
    "NodeSpec",
    "Placement",
    "Readiness",
    "Resources",
    "RestartPolicy",
    "RoleGraph",
    "RoleSpec",
    "Rule",
    "SecretRef",
    "SnapshotSpec",
    "VersionEdge",
    "WorkloadSpec",
    "decode_graph",
    "duration_help",
    "encode_graph",
    "format_duration",
    "format_memory",
    "parse_duration",
    "parse_memory",
]  # fmt: skip
