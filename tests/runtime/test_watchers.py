"""Watchers of the journal: every line arrives once and in order, and a slow reader keeps none in memory."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from flowdist.runtime.controller import watchers as module
from flowdist.runtime.controller.watchers import Watchers
from flowdist.runtime.wire.frames import JournalLine, Watch, read_from_controller


class Journal:
    """A journal with watchers, and lines of any length."""

    def __init__(self, folder: Path, count: int = 0) -> None:
        self.path, self.lines = folder / "journal.jsonl", [line(number) for number in range(count)]
        self.path.write_bytes(b"".join(self.lines))
        self.watchers = Watchers(self.path)

    def write(self, data: bytes) -> None:
        self.lines.append(data)
        with self.path.open("ab") as file:
            file.write(data)
        self.watchers.wrote(data)


def line(number: int) -> bytes:
    return b'{"n":%d,"text":"%s"}\n' % (number, b"x" * (number % 700))


@asynccontextmanager
async def connection() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield the reader of a peer, and the writer of the controller, with small buffers in the kernel."""
    ours, its = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    _, writer = await asyncio.open_connection(sock=ours)
    reader, peer = await asyncio.open_connection(sock=its, limit=4096)
    try:
        yield reader, writer
    finally:
        for each in (writer, peer):
            each.transport.abort()
        await asyncio.sleep(0)


async def read(reader: asyncio.StreamReader, count: int) -> list[bytes]:
    lines = []
    while len(lines) < count:
        message = await read_from_controller(reader)
        assert isinstance(message, JournalLine), message
        lines.append(message.line)
    return lines


def test_a_watcher_gets_the_whole_journal_and_then_each_line_as_it_is_written(tmp_path: Path) -> None:
    async def scene() -> None:
        journal = Journal(tmp_path, 1000)
        async with connection() as (reader, writer):
            journal.watchers.add(Watch(), writer)
            for number in range(1000, 1100):
                journal.write(line(number))  # while it still reads the file
                await asyncio.sleep(0)
            assert await read(reader, 1100) == journal.lines
            journal.write(b"now\n")
            assert await read(reader, 1) == [b"now\n"]

    asyncio.run(scene())


@pytest.mark.parametrize("skip", [1, 7, 999, 1000])
def test_a_watcher_skips_the_lines_that_it_has(tmp_path: Path, skip: int) -> None:
    async def scene() -> None:
        journal = Journal(tmp_path, 1000)
        async with connection() as (reader, writer):
            journal.watchers.add(Watch(skip), writer)
            await journal.watchers.finish(1.0) if skip == 1000 else None
            journal.write(b"last\n")
            assert await read(reader, 1001 - skip) == journal.lines[skip:]

    asyncio.run(scene())


def test_a_watcher_that_does_not_read_keeps_nothing_in_memory_and_gets_all_of_it_later(tmp_path: Path) -> None:
    async def scene() -> None:
        journal = Journal(tmp_path)
        async with connection() as (reader, writer):
            journal.watchers.add(Watch(), writer)
            await journal.watchers.finish(1.0)
            most = 0
            for number in range(4000):  # 1.4 MB
                journal.write(line(number))
                if number % 100 == 0:
                    await asyncio.sleep(0)
                most = max(most, writer.transport.get_write_buffer_size())
            assert most < 200_000
            assert await read(reader, 4000) == journal.lines
            await journal.watchers.finish(1.0)
            journal.write(b"now\n")
            assert writer.transport.get_write_buffer_size() < 100 and await read(reader, 1) == [b"now\n"]

    asyncio.run(scene())


def test_a_line_longer_than_a_piece_arrives_whole(tmp_path: Path) -> None:
    async def scene() -> None:
        journal = Journal(tmp_path)
        for _ in range(3):
            journal.write(b"y" * (3 * module.PIECE_BYTES) + b"\n")
        async with connection() as (reader, writer):
            journal.watchers.add(Watch(1), writer)
            assert await read(reader, 2) == journal.lines[1:]

    asyncio.run(scene())


def test_a_watcher_whose_peer_goes_away_is_forgotten(tmp_path: Path) -> None:
    async def scene() -> None:
        journal = Journal(tmp_path, 1000)
        async with connection() as (_, writer):
            journal.watchers.add(Watch(), writer)
            await asyncio.sleep(0.01)
            assert writer in journal.watchers
            writer.transport.abort()
            await journal.watchers.finish(1.0)
            journal.write(b"now\n")
            journal.watchers.remove(writer)
            journal.watchers.remove(writer)
            assert writer not in journal.watchers

    asyncio.run(scene())


@pytest.mark.parametrize("skip", [0, 3])
@pytest.mark.parametrize("how", ["removed", "cut"])
def test_a_watcher_whose_journal_cannot_be_read_is_closed(tmp_path: Path, skip: int, how: str) -> None:
    """It would wait for ever for lines that nothing sends."""

    async def scene() -> None:
        journal = Journal(tmp_path, 10)
        journal.path.unlink() if how == "removed" else journal.path.write_bytes(b"")
        async with connection() as (reader, writer), asyncio.timeout(60):
            journal.watchers.add(Watch(skip), writer)
            assert await read_from_controller(reader) is None
            await journal.watchers.finish(1.0)

    asyncio.run(scene())


def test_an_unexpected_exception_of_a_feed_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        journal = Journal(tmp_path, 10)
        fails: asyncio.Queue[BaseException] = asyncio.Queue()
        monkeypatch.setattr(module, "die_of", fails.put_nowait)
        monkeypatch.setattr(journal.watchers, "_path", None)
        async with connection() as (_, writer), asyncio.timeout(60):
            journal.watchers.add(Watch(), writer)
            assert isinstance(await fails.get(), AttributeError)

    asyncio.run(scene())
