"""The port that all generations' stores have: a store waits until the one before has left it, and nothing blocks."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from flowdist.control.protocol import agent_io as io
from flowdist.runtime.stores import stores as module
from flowdist.runtime.stores.stores import Stores
from flowdist.runtime.wire.addresses import Endpoint

OLD, NEW = ("default", 1), ("default", 2)


class NoForks:
    """Forks of a node whose workers never import torch."""

    server = None

    def kill(self, key: object) -> bool:
        return False


async def bound(until: Any, *, key: tuple[str, int] = NEW, kill: bool = False) -> list[io.StoreBound | io.StoreExited]:
    """Return what `Stores` reports for a store whose port is taken until `until(taken)` has returned."""
    told: asyncio.Queue[io.StoreBound | io.StoreExited] = asyncio.Queue()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = Endpoint("127.0.0.1", taken.getsockname()[1])
        forks: Any = NoForks()
        stores = Stores(asyncio.get_running_loop(), told.put_nowait, forks, endpoint)
        stores.bind(key, False)
        assert told.empty()
        if kill:
            stores.kill(key)
        await until(taken)
    if kill:
        assert told.empty()
        return []
    answer = await told.get()
    stores.kill(key)
    return [answer]


async def at_once(taken: socket.socket) -> None:
    taken.close()


async def late(taken: socket.socket) -> None:
    await asyncio.sleep(5 * module.REBIND_PAUSE_S)  # several tries; the event loop is free meanwhile


def test_a_store_is_bound_when_the_port_is_free() -> None:
    for until in (at_once, late):
        (answer,) = asyncio.run(bound(until))
        assert isinstance(answer, io.StoreBound) and (answer.world, answer.generation) == NEW


def test_a_port_that_stays_taken_is_the_end_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REBIND_S", 0.0)
    told: list[io.StoreBound | io.StoreExited] = []

    async def try_it() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            endpoint = Endpoint("127.0.0.1", taken.getsockname()[1])
            forks: Any = NoForks()
            Stores(asyncio.get_running_loop(), told.append, forks, endpoint).bind(OLD, False)

    asyncio.run(try_it())
    assert [type(each) for each in told] == [io.StoreExited] and "already in use" in str(told[0])


def test_a_store_that_is_closed_while_it_waits_is_never_bound() -> None:
    assert asyncio.run(bound(late, kill=True)) == []
