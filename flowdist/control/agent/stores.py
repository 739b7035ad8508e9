"""The rendezvous stores that an agent hosts, by world and generation."""

from __future__ import annotations

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import CloseStore, OpenStore
from flowdist.control.protocol.ids import WorldName
from flowdist.control.protocol.messages import Reporter

Ports = dict[tuple[WorldName, int], int | None]  # None until the store is bound
Dead = dict[tuple[WorldName, int], str]  # stores that died and were not closed, with what is known about it


def open_store(ports: Ports, order: OpenStore, report: Reporter) -> list[io.AgentOutput]:
    """Open a store, or report its port again if it is open already (R20)."""
    key = (order.world, order.generation)
    if key not in ports:
        ports[key] = None
        return [io.BindStore(order.world, order.generation, order.eager)]
    if (port := ports[key]) is not None:
        report(ev.StoreOpened(order.world, order.generation, port))
    return []


def close_store(ports: Ports, dead: Dead, order: CloseStore) -> list[io.AgentOutput]:
    """Close a store. One that has died is not reported again."""
    key = (order.world, order.generation)
    dead.pop(key, None)
    return [io.KillStore(*key)] if ports.pop(key, -1) != -1 else []


def close_all(ports: Ports) -> list[io.AgentOutput]:
    """Close every store."""
    keys = list(ports)
    ports.clear()
    return [io.KillStore(*key) for key in keys]


def note_bound(ports: Ports, event: io.StoreBound, report: Reporter) -> None:
    """Report the port of a store, unless it was closed meanwhile."""
    key = (event.world, event.generation)
    if key in ports:
        ports[key] = event.port
        report(ev.StoreOpened(*key, event.port))


def note_exited(ports: Ports, dead: Dead, event: io.StoreExited, report: Reporter) -> None:
    """Report that a store has died, unless it was closed."""
    key = (event.world, event.generation)
    if key in ports:
        del ports[key]
        dead[key] = event.detail
        report(ev.StoreLost(*key, event.detail))
