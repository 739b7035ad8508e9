"""The end of the process groups that flowdist has made, or whose function it has called. Standard library only.

A thread of gloo may still hold the tensors of a collective that has been waited for. If it lets go of them while the
interpreter ends, it asks for the interpreter's lock, is not given it, and torch ends the process with SIGABRT and
"terminate called without an active exception" (pytorch issue 190489): work that was done counts as a failure.
"""

from __future__ import annotations

import atexit
import sys
from typing import Any

meshes: dict[Any, Any] = {}  # those of flowdist.worker.device_mesh; a mesh keeps the groups of its dimensions alive


def end() -> None:
    """Destroy the process groups, if there are any, and the meshes: their threads have ended when this returns."""
    dist = _initialized()
    if dist is not None:
        for mesh in meshes.values():
            getattr(mesh, "_pg_registry", {}).clear()  # in newer torch; a script has the mesh in a global name
        meshes.clear()
        dist.destroy_process_group()


def end_at_exit() -> None:
    """Destroy groups of gloo when the program ends, unless an exception ends it: no failure may wait for its peers."""
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def is_nccl() -> bool:
    """Whether there is a process group that goes through NCCL, alone or beside another backend."""
    dist = _initialized()
    return dist is not None and "nccl" in str(dist.get_backend_config())


def _at_exit() -> None:
    if not is_nccl() and getattr(sys, "last_value", None) is None:
        end()


def _initialized() -> Any:
    """torch.distributed, if it has been imported and has a process group."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None
