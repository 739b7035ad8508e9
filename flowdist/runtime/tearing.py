"""A checkpoint that was committed and cannot be read: its file is cut in half, as by a disk that lied."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from flowdist.faults import Fault
from flowdist.graph import RoleGraph


def tear_checkpoints(graph: RoleGraph, fault: Fault, checkpoints: Path) -> list[Path]:
    """Cut what the roles, or the replica, that the fault is meant for committed last. Returns the files that were cut.

    Of a folder the largest file is cut. The pointer still names it: whoever resumes finds out.
    """
    torn = []
    name = fault.target.partition("/")[0]
    for role in graph.roles:
        if name not in ("all", role.name):
            continue
        number = "*" if fault.replica is None or role.gang else str(fault.replica[1])
        folder = checkpoints / role.name
        for pointer in [*folder.glob("latest.json"), *sorted(folder.glob(f"{number}/latest.json"))]:
            with contextlib.suppress(OSError, ValueError):  # it is being replaced, or gone: nothing to tear
                named = Path(role.workdir, json.loads(pointer.read_text())["path"])
                torn.append(_cut(named))
    return torn


def _cut(path: Path) -> Path:
    if path.is_dir():
        path = max((file for file in path.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    os.truncate(path, path.stat().st_size // 2)
    return path
