"""Parallel dimensions: torch's DeviceMesh over the ranks of the world, and an all-to-all along one dimension.

    from flowdist import worker
    from flowdist.worker.device_mesh import all_to_all

    mesh = worker.mesh()                                   # of parallel={"dp": "elastic", "ep": 4}
    routed = all_to_all(tokens, mesh, "ep", input_splits=counts)

It needs torch. A mesh belongs to one generation: after a re-formation in place `worker.mesh()` makes a new one.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from flowdist.graph.sizes import mesh_of
from flowdist.worker.process_groups import end_at_exit, meshes


def mesh(parallel: Mapping[str, int | str] | None = None, *, backends: Mapping[str, str] | None = None) -> DeviceMesh:
    """Return the mesh of the world's ranks: see `flowdist.worker.mesh`."""
    generation = os.environ.get("FLOWDIST_GENERATION", "")
    dimensions = _dimensions(parallel)
    wanted = tuple((backends or {}).items())
    key = (generation, repr(dimensions), wanted)
    if key not in meshes or not dist.is_initialized():
        for old in [old for old in meshes if old[0] != generation or not dist.is_initialized()]:
            del meshes[old]
        meshes[key] = _make(dimensions, dict(wanted))
    return meshes[key]


def _dimensions(parallel: Mapping[str, int | str] | None) -> tuple[tuple[str, int], ...]:
    """Return the names and sizes of the mesh's dimensions in this generation: from the role, else from `parallel`."""
    declared = os.environ.get("FLOWDIST_MESH")
    if declared is not None:
        pairs = (item.partition("=") for item in declared.split(","))
        return tuple((name, int(size)) for name, _, size in pairs)
    if not parallel:
        help = 'declare parallel={"dp": "elastic", "tp": 2} on the role, or pass it here'
        raise RuntimeError(f"mesh() needs dimensions: {help}")
    sizes = tuple((name, 0 if size == "elastic" else int(size)) for name, size in parallel.items())
    try:
        return mesh_of(sizes, int(os.environ.get("WORLD_SIZE", "1")))
    except ValueError as error:
        raise RuntimeError(str(error)) from None


def _make(dimensions: tuple[tuple[str, int], ...], backends: dict[str, str]) -> DeviceMesh:
    names = tuple(name for name, _ in dimensions)
    sizes = tuple(size for _, size in dimensions)
    if unknown := [name for name in backends if name not in names]:
        raise RuntimeError(f"backends: there is no dimension {unknown[0]!r}; there are {', '.join(names)}")
    own_gpu = has_own_gpu()
    if own_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if not dist.is_initialized():
        dist.init_process_group("nccl" if own_gpu else "gloo")
        end_at_exit()
    more: dict[str, Any] = {}
    if backends:
        if "backend_override" not in inspect.signature(init_device_mesh).parameters:
            raise RuntimeError(f"torch {torch.__version__} has no backend for one dimension: leave backends= out")
        more["backend_override"] = backends
    return init_device_mesh("cuda" if own_gpu else "cpu", sizes, mesh_dim_names=names, **more)


def has_own_gpu() -> bool:
    """Return whether each worker of this replica has a GPU to itself. If not, NCCL refuses: two ranks share a GPU."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if not torch.cuda.is_available() or "FLOWDIST_GPU_FRACTION" in os.environ:
        return False
    seen = os.environ.get("FLOWDIST_VISIBLE_DEVICES")  # with virtual local ranks each worker sees only one of these
    return (seen.count(",") + 1 if seen else torch.cuda.device_count()) >= here


def backend() -> str:
    """Return the backend for a process group of all workers: "nccl" if each has a GPU to itself, else "gloo"."""
    return "nccl" if has_own_gpu() and dist.is_nccl_available() else "gloo"


def all_to_all(
    tensor: torch.Tensor,
    mesh: DeviceMesh,
    dim: str,
    *,
    scatter: int = 0,
    gather: int = 0,
    input_splits: Sequence[int] | None = None,
    output_splits: Sequence[int] | None = None,
) -> torch.Tensor:
    """Send a piece of a tensor to each rank of a mesh dimension, and receive one from each. It is differentiable.

    Without splits the tensor is cut into n equal pieces along `scatter`, and the received pieces are joined along
    `gather`: from (sequence/n, heads) to (sequence, heads/n), as sequence parallelism needs it (Jacobs et al.,
    DeepSpeed Ulysses, 2023). With splits, pieces of any size are cut from dimension 0, as for experts.

    Args:
        tensor: The tensor of this rank. The shape is the same on all ranks; with splits, in all dimensions but 0.
        mesh: See `mesh()`.
        dim: The name of the mesh dimension, of n ranks.
        scatter: The dimension of the tensor that is cut.
        gather: The dimension of the tensor along which the pieces are joined.
        input_splits: How many rows each rank gets; their sum is the size of dimension 0.
        output_splits: How many rows come from each rank; None: the ranks first exchange these numbers.

    Returns:
        The joined pieces, in the order of the ranks.

    Raises:
        ValueError: if the tensor cannot be cut in this way.
    """
    group = mesh.get_group(dim)
    count = dist.get_world_size(group)
    if input_splits is None and output_splits is None:
        size = tensor.shape[scatter]
        if size % count:
            raise ValueError(f"{size} along dimension {scatter} cannot be cut into {count} equal pieces")
        pieces = torch.stack(tensor.chunk(count, dim=scatter))
        return torch.cat(tuple(_Exchange.apply(pieces, group, [1] * count, [1] * count)), dim=gather)
    if scatter or gather:
        raise ValueError("splits go with dimension 0: leave scatter= and gather= out")
    if input_splits is None or len(input_splits) != count or sum(input_splits) != tensor.shape[0]:
        raise ValueError(f"input_splits={input_splits} are not {count} numbers with the sum {tensor.shape[0]}")
    given = list(output_splits) if output_splits is not None else _exchange_splits(input_splits, group, tensor.device)
    uneven: torch.Tensor = _Exchange.apply(tensor, group, list(input_splits), given)
    return uneven


def _exchange_splits(splits: Sequence[int], group: Any, device: torch.device) -> list[int]:
    mine = torch.tensor(list(splits), dtype=torch.int64, device=device)
    theirs = torch.empty_like(mine)
    dist.all_to_all_single(theirs, mine, group=group)
    return [int(rows) for rows in theirs]


class _Exchange(torch.autograd.Function):  # type: ignore[misc]
    """All-to-all of rows, `sent` to and `received` from each rank. The gradient of a row goes back to its sender."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any, sent: list[int], received: list[int]) -> torch.Tensor:
        ctx.how = (group, received, sent)
        return _exchange_rows(tensor, group, sent, received)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _exchange_rows(gradients[0], *ctx.how), None, None, None


def _exchange_rows(tensor: torch.Tensor, group: Any, sent: list[int], received: list[int]) -> torch.Tensor:
    result = tensor.new_empty((sum(received), *tensor.shape[1:]))
    dist.all_to_all_single(result, tensor.contiguous(), received, sent, group=group)
    return result
