"""Lines on the terminal about a job, computed from its records alone."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flowdist import Node, Restart, Topology, Workload
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.events import CancelRequested
from flowdist.control.protocol.ids import ReplicaId
from flowdist.record.journal import Record
from flowdist.runtime.run_folder.logs import Follower
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
