"""Destruction of a worker's process groups before its interpreter ends. Standard library only.

A thread of gloo may still hold the tensors of a collective after the collective was waited for. If it releases them
while the interpreter ends, it waits for the interpreter's lock in vain, and torch aborts the process with SIGABRT and
"terminate called without an active exception" (pytorch issue 190489): a worker that has done its work then counts as
failed. Destroying the process group first ends such threads.

The same thread makes a script hang for ever that destroys the group and then frees its DistributedDataParallel, as most
do: that frees the group with the interpreter's lock held, and waits for the thread, which waits for the lock. Freeing
the group itself, from Python, gives the lock away. So `keep()` holds a group until the script has freed everything.
"""

from __future__ import annotations

import atexit
import sys
from typing import Any

# The meshes that flowdist.worker.device_mesh has made for this generation, by generation, dimensions and backends. A
# mesh keeps the groups of its dimensions alive.
meshes: dict[tuple[str, str, tuple[tuple[str, str], ...]], Any] = {}

_kept: list[Any] = []  # the default process group that keep() has found last


def end() -> None:
    """Destroy the meshes of `worker.mesh()` and all process groups; do nothing if there is no process group.

    The threads of the groups have ended when this returns.
    """
    dist = _initialized()
    if dist is not None:
        for mesh in meshes.values():
            getattr(mesh, "_pg_registry", {}).clear()  # of newer torch: the script may still hold the mesh
        meshes.clear()
        dist.destroy_process_group()


def keep() -> None:
    """Keep the default process group alive until the program ends, and destroy it then, unless it uses NCCL.

    What the script sees does not change: if it destroys the group itself, the group is closed then, and only its memory
    and its threads stay. A further call keeps the group of that moment instead.
    """
    dist = _initialized()
    if dist is not None and not is_nccl():
        _kept[:] = [dist.group.WORLD]
        end_at_exit()


def end_at_exit() -> None:
    """Arrange that `end()` is called when the program ends, unless a process group uses NCCL.

    After an uncaught exception `end()` is not called: destroying groups could wait for peers. `sys.exit()` is no such
    exception. A further call registers `end()` anew, so that it runs before functions that were registered since.
    """
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def is_nccl() -> bool:
    """Return whether there is a process group that uses NCCL, alone or beside another backend."""
    dist = _initialized()
    return dist is not None and "nccl" in str(dist.get_backend_config())


def _at_exit() -> None:
    if not is_nccl() and getattr(sys, "last_value", None) is None:
        end()
        _kept.clear()


def _initialized() -> Any:
    """Return torch.distributed if it is imported and has a process group, else None."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None
