"""What this machine offers, and how logical nodes share it. Nothing here touches CUDA."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from flowdist.errors import FlowdistError
from flowdist.graph import Cluster, NodeSpec, RoleGraph


def machine_cpus() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def machine_memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def machine_gpus(env: Mapping[str, str], proc: Path = Path("/proc/driver/nvidia/gpus")) -> tuple[str, ...]:
    """The GPUs that may be used, as CUDA_VISIBLE_DEVICES names them: its own list, else one number per driver entry."""
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(part.strip() for part in visible.split(",") if part.strip() and part.strip() != "-1")
    return tuple(str(i) for i, _ in enumerate(sorted(proc.iterdir()))) if proc.is_dir() else ()


def settle_cluster(graph: RoleGraph, gpus: Sequence[str], added: int = 0) -> tuple[RoleGraph, list[str]]:
    """The graph with the nodes that `run` uses, and warnings about what this machine does not really have.

    CPU and memory may be promised more than once on one machine; GPUs never are. `added` nodes like the first one are
    to join later.

    Raises:
        FlowdistError: when the nodes ask for more GPUs than there are.
    """
    if not graph.cluster.given:
        wanted_cpu = sum(role.resources.cpu * role.max_replicas for role in graph.roles)
        wanted_memory = sum(role.resources.memory * role.max_replicas for role in graph.roles)
        cpu, memory = max(machine_cpus(), wanted_cpu), max(machine_memory(), wanted_memory)
        node = NodeSpec("node0", cpu=cpu, gpu=len(gpus), memory=memory)
        graph = msgspec.structs.replace(graph, cluster=Cluster((node,)))
    nodes = graph.cluster.nodes
    asked = sum(node.gpu for node in nodes) + added * nodes[0].gpu
    if asked > len(gpus):
        help = "run with fewer nodes (--nodes), or with Node(gpu=...) as this machine has them"
        raise FlowdistError(
            f"the nodes have {asked} gpu, this machine has {len(gpus)}: GPUs are never shared", help=help
        )
    warnings = []
    busy = sum(role.resources.cpu * role.max_replicas for role in graph.roles)
    if busy > machine_cpus():
        warnings.append(f"the replicas ask for {busy:g} cpu, this machine has {machine_cpus()}: they share them")
    return graph, warnings


def share_devices(nodes: Sequence[NodeSpec], gpus: Sequence[str]) -> list[tuple[str, ...]]:
    """The real GPUs of each node, none twice."""
    shares, taken = [], 0
    for node in nodes:
        shares.append(tuple(gpus[taken : taken + node.gpu]))
        taken += node.gpu
    return shares
