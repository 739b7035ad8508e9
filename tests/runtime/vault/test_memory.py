"""The memory of a vault: what is free is used again, unless somebody may have it still; and how much it may take."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from flowdist.runtime.vault.limits import default_limit
from flowdist.runtime.vault.memory import PART_BYTES, Memory, NoRoom


def run(job: Callable[[Memory], Awaitable[None]], limit: int, wait_s: float = 60.0) -> None:
    async def main() -> None:
        await job(Memory(limit, wait_s))

    asyncio.run(main())


def test_a_free_block_is_used_again_unless_a_worker_may_have_it_mapped() -> None:
    async def job(memory: Memory) -> None:
        first = await memory.take(4096)
        memory.free(first)
        second = await memory.take(4096)
        assert second is first
        with second.to_read() as fd, pytest.raises(OSError):
            os.write(fd, b"x")
        memory.free(second)
        third = await memory.take(4096)
        assert third is not second and second.file.closed
        third.file.close()

    run(job, 4096)


def test_a_block_that_is_in_use_stays_until_nobody_uses_it() -> None:
    async def job(memory: Memory) -> None:
        block = await memory.take(4096)
        block.is_reusable = False
        with memory.using(block):
            memory.free(block)
            assert not block.file.closed
            waiting = asyncio.create_task(memory.take(4096))
            await asyncio.sleep(0)
            assert not waiting.done()
        assert block.file.closed
        (await waiting).file.close()

    run(job, 4096)


def test_spare_blocks_make_room_for_one_of_another_size() -> None:
    async def job(memory: Memory) -> None:
        spares = [await memory.take(4096) for _ in range(2)]
        for spare in spares:
            memory.free(spare)
        (await memory.take(8192)).file.close()
        assert all(spare.file.closed for spare in spares)

    run(job, 8192)


def test_after_one_that_has_waited_in_vain_others_do_not_wait_until_something_is_freed() -> None:
    async def job(memory: Memory) -> None:
        block = await memory.take(4096)
        with pytest.raises(NoRoom, match=r"no room for 0\.0 MiB"):
            async with asyncio.timeout(60):
                await memory.take(100)
        memory._wait_s = 3600.0
        with pytest.raises(NoRoom):
            await memory.take(100)
        memory.free(block)
        (await memory.take(100)).file.close()

    run(job, 4096, wait_s=0.0)


def test_the_size_of_a_block_cannot_be_changed_by_who_has_it() -> None:
    async def job(memory: Memory) -> None:
        block = await memory.take(4096)
        for size in (0, 8192):
            with pytest.raises(PermissionError):
                os.ftruncate(block.file.fileno(), size)
        block.file.close()

    run(job, 4096)


def test_each_single_bit_changes_the_digest() -> None:
    async def job(memory: Memory) -> None:
        block = await memory.take(4096)
        digests = {block.digest()}
        for bit in range(0, 4096 * 8, 7):
            block.file.seek(bit // 8)
            block.file.write(bytes([1 << bit % 8]))
            digests.add(block.digest())
            block.file.seek(bit // 8)
            block.file.write(b"\0")
        assert len(digests) == 1 + len(range(0, 4096 * 8, 7))
        block.file.close()

    run(job, 4096)


def test_memory_that_the_kernel_does_not_give_is_refused_in_words_and_not_counted() -> None:
    async def job(memory: Memory) -> None:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            with pytest.raises(NoRoom, match=r"^no room for 1\.0 MiB: File too large$"):
                await memory.take(1 << 20)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        (await memory.take(1 << 20)).file.close()

    run(job, 1 << 20, wait_s=0.0)


GIB = 1 << 30


def machine(root: Path, groups: dict[str, str], cgroup: str) -> Path:
    """Return a folder with the files of a machine that has 8 GiB available, and of its control groups."""
    for name, content in {
        "proc/meminfo": f"MemTotal: 9 kB\nMemAvailable: {8 << 20} kB\n",
        "proc/self/cgroup": cgroup,
    }.items():
        groups[name] = content
    for name, content in groups.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def group(folder: str, limit: str, used: int, stat: str, version: int = 2) -> dict[str, str]:
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    return {f"{folder}/{names[0]}": f"{limit}\n", f"{folder}/{names[1]}": f"{used}\n", f"{folder}/memory.stat": stat}


def test_without_control_groups_it_is_half_of_what_is_available(tmp_path: Path) -> None:
    assert default_limit(machine(tmp_path, {}, "0::/\n")) == 4 * GIB


def test_a_group_and_the_groups_around_it_limit_it_and_files_that_may_be_dropped_are_free(tmp_path: Path) -> None:
    top = "sys/fs/cgroup/job"
    groups = group(top, str(6 * GIB), 5 * GIB, f"anon 1\ninactive_file {GIB}\n") | group(f"{top}/step", "max", GIB, "")
    assert default_limit(machine(tmp_path, groups, "0::/job/step\n")) == GIB


def test_groups_of_version_1_limit_it_too(tmp_path: Path) -> None:
    top = "sys/fs/cgroup/memory/job"
    groups = group(top, str(3 * GIB), 2 * GIB, f"total_inactive_file {GIB}\n", version=1)
    assert default_limit(machine(tmp_path, groups, "9:cpu:/\n4:memory:/job\n0::/\n")) == GIB


def test_a_container_that_sees_another_path_than_its_own_has_the_limit_of_the_root(tmp_path: Path) -> None:
    groups = group("sys/fs/cgroup", str(2 * GIB), GIB, "")
    assert default_limit(machine(tmp_path, groups, "0::/docker/123\n")) == GIB // 2


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    groups = group("sys/fs/cgroup/job", str(GIB), 2 * GIB, "")
    assert default_limit(machine(tmp_path, groups, "0::/job\n")) == 0


def test_a_digest_of_several_parts_is_the_same_on_one_core_and_on_all_and_tells_where_what_stands() -> None:
    async def job(memory: Memory) -> None:
        size = 2 * PART_BYTES + 4096
        block = await memory.take(size)
        digests = {block.digest()}
        for start in (0, PART_BYTES - 4096, PART_BYTES, 2 * PART_BYTES - 4096, 2 * PART_BYTES):
            for content in (b"x" * 4096, b"\0" * 4096):
                block.file.seek(start)
                block.file.write(content)
                digests.add(block.digest(is_awaited=True))
                assert block.digest() == block.digest(is_awaited=True)
        assert len(digests) == 6
        block.file.close()

    run(job, 64 << 20)
