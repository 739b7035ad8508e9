"""Logs of other hosts: what a host answers, what a user gets, and what a host that is silent or lies can do."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.events import TimePassed
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.protocol.messages import Acked, Ordered
from flowdist.graph import RoleGraph, RoleSpec
from flowdist.record.journal import Record, encode_line
from flowdist.runtime.remote_logs import log_client
from flowdist.runtime.remote_logs.log_client import Ask, HostLogs, HostTail, NotFetched, asker
from flowdist.runtime.remote_logs.log_relay import LogRelay
from flowdist.runtime.remote_logs.log_server import LogServer
from flowdist.runtime.remote_logs.placements import Placements
from flowdist.runtime.run_folder.runs import ControllerLink
from flowdist.runtime.wire.frames import NodeNews
from flowdist.runtime.wire.log_messages import (
    PIECE_BYTES,
    Attempt,
    ListedLog,
    ListLogs,
    LogAnswer,
    LogList,
    LogName,
    LogPiece,
    LogPieces,
    LogRequest,
    NoLogs,
    ReadLogs,
    Stream,
)
from flowdist.runtime.worker_env.secret_values import Mask
from tests.runtime.far_host import FarHost, LoneController
from tests.runtime.harness import Job
from tests.runtime.hosts import Hosts

GRAPH = RoleGraph("far", (RoleSpec("trainer", ("true",), procs=2),))
ATTEMPT = Attempt(ReplicaId("trainer", 0), 1)
SECRET = "hunter2-hunter2"


def name(worker: int = 0, stream: Stream = "stdout", *, attempt: Attempt = ATTEMPT) -> LogName:
    return LogName(attempt, worker, stream)


def server(folder: Path, **logs: bytes) -> LogServer:
    """A host with these logs of worker 0; the keys are streams."""
    path = folder / "run/trainer/0/attempt_1/0"
    path.mkdir(parents=True)
    for stream, data in logs.items():
        (path / f"{stream}.log").write_bytes(data)
    return LogServer(folder / "run", GRAPH, Mask([SECRET]))


def listed(host: LogServer, *attempts: Attempt, last: int | None = None, bytes_max: int = 1 << 30) -> list[ListedLog]:
    content = host.answer(LogRequest("gpu07", ListLogs(attempts or (ATTEMPT,), bytes_max, last), 7)).content
    assert isinstance(content, LogList)
    return list(content.logs)


def read(host: LogServer, *places: tuple[LogName, int], final: bool = True) -> list[LogPiece]:
    content = host.answer(LogRequest("gpu07", ReadLogs(places, final))).content
    assert isinstance(content, LogPieces)
    return list(content.pieces)


def test_a_host_lists_logs_with_the_place_of_their_last_lines(tmp_path: Path) -> None:
    host = server(tmp_path, stdout=b"one\ntwo\nthree\n", stderr=b"")
    assert listed(host) == [ListedLog(name(), 14, 0), ListedLog(name(stream="stderr"), 0, 0)]
    assert listed(host, last=2)[0].start == 4
    assert listed(host, bytes_max=9)[0].start == 8, "a line that would be cut is left out"
    assert listed(host, Attempt(ReplicaId("trainer", 0), 2)) == []


def test_a_host_sends_whole_lines_and_what_is_left_at_the_end(tmp_path: Path) -> None:
    host = server(tmp_path, stdout=b"one\ntwo", stderr=b"err\n")
    assert read(host, (name(), 0), (name(stream="stderr"), 0), final=False) == [
        LogPiece(name(), b"one\n", 4),
        LogPiece(name(stream="stderr"), b"err\n", 4),
    ]
    assert read(host, (name(), 4), final=False) == []
    assert read(host, (name(), 4)) == [LogPiece(name(), b"two", 7)]
    assert read(host, (name(), 7), (name(), 1 << 60), (name(), -1)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        name(attempt=Attempt(ReplicaId("..", 0), 1)),
        name(attempt=Attempt(ReplicaId("../../other", 0), 1)),
        name(attempt=Attempt(ReplicaId("", 0), 1)),
        name(attempt=Attempt(ReplicaId("trainer", -1), 1)),
        name(attempt=Attempt(ReplicaId("trainer", 1), 1)),
        name(attempt=Attempt(ReplicaId("trainer", 0), 0)),
        name(worker=2),
        name(worker=-1),
    ],
)
def test_a_name_that_is_no_worker_of_the_job_is_no_file(tmp_path: Path, wrong: LogName) -> None:
    host = server(tmp_path, stdout=b"one\n")
    replica, number = wrong.attempt.replica, wrong.attempt.number
    path = tmp_path / "run" / replica.role / str(replica.index) / f"attempt_{number}" / str(wrong.worker)
    path.mkdir(parents=True)
    (path / "stdout.log").write_text("no worker of the job has written this")
    assert read(host, (wrong, 0)) == [] and [log for log in listed(host, wrong.attempt) if log.name == wrong] == []


def test_a_stream_that_is_none_does_not_pass_the_decoder() -> None:
    frame = msgspec.msgpack.encode({"attempt": [["trainer", 0], 1], "worker": 0, "stream": "../../../error"})
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(frame, type=LogName)


@pytest.mark.parametrize("link", ["file", "folder", "itself"])
def test_a_link_out_of_the_folder_of_the_run_is_not_followed(tmp_path: Path, link: str) -> None:
    host = server(tmp_path)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/stdout.log").write_text("secret")
    folder = tmp_path / "run/trainer/0/attempt_1/0"
    match link:
        case "file":
            (folder / "stdout.log").symlink_to(tmp_path / "outside/stdout.log")
        case "folder":
            folder.rmdir()
            folder.symlink_to(tmp_path / "outside")
        case _:
            (folder / "stdout.log").symlink_to(folder / "stdout.log")
    assert listed(host) == [] and read(host, (name(), 0)) == []


@pytest.mark.parametrize("before", [0, PIECE_BYTES - 20, PIECE_BYTES - 4, PIECE_BYTES, 2 * PIECE_BYTES - 8])
def test_a_secret_is_hidden_also_where_a_long_line_is_cut(tmp_path: Path, before: int) -> None:
    line = b"x" * before + SECRET.encode() + "é".encode() * PIECE_BYTES
    host = server(tmp_path, stdout=line + b"\nnext\n")
    data, offset = b"", 0
    while pieces := read(host, (name(), offset)):
        assert pieces[0].end > offset and len(pieces[0].data) <= PIECE_BYTES * 2
        assert b"\xc3" not in pieces[0].data[-1:], "no character is cut"
        data, offset = data + pieces[0].data, pieces[0].end
    assert data == line.replace(SECRET.encode(), b"***") + b"\nnext\n"


def test_a_host_that_is_asked_for_too_much_at_once_refuses(tmp_path: Path) -> None:
    content = server(tmp_path).answer(LogRequest("gpu07", ListLogs((ATTEMPT,) * 1001, 1))).content
    assert isinstance(content, NoLogs) and "1000 attempts or logs at once" in content.why


def test_the_journal_says_which_attempt_ran_where(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    places = Placements(path)
    places.update()
    first, again = start("node0", 0, 1), start("gpu07", 0, 2)
    path.write_bytes(encode_line(Record(1, 0, TimePassed(), (first, start("gpu07", 1, 1)))))
    places.update()
    with path.open("ab") as file:
        file.write(b'{"no JSON "StartReplica"\n')
        file.write(b'{"type":"event","effects":[{"type":"StartReplica","node":"\xff"}]}\n')  # no text
        file.write(encode_line(Record(2, 0, TimePassed(), (again,)))[:-5])
    places.update()
    assert places.of_nodes(["node0"], None, latest=False) == {"gpu07": [Attempt(ReplicaId("trainer", 1), 1)]}
    with path.open("ab") as file:
        file.write(encode_line(Record(2, 0, TimePassed(), (again,)))[-5:])
    places.update()
    assert places.of_nodes(["node0"], 2, latest=False) == {"gpu07": [Attempt(ReplicaId("trainer", 0), 2)]}
    assert places.of_nodes(["gpu07"], None, latest=True) == {}, "its attempt on node0 is not the last"
    assert len(places.of_nodes([], None, latest=False)["gpu07"]) == 2


def start(node: str, index: int, attempt: int) -> StartReplica:
    return StartReplica(node, ReplicaId("trainer", index), attempt, "trainer", 1, 0, 2, 0, 2, 0, 2, 0, "127.0.0.1", 1)


class Answers:
    """A host that gives these answers to a command, one after the other, the last for ever."""

    def __init__(self, *contents: LogList | LogPieces | NoLogs) -> None:
        self.contents, self.count = list(contents), 0

    def __call__(self, request: LogRequest) -> LogList | LogPieces | NoLogs:
        self.count += 1
        return self.contents.pop(0) if len(self.contents) > 1 else self.contents[0]


def fetched(answers: Ask, bytes_max: int = 1 << 20) -> list[str]:
    """The lines that a command prints of a host that answers so."""
    host = HostLogs(answers, GRAPH, "gpu07", bytes_max)
    return [line for log in host.find([ATTEMPT], None) for line in host.lines(log)]


LIST = LogList((ListedLog(name(), 100, 0),))


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([NoLogs("is not connected")], "gpu07 is not connected"),
        ([LogPieces(())], "sends something else than its logs"),
        ([LIST, LIST], "sends something else than its logs"),
        ([LogList(LIST.logs, is_whole=False)], "has too many logs"),
        ([LogList(LIST.logs * 4001)], "sends something else"),
        ([LogList((ListedLog(name(attempt=Attempt(ReplicaId("trainer", 0), 9)), 1, 0),))], "names logs that it cannot"),
        ([LogList((ListedLog(name(worker=1 << 40), 1, 0),))], "names logs that it cannot have"),
        ([LogList((ListedLog(name(), 1, 2),))], "names logs that it cannot have"),
        ([LIST, LogPieces((LogPiece(name(1), b"x\n", 2),))], "sends something else than its logs"),
        ([LIST, LogPieces((LogPiece(name(), b"x\n", 0),))], "sends something else than its logs"),
        ([LIST, LogPieces((LogPiece(name(), b"", 2),))], "sends something else than its logs"),
        ([LIST, LogPieces((LogPiece(name(), b"x\n", 2), LogPiece(name(), b"x\n", 4)))], "sends something else"),
    ],
)
def test_what_a_host_cannot_have_is_refused(answers: list[LogList | LogPieces | NoLogs], why: str) -> None:
    with pytest.raises(NotFetched, match=why):
        fetched(Answers(*answers))


class Endless:
    """A host whose log never ends, which sends `data` again and again."""

    def __init__(self, data: bytes) -> None:
        self.data, self.end, self.count = data, 0, 0

    def __call__(self, request: LogRequest) -> LogList | LogPieces:
        self.count += 1
        if self.count == 1:
            return LIST
        self.end += len(self.data)
        return LogPieces((LogPiece(name(), self.data, self.end),))


def test_a_host_that_sends_without_end_is_cut_off() -> None:
    many = Endless(b"line\n" * 10_000)
    lines = fetched(many)
    assert 1 << 20 <= 5 * len(lines) <= (1 << 20) + 200_000 and set(lines) == {"line"}
    slow = Endless(b"x")
    with pytest.raises(NotFetched, match="gpu07 sends too little at a time"):
        fetched(slow)
    assert slow.count < 50
    with pytest.raises(NotFetched, match="has more than 1,000,000 lines in trainer/0"):
        fetched(Endless(b"\n" * PIECE_BYTES), bytes_max=1 << 24)
    one_line = fetched(Endless(b"x" * PIECE_BYTES), bytes_max=3 << 20)
    assert len(one_line) == 4 and max(map(len, one_line)) < (1 << 20) + 100, "a line without end comes in pieces"


def test_logs_that_grow_are_read_in_turn_and_forgotten_when_their_attempt_has_a_successor(
    tmp_path: Path,
) -> None:
    host = server(tmp_path, stdout=b"loud\n" * 100_000, stderr=b"quiet\n")
    tail = HostTail(HostLogs(lambda request: host.answer(request).content, GRAPH, "gpu07"))
    tail.find_new([ATTEMPT], {ATTEMPT.replica: 1})
    lines = [line for _, line in tail.new_lines()]
    assert "quiet" in lines[:60_000] and lines.count("loud") == 100_000
    with (tmp_path / "run/trainer/0/attempt_1/0/stderr.log").open("a") as file:
        file.write("end")
    assert list(tail.new_lines()) == []
    assert [line for _, line in tail.new_lines(final=True)] == ["end"]
    for is_followed in (True, False):
        tail.find_new([ATTEMPT], {ATTEMPT.replica: 2})
        assert bool(tail._readers) == is_followed and not tail.follows({ATTEMPT.replica: 2})


def ask_through(controller: LoneController, node: str) -> HostLogs:
    """The logs of a host, as a command beside the controller asks for them."""
    path = controller.run_dir / "control.sock"
    if not path.is_symlink():
        path.symlink_to(controller.run_dir / "c.sock")
    link = ControllerLink(controller.run_dir)
    controller.closing.callback(link.close)
    return HostLogs(asker(link), GRAPH, node)


def next_request(host: FarHost) -> LogRequest:
    while not isinstance(message := host.read(), LogRequest):
        assert isinstance(message, Acked | Ordered | NodeNews)
    return message


def test_a_host_whose_logs_are_followed_waits_until_the_last_lines_are_fetched(tmp_path: Path) -> None:
    host = server(tmp_path, stdout=b"last\n")

    def look(offset: int, *, final: bool) -> None:
        host.answer(LogRequest("gpu07", ReadLogs(((name(), offset),), final, follows=True)))

    async def end() -> list[bool]:
        waits = []
        for offset in (0, 5):
            waiting = asyncio.create_task(host.wait_for_last())
            await asyncio.sleep(0)  # it has begun
            look(offset, final=True)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            waits.append(not waiting.done())
            waiting.cancel()
        return waits

    asyncio.run(asyncio.wait_for(host.wait_for_last(), 0.5))  # nobody follows
    read(host, (name(), 5))
    asyncio.run(asyncio.wait_for(host.wait_for_last(), 0.5))  # a command that does not follow
    look(0, final=False)
    assert asyncio.run(end()) == [True, False], "until an answer has been empty"


def test_a_controller_waits_for_followers_and_asks_a_host_one_thing_at_a_time() -> None:
    async def talk() -> None:
        pairs = [await asyncio.open_connection(sock=end) for end in socket.socketpair()]
        host, asker = (writer for _, writer in pairs)
        sent: list[tuple[asyncio.StreamWriter, LogRequest | LogAnswer]] = []
        relay = LogRelay(lambda node: host if node == "gpu07" else None, lambda to, what: sent.append((to, what)))
        await asyncio.wait_for(relay.wait_for_last(), 0.5)  # nobody follows
        for final in (False, True):
            relay.ask(LogRequest("gpu07", ReadLogs((), final, follows=True)), asker)
        relay.ask(LogRequest("gpu08", ListLogs((), 1)), asker)
        assert [to for to, _ in sent] == [host, asker], "the second request waits for the first answer"
        assert sent[1][1] == LogAnswer(0, NoLogs("is not connected"))
        relay.answer(LogAnswer(2, LogPieces(())), host)
        relay.answer(LogAnswer(1, LogPieces(())), asker)
        assert len(sent) == 2, "not its number, not its connection"
        relay.answer(LogAnswer(1, LogPieces(())), host)
        assert [to for to, _ in sent[2:]] == [asker, host]
        waiting = asyncio.create_task(relay.wait_for_last())
        await asyncio.sleep(0.03)
        assert not waiting.done(), "the last request has no answer yet"
        relay.answer(LogAnswer(2, LogPieces(())), host)
        await asyncio.wait_for(waiting, 0.5)
        relay.ask(LogRequest("gpu07", ListLogs((), 1)), asker)
        relay.disconnected(host)
        assert sent[-1] == (asker, LogAnswer(0, NoLogs("has lost its connection")))
        for writer in (host, asker):
            writer.close()

    asyncio.run(talk())


def names_in(host: HostLogs) -> list[str]:
    return [log.text for log in host.find([ATTEMPT], None)]


@pytest.mark.real
@pytest.mark.parametrize("silent", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_controller_passes_requests_on_and_names_hosts_that_do_not_answer(tmp_path: Path, silent: bool) -> None:
    with LoneController(tmp_path, GRAPH) as controller, ThreadPoolExecutor(1) as commands:
        host, other = controller.host("one"), controller.host("two")
        host.join("gpu07")
        other.join("gpu08")
        gpu07, gpu08 = ask_through(controller, "gpu07"), ask_through(controller, "gpu08")
        with pytest.raises(NotFetched, match="nosuch is not connected"):
            names_in(ask_through(controller, "nosuch"))
        if silent:
            unanswered = commands.submit(names_in, gpu07)
            request = next_request(host)
            with pytest.raises(NotFetched, match="gpu07 has not answered for 5 s"):
                unanswered.result(30)
            host.send(LogAnswer(request.number, LIST))  # too late: it is dropped, and the connection stays
        fetched = commands.submit(names_in, gpu07)
        request = next_request(host)
        assert request.query == ListLogs((ATTEMPT,), log_client.BYTES_MAX, None)
        other.send(LogAnswer(request.number, NoLogs("is somebody else")))
        other.wait_until_heard()
        host.send(LogAnswer(request.number + 1, NoLogs("was not asked that")), LogAnswer(request.number, LIST))
        assert fetched.result(30) == ["trainer/0.0"]
        lost = commands.submit(names_in, gpu08)
        next_request(other)
        other.close()
        with pytest.raises(NotFetched, match="gpu08 has lost its connection"):
            lost.result(30)
        host.send(LogRequest("gpu07", ListLogs((ATTEMPT,), 1)))  # no host may ask for logs of another one
        assert "other hosts may not send LogRequest" in _log_after_end(controller, host)


def _log_after_end(controller: LoneController, host: FarHost) -> str:
    while host.connection.recv(1 << 16):
        pass
    return controller.log


CHATTY = """
import os, sys, time
rank, restart = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
print("rank", rank, "start", restart, "ERROR: none", flush=True)
print("token", os.environ.get("TOKEN", "none"), file=sys.stderr, flush=True)
while not os.path.exists("end"):
    time.sleep(0.02)
    if os.path.exists(f"fail{rank}") and restart == "0":
        sys.exit("error: asked to fail")
print("rank", rank, "is done", flush=True)
"""
TOPOLOGY = """
from flowdist import Restart, Topology

t = Topology("far", nodes=2)
t.role("trainer", "python chatty.py", replicas=2, apart=True, restart=Restart("role", max_restarts=2))
"""


def logs(job: Job, *words: str, code: int = 0) -> tuple[str, str]:
    """What `flowdist logs` prints on stdout and on stderr, on the host of the job."""
    run = [sys.executable, "-m", "flowdist", "logs", *words]
    done = subprocess.run(run, cwd=job.folder, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


@pytest.mark.real
@pytest.mark.slow
def test_logs_of_all_hosts_are_printed_followed_and_searched_where_the_controller_is(tmp_path: Path) -> None:
    (tmp_path / "chatty.py").write_text(CHATTY)
    (tmp_path / "far.py").write_text(TOPOLOGY)
    with Hosts(tmp_path) as hosts:
        first = hosts.start(1, "run", str(tmp_path / "far.py"), "--listen", hosts.endpoint)
        first.until("joined")
        second = hosts.start(2, "join", hosts.endpoint, env={"TOKEN": "of the second host"})
        second.until("[trainer/1] rank 1 start 0")
        first.until("[trainer/0] rank 0 start 0")
        node = second.output[0].rpartition(" as ")[2].partition(";")[0].partition(" ")[0]
        both = "[trainer/0] rank 0 start 0 ERROR: none\n[trainer/0] token none\n"
        both += "[trainer/1] rank 1 start 0 ERROR: none\n[trainer/1] token of the second host\n"
        assert logs(first) == (both, "")
        with Job(first.folder, "-f", "trainer/1", verb="logs") as follow:
            follow.until("[trainer/1] token of the second host")
            (tmp_path / "fail1").touch()
            follow.until("[trainer/1] error: asked to fail")
            follow.until("[trainer/1] rank 1 start 1")
            found, _ = logs(first, "--grep", "error: ", "-i", "--json", "trainer/1")
            lines = [json.loads(line) for line in found.splitlines()]
            assert [(line["attempt"], line["stream"], line["host"], line["match"]) for line in lines] == [
                (1, "stdout", node, True),
                (1, "stderr", node, True),
                (2, "stdout", node, True),
            ]
            assert (
                logs(first, "trainer/1", "--attempt", "1", "-n", "1", "--stderr")[0]
                == "[trainer/1] error: asked to fail\n"
            )
            assert logs(first, "--grep", "nowhere", code=1)[1].startswith("no line matches, of ")
            (tmp_path / "end").touch()
            assert hosts.all_end() == [0, 0], hosts.text
            assert follow.finish() == 0
            assert follow.text.count("error: asked to fail") == 1, "its copy, which the host has sent, is left out"
            is_named = f"not fetched: what {node} printed last, if anything: the run is over" in follow.text
            assert is_named or follow.text.endswith("[trainer/1] rank 1 is done"), follow.text  # on a loaded machine
        told, missing = logs(first)
        assert told == "[trainer/0] rank 0 start 1 ERROR: none\n[trainer/0] rank 0 is done\n[trainer/0] token none\n"
        assert f"trainer/1 attempt 2: {node} cannot be asked: run {first.run_dir.name} is over" in missing
        last_words, _ = logs(first, "trainer/1", "--attempt", "1")
        assert last_words.endswith("[trainer/1] error: asked to fail\n"), "what was sent when it failed is still there"
