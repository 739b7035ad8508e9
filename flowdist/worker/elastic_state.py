"""The state of a training loop that survives a re-formation in memory: its values as of their last commit.

Values with `state_dict()` and `load_state_dict()`, such as modules, optimizers and schedulers, are saved and restored
by these methods; all others are copied. Torch is imported only if there is a process group.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from flowdist.worker.leaves import Placeholder, leaves, mapped, with_tensors, without_tensors
from flowdist.worker.save_timer import save_timer

if TYPE_CHECKING:
    import torch

BUCKET_BYTES = 64 << 20  # tensors of one type are broadcast together, up to this size
SHARDED = ("DTensor", "ShardedTensor", "FullyShardedDataParallel", "ZeroRedundancyOptimizer")
SHARDS = ("_is_flat_param", "_fsdp_flattened")  # attributes by which FSDP marks sharded parameters


class ElasticState(SimpleNamespace):
    """Named values that are equal on all ranks of a world: `ElasticState(model=model, optimizer=optimizer, step=0)`.

    Each value is an attribute of the state. After each commit the values have to be equal on every rank: a value that
    is sharded over the ranks cannot be in the state.

    Raises:
        ValueError: for a name that begins with an underscore, or is the name of a method.
        TypeError: for a value whose type shows that it is sharded over the ranks; also at each commit.
    """

    def __init__(self, **values: Any) -> None:
        for name in values:
            if name.startswith("_") or hasattr(ElasticState, name):
                raise ValueError(f"ElasticState cannot hold a value of the name {name!r}: choose another")
        super().__init__(**values)
        self._commits = 0  # how many commits the state has seen, on any rank: `sync` takes it over with the values
        self._kept = {name: _snapshot(name, value) for name, value in values.items()}
        self._on_commit: Callable[[], None] | None = None

    def commit(self) -> None:
        """Save the values as they are now. After a re-formation training continues from the last commit.

        It copies all tensors in memory, on their devices. Call it on every rank after the same steps; a re-formation
        loses the work since the last commit. Inside `elastic()`, if a re-formation has begun, it does not return:
        training starts again with the values that it has just saved.

        Raises:
            TypeError: for a value that is sharded over the ranks.
        """
        with save_timer.block("saving"):
            values = {name: value for name, value in vars(self).items() if not name.startswith("_")}
            self._kept = {name: _snapshot(name, value) for name, value in values.items()}
        self._commits += 1
        if self._on_commit is not None:
            self._on_commit()

    def restore(self) -> None:
        """Set the values to copies of those of the last commit, or of those that the state was made with.

        An object whose state_dict was saved stays the same object and loads it. Attributes that were added since then
        stay.

        Raises:
            TypeError: if a state_dict was saved of an attribute that has no `load_state_dict` now, as one that was set
                to None, or is not built yet on this rank. No value has changed then.
        """
        for name, (has_state_dict, _) in self._kept.items():
            value = getattr(self, name, None)
            if has_state_dict and not _has_state_dict(value):
                raise TypeError(
                    f"ElasticState.{name} is {value!r:.80}, which cannot load the state_dict of its last commit: "
                    f"build it before ElasticState({name}=...) is made, on every rank, and keep it to the end"
                )
        for name, (has_state_dict, kept) in self._kept.items():
            if has_state_dict:
                getattr(self, name).load_state_dict(_copied(kept))
            else:
                setattr(self, name, _copied(kept))

    def sync(self) -> None:
        """Set the values on every rank to the last commit of the rank with most commits; of several, the lowest rank.

        Every rank has to call this. Nothing changes if all ranks have the same number of commits, and at least one, or
        if there is no process group of several ranks.
        """
        dist = sys.modules.get("torch.distributed")
        if dist is None or not dist.is_initialized() or dist.get_world_size() == 1:
            return
        commits: list[int] = [0] * dist.get_world_size()
        dist.all_gather_object(commits, self._commits)
        if min(commits) == max(commits) > 0:
            return
        source = commits.index(max(commits))
        tensors: list[torch.Tensor] = []
        sent = [without_tensors(self._kept, tensors)]
        dist.broadcast_object_list(sent, src=source)
        self._commits, kept = commits[source], sent[0]
        places = [leaf for _, leaf in leaves("", kept) if isinstance(leaf, Placeholder)]
        received = _broadcast_tensors(places, tensors, source)
        if dist.get_rank() != source:
            self._kept = with_tensors(kept, received)
            self.restore()


def _has_state_dict(value: object) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _snapshot(name: str, value: Any) -> tuple[bool, Any]:
    """Return a copy of a value of the state as it is committed: whether it has a state_dict, and that or the value."""
    _refuse_shards(name, _parts(name, value))  # before state_dict(), which may be a collective for a sharded value
    has_state_dict = _has_state_dict(value)
    found = value.state_dict() if has_state_dict else value
    _refuse_shards(name, leaves(name, found))
    return has_state_dict, _copied(found)


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value of the state, and of a module or an optimizer also its modules and parameters, each with a name."""
    yield name, value
    if not _has_state_dict(value) or "torch" not in sys.modules:
        return
    for what in ("modules", "parameters"):
        if callable(named := getattr(value, f"named_{what}", None)):
            yield from ((f"{name}.{path}" if path else name, part) for path, part in named())
    groups = getattr(value, "param_groups", None)
    for group in groups if isinstance(groups, list) else ():
        yield from ((f"a parameter of {name}", parameter) for parameter in group["params"])


def _refuse_shards(name: str, parts: Iterator[tuple[str, Any]]) -> None:
    """Raise TypeError if a part of the value `name` is sharded: the shards of a lost rank cannot be restored."""
    for where, part in parts:
        kinds = [kind.__name__ for kind in type(part).__mro__ if kind.__module__.partition(".")[0] == "torch"]
        kind = next((kind for kind in kinds if kind in SHARDED), "")
        if not kind and any(getattr(part, mark, False) is True for mark in SHARDS):
            kind = "part of a parameter that FSDP has split"
        if kind:
            raise TypeError(
                f"ElasticState({name}=...) cannot hold {where}, a {kind}: its shards are on all ranks, "
                "and those of a lost rank would be lost with it. Build it in the function that elastic() calls, keep "
                "it with worker.snapshot() in a role with snapshots=, and load what worker.restore() returns; or train "
                "without elastic(), and save with torch.distributed.checkpoint and worker.commit()"
            )


def _copied(value: Any) -> Any:
    """Return a deep copy of a value. Tensors are copied on their device, and detached."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict) or type(value) in (list, tuple):
        return mapped(value, _copied)
    return copy.deepcopy(value)


def _transport_device() -> torch.device:
    """Return the device on which the process group needs tensors to be."""
    import torch  # heavy: workers without elastic() import this module, too
    import torch.distributed as dist

    uses_cpu = any(name in str(dist.get_backend_config()) for name in ("gloo", "mpi", "cpu"))
    return torch.device("cpu" if uses_cpu else "cuda")


def _broadcast_tensors(
    placeholders: list[Placeholder], tensors: list[torch.Tensor], source: int
) -> dict[int, torch.Tensor]:
    """Return the tensors of the source rank, on every rank, by the numbers of their placeholders. A collective."""
    import torch  # heavy: workers without elastic() import this module, too
    import torch.distributed as dist

    device, is_source = _transport_device(), dist.get_rank() == source
    found: dict[int, torch.Tensor] = {}
    for bucket in _buckets(placeholders):
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


def _buckets(placeholders: list[Placeholder]) -> list[list[Placeholder]]:
    """Group placeholders whose tensors are broadcast together: of one type, with up to BUCKET_BYTES in each bucket.

    A tensor larger than that has a bucket of its own.
    """
    by_type: dict[torch.dtype, list[Placeholder]] = {}
    for place in placeholders:
        by_type.setdefault(place.dtype, []).append(place)
    buckets: list[list[Placeholder]] = []
    for dtype, same in by_type.items():
        size = BUCKET_BYTES + 1
        for place in same:
            size += place.shape.numel() * dtype.itemsize
            if size > BUCKET_BYTES:
                buckets.append([])
                size = place.shape.numel() * dtype.itemsize
            buckets[-1].append(place)
    return buckets
