"""Messages about injected faults: requests of the supervisor to the controller, and through it to other hosts."""

from __future__ import annotations

from typing import Literal

import msgspec

from flowdist.control.protocol.ids import NodeName, ReplicaId

Direction = Literal["up", "down"]  # to the controller, from it


class LinkFault(msgspec.Struct, frozen=True, tag=True):
    """Request to disturb, from now on, the connection between the controller and the agent of a node."""

    node: str
    why: str  # identifies the fault among others of the node
    cut: tuple[Direction, ...] = ()  # directions in which every frame is lost
    delay_ns: int = 0  # how much later every frame arrives
    loss: float = 0.0  # the probability that a packet is dropped


class HealLink(msgspec.Struct, frozen=True, tag=True):
    """Request to end the LinkFault with this `node` and `why`."""

    node: str
    why: str


class RemoteFault(msgspec.Struct, frozen=True, tag=True):
    """A fault to carry out now, on a node itself or on workers of an attempt that runs there."""

    node: NodeName
    kind: str  # as in the fault grammar
    arg: str = ""
    duration_ns: int | None = None  # how long a node stays away or a worker is paused; None: for good
    replica: ReplicaId | None = None  # None: the node itself is hit
    attempt: int = 0
    local_rank: int | None = None  # of the only worker that is hit; None: all workers of the replica

    @property
    def target(self) -> str:
        """Return what is hit: the name of the node, or the folder of the workers, relative to the folder of the run."""
        if self.replica is None:
            return self.node
        rank = f"/{self.local_rank}" if self.local_rank is not None else ""
        return f"{self.replica}/attempt_{self.attempt}{rank}"
