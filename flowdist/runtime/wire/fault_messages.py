"""Messages about injected faults: requests of the supervisor to the controller, and through it to other hosts."""

from __future__ import annotations

from typing import Literal

import msgspec

from flowdist.control.protocol.ids import NodeName, ReplicaId

Direction = Literal["up", "down"]  # to the controller, from it


class LinkFault(msgspec.Struct, frozen=True, tag=True):
    """Request to disturb the connection of a node from now on. `why` identifies the fault among others of the node."""

    node: str
    why: str
    cut: tuple[Direction, ...] = ()
    delay_ns: int = 0
    loss: float = 0.0  # the probability that a packet is dropped


class HealLink(msgspec.Struct, frozen=True, tag=True):
    """Request to end the LinkFault of this node and `why`."""

    node: str
    why: str


class RemoteFault(msgspec.Struct, frozen=True, tag=True):
    """A fault that is due, for the node itself or for workers of an attempt that runs there."""

    node: NodeName
    kind: str  # as in the fault grammar
    arg: str = ""
    duration_ns: int | None = None  # how long a node stays away or a worker is paused; None: for good
    replica: ReplicaId | None = None  # None: the node itself is hit
    attempt: int = 0
    local_rank: int | None = None  # of the only worker that is hit; None: all workers of the replica

    @property
    def target(self) -> str:
        """Return what is hit: the node, or the folder of the workers relative to that of the run."""
        if self.replica is None:
            return self.node
        rank = f"/{self.local_rank}" if self.local_rank is not None else ""
        return f"{self.replica}/attempt_{self.attempt}{rank}"
