"""The port that all generations' stores have: a store waits until the one before has left it, and nothing blocks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from flowdist.control.protocol import agent_io as io
from flowdist.runtime.processes.spawn_protocol import Channel, PrefixSpec, Prepared, Request
from flowdist.runtime.processes.spawner import Spawner
from flowdist.runtime.stores import stores as module
from flowdist.runtime.stores.stores import Stores
from flowdist.runtime.wire.addresses import Endpoint

OLD, NEW = ("default", 1), ("default", 2)


def stores_at(port: int, handle: Callable[[io.StoreBound | io.StoreExited], None]) -> Stores:
    """Return the stores of a node whose workers never import torch: nothing is forked."""
    loop, endpoint = asyncio.get_running_loop(), Endpoint("127.0.0.1", port)
    return Stores(loop, handle, endpoint, lambda _: None, count(1), "", "")


async def bound(until: Any, *, key: tuple[str, int] = NEW, kill: bool = False) -> list[io.StoreBound | io.StoreExited]:
    """Return what `Stores` reports for a store whose port is taken until `until(taken)` has returned."""
    told: asyncio.Queue[io.StoreBound | io.StoreExited] = asyncio.Queue()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        stores = stores_at(taken.getsockname()[1], told.put_nowait)
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
            stores_at(taken.getsockname()[1], told.append).bind(OLD, False)

    asyncio.run(try_it())
    assert [type(each) for each in told] == [io.StoreExited] and "already in use" in str(told[0])


def test_a_store_that_is_closed_while_it_waits_is_never_bound() -> None:
    assert asyncio.run(bound(late, kill=True)) == []


def test_a_store_that_is_killed_while_its_host_waits_for_a_prefix_leaves_its_port(tmp_path: Path) -> None:
    """As when the prefix has died, and runs anew: its workers are started and given up before it is at its split."""
    told: list[io.StoreBound | io.StoreExited] = []

    async def try_it() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            spawner, agent = Spawner(theirs), Channel(ours)
            loop, folder = asyncio.get_running_loop(), str(tmp_path)
            stores = Stores(loop, told.append, Endpoint("127.0.0.1", 0), spawner._handle, count(1), folder, folder)
            stores.has_torch = True
            prefix = PrefixSpec(("/bin/sleep", "3600"), (), folder, (), (), ())
            stores.fork_from(prefix)
            stores.bind(OLD, True)
            stores.kill(OLD)
            ours.setblocking(False)
            for answer in agent.receive() or []:
                assert not isinstance(answer, Request | Prepared) and stores.handle_answer(answer)
            spawner._prefixes._prefixes[prefix].end()

    asyncio.run(try_it())
    bound, exited = told
    assert isinstance(bound, io.StoreBound) and exited == io.StoreExited(*OLD, "signal TERM")
    assert list(tmp_path.iterdir()) == []
    socket.create_server(("127.0.0.1", bound.port)).close()
