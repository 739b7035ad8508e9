"""Timeline in the terminal: a lane for each replica and each node, as wide as the window.

A column is a slice of time. It shows the rarest thing that happened in the slice: a failure wins over lost work, lost
work over starting, and starting over kept work. Neighbours with equal lanes share a line, so that a thousand replicas
with the same history are one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from flowdist.graph import format_duration
from flowdist.report.record.timeline import Attempt, Timeline
from flowdist.text.printable import one_line

if TYPE_CHECKING:
    from rich.text import Text

# What a cell of a lane can show, from the most common to the most important: (sign, style, meaning)
LOOKS = {
    "": (" ", "", ""),
    "away": ("·", "dim", "away"),
    "here": ("─", "dim", "can be used"),
    "kept": ("█", "green", "works"),
    "stopping": ("▒", "yellow", "stops"),
    "starting": ("░", "cyan", "starts"),
    "lost": ("▓", "red", "work that had to be done again"),
    "at the end": ("▚", "yellow", "work that was not saved at the end"),
    "done": ("✓", "bold green", "has finished"),
    "generation": ("│", "bold", "a generation begins"),
    "saved": ("┴", "blue", "a checkpoint"),
    "unsaved": ("┬", "red", "a checkpoint that is not saved"),
    "failed": ("✗", "bold red", "failed, or was lost"),
    "fault": ("!", "bold magenta", "a fault was injected"),
}
RANK = {name: rank for rank, name in enumerate(LOOKS)}
LABEL_MAX = 24
NARROWEST = 20

Lane = tuple[str, list[str]]


def terminal_timeline(timeline: Timeline, width: int) -> Iterator[Text]:
    """Yield the lines of the drawing: the time axis, the lanes, and a legend of the signs that occur.

    Args:
        timeline: The timeline of a run or a simulation.
        width: The width of the terminal in characters.
    """
    from rich.text import Text

    lanes = (lane for group in _groups(timeline, width) for lane in _merged(group))
    shown = [(one_line(name), cells) for name, cells in lanes]
    label = min(LABEL_MAX, max(len(name) for name, _ in shown))
    yield Text(" " * (label + 1) + _axis(timeline.end_ns, _columns(width)), style="dim")
    for name, cells in shown:
        line = Text(f"{name[:label]:<{label}} ")
        for look, run in groupby(cells):
            sign, style, _ = LOOKS[look]
            line.append(sign * len(list(run)), style)
        yield line
    used = {look for _, cells in shown for look in cells}
    legend = Text("\n")
    for look, (sign, style, meaning) in LOOKS.items():
        if look in used and meaning:
            legend.append(sign, style).append(f" {meaning}   ")
    yield legend


def _columns(width: int) -> int:
    """Return the number of columns for time beside the labels, in a terminal of that width; at least `NARROWEST`."""
    return max(NARROWEST, width - LABEL_MAX - 2)


def _axis(end_ns: int, columns: int) -> str:
    """Return the axis, with a time at about every twentieth column and the end at the last one."""
    marks = max(2, columns // 20)
    line = ""
    for mark in range(marks):
        at = mark * columns // marks
        text = format_duration(_round(end_ns * at // columns, end_ns))
        line = line[:at].ljust(at) + "|" + text
    end = format_duration(_round(end_ns, end_ns)) + "|"
    return line[: columns - len(end) - 1].ljust(columns - len(end)) + end


def _round(ns: int, of_ns: int) -> int:
    """Return the time `ns` rounded for a drawing of length `of_ns`: to seconds if that is over two minutes."""
    digits = 9 if of_ns > 120 * 10**9 else 7
    return round(ns, -digits)


class _Slices:
    """Cells of one lane: for each column the name of the look that it shows, a key of `LOOKS`."""

    def __init__(self, end_ns: int, columns: int) -> None:
        self._end_ns, self._columns = max(end_ns, 1), columns
        self.cells = [""] * columns

    def draw(self, look: str, from_ns: int, to_ns: int | None = None) -> None:
        """Let the cells from one time to another show `look`, except those that show something more important.

        Without `to_ns`, the one cell at `from_ns`.
        """
        first = self._column(from_ns)
        last = first if to_ns is None else max(first, self._column(to_ns - 1))
        for column in range(first, last + 1):
            if RANK[look] > RANK[self.cells[column]]:
                self.cells[column] = look

    def _column(self, ns: int) -> int:
        """Return the column in which a time lies; times outside the drawing fall in the first or last one."""
        return min(self._columns - 1, max(0, ns) * self._columns // self._end_ns)


def _groups(timeline: Timeline, width: int) -> Iterator[list[Lane]]:
    """Yield the groups of lanes: faults, worlds and replicas by role, nodes. Only lanes of one group merge."""
    columns, end = _columns(width), timeline.end_ns
    if timeline.faults:
        faults = _Slices(end, columns)
        for fault in timeline.faults:
            faults.draw("fault", fault.t_ns)
        yield [("faults", faults.cells)]
    worlds: dict[str, _Slices] = {}
    for generation in timeline.generations:
        lane = worlds.setdefault(generation.world, _Slices(end, columns))
        lane.draw("here", generation.from_ns, generation.to_ns if generation.to_ns is not None else end)
        lane.draw("generation", generation.from_ns)
    for checkpoint in timeline.checkpoints:
        worlds[checkpoint.world].draw("saved", checkpoint.t_ns)
    for line in timeline.unsaved:
        worlds[line.world].draw("unsaved", line.t_ns)
    for role in timeline.job.graph.roles:
        names = [world.name for world in timeline.job.worlds_of(timeline.job.roles[role.name]) if world.name in worlds]
        if role.gang:
            yield [(f"world {name}", worlds.pop(name).cells) for name in names]  # a joint world has one lane
        yield _replicas(timeline, role.name, columns)
    yield [(name, _node(timeline, name, columns)) for name in timeline.nodes()]


def _replicas(timeline: Timeline, role: str, columns: int) -> list[Lane]:
    """Return a lane for each replica of the role that was started, in the order of their numbers."""
    lanes: dict[str, _Slices] = {}
    found = sorted((a for a in timeline.attempts if a.replica.role == role), key=lambda a: (a.replica, a.number))
    for attempt in found:
        lane = lanes.setdefault(str(attempt.replica), _Slices(timeline.end_ns, columns))
        _draw_attempt(lane, attempt, timeline.end_ns)
    return [(name, lane.cells) for name, lane in lanes.items()]


def _draw_attempt(lane: _Slices, attempt: Attempt, end_ns: int) -> None:
    """Draw the phases, the lost work and the end of an attempt in the lane of its replica."""
    ended = attempt.ended_ns if attempt.ended_ns is not None else end_ns
    for phase, begun, over in attempt.phases(ended):
        lane.draw("kept" if phase in ("running", "ready") else phase, begun, over)
    if attempt.lost_from_ns is not None and attempt.lost_to_ns is not None:
        lane.draw("at the end" if attempt.is_unsaved else "lost", attempt.lost_from_ns, attempt.lost_to_ns)
    if look := {"failed": "failed", "lost": "failed", "succeeded": "done"}.get(attempt.how):
        lane.draw(look, max(attempt.started_ns, ended - 1))


def _node(timeline: Timeline, name: str, columns: int) -> list[str]:
    """Return the cells of a node's lane: when it could be used."""
    lane = _Slices(timeline.end_ns, columns)
    lane.draw("away", 0, timeline.end_ns)
    for presence in timeline.presences:
        if presence.node == name:
            to_ns = presence.to_ns if presence.to_ns is not None else timeline.end_ns
            lane.draw("here", presence.from_ns, to_ns)
    return lane.cells


def _merged(lanes: Iterable[Lane]) -> Iterator[Lane]:
    """Yield the lanes of a group; neighbours with equal cells become one lane, `trainer/0 to 63`."""
    for cells, group in groupby(lanes, key=lambda lane: lane[1]):
        names = [name for name, _ in group]
        last = names[-1].rpartition("/")[2].removeprefix("node")
        yield (names[0] if len(names) == 1 else f"{names[0]} to {last}"), cells
