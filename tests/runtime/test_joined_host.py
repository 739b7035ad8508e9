"""A joined host and what the controller sends it: it checks each message, and shows nothing twice."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import NodeSpec, RoleGraph, RoleSpec
from flowdist.record.status import Decision
from flowdist.runtime.joined import joining
from flowdist.runtime.joined.joined_host import JoinedHost
from flowdist.runtime.joined.joining import Connection, JobClock, Joined, rejoin
from flowdist.runtime.supervisor.local_node import Site
from flowdist.runtime.wire.endpoint import ControllerEndpoint
from flowdist.runtime.wire.frames import Digest, Farewell, JoinRequest, NodeNews, Place, Welcome
from flowdist.runtime.wire.framing import encode, read_frame
from flowdist.runtime.wire.handshake import FROM_CLIENT, HOST_SECRET, Credentials, ServerHandshake

GRAPH = RoleGraph("news", (RoleSpec("trainer", ("true",), max_replicas=4),))
START = StartReplica("gpu1", ReplicaId("trainer", 1), 1, "trainer", 1, 1, 4, 1, 4, 1, 4, 0, "10.0.0.1", 29500)


class Terminal:
    """The lines that a joined host has shown, and the host."""

    def __init__(self, folder: Path, *, shows_progress: bool) -> None:
        self.lines: list[tuple[str, str]] = []
        welcome = Welcome("gpu1", 1, 1, "run-1", GRAPH, 0)
        nowhere = cast(Any, None)
        connection = Connection(nowhere, nowhere)
        joined = Joined(connection, ControllerEndpoint("10.0.0.1", 1, "job1"), welcome, Credentials(), JobClock(0))
        site, show = Site("10.0.0.2", ""), lambda kind, text: self.lines.append((kind, text))
        self.host = JoinedHost(joined, NodeSpec("gpu1"), GRAPH, site, (), folder, show, shows_progress=shows_progress)
        self.host._host.over = asyncio.Event()

    def hears(self, *messages: NodeNews | Digest | Farewell) -> list[tuple[str, str]]:
        for message in messages:
            self.host._handle(message)
        self.host._host.follower.read()
        return self.lines


@pytest.fixture(params=[True, False], ids=["terminal", "pipe"])
def terminal(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv(HOST_SECRET, "")  # which the host sets
    found = Terminal(tmp_path, shows_progress=request.param)
    yield found
    os.close(found.host._host.lock)


def log(folder: Path, attempt: int, text: str) -> None:
    path = folder / f"trainer/1/attempt_{attempt}/0/stdout.log"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_the_output_of_an_attempt_is_shown_once_however_often_its_start_is_news(
    terminal: Terminal, tmp_path: Path
) -> None:
    log(tmp_path, 1, "one\nhalf")
    news, again = NodeNews(Place(1), (START,)), NodeNews(Place(2), (START,))
    assert [line for line in terminal.hears(news, again) if line[0] == "stdout"] == [("stdout", "[trainer/1] one")]
    log(tmp_path, 2, "two\n")
    later = NodeNews(Place(3), (msgspec.structs.replace(START, attempt=2),))
    shown = [text for kind, text in terminal.hears(later, news) if kind == "stdout"]
    assert shown == ["[trainer/1] one", "[trainer/1] half", "[trainer/1] two"]


@pytest.mark.parametrize(
    "start",
    [
        msgspec.structs.replace(START, node="gpu2"),
        msgspec.structs.replace(START, replica=ReplicaId("../../etc", 1)),
        msgspec.structs.replace(START, replica=ReplicaId("trainer", 4)),
        msgspec.structs.replace(START, replica=ReplicaId("trainer", -1)),
    ],
)
def test_a_start_that_cannot_be_one_of_this_host_is_ignored(terminal: Terminal, start: StartReplica) -> None:
    assert terminal.hears(NodeNews(Place(1), (start,))) == [] and terminal.host._starts == {}


def test_starts_and_digests_are_shown_on_a_terminal(terminal: Terminal) -> None:
    digest = Digest((Decision(2_000_000_000, "gpu7 lost (killed)", "warning"),), 3)
    shown = terminal.hears(NodeNews(Place(1), (START,)), digest if terminal.host._shows_progress else Digest(()))
    expected = [
        ("event", "trainer/1: attempt 1 begins here, rank 1 of 4"),
        ("warning", "at 2.00s: gpu7 lost (killed)"),
        ("event", "3 more messages are printed on the host with the controller"),
    ]
    assert shown == (expected if terminal.host._shows_progress else [])


def test_the_last_place_of_the_news_is_what_the_next_controller_is_asked_for(terminal: Terminal) -> None:
    terminal.hears(NodeNews(Place(10, "0000abcd"), (START,)), NodeNews(Place(20, "0000abce")))
    assert terminal.host._place == Place(20, "0000abce")


def test_a_farewell_ends_the_host_with_its_reason(terminal: Terminal) -> None:
    terminal.hears(Farewell("flowdist ended there"))
    assert terminal.host._lost == "the controller at 10.0.0.1:1 is gone: flowdist ended there"
    assert terminal.host._host.over.is_set()


def test_a_connection_over_which_no_controller_has_answered_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that stands still would take it for the present connection of the node once it goes on."""
    monkeypatch.setattr(joining, "HANDSHAKE_S", 0.05)

    async def scene() -> None:
        ended: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            handshake = ServerHandshake("job1", "run-1", "")
            for answer_to in (handshake.challenge, handshake.verify):
                writer.write(encode(answer_to(FROM_CLIENT.decode(await read_frame(reader) or b""))))
            while len(ended) < 2 and await read_frame(reader) is not None:
                pass  # the request to join, which is not answered
            ended.append(b"")
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            place = ControllerEndpoint(host, port, "job1", "run-1")
            welcome, nowhere = Welcome("gpu1", 1, 1, "run-1", GRAPH, 0), cast(Any, None)
            joined = Joined(nowhere, place, welcome, Credentials(), JobClock(0))
            task = asyncio.create_task(rejoin(joined, JoinRequest(), 60_000_000_000))
            async with asyncio.timeout(20):
                while len(ended) < 2:
                    await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scene())
