"""News of joined hosts: each gets what concerns its node, in bytes that do not grow with the number of hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from flowdist.control.controller import Controller
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import OpenStore, StartReplica
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import NodeSpec, Placement, RoleGraph, RoleSpec
from flowdist.record.journal import Header, record
from flowdist.record.status import Decision
from flowdist.runtime.controller import host_news as module
from flowdist.runtime.controller.host_news import DIGEST_MAX, HostNews, digest
from flowdist.runtime.controller.journal_file import JournalFile
from flowdist.runtime.wire.frames import Digest, FromControllerFrame, JobOver, NodeNews, Place

_DECODER: msgspec.msgpack.Decoder[FromControllerFrame] = msgspec.msgpack.Decoder(FromControllerFrame)
HEADER = Header(RoleGraph("places", (RoleSpec("trainer", ("true",)),)), ())


class Writer:
    """A connection that keeps what is written to it."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    @property
    def messages(self) -> list[FromControllerFrame]:
        return [_DECODER.decode(frame[4:]) for frame in self.frames]

    @property
    def starts(self) -> list[StartReplica]:
        return [start for message in self.messages if isinstance(message, NodeNews) for start in message.starts]


class Job:
    """A controller with so many hosts, each of which gets its news, and which obey at once."""

    def __init__(self, hosts: int, **watching: bool) -> None:
        role = RoleSpec("trainer", ("true",), max_replicas=hosts, placement=Placement(apart=("trainer",)))
        names = tuple(f"gpu{number}" for number in range(hosts))
        self.controller = Controller(RoleGraph("news", (role,)), names)
        self.news = HostNews(self.controller.state, lambda: Place(self.n, "0000abcd"), _write)
        self.writers = {name: Writer() for name in names}
        self.n = 0
        for name, writer in self.writers.items():
            self.news.add(name, writer, shows_progress=watching.get(name, False))  # type: ignore[arg-type]

    def handle(self, *events: ev.Event) -> None:
        for event in events:
            self.n += 1
            line = record(self.n, self.n, event, self.controller.handle(event, self.n))
            self.news.note(line)
            for effect in line.effects:
                if isinstance(effect, OpenStore):
                    self.handle(ev.StoreOpened(effect.world, effect.generation, 29500))

    def form(self) -> None:
        self.handle(*(ev.NodeJoined(name, NodeSpec(name, cpu=1)) for name in self.writers))


def _write(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.frames.append(frame)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEWS_S", 0)
    monkeypatch.setattr(module, "DIGEST_S", 0)


def played(scene: Callable[[Job], None], hosts: int = 3, **watching: bool) -> Job:
    """Return the job after the scene, when all news are sent."""

    async def play() -> Job:
        job = Job(hosts, **watching)
        scene(job)
        while job.news._tasks:
            await asyncio.sleep(0)
        return job

    return asyncio.run(play())


def test_a_host_gets_the_starts_of_its_node_alone_and_the_place_in_the_journal() -> None:
    job = played(Job.form)
    for name, writer in job.writers.items():
        assert [start.node for start in writer.starts] == [name]
        assert isinstance(news := writer.messages[-1], NodeNews) and news.place == Place(job.n, "0000abcd")


def test_what_a_host_gets_does_not_grow_with_the_number_of_hosts() -> None:
    sizes = [max(sum(map(len, writer.frames)) for writer in played(Job.form, n).writers.values()) for n in (3, 60)]
    assert sizes[1] < 1.1 * sizes[0], sizes


def test_a_host_that_connects_again_gets_the_present_attempts_of_its_node() -> None:
    again = Writer()

    def scene(job: Job) -> None:
        job.form()
        job.news.remove(job.writers["gpu1"])  # type: ignore[arg-type]
        job.news.add("gpu1", again, shows_progress=False)  # type: ignore[arg-type]
        job.news.remove(Writer())  # type: ignore[arg-type]

    job = played(scene)
    assert again.starts == [
        replica.order for replica in job.controller.state.replicas.values() if replica.node == "gpu1"
    ]
    assert job.writers["gpu1"].frames == []


def test_news_can_be_hurried_to_one_host() -> None:
    def scene(job: Job) -> None:
        job.form()
        job.news.send_now("gpu1")
        job.news.send_now("gpu9")
        assert [bool(writer.starts) for writer in job.writers.values()] == [False, True, False]

    job = played(scene)
    assert [len(writer.starts) for writer in job.writers.values()] == [1, 1, 1]


def test_hosts_that_show_progress_get_one_digest_and_others_none() -> None:
    job = played(Job.form, gpu1=True)
    digests = [message for message in job.writers["gpu1"].messages if isinstance(message, Digest)]
    assert len(digests) == 1 and any("gpu2 joined" in said.text for said in digests[0].said)
    assert not any(isinstance(message, Digest) for message in job.writers["gpu0"].messages)


def test_a_digest_leaves_out_what_weighs_least() -> None:
    said = [Decision(n, f"message {n}", "warning" if n == 90 else "info") for n in range(100)]
    short = digest(said)
    assert short.left_out == 100 - DIGEST_MAX and len(short.said) == DIGEST_MAX
    assert [each.t_ns for each in short.said] == [*range(DIGEST_MAX - 1), 90]
    assert digest(said[:3]) == Digest(tuple(said[:3]))


def test_every_host_gets_the_end_of_the_job_with_the_failure_that_it_names() -> None:
    late = Writer()
    failure = ev.ReplicaExited(ReplicaId("trainer", 1), 1, "exit", 3, detail="ValueError: bad shape")

    def scene(job: Job) -> None:
        job.form()
        starts = {replica.order.node: replica for replica in job.controller.state.replicas.values() if replica.order}
        job.handle(*(ev.ReplicaStarted(replica.id, 1) for replica in starts.values()), failure)
        job.handle(*(ev.ReplicaStopped(ReplicaId("trainer", index), 1) for index in (0, 2)))
        job.news.add("gpu9", late, shows_progress=False)  # type: ignore[arg-type]

    job = played(scene)
    for writer in (*job.writers.values(), late):
        (over,) = [message for message in writer.messages if isinstance(message, JobOver)]
        assert over.outcome == "failed" and "trainer/1" in over.reason and over.exits == (failure,)


@contextmanager
def journal_at(path: Path) -> Iterator[JournalFile]:
    journal = JournalFile(path)
    try:
        yield journal
    finally:
        journal._file.close()  # a controller leaves that to its end


def test_a_place_in_the_journal_is_known_as_long_as_no_line_before_it_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with journal_at(path) as journal:
        places = [Place()]  # of a host that has had no news
        journal.write(HEADER, force=False)
        for n in range(1, 20):
            places.append(journal.place)
            journal.write(record(n, n, ev.CancelRequested(f"the {n}th"), ()), force=False)
        assert all(journal.has(place) for place in (*places, journal.place))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:10]))
    with journal_at(path) as shorter:
        for n in range(10, 25):
            shorter.write(record(n, n, ev.CancelRequested(f"another {n}th"), ()), force=False)
        assert [shorter.has(place) for place in places] == 11 * [True] + 9 * [False]


@pytest.mark.parametrize("place", [Place(-1, "0"), Place(1 << 62, "0"), Place(0, "abcdef01"), Place(40, "x" * 10_000)])
def test_a_place_that_no_host_has_is_not_known(tmp_path: Path, place: Place) -> None:
    with journal_at(tmp_path / "journal.jsonl") as journal:
        journal.write(HEADER, force=False)
        assert not journal.has(place)
