"""Timeline as one HTML file with style, script and data inside: it fetches nothing.

The data is JSON in the page. Times are whole microseconds. Times of an attempt count from the start of its generation,
and -1 means never, so that the file stays small for a thousand restarts of 64 replicas.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from datetime import datetime, timedelta
from importlib.resources import files
from typing import Any

import msgspec

from flowdist.control.job.facts import Incident
from flowdist.report.record.spending import goodput_line, time_of_run
from flowdist.report.record.summary import rounded
from flowdist.report.record.timeline import Attempt, Generation, Timeline
from flowdist.text.printable import one_line, printable_values

NEVER = -1
HOW = ("alive", "succeeded", "failed", "stopped", "lost")


def timeline_page(timeline: Timeline, *, is_live: bool = False, mask: Callable[[str], str] = str) -> str:
    """Return the whole HTML file of a timeline, with the values of secrets masked: the same text for the same record.

    With `is_live` the page asks the server that it comes from for what is new, and for logs.
    """
    folder = files("flowdist.report.record")
    name = timeline.header.graph.name
    data = msgspec.json.encode(printable_values(page_data(timeline), mask)).decode()
    scripts = ("page.js", "page_marks.js", "page_input.js", *(["page_live.js"] if is_live else []))
    parts = {
        "title": html.escape(one_line(f"{timeline.header.run_id or name}: timeline")),
        "name": html.escape(one_line(name)),
        "run": html.escape(one_line(_run_line(timeline))),
        "summary": html.escape(one_line(mask(summary_line(timeline)))),
        "notice": _notice(timeline),
        "style": (folder / "page.css").read_text(encoding="utf-8"),
        "script": "".join((folder / name).read_text(encoding="utf-8") for name in scripts),
        "sources": "; connect-src 'self'" if is_live else "",
        "live": '<span id="live" role="status">live</span>' if is_live else "",
        "data": data.replace("<", "\\u003c"),  # no text of a user can end the script element
    }
    page = (folder / "page.html").read_text(encoding="utf-8")
    return "".join(parts.get(piece, piece) for piece in page.split("@@"))


def summary_line(timeline: Timeline) -> str:
    """Return the outcome and the counts of a timeline in one line."""
    job = timeline.job
    outcome = f"{job.outcome or 'unfinished'} after {rounded(timeline.end_ns / 1e9)}"
    if job.ending_reason:
        outcome += f": {job.ending_reason}"
    counts = [
        (len(job.incidents), "incident"),
        (len(timeline.faults), "injected fault"),
        (len(timeline.attempts), "attempt"),
    ]
    parts = [f"{number} {word}{'s' * (number != 1)}" for number, word in counts]
    if timeline.lost_ns:
        parts.append(f"{rounded(timeline.lost_ns / 1e9)} of work lost")
    if timeline.unsaved_ns:
        parts.append(f"{rounded(timeline.unsaved_ns / 1e9)} of work unsaved at the end")
    return f"{outcome}; {', '.join(parts)}"


def _run_line(timeline: Timeline) -> str:
    """Return the name of the run and when it began by the wall clock; what it is if it is no run."""
    header = timeline.header
    if not header.run_id:
        return f"simulation, seed {header.seed}"
    if not timeline.clock:
        return f"run {header.run_id}"
    began = timeline.clock[0][1]
    return f"run {header.run_id}, began {began:%Y-%m-%d %H:%M:%S} (UTC{began:%z})"


def _notice(timeline: Timeline) -> str:
    """Return an HTML paragraph that says at which event the timeline ends because the record does not replay."""
    if timeline.differs_at is None:
        return ""
    text = f"From event {timeline.differs_at} on, this version of flowdist decides otherwise than the record says."
    return f'<p class="notice" role="alert">{html.escape(text)} Later events are not shown.</p>'


def page_data(timeline: Timeline) -> dict[str, Any]:
    """Return the data for `page.js`: lists of rows, whose columns the script knows by their position.

    Nodes, roles, worlds, replicas and decisions in rows are numbers: their positions in the lists of the data.
    """
    job = timeline.job
    index = _Index(timeline)
    accounts = time_of_run(job.graph, timeline.curves.sheet)
    faults = [(fault, timeline.hit(fault)[0]) for fault in timeline.faults]
    return {
        "format": 2,
        "end": _us(timeline.end_ns),
        "clock": [_clock_row(t_ns, wall) for t_ns, wall in timeline.clock],
        "curves": _curves(timeline),
        "summary": one_line(summary_line(timeline)),
        "goodput": goodput_line(accounts | {"outcome": job.outcome}),
        "lost": [[name, round(seconds * 1e6)] for name, seconds in accounts["lost_work_s"].items() if seconds],
        "roles": [[name, role.spec.kind, int(role.spec.hang_after_ns is not None)] for name, role in job.roles.items()],
        "worlds": [[name, int(job.roles[world.roles[0]].spec.gang)] for name, world in job.worlds.items()],
        "nodes": list(index.nodes),
        "replicas": [[index.roles[r.role], r.index, index.worlds[job.replicas[r].world]] for r in index.replicas],
        "decisions": [[d.n, _us(d.t_ns), d.event, d.reason] for d in timeline.decisions],
        "generations": [index.generation(generation) for generation in timeline.generations],
        "checkpoints": [[index.worlds[c.world], _us(c.t_ns), c.step] for c in timeline.checkpoints],
        "faults": [
            [_us(fault.t_ns), fault.spec, fault.target, index.nodes.get(node or "", NEVER)] for fault, node in faults
        ],
        "unsaved": [[index.worlds[line.world], _us(line.t_ns), line.step, line.reason] for line in timeline.unsaved],
        "incidents": [index.incident(incident) for incident in job.incidents],
        "presences": [[index.nodes[p.node], _us(p.from_ns), _us(p.to_ns)] for p in timeline.presences],
    }


def _clock_row(t_ns: int, wall: datetime) -> list[int]:
    """Return the time, what the wall clock showed in ms since 1970, and its offset from UTC in minutes."""
    offset = wall.utcoffset() or timedelta()
    return [_us(t_ns), round(wall.timestamp() * 1000), round(offset.total_seconds() / 60)]


def _curves(timeline: Timeline) -> dict[str, Any]:
    """Return the steps per second of each role in equal parts of the time, and (time, goodput in per cent).

    Goodput is rounded once, as in the report: 97.148 would be 97.15 here and 97.2 on the page.
    """
    width_ns, steps = timeline.curves.steps_per_s(timeline.end_ns)
    rates = [[name, [float(f"{rate:.4g}") for rate in found]] for name, found in steps.items()]
    goodput = [[_us(t_ns), round(100 * share, 1)] for t_ns, share in timeline.curves.goodput]
    return {"width": _us(width_ns), "steps": rates, "goodput": goodput}


class _Index:
    """Numbers of nodes, roles, worlds, replicas and decisions in the data, and the rows that use these numbers."""

    def __init__(self, timeline: Timeline) -> None:
        job = timeline.job
        self.nodes = {name: number for number, name in enumerate(timeline.nodes())}
        self.roles = {name: number for number, name in enumerate(job.roles)}
        self.worlds = {name: number for number, name in enumerate(job.worlds)}
        self.replicas = {replica: number for number, replica in enumerate(job.replicas)}
        self._decisions = {decision.n: number for number, decision in enumerate(timeline.decisions)}
        self._opened_by = timeline.opened_by

    def generation(self, g: Generation) -> list[Any]:
        """Return the row of a generation, with the rows of its attempts at the end."""
        decision = self._decisions.get(g.formed_by, NEVER)
        row = [self.worlds[g.world], g.number, _us(g.from_ns), _us(g.to_ns), g.members, decision]
        return [*row, [self._attempt(g, attempt) for attempt in g.attempts]]

    def incident(self, i: Incident) -> list[Any]:
        """Return the row of an incident."""
        decision = self._decisions.get(self._opened_by.get(i.number, 0), NEVER)
        row = [i.number, _us(i.opened_ns), _us(i.closed_ns), i.kind, i.root, i.reason, i.result, i.charged_to or ""]
        return [*row, len(i.restarted) - len(i.stayed), decision, len(i.stayed), _us(i.stepped_ns)]

    def _attempt(self, generation: Generation, attempt: Attempt) -> list[int]:
        """Return the row of an attempt; -1 in its last columns is left out, as the script knows the defaults."""
        base = generation.from_ns // 1000
        lost_to_ns = None if attempt.lost_to_ns == attempt.ended_ns else attempt.lost_to_ns  # the script knows the end
        phases = (attempt.started_ns, attempt.running_ns, attempt.ready_ns, attempt.stopping_ns)
        row = [
            self.replicas[attempt.replica],
            attempt.number,
            self.nodes[attempt.node],
            attempt.rank,
            *(NEVER if ns is None else ns // 1000 - base for ns in (*phases, attempt.ended_ns, attempt.lost_from_ns)),
            HOW.index(attempt.how),
            NEVER if attempt.because is None else self._decisions.get(attempt.because, NEVER),
            NEVER if lost_to_ns is None else lost_to_ns // 1000 - base,
            attempt.step,
            NEVER if attempt.left_at is None else attempt.left_at,
            1 if attempt.is_unsaved else NEVER,
        ]
        while row[-1] == NEVER:
            row.pop()  # the script knows the defaults
        return row


def _us(ns: int | None) -> int:
    """Return whole microseconds; -1 (`NEVER`) for None."""
    return NEVER if ns is None else ns // 1000
