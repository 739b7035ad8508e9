"""Copies for the buddies of a node: each gets the shards that workers of this node have put, the oldest first.

Nothing waits for a buddy. One that fails is tried again after RETRY_S, as long as the agent names it and the shard is
held. What a buddy does not take stays here, until the memory is full: then puts are refused.
"""

from __future__ import annotations

import asyncio
import contextlib

from flowdist.control.protocol.ids import NodeName
from flowdist.runtime.last_words import die_of
from flowdist.runtime.processes.unexpected import start_task
from flowdist.runtime.vault.copies import Copies, Copy
from flowdist.runtime.vault.memory import Memory
from flowdist.runtime.vault.messages import Shard
from flowdist.runtime.vault.peers import Job, PeerFailed, store

RETRY_S = 1.0


class Buddy:
    """One other node that gets the copies of a world, at the address of its vault, until `end` is called."""

    def __init__(self, world: str, node: NodeName, address: str, job: Job, copies: Copies, memory: Memory) -> None:
        self.world, self.node, self.address = world, node, address
        self._job, self._copies, self._memory = job, copies, memory
        self._has: set[Shard] = set()  # what it holds, of the shards that are held here still
        self._is_new = asyncio.Event()  # there may be a shard that it has not
        self._task = start_task(self._send_all(), die_of)

    def wake(self) -> None:
        """Look for shards that the buddy has not, as a worker has put one."""
        self._is_new.set()

    def end(self) -> None:
        """Send nothing more."""
        self._task.cancel()

    async def _send_all(self) -> None:
        while True:
            self._is_new.clear()
            self._has = {shard for shard in self._has if shard in self._copies}
            try:
                for shard in self._copies.of_workers(self.world):
                    copy = self._copies.get(shard)  # it may be released by now
                    if copy is not None and shard not in self._has:
                        await self._send(shard, copy)
                await self._is_new.wait()
            except PeerFailed:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_new.wait(), RETRY_S)

    async def _send(self, shard: Shard, copy: Copy) -> None:
        try:
            with self._memory.using(copy.block):
                await store(self._job, self.address, shard, copy.block, copy.digest)
        except PeerFailed as error:
            if error.is_bad:
                await self._copies.is_intact(shard, copy)  # else it is dropped, and not sent again
            raise
        self._has.add(shard)
