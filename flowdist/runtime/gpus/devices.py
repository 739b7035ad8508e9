"""The cores, memory and GPUs of this machine, and their shares for its logical nodes. No CUDA context is made."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from flowdist.errors import FlowdistError
from flowdist.graph import Cluster, NodeSpec, RoleGraph
from flowdist.runtime.gpus.driver import Gpu, GpuError, open_devices, visible_gpus

DRIVER = Path("/proc/driver/nvidia/gpus")
DEV = Path("/dev")
# Device files of GPUs that the driver lists nowhere, but torch may know: on WSL, a Jetson, in a container, or AMD's.
UNLISTED = ("nvidia0", "dxg", "nvhost-gpu", "nvgpu", "kfd")
TORCH_TIMEOUT_S = 60


def machine_cpus() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def machine_memory() -> int:
    """Return the memory of this machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def machine_gpus(env: Mapping[str, str], proc: Path = DRIVER, dev: Path = DEV) -> tuple[str, ...]:
    """Return the names of the GPUs that may be used, as CUDA_VISIBLE_DEVICES names them: see `find_gpus`."""
    return tuple(gpu.name for gpu in find_gpus(env, proc, dev))


def find_gpus(env: Mapping[str, str], proc: Path = DRIVER, dev: Path = DEV) -> tuple[Gpu, ...]:
    """Return the GPUs that may be used: from NVML, else by number from the driver's folder, else by number from torch.

    Args:
        env: The variables in which CUDA_VISIBLE_DEVICES is looked up.
        proc: The driver's folder, which has an entry for each GPU.
        dev: The folder of device files.

    Raises:
        FlowdistError: if CUDA_VISIBLE_DEVICES names a GPU twice.
    """
    devices = open_devices(env)
    found: tuple[Gpu, ...] = ()
    if devices is not None:
        with contextlib.suppress(GpuError):
            found = devices.gpus()
        devices.close()
    if found or "CUDA_VISIBLE_DEVICES" in env:
        return visible_gpus(found, env)
    if devices is not None:
        return ()
    if proc.is_dir():
        return tuple(Gpu(str(i)) for i, _ in enumerate(sorted(proc.iterdir())))
    if any((dev / name).exists() for name in UNLISTED):
        return tuple(Gpu(str(i)) for i in range(_counted_by_torch(env)))
    return ()


def _counted_by_torch(env: Mapping[str, str]) -> int:
    """Return how many devices torch counts, in a process of its own: counting may initialise CUDA."""
    if importlib.util.find_spec("torch") is None:
        return 0
    command = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    try:
        counted = subprocess.run(command, env=dict(env), capture_output=True, timeout=TORCH_TIMEOUT_S, check=True)
        return int(counted.stdout.split()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0


def settle_cluster(graph: RoleGraph, gpus: Sequence[str], added: int = 0) -> tuple[RoleGraph, list[str]]:
    """Return the graph with the nodes that `run` uses, and warnings about what this machine has not enough of.

    Nodes on one machine may together have more CPU and memory than the machine; they never have more GPUs.

    Args:
        gpus: The GPUs of this machine.
        added: How many nodes like the first one are to join later.

    Raises:
        FlowdistError: if the nodes have more GPUs than this machine.
    """
    wanted_cpu = sum(role.resources.cpu * role.max_replicas for role in graph.roles)
    if not graph.cluster.given:
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
    if wanted_cpu > machine_cpus():
        warnings.append(f"the replicas ask for {wanted_cpu:g} cpu, this machine has {machine_cpus()}: they share them")
    return graph, warnings


def share_devices(nodes: Sequence[NodeSpec], gpus: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the real GPUs of each node; no GPU is in two nodes."""
    left = iter(gpus)
    return [tuple(itertools.islice(left, node.gpu)) for node in nodes]
