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
from flowdist.graph import Cluster, NodeSpec, RoleGraph, format_memory
from flowdist.graph.capacity import wanted
from flowdist.runtime.gpus.driver import Gpu, GpuError, open_devices, visible_gpus

DRIVER = Path("/proc/driver/nvidia/gpus")
DEV = Path("/dev")
# Device files of GPUs that the driver lists nowhere, but torch may know: on WSL, a Jetson, in a container, or AMD's.
UNLISTED = ("nvidia0", "dxg", "nvhost-gpu", "nvgpu", "kfd")
TORCH_TIMEOUT_S = 60
NODE_BYTES = 25 << 20  # memory of a node's guardian, spawner and agent


def machine_cpus() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def machine_memory() -> int:
    """Return the memory of this machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def machine_gpus(env: Mapping[str, str], proc: Path = DRIVER, dev: Path = DEV) -> tuple[str, ...]:
    """Return the names of the GPUs that `find_gpus` finds, as CUDA_VISIBLE_DEVICES names them: numbers or UUIDs."""
    return tuple(gpu.name for gpu in find_gpus(env, proc, dev))


def find_gpus(env: Mapping[str, str], proc: Path = DRIVER, dev: Path = DEV) -> tuple[Gpu, ...]:
    """Return the GPUs of this machine that flowdist may use: those in CUDA_VISIBLE_DEVICES, or all if it is not set.

    NVML describes them. Without NVML only names are known: the entries of CUDA_VISIBLE_DEVICES, else one number for
    each GPU in the driver's folder `proc`. Without that folder, but with a GPU's device file in `dev`, torch counts.
    FlowdistError if CUDA_VISIBLE_DEVICES names a GPU twice.
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
    """Return how many devices torch counts, in a process of its own as that may initialise CUDA; 0 if it fails."""
    if importlib.util.find_spec("torch") is None:
        return 0
    command = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    try:
        counted = subprocess.run(command, env=dict(env), capture_output=True, timeout=TORCH_TIMEOUT_S, check=True)
        return int(counted.stdout.split()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0


def settle_cluster(graph: RoleGraph, gpus: Sequence[str], added: int = 0) -> tuple[RoleGraph, list[str]]:
    """Return the graph with the nodes that `flowdist run` makes of this machine, and warnings for the user.

    Without declared nodes it gets one, `node0`, with all GPUs, and with CPU and memory for all replicas even if the
    machine has less. More CPU than the machine has is a warning. FlowdistError if all nodes, with the `added` ones of
    the fault plan (like the first), have more GPUs than it, or it has no memory for so many.
    """
    wanted_cpu, wanted_memory = wanted(graph.roles)
    if not graph.cluster.given:
        cpu, memory = max(machine_cpus(), wanted_cpu), max(machine_memory(), wanted_memory)
        node = NodeSpec("node0", cpu=cpu, gpu=len(gpus), memory=memory)
        graph = msgspec.structs.replace(graph, cluster=Cluster((node,)))
    nodes = graph.cluster.nodes
    _check_memory(len(nodes) + added)
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


def _check_memory(nodes: int) -> None:
    """Raise FlowdistError if the processes of flowdist for so many nodes need more memory than this machine has."""
    if (needed := nodes * NODE_BYTES) > machine_memory():
        size, has = format_memory(needed >> 30 << 30), format_memory(machine_memory() >> 30 << 30)
        raise FlowdistError(
            f"{nodes:,} nodes on one machine need about {size} for flowdist's own processes, and it has {has}",
            help="simulate it (flowdist simulate), run it with fewer (--nodes 8), or let other hosts join (--listen)",
        )


def share_devices(nodes: Sequence[NodeSpec], gpus: Sequence[str]) -> list[tuple[str, ...]]:
    """Divide the GPUs among the nodes in order, `node.gpu` each; if there are too few, the last get fewer or none."""
    left = iter(gpus)
    return [tuple(itertools.islice(left, node.gpu)) for node in nodes]
