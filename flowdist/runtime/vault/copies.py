"""The copies that a node holds, by the name of their shard, and what the agent is told of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import msgspec

from flowdist.runtime.vault.memory import Block, Memory
from flowdist.runtime.vault.messages import Broken, Held, Shard, about

Origin = Literal["worker", "vault", "fetched"]  # who brought it; one that was fetched for a reader is not reported
Tell = Callable[[msgspec.Struct], None]


class Copy(NamedTuple):
    """A shard, held on this node."""

    block: Block
    digest: int
    origin: Origin


class Copies:
    """The copies on this node, in blocks of `memory`; `tell` sends a message to the agent."""

    def __init__(self, memory: Memory, tell: Tell) -> None:
        self._memory, self._tell = memory, tell
        self._held: dict[Shard, Copy] = {}

    async def take(self, size: int) -> Block:
        """Return a block for a copy, as `Memory.take` does. Copies that were fetched for readers make room first."""
        if not self._memory.has_room(size):
            for shard in [shard for shard, copy in self._held.items() if copy.origin == "fetched"]:
                self._drop(shard)
        return await self._memory.take(size)

    def hold(self, shard: Shard, copy: Copy) -> None:
        """Hold a copy from now on, in place of one that there is. One that was fetched replaces no other."""
        if copy.origin == "fetched" and shard in self._held:
            self._memory.free(copy.block)
            return
        self._drop(shard)
        self._held[shard] = copy
        if copy.origin != "fetched":
            self._tell(self._report(shard, copy))

    def get(self, shard: Shard) -> Copy | None:
        return self._held.get(shard)

    def __contains__(self, shard: Shard) -> bool:
        return shard in self._held

    def of_workers(self, world: str) -> list[Shard]:
        """Return the shards of a world that workers of this node have put, the oldest first."""
        return [shard for shard, copy in self._held.items() if copy.origin == "worker" and shard.world == world]

    def reports(self) -> Iterator[Held]:
        """Yield what the agent was told of the copies that there are."""
        return (self._report(shard, copy) for shard, copy in self._held.items() if copy.origin != "fetched")

    def _report(self, shard: Shard, copy: Copy) -> Held:
        return about(Held, shard, bytes=copy.block.size, digest=copy.digest)

    async def is_intact(self, shard: Shard, copy: Copy) -> bool:
        """Return whether a copy has its digest still. One that is damaged is dropped, and the agent learns of it."""
        with self._memory.using(copy.block):
            if await asyncio.to_thread(copy.block.digest, is_awaited=True) == copy.digest:
                return True
        if self._held.get(shard) is copy:
            copy.block.is_reusable = False
            self._drop(shard)
            self._tell(about(Broken, shard, why="its copy is damaged"))
        return False

    def release(self, world: str, generation: int, step: int) -> None:
        """Drop the copies of one snapshot."""
        for shard in [
            shard for shard in self._held if (shard.world, shard.generation, shard.step) == (world, generation, step)
        ]:
            self._drop(shard)

    def _drop(self, shard: Shard) -> None:
        if (copy := self._held.pop(shard, None)) is not None:
            self._memory.free(copy.block)
