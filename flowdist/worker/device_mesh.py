"""Parallel dimensions in a worker: torch's DeviceMesh over the world, and an all-to-all along one dimension.

    from flowdist import worker
    from flowdist.worker.device_mesh import all_to_all

    mesh = worker.mesh()                                   # of parallel={"dp": "elastic", "ep": 4}
    routed = all_to_all(tokens, mesh, "ep", input_splits=counts)

It needs torch. A mesh belongs to a generation: after a re-formation in place `worker.mesh()` makes a new one.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from flowdist.graph.mesh import mesh_of
from flowdist.worker.process_groups import end_at_exit, meshes

Key = tuple[str, str, tuple[tuple[str, str], ...]]
_made: dict[Key, DeviceMesh] = meshes  # of the present generation


def mesh(parallel: Mapping[str, int | str] | None = None, *, backends: Mapping[str, str] | None = None) -> DeviceMesh:
    """The world's ranks by the dimensions that the role declares with `parallel=`.

    The process group is initialised if nobody has done it: with NCCL when each worker has a GPU of its own, else with
    gloo. Asking again in one generation gives the same mesh.

    Args:
        parallel: Dimensions where the role declares none, as under torchrun: `{"dp": "elastic", "tp": 2}`.
        backends: Of single dimensions: `{"pp": "gloo"}`. The others take that of the world.

    Returns:
        A mesh of the sizes that this generation has; `mesh["tp"]` is one dimension of it.

    Raises:
        RuntimeError: without dimensions, when the world is of a size that forms no mesh, or when this torch cannot have
            a backend for a dimension.
    """
    generation = os.environ.get("FLOWDIST_GENERATION", "")
    dimensions = _dimensions(parallel)
    wanted = tuple((backends or {}).items())
    key = (generation, repr(dimensions), wanted)
    if key not in _made or not dist.is_initialized():
        for old in [old for old in _made if old[0] != generation or not dist.is_initialized()]:
            del _made[old]
        _made[key] = _make(dimensions, dict(wanted))
    return _made[key]


def _dimensions(parallel: Mapping[str, int | str] | None) -> tuple[tuple[str, int], ...]:
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
        torch.cuda.set_device(_local_device())
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
    """Whether each worker of this replica has a GPU to itself: NCCL refuses two ranks on one."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if not torch.cuda.is_available() or "FLOWDIST_GPU_FRACTION" in os.environ:
        return False
    seen = os.environ.get("FLOWDIST_VISIBLE_DEVICES")  # with virtual local ranks each worker sees one of these
    return (seen.count(",") + 1 if seen else torch.cuda.device_count()) >= here


def backend() -> str:
    """The backend for a process group of all workers: NCCL when each has a GPU of its own, else gloo."""
    return "nccl" if has_own_gpu() and dist.is_nccl_available() else "gloo"


def _local_device() -> int:
    count: int = torch.cuda.device_count()
    return int(os.environ.get("LOCAL_RANK", "0")) % count


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
    """Send a piece to each rank of a mesh dimension and receive one of each; gradients go the way back.

    With `scatter` and `gather` alone the tensor is cut into equal pieces along one of its dimensions, and what is
    received is joined along another: from (sequence/n, heads) to (sequence, heads/n), as sequence parallelism needs it
    (Jacobs et al., DeepSpeed Ulysses, 2023). With splits pieces of any size are cut from dimension 0, as for experts.

    Args:
        tensor: The same shape on all ranks, but for dimension 0 where splits are given.
        mesh: See `mesh()`.
        dim: The name of the mesh dimension.
        scatter, gather: Dimensions of the tensor: what is cut, and what is joined.
        input_splits: Rows for each rank of the dimension; their sum is the size of dimension 0.
        output_splits: Rows from each rank; where it is not given the ranks tell each other.

    Raises:
        ValueError: when the tensor cannot be cut in this way.
    """
    group = mesh.get_group(dim)
    count = dist.get_world_size(group)
    if input_splits is None and output_splits is None:
        size = tensor.shape[scatter]
        if size % count:
            raise ValueError(f"{size} along dimension {scatter} cannot be cut into {count} equal pieces")
        equal: torch.Tensor = _Equal.apply(tensor, group, count, scatter, gather)
        return equal
    if scatter or gather:
        raise ValueError("splits go with dimension 0: leave scatter= and gather= out")
    if input_splits is None or len(input_splits) != count or sum(input_splits) != tensor.shape[0]:
        raise ValueError(f"input_splits={input_splits} are not {count} numbers with the sum {tensor.shape[0]}")
    given = list(output_splits) if output_splits is not None else _tell_splits(input_splits, group, tensor.device)
    uneven: torch.Tensor = _Uneven.apply(tensor, group, list(input_splits), given)
    return uneven


def _tell_splits(splits: Sequence[int], group: Any, device: torch.device) -> list[int]:
    mine = torch.tensor(list(splits), dtype=torch.int64, device=device)
    theirs = torch.empty_like(mine)
    dist.all_to_all_single(theirs, mine, group=group)
    return [int(rows) for rows in theirs]


def _exchange_equal(tensor: torch.Tensor, group: Any, count: int, scatter: int, gather: int) -> torch.Tensor:
    pieces = torch.stack(tensor.chunk(count, dim=scatter)).contiguous()
    received = torch.empty_like(pieces)
    dist.all_to_all_single(received, pieces, group=group)
    return torch.cat(tuple(received), dim=gather)


class _Equal(torch.autograd.Function):  # type: ignore[misc]
    """Equal pieces: the gradient is exchanged with cut and join the other way round."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any, count: int, scatter: int, gather: int) -> torch.Tensor:
        ctx.how = (group, count, gather, scatter)
        return _exchange_equal(tensor, group, count, scatter, gather)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _exchange_equal(gradients[0], *ctx.how), None, None, None, None


def _exchange_rows(tensor: torch.Tensor, group: Any, sent: list[int], received: list[int]) -> torch.Tensor:
    result = tensor.new_empty((sum(received), *tensor.shape[1:]))
    dist.all_to_all_single(result, tensor.contiguous(), received, sent, group=group)
    return result


class _Uneven(torch.autograd.Function):  # type: ignore[misc]
    """Rows in any number: the gradient goes back in the numbers in which they came."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any, sent: list[int], received: list[int]) -> torch.Tensor:
        ctx.how = (group, received, sent)
        return _exchange_rows(tensor, group, sent, received)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _exchange_rows(gradients[0], *ctx.how), None, None, None
