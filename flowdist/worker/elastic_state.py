"""What survives a re-formation in memory: values of a training loop, as they were committed last.

Values with `state_dict()` and `load_state_dict()`, such as modules, optimizers and schedulers, are kept by these; all
others are copied. Torch is imported only where there is a process group to speak over.
"""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

BUCKET_BYTES = 64 << 20  # tensors of one type travel together, up to so much
SMALL_BYTES = 1 << 10  # a tensor of no more travels with what is no tensor
SHARDED = ("DTensor", "ShardedTensor", "FullyShardedDataParallel", "ZeroRedundancyOptimizer")
SHARDS = ("_is_flat_param", "_fsdp_flattened")  # what FSDP calls parameters of which this rank has a part


class ElasticState(SimpleNamespace):
    """Named values that all workers of a world hold alike: `ElasticState(model=model, optimizer=optimizer, step=0)`.

    Each is an attribute of the state. They have to be the same on every rank after each commit: what is sharded over
    the ranks is not kept here.

    Raises:
        ValueError: for a name that begins with an underscore, or is that of a method.
        TypeError: for what is sharded over the ranks, as far as its type tells, here and at each commit.
    """

    def __init__(self, **values: Any) -> None:
        for name in values:
            if name.startswith("_") or hasattr(ElasticState, name):
                raise ValueError(f"ElasticState cannot hold a value of the name {name!r}: choose another")
        super().__init__(**values)
        self._commits = 0  # how many there were, on whatever rank: it travels with the state
        self._kept = {name: _snapshot(name, value) for name, value in values.items()}
        self._on_commit: Callable[[], None] | None = None

    def commit(self) -> None:
        """Keep the values as they are now: this is where training goes on from after a re-formation.

        It copies all tensors in memory, on the device where they are. Call it on every rank after the same steps; the
        work since the last commit is what a re-formation costs. Inside `elastic()`, while a re-formation is under way,
        it does not return: training begins again with the values that it has just kept.

        Raises:
            TypeError: for what is sharded over the ranks.
        """
        self._kept = {name: _snapshot(name, value) for name, value in self._values().items()}
        self._commits += 1
        if self._on_commit is not None:
            self._on_commit()

    def restore(self) -> None:
        """Take the values of the last commit, or those that the state was made with."""
        for name, kept in self._kept.items():
            value = getattr(self, name, None)
            if _has_state_dict(value):
                value.load_state_dict(_copied(kept))  # type: ignore[union-attr]
            else:
                setattr(self, name, _copied(kept))

    def sync(self) -> None:
        """Have every rank take the values of the one with most commits; of several, the lowest.

        Nothing travels where all have the same number of commits, and at least one. Every rank has to call it.
        """
        dist = sys.modules.get("torch.distributed")
        if dist is None or not dist.is_initialized() or dist.get_world_size() == 1:
            return
        tensors: list[torch.Tensor] = []
        packed = pickle.dumps((self._commits, _without_tensors(self._kept, tensors)))
        found = _gathered(self._commits, len(packed))
        commits = [have for have, _ in found]
        if min(commits) == max(commits) > 0:
            return
        source = commits.index(max(commits))
        self._commits, kept = pickle.loads(_broadcast_bytes(packed, found[source][1], source))
        sent = _broadcast_tensors(list(_places(kept)), tensors, source)
        if dist.get_rank() != source:
            self._kept = _with_tensors(kept, sent)
            self.restore()

    def _values(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


def _has_state_dict(value: object) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _snapshot(name: str, value: Any) -> Any:
    _refuse_shards(name, _parts(name, value))  # first: the state_dict() of what is sharded may be a collective
    found = value.state_dict() if _has_state_dict(value) else value
    _refuse_shards(name, _leaves(name, found))
    return _copied(found)


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The value, and of a module or an optimizer what it consists of, each with its name."""
    yield name, value
    if not _has_state_dict(value) or "torch" not in sys.modules:
        return
    for what in ("modules", "parameters"):
        if callable(named := getattr(value, f"named_{what}", None)):
            yield from ((f"{name}.{path}" if path else name, part) for path, part in named())
    groups = getattr(value, "param_groups", None)
    for group in groups if isinstance(groups, list) else ():
        yield from ((f"a parameter of {name}", parameter) for parameter in group["params"])


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What stands in dicts, lists and tuples, each with where it does."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{name}[{key!r}]", item)
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            yield from _leaves(f"{name}[{index}]", item)
    else:
        yield name, value


def _refuse_shards(name: str, parts: Iterator[tuple[str, Any]]) -> None:
    """A re-formation would lose the shards of who is gone, and give a newcomer that of another rank."""
    for where, part in parts:
        kinds = [kind.__name__ for kind in type(part).__mro__ if kind.__module__.partition(".")[0] == "torch"]
        kind = next((kind for kind in kinds if kind in SHARDED), "")
        if not kind and any(getattr(part, mark, False) is True for mark in SHARDS):
            kind = "part of a parameter that FSDP has split"
        if kind:
            raise TypeError(
                f"ElasticState({name}=...) cannot hold {where}, a {kind}: its shards are on all ranks, "
                "and those of a rank that is lost would be lost with it. Train without elastic(), so that the workers "
                "restart: save with torch.distributed.checkpoint, publish by worker.commit(), and load what "
                "worker.latest() says"
            )


def _copied(value: Any) -> Any:
    """A copy that shares nothing that training changes; tensors stay on their device."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict) or type(value) in (list, tuple):
        return _mapped(value, _copied)
    return copy.deepcopy(value)


class _Place:
    """Stands for the tensor of that number while the rest is pickled."""

    def __init__(self, number: int, tensor: torch.Tensor) -> None:
        self.number, self.shape, self.dtype, self.is_cpu = (
            number,
            tensor.shape,
            tensor.dtype,
            tensor.device.type == "cpu",
        )


def _transport() -> torch.device:
    """Where tensors have to be for the process group to carry them."""
    import torch
    import torch.distributed as dist

    by_cpu = any(name in str(dist.get_backend_config()) for name in ("gloo", "mpi", "cpu"))
    return torch.device("cpu" if by_cpu else "cuda")


def _gathered(*numbers: int) -> list[list[int]]:
    """What each rank has given, by rank."""
    import torch
    import torch.distributed as dist

    found = torch.zeros(dist.get_world_size(), len(numbers), dtype=torch.int64)
    found[dist.get_rank()] = torch.tensor(numbers)
    found = found.to(_transport())
    dist.all_reduce(found)
    rows: list[list[int]] = found.tolist()
    return rows


def _broadcast_bytes(data: bytes, size: int, source: int) -> bytes:
    """What the source has, on every rank."""
    import torch
    import torch.distributed as dist

    buffer = bytearray(data if dist.get_rank() == source else size)
    ours = torch.frombuffer(buffer, dtype=torch.uint8)
    flat = ours.to(_transport())
    dist.broadcast(flat, src=source)
    ours.copy_(flat)
    return bytes(buffer)


def _broadcast_tensors(places: list[_Place], tensors: list[torch.Tensor], source: int) -> dict[int, torch.Tensor]:
    """The tensors of the source by their numbers, many at a time."""
    import torch
    import torch.distributed as dist

    device, is_source = _transport(), dist.get_rank() == source
    found: dict[int, torch.Tensor] = {}
    for bucket in _buckets(places):
        sizes = [place.shape.numel() for place in bucket]
        if is_source:
            flat = torch.cat([tensors[place.number].reshape(-1).to(device) for place in bucket])
        else:
            flat = torch.empty(sum(sizes), dtype=bucket[0].dtype, device=device)
        dist.broadcast(flat, src=source)
        for place, part in zip(bucket, flat.split(sizes), strict=True):
            home = "cpu" if place.is_cpu else "cuda"
            found[place.number] = part.clone().to(home).reshape(place.shape)
    return found


def _buckets(places: list[_Place]) -> list[list[_Place]]:
    by_type: dict[torch.dtype, list[_Place]] = {}
    for place in places:
        by_type.setdefault(place.dtype, []).append(place)
    buckets: list[list[_Place]] = []
    for dtype, same in by_type.items():
        size = BUCKET_BYTES + 1
        for place in same:
            size += place.shape.numel() * dtype.itemsize
            if size > BUCKET_BYTES:
                buckets.append([])
                size = place.shape.numel() * dtype.itemsize
            buckets[-1].append(place)
    return buckets


def _without_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The value with a place for each tensor that travels by itself; small ones on the CPU travel with the rest."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.device.type == "cpu" and value.numel() * value.element_size() <= SMALL_BYTES:
            return value
        tensors.append(value)
        return _Place(len(tensors) - 1, value)
    return _mapped(value, lambda item: _without_tensors(item, tensors))


def _places(value: Any) -> Iterator[_Place]:
    if isinstance(value, _Place):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _places(item)
    elif type(value) in (list, tuple):
        for item in value:
            yield from _places(item)


def _with_tensors(value: Any, tensors: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, _Place):
        return tensors[value.number]
    return _mapped(value, lambda item: _with_tensors(item, tensors))


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A dict, list or tuple of the same kind with its items changed; anything else as it is."""
    if isinstance(value, dict):
        changed = copy.copy(value)  # with what else it holds: the state of a module has its versions
        for name, item in value.items():
            changed[name] = change(item)
        return changed
    if type(value) in (list, tuple):
        return type(value)(change(item) for item in value)
    return value
