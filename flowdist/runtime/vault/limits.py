"""How much memory a vault may take, unless it is told: half of what is available when it starts.

The kernel counts the shards against the control group of this process, so the limits of that group and of those around
it count too, in version 1 and 2 of control groups.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

SHARE = 0.5
V1_LIMIT, V1_USED, V1_CACHE = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
V2_LIMIT, V2_USED, V2_CACHE = "memory.max", "memory.current", "inactive_file"


def default_limit(root: Path = Path("/")) -> int:
    """Return half of the memory that this process could still take, in bytes. `root` is where /proc and /sys are."""
    meminfo = (root / "proc/meminfo").read_text().splitlines()
    free = next(int(row.split()[1]) << 10 for row in meminfo if row.startswith("MemAvailable:"))
    return int(SHARE * max(0, min([free, *_free_in_groups(root)])))


def _free_in_groups(root: Path) -> Iterator[int]:
    """Yield the bytes that are free in each control group with a limit; memory of files that may be dropped is free."""
    with contextlib.suppress(OSError):
        for row in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = row.split(":", 2)
            if controllers == "memory":
                yield from _free_up_to(root / "sys/fs/cgroup/memory", path, V1_LIMIT, V1_USED, V1_CACHE)
            elif not controllers:
                yield from _free_up_to(root / "sys/fs/cgroup", path, V2_LIMIT, V2_USED, V2_CACHE)


def _free_up_to(mount: Path, path: str, limit: str, used: str, cache: str) -> Iterator[int]:
    group = mount / path.strip("/")
    for folder in (group, *group.parents):
        # The files are missing in the root group of version 2, without the controller, and where a container sees
        # another path than its own: there the groups above count.
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max"
            most = int((folder / limit).read_text())
            stat = dict(row.split() for row in (folder / "memory.stat").read_text().splitlines())
            yield most - int((folder / used).read_text()) + int(stat.get(cache, 0))
        if folder == mount:
            return
