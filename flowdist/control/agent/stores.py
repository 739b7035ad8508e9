"""Rendezvous stores that an agent hosts, by world and generation. The caller keeps the tables `Ports` and `Dead`."""

from __future__ import annotations

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import CloseStore, OpenStore
from flowdist.control.protocol.ids import WorldName
from flowdist.control.protocol.messages import Reporter

Ports = dict[tuple[WorldName, int], int | None]  # open stores with their ports; None until the store is bound
Dead = dict[tuple[WorldName, int], str]  # stores that died and were not closed, each with the detail of its death


def open_store(ports: Ports, order: OpenStore, report: Reporter) -> list[io.AgentOutput]:
    """Carry out an order to open a store: return the output that binds it.

    A store that is open already is not opened twice: its port is reported again, or will be when the store is bound
    (R20).
    """
    key = (order.world, order.generation)
    if key not in ports:
        ports[key] = None
        return [io.BindStore(order.world, order.generation, order.eager)]
    if (port := ports[key]) is not None:
        report(ev.StoreOpened(order.world, order.generation, port))
    return []


def close_store(ports: Ports, dead: Dead, order: CloseStore) -> list[io.AgentOutput]:
    """Carry out an order to close a store: forget it, and return the output that kills it, if it is open.

    The death of a store that was reported before is not reported again after this.
    """
    key = (order.world, order.generation)
    dead.pop(key, None)
    return [io.KillStore(*key)] if ports.pop(key, -1) != -1 else []


def close_all(ports: Ports) -> list[io.AgentOutput]:
    """Forget every open store, and return the outputs that kill them."""
    keys = list(ports)
    ports.clear()
    return [io.KillStore(*key) for key in keys]


def note_bound(ports: Ports, event: io.StoreBound, report: Reporter) -> None:
    """Record the port of a store that is bound, and report it; ignore a store that was closed meanwhile."""
    key = (event.world, event.generation)
    if key in ports:
        ports[key] = event.port
        report(ev.StoreOpened(*key, event.port))


def note_exited(ports: Ports, dead: Dead, event: io.StoreExited, report: Reporter) -> None:
    """Record that a store has died, and report it; ignore a store that was closed before."""
    key = (event.world, event.generation)
    if key in ports:
        del ports[key]
        dead[key] = event.detail
        report(ev.StoreLost(*key, event.detail))
