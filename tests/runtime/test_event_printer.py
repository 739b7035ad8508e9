"""Lines on the terminal about a job, computed from its records alone."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from flowdist import Node, Restart, Topology, Workload
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.events import CancelRequested
from flowdist.control.protocol.ids import ReplicaId
from flowdist.record.journal import Record
from flowdist.runtime.run_folder.logs import LOOK_MAX_S, STEP_BYTES, Follower
from flowdist.runtime.supervisor.event_printer import EventPrinter
from flowdist.testing import graph_of, simulate


def told(tmp_path: Path, *faults: str, rejoin_time: str | None, attempt: int = 2) -> list[str]:
    """Return the lines about the starts of these attempts."""
    t = Topology("staying", nodes=3 * [Node(cpu=1)])
    work = Workload(steps=60, rejoin_time=rejoin_time)
    t.role("trainer", "true", replicas=3, restart=Restart("role", max_restarts=3), workload=work)
    said: list[str] = []
    printer = EventPrinter(graph_of(t), Follower(tmp_path, lambda *_: None), (), lambda _, text: said.append(text))
    for line in simulate(t, *faults).lines:
        if isinstance(line, Record):
            printer.print(line)
    return sorted(text.partition(",")[0] for text in said if f"(attempt {attempt})" in text)


def test_a_restart_does_not_split_lines_of_other_workers(tmp_path: Path) -> None:
    """Python writes a line in pieces: print(a, b) with PYTHONUNBUFFERED=1."""
    t = Topology("lines", nodes=2 * [Node(cpu=1)])
    t.role("trainer", "true", replicas=2, restart=Restart("replica", max_restarts=3))
    graph = graph_of(t)
    role = graph.role("trainer")
    shown: list[str] = []
    follower = Follower(tmp_path, lambda _, text: shown.append(text))
    printer = EventPrinter(graph, follower, (), lambda *_: None)
    logs = [tmp_path / f"trainer/{index}/attempt_1/0/stdout.log" for index in (0, 1)]
    starts = [
        StartReplica(f"node{index}", ReplicaId("trainer", index), 1, "", 1, 0, 1, 0, 1, 0, 1, 0, "", 0)
        for index in (0, 1)
    ]
    printer.skip(Record(1, 0, CancelRequested(), tuple(starts), ""))
    for log, start in zip(logs, starts, strict=True):
        log.parent.mkdir(parents=True)
        log.write_text("a whole line\nhalf")
        follower.follow(start, role)
    again = msgspec.structs.replace(starts[1], attempt=2)
    printer.print(Record(2, 0, CancelRequested(), (again,), ""))
    assert shown == [
        "[trainer/0] a whole line",
        "[trainer/1] a whole line",
        "[trainer/1] half",
    ]
    with logs[0].open("a") as log:
        log.write(" a line\n")
    follower.read()
    assert shown[3:] == ["[trainer/0] half a line"]


def test_suspended_workers_continue_in_place_and_failed_ones_start(tmp_path: Path) -> None:
    assert told(tmp_path, "trainer/1@20s", rejoin_time="1s") == [
        "trainer/0: continues in place on node0 (attempt 2)",
        "trainer/1: starts on node1 (attempt 2)",
        "trainer/2: continues in place on node2 (attempt 2)",
    ]


def test_without_elastic_workers_all_replicas_start(tmp_path: Path) -> None:
    assert [text.split()[1] for text in told(tmp_path, "trainer/1@20s", rejoin_time=None)] == ["starts"] * 3


def test_suspended_workers_of_a_lost_node_start_when_the_node_is_back(tmp_path: Path) -> None:
    in_back_off = ("trainer/1@20s", "trainer/1@40s", "node2@40.2s/300ms")
    assert told(tmp_path, *in_back_off, rejoin_time="1s", attempt=3) == [
        "trainer/0: continues in place on node0 (attempt 3)",
        "trainer/1: starts on node1 (attempt 3)",
        "trainer/2: starts on node2 (attempt 3)",
    ]


def followed(tmp_path: Path, follower: Follower, index: int) -> tuple[Path, StartReplica]:
    """Have the follower follow a worker, and return its log, and the start of its attempt."""
    t = Topology("lines", nodes=2 * [Node(cpu=1)])
    t.role("trainer", "true", replicas=2)
    start = StartReplica("node0", ReplicaId("trainer", index), 1, "", 1, 0, 1, 0, 1, 0, 1, 0, "", 0)
    log = tmp_path / f"trainer/{index}/attempt_1/0/stdout.log"
    log.parent.mkdir(parents=True)
    follower.follow(start, graph_of(t).role("trainer"))
    return log, start


def test_a_loud_worker_leaves_a_slow_terminal_to_others_too(tmp_path: Path) -> None:
    shown: list[str] = []
    takes = [0]

    def is_behind() -> bool:
        takes[0] -= 1
        return takes[0] < 0

    follower = Follower(tmp_path, lambda _, text: shown.append(text), is_behind=is_behind)
    logs = [followed(tmp_path, follower, index)[0] for index in (0, 1)]
    for look in range(4):  # the terminal takes the lines of one log in each look, and both workers print
        for log in logs:
            with log.open("a") as file:
                file.write(f"{look}\n")
        takes[0] = 1
        follower.read()
    assert [line for line in shown if "trainer/1" in line] and [line for line in shown if "trainer/0" in line], shown


def test_what_a_process_adds_to_the_log_of_an_attempt_that_is_over_is_not_waited_for(tmp_path: Path) -> None:
    """The process floods the log faster than it is read."""
    shown: list[str] = []

    def show(_: str, text: str) -> None:
        assert len(shown) < 100, "the reader never comes to an end"
        shown.append(text)
        with log.open("a") as file:
            file.write("x\n" * 2)

    follower = Follower(tmp_path, show)
    log, start = followed(tmp_path, follower, 0)
    log.write_text("a line\nhalf")
    follower.end(start)
    assert shown == ["[trainer/0] a line", "[trainer/0] half"]


def test_a_look_at_many_short_lines_ends_in_time_and_later_ones_show_the_rest(tmp_path: Path) -> None:
    """Interrupts wait for the end of a look."""
    shown: list[int] = []

    def show(_: str, text: str) -> None:
        shown.append(int(text.split()[1]))
        if not len(shown) % (STEP_BYTES // 5):
            clock_until = time.monotonic() + LOOK_MAX_S  # a terminal that takes its time
            while time.monotonic() < clock_until:
                pass

    follower = Follower(tmp_path, show)
    log, start = followed(tmp_path, follower, 0)
    lines = list(range(10_000, 90_000))
    log.write_text("".join(f"{number}\n" for number in lines))
    follower.end(start)
    assert 0 < len(shown) < len(lines) // 2
    while not follower.read_rest():
        pass
    assert shown == lines
