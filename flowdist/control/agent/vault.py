"""The vault of a node, as its agent knows it: where it listens, and which copies of snapshots it holds (R24)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import effects as fx
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.ids import NodeName, WorldName
from flowdist.control.protocol.messages import Reporter


@dataclass(slots=True)
class Vault:
    """The vault of `node`, with the copies that it holds: a join lists all. `port` 0: there is none, or none yet."""

    node: NodeName
    port: int = 0
    copies: dict[tuple[WorldName, int, int, int], ev.CopyHeld] = field(default_factory=dict)

    def note(self, event: io.VaultInput, report: Reporter) -> None:
        """Record what the driver says of the vault, and report it."""
        match event:
            case io.VaultBound():
                self.port = event.port
                self.copies.clear()
                report(ev.VaultOpened(self.node, event.port))
            case io.VaultExited():
                self.port = 0
                self.copies.clear()
                report(ev.VaultLost(self.node, event.detail))
            case io.CopyStored():
                key = (event.world, event.generation, event.step, event.rank)
                self.copies[key] = ev.CopyHeld(*key, self.node, event.world_size, event.bytes, event.digest)
                report(self.copies[key])
            case io.CopyDamaged():
                key = (event.world, event.generation, event.step, event.rank)
                if self.copies.pop(key, None) is not None:
                    report(ev.CopyBroken(*key, self.node, event.why))
            case _:
                assert_never(event)

    def obey(self, order: fx.OfVault) -> io.VaultOrder:
        """Return the order for the driver, and forget the copies that it releases."""
        if isinstance(order, fx.ReleaseCopies):
            released = (order.world, order.generation, order.step)
            self.copies = {key: copy for key, copy in self.copies.items() if key[:3] != released}
        return io.VaultOrder(order)
