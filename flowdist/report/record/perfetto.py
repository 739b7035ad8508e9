"""Timeline in the trace format of Chrome, which ui.perfetto.dev opens.

A node is a process and a replica a thread of it; process 0 is the job as a whole. Incidents, lost and unsaved work are
async slices, which may overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from flowdist.record.journal import FaultLine
from flowdist.report.record.timeline import Attempt, Timeline
from flowdist.text.printable import printable_values

JOB = 0
DECISIONS = 1  # thread number of the decisions; those of the worlds' generations follow

Event = dict[str, Any]
AT_JOB: Event = {"pid": JOB, "tid": DECISIONS}


def perfetto_json(timeline: Timeline, mask: Callable[[str], str] = str) -> bytes:
    """Return the whole trace file of a timeline: the same bytes for the same record."""
    name = timeline.header.graph.name
    content = {
        "displayTimeUnit": "ms",
        "otherData": {"name": name, "run_id": timeline.header.run_id, "seed": str(timeline.header.seed)},
        "traceEvents": perfetto_events(timeline),
    }
    return msgspec.json.encode(printable_values(content, mask)) + b"\n"


def perfetto_events(timeline: Timeline) -> list[Event]:
    """Return the events of the trace file: names of processes and threads first, the rest in order of time."""
    maker = _Maker(timeline)
    events = [*maker.attempts(), *maker.generations(), *maker.incidents(), *maker.instants()]
    return [*maker.names(), *sorted(events, key=lambda event: float(event["ts"]))]


def _us(ns: int) -> int | float:
    """Return nanoseconds as microseconds, which the format demands; a remainder becomes a fraction."""
    return ns // 1000 if ns % 1000 == 0 else ns / 1000


class _Maker:
    """Maker of the events of one timeline, with the numbers of its processes (nodes) and threads (replicas, worlds)."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._pids = {name: number for number, name in enumerate(timeline.nodes(), 1)}
        self._tids = {replica: number for number, replica in enumerate(timeline.job.replicas, 1)}
        worlds = [name for name, world in timeline.job.worlds.items() if timeline.job.roles[world.roles[0]].spec.gang]
        self._worlds = {name: number for number, name in enumerate(worlds, DECISIONS + 1)}
        self._reasons = {decision.n: decision.reason for decision in timeline.decisions}

    def names(self) -> Iterator[Event]:
        """Yield the events that name the processes and threads and give their order."""
        yield from _named(JOB, None, "job", JOB)
        yield from _named(JOB, DECISIONS, "decisions", DECISIONS)
        for world, tid in self._worlds.items():
            yield from _named(JOB, tid, f"generations of {world}", tid)
        for node, pid in self._pids.items():
            yield from _named(pid, None, node, pid)
        seen = {(self._pids[attempt.node], attempt.replica) for attempt in self._timeline.attempts}
        for pid, replica in sorted(seen, key=lambda key: (key[0], self._tids[key[1]])):
            yield from _named(pid, self._tids[replica], str(replica), self._tids[replica])

    def attempts(self) -> Iterator[Event]:
        """Yield a slice for each attempt, one for each of its phases, and its lost or unsaved work."""
        for attempt in self._timeline.attempts:
            end = self._timeline.end_ns if attempt.ended_ns is None else attempt.ended_ns
            where = {"pid": self._pids[attempt.node], "tid": self._tids[attempt.replica]}
            yield _slice(where, f"attempt {attempt.number}", "attempt", attempt.started_ns, end, self._about(attempt))
            for phase, begun, over in attempt.phases(end):
                yield _slice(where, phase, "phase", begun, over, {})
            if attempt.lost_from_ns is not None and attempt.lost_to_ns is not None:
                what = "unsaved at the end" if attempt.is_unsaved else "lost work"
                key = f"{attempt.replica}#{attempt.number}"
                yield from _async(
                    where, f"{what}: {attempt.replica}", what, key, attempt.lost_from_ns, attempt.lost_to_ns, {}
                )

    def _about(self, attempt: Attempt) -> dict[str, Any]:
        return {
            "generation": attempt.generation,
            "world": attempt.world,
            "rank": attempt.rank,
            "how": attempt.how,
            "step": attempt.step,
            "event": attempt.because,
            "reason": self._reasons.get(attempt.because, "") if attempt.because is not None else "",
        }

    def generations(self) -> Iterator[Event]:
        """Yield a slice for each generation of a gang's world."""
        for generation in self._timeline.generations:
            if generation.world in self._worlds:
                end = self._timeline.end_ns if generation.to_ns is None else generation.to_ns
                where = {"pid": JOB, "tid": self._worlds[generation.world]}
                about = {"members": generation.members, "event": generation.formed_by}
                yield _slice(where, f"generation {generation.number}", "generation", generation.from_ns, end, about)

    def incidents(self) -> Iterator[Event]:
        """Yield each incident as an async slice; an open one lasts until the end of the timeline."""
        for incident in self._timeline.job.incidents:
            end = self._timeline.end_ns if incident.closed_ns is None else incident.closed_ns
            about: Event = {"kind": incident.kind, "root": incident.root, "reason": incident.reason}
            about["result"] = incident.result
            if incident.first_step_ns is not None:
                about["first_step_s"] = incident.first_step_ns / 1e9
            name = f"incident {incident.number}: {incident.root}"
            yield from _async(AT_JOB, name, "incident", str(incident.number), incident.opened_ns, end, about)

    def instants(self) -> Iterator[Event]:
        """Yield decisions at the job, faults at what they hit, and checkpoints at their world."""
        for fault in self._timeline.faults:
            yield _instant(self._hit(fault), fault.spec, "fault", fault.t_ns, {"target": fault.target})
        for decision in self._timeline.decisions:
            if decision.reason:
                about = {"event": decision.n, "what": decision.event}
                yield _instant(AT_JOB, decision.reason, "decision", decision.t_ns, about)
        for checkpoint in self._timeline.checkpoints:
            about = {"world": checkpoint.world, "step": checkpoint.step}
            name = f"checkpoint at step {checkpoint.step}"
            yield _instant(self._of(checkpoint.world), name, "checkpoint", checkpoint.t_ns, about)
        for line in self._timeline.unsaved:
            about = {"world": line.world, "step": line.step, "reason": line.reason}
            yield _instant(self._of(line.world), f"step {line.step} is not saved", "unsaved", line.t_ns, about)

    def _of(self, world: str) -> Event:
        """Return the thread of a world's generations; that of the decisions for a world without one."""
        return {"pid": JOB, "tid": self._worlds.get(world, DECISIONS)}

    def _hit(self, fault: FaultLine) -> dict[str, Any]:
        """Return the place of a fault: the replica or node that it hit, else the whole trace."""
        node, replica = self._timeline.hit(fault)
        if node is None:
            return {**AT_JOB, "s": "g"}
        if replica is None:
            return {"pid": self._pids[node], "tid": 0, "s": "p"}
        return {"pid": self._pids[node], "tid": self._tids[replica]}


def _named(pid: int, tid: int | None, name: str, order: int) -> Iterator[Event]:
    """Yield the events that name a process, or a thread if `tid` is given, and set its place in the order."""
    what, thread = ("process", {}) if tid is None else ("thread", {"tid": tid})
    yield {"ph": "M", "name": f"{what}_name", "pid": pid, **thread, "args": {"name": name}}
    yield {"ph": "M", "name": f"{what}_sort_index", "pid": pid, **thread, "args": {"sort_index": order}}


def _slice(where: Event, name: str, category: str, from_ns: int, to_ns: int, args: Event) -> Event:
    """Return the event of a slice from one time to another (ns) at `where`."""
    times = {"ts": _us(from_ns), "dur": _us(to_ns - from_ns)}
    return {"ph": "X", "name": name, "cat": category, **where, **times, "args": args}


def _instant(where: Event, name: str, category: str, at_ns: int, args: Event) -> Event:
    """Return the event of an instant at a time (ns) at `where`."""
    return {"ph": "i", "s": "t", "name": name, "cat": category, **where, "ts": _us(at_ns), "args": args}


def _async(where: Event, name: str, category: str, key: str, from_ns: int, to_ns: int, args: Event) -> Iterator[Event]:
    """Yield the begin and the end (ns) of an async slice; `key` tells it from others of its category."""
    shared = {"name": name, "cat": category, "id": key, **where}
    yield {"ph": "b", **shared, "ts": _us(from_ns), "args": args}
    yield {"ph": "e", **shared, "ts": _us(to_ns), "args": {}}
