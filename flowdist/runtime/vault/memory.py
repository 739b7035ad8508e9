"""The memory of a vault: blocks without a name in any file system, which the kernel frees with the last process.

A block is a memfd. Its pages are there before it is given to a worker, which therefore cannot run out of memory
half-way; its size is sealed, so that no other process can cut it under this one. All blocks together stay below a
limit. A freed block is kept for the next shard of the same size, as memory that the kernel has to clear first is
several times slower to write. Kept blocks go first when there is no room.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import mmap
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

PART_BYTES = 16 << 20  # of a shard, that one core computes a digest of
SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

_cores = ThreadPoolExecutor(len(os.sched_getaffinity(0)), "digest")


class NoRoom(Exception):
    """There is no memory for a shard. The text says why."""


class Block:
    """Memory of one shard: `size` bytes in a file without a name."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size = file, size
        self.users = 1  # who has it, and each that reads or sends it now
        self.is_reusable = True  # False: a worker may have it mapped, or it was damaged; nothing is written there then

    def digest(self, *, is_awaited: bool = False) -> int:
        """Return the `digest` of the content. If somebody waits for it, all cores compute it, else one: workers train.

        The GIL is free meanwhile.
        """
        with mmap.mmap(self.file.fileno(), self.size, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
            return digest(view, _cores.map if is_awaited else map)

    def fill(self) -> None:
        """Get the pages from the kernel; OSError if it has none."""
        os.posix_fallocate(self.file.fileno(), 0, self.size)
        fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, SIZE_SEALS)

    @contextlib.contextmanager
    def to_read(self) -> Iterator[int]:
        """Return a context manager with a descriptor for a worker that reads."""
        self.is_reusable = False
        fd = os.open(f"/proc/self/fd/{self.file.fileno()}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)


def digest(content: bytes | memoryview, each: Callable[..., Iterable[int]] = map) -> int:
    """Return the CRC-32 of the CRC-32s of all parts, which any single flipped bit changes, whatever the size.

    It takes half the time of SHA-256 or BLAKE2, and no more is asked of it: shards come from workers of the same job,
    over TLS where there is a token. `each` maps a function to the parts.
    """
    parts = each(lambda start: zlib.crc32(content[start : start + PART_BYTES]), range(0, len(content), PART_BYTES))
    return zlib.crc32(b"".join(part.to_bytes(4, "little") for part in parts))


class Memory:
    """All blocks of a vault, `limit` bytes at most. A shard waits for room up to `wait_s` seconds."""

    def __init__(self, limit: int, wait_s: float) -> None:
        self.limit, self._wait_s = limit, wait_s
        self._used = 0  # bytes, those of spares included
        self._spares: list[Block] = []
        self._freed = asyncio.Event()  # replaced when it is set
        self._is_stuck = False  # a shard has waited in vain, and nothing was freed since

    async def take(self, size: int) -> Block:
        """Return a block of that size, which the caller has to `free`; NoRoom if there is no room in time.

        After one that has waited in vain, others do not wait: training would stand still at each snapshot.
        """
        if size > self.limit:
            raise NoRoom(f"it has {_mib(size)}, and the vault may hold {_mib(self.limit)}")
        try:
            async with asyncio.timeout(0 if self._is_stuck else self._wait_s):
                while not self.has_room(size):
                    await self._freed.wait()
        except TimeoutError:
            self._is_stuck = True
            raise NoRoom(f"no room for {_mib(size)}: {_mib(self._used)} of {_mib(self.limit)} are in use") from None
        for spare in self._spares:
            if spare.size == size:
                self._spares.remove(spare)
                spare.users = 1
                return spare
        self._used += size
        return await self._new(size)

    def has_room(self, size: int) -> bool:
        """Return whether there is a spare block of that size, or room for a new one after others were closed."""
        if any(spare.size == size for spare in self._spares):
            return True
        while self._spares and self._used + size > self.limit:
            self._close(self._spares.pop(0))
        return self._used + size <= self.limit

    async def _new(self, size: int) -> Block:
        fd = os.memfd_create("flowdist-shard", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        block = Block(os.fdopen(fd, "r+b", buffering=0), size)
        try:
            await asyncio.to_thread(block.fill)
        except OSError as error:
            self._close(block)
            raise NoRoom(f"no room for {_mib(size)}: {error.strerror}") from None
        return block

    @contextlib.contextmanager
    def using(self, block: Block) -> Iterator[None]:
        """Return a context manager inside which a block stays as it is, also if its copy is dropped meanwhile."""
        block.users += 1
        try:
            yield
        finally:
            self.free(block)

    def free(self, block: Block) -> None:
        """Give a block back; it is free when all users have done so."""
        block.users -= 1
        if block.users:
            return
        if block.is_reusable:
            self._spares.append(block)
        else:
            self._close(block)
        self._is_stuck = False
        self._freed.set()
        self._freed = asyncio.Event()

    def _close(self, block: Block) -> None:
        block.file.close()
        self._used -= block.size


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
