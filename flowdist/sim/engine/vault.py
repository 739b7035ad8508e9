"""The simulated vault of a node: the copies of shards in its memory, and the nodes that get copies of its own (R24)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from flowdist.control.protocol import effects as fx
from flowdist.control.protocol.ids import NodeName, WorldName


class ShardName(NamedTuple):
    """Name of a shard: the state of one rank, at one step of one generation of a world."""

    world: WorldName
    generation: int
    step: int
    rank: int

    @property
    def digest(self) -> str:
        """Return what stands for the digest of its content: it differs from those of all other shards."""
        return "/".join(map(str, self))


@dataclass(slots=True)
class Shard:
    """Copy of a shard: `is_whole` once all of it has arrived; `is_broken` if its content has changed since."""

    is_whole: bool = False
    is_broken: bool = False


@dataclass(slots=True)
class SimVault:
    """The vault of one node, which lives and dies with its node."""

    held: dict[ShardName, Shard] = field(default_factory=dict)
    buddies: dict[WorldName, tuple[NodeName, ...]] = field(default_factory=dict)

    def obey(self, order: fx.OfVault) -> None:
        """Carry out an order: keep who the buddies are, or drop all copies of a snapshot."""
        if isinstance(order, fx.SetBuddies):
            self.buddies[order.world] = tuple(name for name, _ in order.buddies)
            return
        snapshot = (order.world, order.generation, order.step)
        self.held = {name: shard for name, shard in self.held.items() if name[:3] != snapshot}

    def break_copies(self) -> bool:
        """Change the content of all copies, which nobody notices before they are read; return whether there are any."""
        for shard in self.held.values():
            shard.is_broken = True
        return bool(self.held)
