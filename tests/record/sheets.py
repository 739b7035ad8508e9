"""Timesheets of conversations. After each line the buckets add up, and none is negative."""

from __future__ import annotations

from flowdist.control.controller import Controller
from flowdist.control.protocol import events as ev
from flowdist.graph import SECOND, RoleGraph
from flowdist.record.journal import FaultLine, Header, Line, Record, UnsavedLine, record
from flowdist.record.timesheet import Timesheet
from flowdist.record.work_segments import ClosedSegment
from tests.control.harness import Talk, joined, r, restart, role


def assert_closes(sheet: Timesheet, job: RoleGraph) -> None:
    for name, buckets in sheet.spent().items():
        assert sum(buckets.values()) == sheet.lasted() * job.role(name).max_replicas, f"{name}: {buckets}"
        assert min(buckets.values()) >= 0, f"{name}: {buckets}"


def sheet_of(
    job: RoleGraph, lines: list[Line], known: tuple[str, ...] = (), ended: list[ClosedSegment] | None = None
) -> Timesheet:
    controller = Controller(job, known)
    sheet = Timesheet(controller.state)
    sheet.ended = ended
    for line in lines:
        if isinstance(line, Record):
            assert tuple(controller.handle(line.event, line.t_ns)) == line.effects
        sheet.hear(line)
        assert_closes(sheet, job)
    return sheet


def read(
    talk: Talk,
    *faults: tuple[float, str],
    known: int | None = None,
    unsaved: tuple[UnsavedLine, ...] = (),
    ended: list[ClosedSegment] | None = None,
) -> Timesheet:
    """Return the timesheet of a conversation, with faults that were injected at that second: `ps/0`, `ps/0:pause/5s`.

    Checkpoints `unsaved` were not saved. Segments that have ended are added to `ended`.
    """
    names = tuple(spec.name for spec in talk.graph.cluster.nodes)[:known]
    controller = Controller(talk.graph, names)
    lines: list[Line] = [*unsaved]
    for at, fault in faults:
        target, colon, action = fault.partition(":")
        lines.append(FaultLine(round(at * SECOND), f"{target}@{at}s{colon}{action}", target))
    for number, (event, now) in enumerate(talk.record, 1):
        lines.append(record(number, now, event, controller.handle(event, now)))
    lines.sort(key=lambda line: 0 if isinstance(line, Header) else line.t_ns)
    return sheet_of(talk.graph, [Header(talk.graph, names), *lines], names, ended)


def seconds(sheet: Timesheet, name: str = "trainer", now: float | None = None) -> dict[str, float]:
    spent = sheet.spent(None if now is None else round(now * SECOND))[name]
    return {bucket: ns / SECOND for bucket, ns in spent.items() if ns}


def trainers(count: int = 1, *others: object, nodes: int = 1, cpu: float = 8.0, **fields: object) -> Talk:
    fields.setdefault("restart", restart(times=20, backoff_ns=0))
    fields.setdefault("min_replicas", count)
    return joined(*others, role("trainer", max_replicas=count, **fields), nodes=nodes, cpu=cpu)  # type: ignore[arg-type]


def half_up(at: float = 5) -> Talk:
    """Return two trainers of which one fails at `at`; of their next generation only one has reported that it runs."""
    talk = trainers(2)
    talk.auto = False
    talk.tell(ev.StoreOpened("trainer", 2, 1))  # of a generation that is not there
    fail(talk, at)
    talk.tell(ev.ReplicaStopped(r("trainer/1"), 1))
    talk.tell(ev.StoreOpened("trainer", 2, 29500))
    talk.tell(ev.ReplicaStarted(r("trainer/0"), 2))
    return talk


def until(talk: Talk, at: float) -> None:
    talk.wait(at - talk.now / SECOND)


def step(talk: Talk, at: float, number: int, name: str = "trainer/0", attempt: int | None = None) -> None:
    until(talk, at)
    talk.tell(ev.ReplicaProgressed(r(name), attempt or talk.replica(name).attempt, number))


def count(talk: Talk, at: float, steps: int, name: str = "trainer/0") -> None:
    until(talk, at)
    talk.report(ev.ReplicaStepped, name, steps)


def save(talk: Talk, at: float, number: int = 0, name: str = "trainer/0") -> None:
    until(talk, at)
    world = talk.world(talk.replica(name).world)
    talk.report(ev.CheckpointOffered, name, world.generation, "path", number)


def fail(talk: Talk, at: float, name: str = "trainer/0") -> None:
    until(talk, at)
    talk.fail(name)


def finish(talk: Talk, at: float, *names: str) -> None:
    until(talk, at)
    talk.finish(*names)


def stall(talk: Talk, at: float, name: str = "trainer/0", by: str = "progress", seen: bool = True) -> None:
    until(talk, at)
    for_ns = 10 * SECOND
    talk.report(ev.ReplicaStalled, name, by, for_ns, was_seen=seen)  # type: ignore[arg-type]


def revive(talk: Talk, at: float, name: str = "trainer/0") -> None:
    until(talk, at)
    talk.report(ev.ReplicaRevived, name)
