"""Storage in the memory of nodes for torch.distributed.checkpoint (DCP), whose planner cuts tensors anew for any world.

Each rank's items are its shard of a snapshot, as if `snapshot` had got them. What tells the planner which rank has what
is in the shard of rank 0. Only `flowdist.worker.api` imports this module, when it is used: it imports torch.
"""

from __future__ import annotations

import io
import os
from collections import ChainMap
from dataclasses import replace
from typing import Any

from torch.distributed.checkpoint import StorageReader, StorageWriter
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from flowdist.worker.agent_link import info
from flowdist.worker.save_timer import save_timer
from flowdist.worker.snapshots.snapshot import read, write
from flowdist.worker.snapshots.vault_link import Snapshot, has_vault


class MemoryWriter(StorageWriter):  # type: ignore[misc]  # mypy does not follow torch
    """DCP's writer of the snapshot of a step. Where the vault has no room, it says so as `snapshot` does."""

    def __init__(self, step: int) -> None:
        self._step = step

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: a writer is for one step."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing: nobody has to be set up."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return the plans, that of rank 0 with the metadata of all; ValueError if they are not those of the world."""
        if len(plans) != info().world_size or not all(getattr(plan, "usable", True) for plan in plans):
            raise ValueError(
                "memory_writer() needs the plans of the whole world: save without no_dist, without a process_group of "
                "fewer ranks, and without enable_plan_caching"
            )
        _, metadata = create_default_global_save_plan(plans, rewrite_index_hints=False)
        if all(isinstance(plan.planner_data, dict) for plan in plans):
            metadata.planner_data = dict(ChainMap(*(plan.planner_data for plan in plans)))
        metadata.storage_data = {
            item.index: (rank, number) for rank, plan in enumerate(plans) for number, item in enumerate(plan.items)
        }
        return [replace(plans[0], storage_data=metadata), *plans[1:]]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Hand the items of this rank to the vault, and return a future that is done."""
        if has_vault():
            with save_timer.block("saving"):
                found = [planner.resolve_data(item) for item in plan.items]
                items = [item.getvalue() if isinstance(item, io.BytesIO) else item for item in found]
                write(self._step, {"metadata": plan.storage_data, "items": items})
        return _done([WriteResult(index=item.index, size_in_bytes=0, storage_data=None) for item in plan.items])

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Do nothing: a snapshot is complete as soon as the vaults hold the shards of all ranks."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return False: no id selects this storage."""
        return False


class MemoryReader(StorageReader):  # type: ignore[misc]  # mypy does not follow torch
    """DCP's reader of the snapshot from which this generation goes on. `step` is its step."""

    def __init__(self, found: Snapshot) -> None:
        self.step, self._found = found.step, found
        self._metadata: Metadata | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: a reader is for one snapshot."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the metadata; RuntimeError if nobody has it, or the snapshot was not saved by `memory_writer`."""
        with save_timer.block("restoring"):
            shard = read(self._found, 0)
        if not isinstance(shard, dict) or not isinstance(shard.get("metadata"), Metadata):
            raise RuntimeError("the snapshot was taken by snapshot(), not by memory_writer(): restore() returns it")
        self._metadata = shard["metadata"]
        return self._metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Take over the metadata."""
        self._metadata = metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what the plan needs, one shard after the other; RuntimeError if nobody has a good copy of one."""
        assert self._metadata is not None
        of_rank: dict[int, list[tuple[int, Any]]] = {}
        for item in plan.items:
            rank, number = self._metadata.storage_data[item.storage_index]
            of_rank.setdefault(rank, []).append((number, item))
        with save_timer.block("restoring"):
            for rank, wanted in sorted(of_rank.items()):
                items = read(self._found, rank)["items"]
                for number, item in wanted:
                    _load(planner, item, items[number])
        return _done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return False: no id selects this storage."""
        return False


def _load(planner: LoadPlanner, item: Any, content: Any) -> None:
    if item.type == LoadItemType.BYTE_IO:
        planner.load_bytes(item, io.BytesIO(content))
        return
    for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        content = content.narrow(dimension, start, length)
    target = planner.resolve_tensor(item).detach()
    target.copy_(content)
    planner.commit_tensor(item, target)


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future
