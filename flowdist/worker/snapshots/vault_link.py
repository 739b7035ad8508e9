"""The worker's side of the socket to the vault of its node. Standard library only.

The vault's side is `flowdist.runtime.vault.vault`. Each request has a connection of its own: a process that was forked
meanwhile, or another thread, cannot come between.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from flowdist.worker.agent_link import info

VAULT, WORLD, SNAPSHOT = "FLOWDIST_VAULT", "FLOWDIST_WORLD", "FLOWDIST_SNAPSHOT"
EVERY = "FLOWDIST_SNAPSHOT_EVERY"  # steps
PUT_S = 30.0  # for the vault to find room, and to get the memory from the kernel
GET_S = 600.0  # for a shard that comes from another node
LINE_BYTES = 1 << 16


class NoCopy(RuntimeError):
    """The vault does not take a shard, or nobody has a good copy of it. The text says why."""


class Snapshot(NamedTuple):
    """The snapshot from which this generation goes on: the content of the file that FLOWDIST_SNAPSHOT names."""

    generation: int
    step: int
    world_size: int
    holders: dict[str, list[list[str]]]  # by rank: nodes, each with the address of its vault


def has_vault() -> bool:
    """Return whether flowdist has started this process on a node with a vault."""
    return VAULT in os.environ


def is_due(step: int) -> bool:
    """Return whether the role takes a snapshot at a step, as `snapshots=` declares it."""
    return step % int(os.environ.get(EVERY, "1")) == 0


def named_snapshot() -> Snapshot | None:
    """Return the snapshot from which this generation goes on; None if it is not one from memory."""
    file = os.environ.get(SNAPSHOT)
    return Snapshot(**json.loads(Path(file).read_text())) if file and has_vault() else None


@contextlib.contextmanager
def putting(step: int, size: int) -> Iterator[mmap.mmap]:
    """Return a context manager with memory for this worker's shard of a step, which is held once the block is left.

    NoCopy if the vault has no room, OSError if it is gone. After an exception in the block, nothing is held.
    """
    me = info()
    name = _name(me.generation, step, me.rank, me.world_size)
    with _asked({"type": "Put", **name, "bytes": size}, PUT_S) as (connection, fd, _):
        memory = mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        yield memory  # after an exception, a frame of its traceback may have a view of the memory: it is closed later
        memory.close()
        connection.sendall(b'{"type": "Done"}\n')


@contextlib.contextmanager
def getting(snapshot: Snapshot, rank: int) -> Iterator[mmap.mmap]:
    """Return a context manager with a rank's shard; NoCopy if nobody has a good one, OSError if the vault is gone.

    The memory is private: what is written there is not written to the shard.
    """
    name = _name(snapshot.generation, snapshot.step, rank, snapshot.world_size)
    request = {"type": "Get", **name, "holders": snapshot.holders.get(str(rank), [])}
    with _asked(request, GET_S) as (_, fd, size):
        yield mmap.mmap(fd, size, access=mmap.ACCESS_COPY)  # closed with the last view of it


def _name(generation: int, step: int, rank: int, world_size: int) -> dict[str, Any]:
    world = os.environ.get(WORLD, info().role)
    return {"world": world, "generation": generation, "step": step, "rank": rank, "world_size": world_size}


@contextlib.contextmanager
def _asked(request: dict[str, Any], timeout_s: float) -> Iterator[tuple[socket.socket, int, int]]:
    """Ask the vault; return a context manager with the connection, and descriptor and size of what it has answered."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        connection.connect(os.environ[VAULT])
        connection.sendall(json.dumps(request).encode() + b"\n")
        line, fds, _, _ = socket.recv_fds(connection, LINE_BYTES, 1)
        try:
            if not line:
                raise ConnectionResetError("the vault has closed the connection")
            while not line.endswith(b"\n"):
                line += connection.recv(LINE_BYTES) or b"\n"
            answer = json.loads(line)
            if not fds:
                raise NoCopy(answer["why"])
            yield connection, fds[0], answer["bytes"]
        finally:
            for fd in fds:
                os.close(fd)
