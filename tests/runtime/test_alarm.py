"""Whatever lies in the sockets is heard before anybody is judged by a timer. A real loop and a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flowdist.runtime.controller.alarm import Alarm


class Told:
    """What was heard and judged, in order. It takes an hour to hear something. `over` is set at the judgement."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.hours = 0
        self.over = asyncio.Event()
        self.alarm = Alarm(lambda: self.hours, self.judge)

    def hear(self) -> None:
        self.order.append("heard")
        self.hours += 1

    def judge(self, rang_at: int) -> None:
        self.order.append(f"judged by {rang_at}")
        self.over.set()


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    mine, other = socket.socketpair()
    with mine, other:
        yield mine, other


async def told_by(act: Callable[[Told, socket.socket], None]) -> Told:
    """What a task that reads has heard, and when it was judged, after `act` in one pass of the loop."""
    told = Told()
    with pair() as (mine, other):
        reader, writer = await asyncio.open_connection(sock=mine)
        waits = asyncio.Event()

        async def listen() -> None:
            waits.set()
            while await reader.readline():
                told.hear()

        task = asyncio.create_task(listen())
        await waits.wait()
        act(told, other)
        await told.over.wait()
        task.cancel()
        writer.close()
    return told


def test_messages_that_have_arrived_are_read_before_a_timer_judges() -> None:
    def held_up(told: Told, other: socket.socket) -> None:
        told.alarm.set(0)
        other.send(b"still here\n")

    assert asyncio.run(told_by(held_up)).order == ["heard", "judged by 0"], "the time to hear it is no delay"


def test_what_comes_while_the_pass_in_which_it_rings_is_held_up_is_heard_as_well() -> None:
    def held_up(told: Told, other: socket.socket) -> None:
        told.alarm.set(0)
        asyncio.get_running_loop().call_soon(other.send, b"still here\n")  # in that pass, and it has looked already

    assert asyncio.run(told_by(held_up)).order == ["heard", "judged by 0"]


def test_news_without_end_do_not_put_it_off_nor_make_it_ring_twice() -> None:
    async def news() -> list[str]:
        told = Told()
        passes = 0
        while not told.over.is_set() and passes < 1000:
            told.alarm.set(0)  # as after each event
            passes += 1
            await asyncio.sleep(0)
        assert passes < 10
        for _ in range(10):
            await asyncio.sleep(0)
        return told.order

    assert asyncio.run(news()) == ["judged by 0"]


def test_one_that_is_not_due_is_put_off_brought_forward_and_taken_back() -> None:
    async def settings() -> list[str]:
        told = Told()
        told.alarm.set(3600)
        told.alarm.set(None)
        told.alarm.set(3600)
        told.alarm.set(0)
        await told.over.wait()
        return told.order

    assert asyncio.run(settings()) == ["judged by 0"]
