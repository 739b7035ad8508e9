"""Data that is in a socket is handled before the alarm judges: on a real event loop and a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flowdist.runtime.controller.alarm import Alarm


class Log:
    """Log of data and judgements, in order. Reading moves its clock by an hour. `over` is set at the judgement."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.hours = 0
        self.over = asyncio.Event()
        self.alarm = Alarm(lambda: self.hours, self.judge)

    def hear(self) -> None:
        self.order.append("heard")
        self.hours += 1

    def judge(self, expired_at: int) -> None:
        self.order.append(f"judged by {expired_at}")
        self.over.set()


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    mine, other = socket.socketpair()
    with mine, other:
        yield mine, other


async def log_of(act: Callable[[Log, socket.socket], None]) -> Log:
    """Return the log of a reading task and the alarm, after `act` ran in one pass of the loop."""
    log = Log()
    with pair() as (mine, other):
        reader, writer = await asyncio.open_connection(sock=mine)
        waits = asyncio.Event()

        async def listen() -> None:
            waits.set()
            while await reader.readline():
                log.hear()

        task = asyncio.create_task(listen())
        await waits.wait()
        act(log, other)
        await log.over.wait()
        task.cancel()
        writer.close()
    return log


def test_data_in_a_socket_when_the_alarm_expires_is_handled_before_the_judgement() -> None:
    def block_the_loop(log: Log, other: socket.socket) -> None:
        log.alarm.set(0)
        other.send(b"still here\n")

    assert asyncio.run(log_of(block_the_loop)).order == ["heard", "judged by 0"], "the time to hear it is no delay"


def test_data_that_arrives_in_the_pass_of_the_alarm_is_handled_first_too() -> None:
    def block_the_loop(log: Log, other: socket.socket) -> None:
        log.alarm.set(0)
        asyncio.get_running_loop().call_soon(other.send, b"still here\n")  # in that pass, and it has looked already

    assert asyncio.run(log_of(block_the_loop)).order == ["heard", "judged by 0"]


def test_a_steady_stream_of_data_neither_postpones_the_alarm_nor_repeats_it() -> None:
    async def news() -> list[str]:
        log = Log()
        passes = 0
        while not log.over.is_set() and passes < 1000:
            log.alarm.set(0)  # as after each event
            passes += 1
            await asyncio.sleep(0)
        assert passes < 10
        for _ in range(10):
            await asyncio.sleep(0)
        return log.order

    assert asyncio.run(news()) == ["judged by 0"]


def test_an_alarm_that_is_not_due_can_be_moved_and_cleared() -> None:
    async def settings() -> list[str]:
        log = Log()
        log.alarm.set(3600)
        log.alarm.set(None)
        log.alarm.set(3600)
        log.alarm.set(0)
        await log.over.wait()
        return log.order

    assert asyncio.run(settings()) == ["judged by 0"]
