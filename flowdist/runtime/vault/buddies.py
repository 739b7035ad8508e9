"""Copies for the buddies of a node: each gets the shards that workers of this node have put, the oldest first.

Nothing waits for a buddy. One that fails is tried again after RETRY_S, as long as the agent names it and the shard is
held; the agent is told once for each shard. What a buddy does not take stays here, until the memory is full: then puts
are refused.
"""

from __future__ import annotations

import asyncio
import contextlib

from flowdist.control.protocol.ids import NodeName
from flowdist.runtime.last_words import die_of
from flowdist.runtime.processes.unexpected import start_task
from flowdist.runtime.vault.copies import Copies, Copy, Tell
from flowdist.runtime.vault.memory import Memory
from flowdist.runtime.vault.messages import Held, Refused, Shard, about
from flowdist.runtime.vault.peers import Job, PeerFailed, store

RETRY_S = 1.0


class Buddy:
    """One other node that gets the copies of a world, at the address of its vault, until `end` is called."""

    def __init__(
        self, world: str, node: NodeName, address: str, job: Job, copies: Copies, memory: Memory, tell: Tell
    ) -> None:
        self.world, self.node, self.address = world, node, address
        self._job, self._copies, self._memory, self._tell = job, copies, memory, tell
        self._has: dict[Shard, Held] = {}  # what it holds, as the agent was told
        self._refused: set[Shard] = set()  # of which the agent was told
        self._is_new = asyncio.Event()  # there may be a shard that it has not
        self._task = start_task(self._send_all(), die_of)

    def wake(self) -> None:
        """Look for shards that the buddy has not, as a worker has put one."""
        self._is_new.set()

    def reports(self) -> list[Held]:
        """Return what the agent was told of the buddy's copies, as far as the shards are held here still."""
        self._forget()
        return list(self._has.values())

    def end(self) -> None:
        """Send nothing more."""
        self._task.cancel()

    def _forget(self) -> None:
        self._has = {shard: held for shard, held in self._has.items() if shard in self._copies}
        self._refused = {shard for shard in self._refused if shard in self._copies}

    async def _send_all(self) -> None:
        while True:
            self._is_new.clear()
            self._forget()
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
            if shard not in self._refused:
                self._refused.add(shard)
                self._tell(about(Refused, shard, node=self.node, why=str(error)))
            if error.is_bad:
                await self._copies.is_intact(shard, copy)  # else it is dropped, and not sent again
            raise
        held = about(Held, shard, bytes=copy.block.size, digest=copy.digest, node=self.node)
        self._has[shard] = held
        self._tell(held)
