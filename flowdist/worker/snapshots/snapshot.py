"""The state of training in memory: each worker hands its part to the vault of its node, and gets it back from there.

A shard begins with the length of its head. The head is the pickled state with a stand-in for each tensor, and the bytes
of the tensors come behind it. It is padded, so that the shards of all steps have one size and the vault can use memory
again. Reading copies the tensors: a mapping would keep the memory of the shard from being freed, where no limit counts
it. Torch is imported only for a state that has tensors.
"""

from __future__ import annotations

import mmap
import pickle
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from flowdist.worker.agent_link import info
from flowdist.worker.leaves import Placeholder, mapped
from flowdist.worker.save_timer import save_timer
from flowdist.worker.snapshots.vault_link import NoCopy, Snapshot, getting, has_vault, is_due, named_snapshot, putting

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

LENGTH_BYTES = 8
HEAD_BYTES = 64 << 10  # the head has a multiple of this
ALIGNMENT = 64


class LocalPart:
    """The part of a sharded tensor that one rank had, where it was read without a mesh.

    `tensors` are the local tensors: one of a DTensor, any number of a ShardedTensor. `places` says where they lie in
    the whole: a DTensor's placements, or the offsets and sizes of a ShardedTensor's local shards. `shape` and `stride`
    are those of the whole tensor. `mesh_shape` and `mesh_names` are the sizes and names of the mesh's dimensions;
    `mesh_shape` is empty and `mesh_names` None for a ShardedTensor.
    """

    def __init__(
        self,
        tensors: list[Any],
        places: tuple[Any, ...],
        shape: tuple[int, ...],
        stride: tuple[int, ...] = (),
        mesh_shape: tuple[int, ...] = (),
        mesh_names: tuple[str, ...] | None = None,
    ) -> None:
        self.tensors, self.places, self.shape, self.stride = tensors, places, shape, stride
        self.mesh_shape, self.mesh_names = mesh_shape, mesh_names

    def on(self, mesh: DeviceMesh) -> Any:
        """Return the DTensor on a mesh; ValueError if the mesh has another shape than the one that it was cut for."""
        from torch.distributed.tensor import DTensor  # heavy

        if self.mesh_names and self.mesh_names != mesh.mesh_dim_names:
            mesh = mesh[self.mesh_names]
        if tuple(mesh.shape) != self.mesh_shape:
            raise ValueError(
                f"the snapshot has a tensor of shape {self.shape} that was cut for a mesh of shape {self.mesh_shape}, "
                f"and this mesh has {tuple(mesh.shape)}: load it with torch.distributed.checkpoint and memory_reader()"
            )
        (local,) = self.tensors
        return DTensor.from_local(local, mesh, self.places, run_check=False, shape=self.shape, stride=self.stride)


class _Teller:
    """Says on stderr why snapshots are not taken: once, as training goes on without them."""

    def __init__(self) -> None:
        self._has_said = False

    def say(self, step: int, why: object) -> None:
        if not self._has_said:
            self._has_said = True
            rest = "training goes on, and later ones that are not taken are not named"
            print(f"flowdist: the snapshot of step {step} was not taken: {why}; {rest}", file=sys.stderr, flush=True)


_teller = _Teller()


def snapshot(step: int, state: Any) -> bool:
    """Hand this worker's part of the state of a step to the vault of its node.

    Every rank calls it, after the same steps. It takes as long as the copy: the vault checks it, and sends it to other
    nodes, while training goes on. If there is no room, it says why on stderr, once. The memory of the vault survives
    this worker, and copies on other nodes survive the node: see docs/worker.md.

    Args:
        step: How many steps are done, as for `progress`.
        state: Nested dicts, lists and tuples with tensors, such as state_dicts, and other values that can be pickled.
            Of DTensors and ShardedTensors this rank's part is kept.

    Returns:
        Whether the vault has the state. False without flowdist, where the role has no `snapshots=`, and at a step that
        is no multiple of its `every`: nothing is copied then.

    Raises:
        pickle.PicklingError, TypeError, AttributeError: if a value of the state cannot be pickled.
    """
    if not has_vault() or not is_due(step):
        return False
    with save_timer.block("saving"):
        return write(step, state)


def write(step: int, state: Any) -> bool:
    """Hand a state to the vault, as `snapshot` does, where it is known that there is one."""
    tensors: list[torch.Tensor] = []
    parted = _parted(state, tensors)
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    head = pickle.dumps((parted, sizes), protocol=pickle.HIGHEST_PROTOCOL)
    starts, size = _layout(len(head), sizes)
    try:
        with putting(step, size) as memory:
            memory[: LENGTH_BYTES + len(head)] = len(head).to_bytes(LENGTH_BYTES, "little") + head
            for tensor, start in zip(tensors, starts, strict=True):
                if tensor.numel():
                    _view(memory, start, tensor.shape, tensor.dtype).copy_(tensor.detach())
    except (NoCopy, OSError) as error:
        _teller.say(step, error)
        return False
    return True


def restore(*, rank: int | None = None, mesh: DeviceMesh | None = None) -> tuple[int, Any] | None:
    """Return the step and the state of the snapshot from which this generation goes on; None if there is none.

    The state is what `snapshot` got, with tensors on their kind of device, from the memory of this node or of another.
    None means that training goes on from a checkpoint, or begins: ask `latest()`.

    Args:
        rank: The rank whose part is wanted. None: this worker's own, in a world of the same size.
        mesh: Where DTensors are made again: the mesh that they had, with its size, or one that has it as a part.
            Without it they are `LocalPart` values. ShardedTensors always are.

    Raises:
        RuntimeError: if nobody has a good copy any more, or this world has another size and no `rank` is named.
        ValueError: if the mesh does not fit.
        OSError: if the vault is gone, or the folder of the run.
    """
    found = named_snapshot()
    if found is None:
        return None
    if rank is None:
        rank, world_size = info().rank, info().world_size
        if world_size != found.world_size:
            raise RuntimeError(
                f"the snapshot is of a world of {found.world_size}, and this one has {world_size}: name a rank=, or "
                "load it with torch.distributed.checkpoint and memory_reader()"
            )
    with save_timer.block("restoring"):
        return found.step, read(found, rank, mesh)


def read(found: Snapshot, rank: int, mesh: DeviceMesh | None = None) -> Any:
    """Return the state of one rank in a snapshot, as `restore` does."""
    with getting(found, rank) as memory:
        length = int.from_bytes(memory[:LENGTH_BYTES], "little")
        # Plain pickle: the state is the user's own, and may hold any class, as for torch.load(weights_only=False).
        parted, sizes = pickle.loads(memory[LENGTH_BYTES : LENGTH_BYTES + length])
        starts, _ = _layout(length, sizes)

        def tensor_of(place: Placeholder) -> torch.Tensor:
            if not place.shape.numel():
                return _empty(place)
            view = _view(memory, starts[place.number], place.shape, place.dtype)
            return view.clone() if place.is_cpu else view.to("cuda")

        return _joined(parted, tensor_of, mesh)


def _layout(head_bytes: int, sizes: Iterable[int]) -> tuple[list[int], int]:
    """Return where the bytes of each tensor begin, and the size of the shard."""
    end, starts = _up(LENGTH_BYTES + head_bytes, HEAD_BYTES), []
    for size in sizes:
        starts.append(end)
        end = _up(end + size, ALIGNMENT)
    return starts, end


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _view(memory: mmap.mmap, start: int, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Return the memory of a tensor, which is not empty, as a tensor. It has to be gone before the mapping ends."""
    import torch  # heavy: workers without snapshots import this module, too

    size = shape.numel() * dtype.itemsize
    return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=start).view(dtype).reshape(shape)


def _empty(place: Placeholder) -> torch.Tensor:
    import torch  # heavy: as in `_view`

    return torch.empty(place.shape, dtype=place.dtype, device="cpu" if place.is_cpu else "cuda")


def _parted(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return the value with placeholders for its tensors, which are added to `tensors`.

    Sharded tensors become local parts. One of another class or layout stays, and is pickled.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return mapped(value, lambda item: _parted(item, tensors))
    kinds = {kind.__name__ for kind in type(value).__mro__ if kind.__module__.partition(".")[0] == "torch"}
    tensor: Any = value
    if "DTensor" in kinds:
        mesh, locals_ = tensor.device_mesh, [_parted(tensor.detach().to_local(), tensors)]
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        return LocalPart(locals_, tensor.placements, shape, stride, tuple(mesh.shape), mesh.mesh_dim_names)
    if "ShardedTensor" in kinds:
        shards = tensor.local_shards()
        places = tuple((tuple(each.metadata.shard_offsets), tuple(each.metadata.shard_sizes)) for each in shards)
        return LocalPart([_parted(each.tensor, tensors) for each in shards], places, tuple(tensor.metadata().size))
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided or value.is_quantized:
        return value
    tensors.append(value)
    return Placeholder(len(tensors) - 1, value)


def _joined(value: Any, tensor_of: Callable[[Placeholder], torch.Tensor], mesh: DeviceMesh | None) -> Any:
    """Return the value with its tensors in place again, sharded ones on the mesh if there is one."""
    if isinstance(value, Placeholder):
        return tensor_of(value)
    if isinstance(value, LocalPart):
        value.tensors = [_joined(each, tensor_of, mesh) for each in value.tensors]
        return value.on(mesh) if mesh is not None and value.mesh_shape else value
    return mapped(value, lambda item: _joined(item, tensor_of, mesh))
