"""Nodes of the job, as the topology declares them or as a host that joins describes itself."""

from __future__ import annotations

import re

import msgspec

from flowdist.graph.units import Count, Cpus, GpuCount, Number

Pairs = tuple[tuple[str, str], ...]

# Label by which a host sets its own number of workers per replica. Names of users' labels never have a `=` in them.
NODE_PROCS = "procs="
# Labels of a node that an engine has started: the name of the member that brings it, and its pool.
NODE_MEMBER, NODE_POOL = "member=", "pool="


class NodeSpec(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Name, labels and capacity of one node: cpu in cores, gpu as a number of GPUs, memory in bytes."""

    name: str
    cpu: Cpus = 8.0
    gpu: GpuCount = 0
    memory: Number = 32 << 30
    labels: Pairs = ()

    @property
    def procs(self) -> int:
        """Number of workers that each replica has on this node, if the host has set one (label NODE_PROCS); else 0."""
        if not self.labels:
            return 0
        text = dict(self.labels).get(NODE_PROCS, "")
        return int(text) if re.fullmatch("[0-9]{1,5}", text) else 0


class Cluster(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Nodes of the job, which starts when `min_nodes` of them have joined.

    `given` is false if the topology declares no nodes: `flowdist run` then uses this machine as one node.
    """

    nodes: tuple[NodeSpec, ...] = ()
    min_nodes: Count = 1
    given: bool = True
