"""Curves of a job over its time: the steps per second of each task, and the goodput so far.

A record of any length gives a few hundred values: bins of steps, and the intervals between looks at the goodput,
double when there are too many. The last goodput is that of the report, since both come from the time accounts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flowdist.control.job.parts import Replica, World
from flowdist.control.job.state import JobState
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.ids import WorldName
from flowdist.graph import MS, SECOND
from flowdist.record.accounts import goodput_of
from flowdist.record.journal import Record
from flowdist.record.timesheet import Timesheet

BINS_MAX = 400
SAMPLES_MAX = 400
FEW_SAMPLES_MAX = 60  # where a look at the goodput takes long
MANY_REPLICAS = 1000
FIRST_WIDTH_NS = 50 * MS
FIRST_INTERVAL_NS = SECOND // 4

_NODE_ENDS = (ev.ReplicaUnkillable, ev.NodeGone, ev.NodeSilent, ev.NodeLeft)


class Bins:
    """Amounts in equal parts of the time from 0 on. `width_ns` doubles when the time grows."""

    def __init__(self) -> None:
        self.width_ns = FIRST_WIDTH_NS
        self.amounts: list[float] = []

    def add(self, from_ns: int, to_ns: int, amount: float) -> None:
        """Spread an amount evenly over the time from `from_ns` to `to_ns`."""
        self.reach(to_ns)
        if to_ns <= from_ns:
            self.amounts[to_ns // self.width_ns] += amount
            return
        for number in range(from_ns // self.width_ns, to_ns // self.width_ns + 1):
            begin, end = number * self.width_ns, (number + 1) * self.width_ns
            self.amounts[number] += amount * (min(end, to_ns) - max(begin, from_ns)) / (to_ns - from_ns)

    def reach(self, to_ns: int) -> None:
        """Have a bin for the time `to_ns`."""
        while to_ns // self.width_ns >= BINS_MAX:
            self.widen()
        self.amounts += [0.0] * (to_ns // self.width_ns + 1 - len(self.amounts))

    def widen(self) -> None:
        """Make one bin of each two."""
        self.amounts += [0.0] * (len(self.amounts) % 2)
        self.amounts = [a + b for a, b in zip(self.amounts[::2], self.amounts[1::2], strict=True)]
        self.width_ns *= 2

    def rates(self, width_ns: int, end_ns: int) -> list[float]:
        """Return the amount per second of each bin, in bins of `width_ns`; the last bin ends at `end_ns`."""
        while self.width_ns < width_ns:
            self.widen()
        self.reach(end_ns)
        found = []
        for number, amount in enumerate(self.amounts):
            lasted_ns = min((number + 1) * self.width_ns, end_ns) - number * self.width_ns
            found.append(amount * SECOND / lasted_ns if lasted_ns > 0 else 0.0)
        return found


@dataclass(slots=True)
class _Pace:
    """How far a world is in one of its generations."""

    generation: int
    at_ns: int
    step: int
    is_count: bool
    step_ns: float | None = None  # the time of a step between the last two reports; None: there are no two
    gap_ns: int = 0  # the time between the last two reports
    first: tuple[int, float] | None = None  # since when the first report may have worked, and its steps, until a pace


@dataclass(slots=True)
class Curves:
    """Curves of a job from the lines of its record: `look` before each replayed line, `hear` after, `close` last."""

    job: JobState
    sheet: Timesheet
    goodput: list[tuple[int, float]] = field(default_factory=list)  # (ns, from 0 to 1) where it is known
    _bins: dict[str, Bins] = field(default_factory=dict)  # by role
    _paces: dict[WorldName, _Pace] = field(default_factory=dict)
    _stepping: dict[str, dict[WorldName, None]] = field(default_factory=dict)  # the worlds of a role that have stepped
    _interval_ns: int = FIRST_INTERVAL_NS
    _next_ns: int = FIRST_INTERVAL_NS

    def look(self, now: int) -> None:
        """Note the goodput just before an event at the time `now`, if it is long enough since the last look."""
        if now < self._next_ns:
            return
        self._note_goodput(now)
        most = SAMPLES_MAX if len(self.job.replicas) < MANY_REPLICAS else FEW_SAMPLES_MAX
        while now // self._interval_ns >= most:
            self._interval_ns *= 2
        if len(self.goodput) > most:
            self.goodput = self.goodput[1::2]
        self._next_ns = (now // self._interval_ns + 1) * self._interval_ns

    def hear(self, line: Record) -> None:
        """Note the steps that an event reports, and the end of a world's work."""
        event, now = line.event, line.t_ns
        if isinstance(event, ev.ReplicaProgressed | ev.ReplicaStepped):
            replica = self.job.replicas.get(event.replica)
            if replica is not None and replica.attempt == event.attempt and replica.is_live:
                steps = event.steps if isinstance(event, ev.ReplicaStepped) else event.step
                self._report(replica, steps, isinstance(event, ev.ReplicaStepped), now)
        elif isinstance(event, ev.ReplicaExited | ev.ReplicaStopped):
            known = self.job.replicas.get(event.replica)
            if known is not None and known.world in self._paces:
                self._end_if_over(known.world, now, isinstance(event, ev.ReplicaExited) and event.kind is None)
        elif isinstance(event, _NODE_ENDS):
            for world in self._paces:
                self._end_if_over(world, now)

    def close(self, end_ns: int) -> None:
        """Note the end of the record."""
        for world in self._paces:
            self._end(world, end_ns, is_success=True)
        self._note_goodput(end_ns)

    def steps_per_s(self, end_ns: int) -> tuple[int, dict[str, list[float]]]:
        """Return the width of a bin in ns, and by role the steps per second in each bin: the mean of its worlds."""
        for bins in self._bins.values():
            bins.reach(end_ns)
        width_ns = max([bins.width_ns for bins in self._bins.values()], default=FIRST_WIDTH_NS)
        found = {}
        for role, bins in self._bins.items():
            worlds = len(self._stepping[role])
            found[role] = [rate / worlds for rate in bins.rates(width_ns, end_ns)]
        return width_ns, found

    def _note_goodput(self, now: int) -> None:
        value = goodput_of(self.job.graph, self.sheet.spent(now))
        if value is not None:
            self.goodput.append((now, value))

    def _report(self, replica: Replica, step: int, is_count: bool, now: int) -> None:
        """Add the steps since the last report of the furthest member."""
        world = self.job.worlds[replica.world]
        pace = self._paces.get(world.name)
        if pace is not None and pace.generation != world.generation:
            pace = None
        if pace is not None and is_count and not pace.is_count:
            return  # the script's own numbers say more
        if pace is not None and is_count == pace.is_count:
            self._go_on(replica.world, pace, step, now)
            return
        resumed = self._resumed(world)
        if pace is not None:
            self._add_first(world.name, pace)
        if pace is not None and pace.step_ns is None and resumed is not None and resumed + pace.step < step:
            # the first step was counted: so the steps since then have a pace
            self._paces[world.name] = begun = _Pace(world.generation, pace.at_ns, resumed + pace.step, is_count=False)
            self._go_on(world.name, begun, step, now)
            return
        since = world.formed_ns if pace is None else pace.at_ns
        steps: float = step if is_count else step - resumed if resumed is not None else 1
        if pace is not None and pace.step_ns is not None:
            steps = (now - pace.at_ns) / pace.step_ns  # as counted so far: the script's numbers may begin anywhere
        first = (since, steps) if steps > 0 and since is not None else None
        self._paces[world.name] = _Pace(world.generation, now, step, is_count, first=first)

    def _resumed(self, world: World) -> int | None:
        """Return the step from which the present generation began, as the time accounts take it; None: unknown."""
        saved = world.checkpoint
        if world.generation == 1:
            return 0
        return max(saved.step, 0) if saved is not None and saved.generation < world.generation else None

    def _go_on(self, world: WorldName, pace: _Pace, step: int, now: int) -> None:
        if step <= pace.step:
            return
        pace.step_ns, pace.gap_ns = (now - pace.at_ns) / (step - pace.step), now - pace.at_ns
        self._add_first(world, pace)
        self._add(world, pace.at_ns, now, step - pace.step)
        pace.at_ns, pace.step = now, step

    def _add_first(self, world: WorldName, pace: _Pace) -> None:
        """Add the steps of the first report: they took as long as usual, and no longer than the world runs."""
        if pace.first is None:
            return
        (since, steps), pace.first = pace.first, None
        usual = pace.at_ns - since if pace.step_ns is None else round(steps * pace.step_ns)
        self._add(world, max(since, pace.at_ns - usual), pace.at_ns, steps)

    def _end_if_over(self, world: WorldName, now: int, is_success: bool = False) -> None:
        if self.job.worlds[world].phase != "running":
            self._end(world, now, is_success)

    def _end(self, world: WorldName, now: int, is_success: bool = False) -> None:
        """End the work of a world. Without success it went on at its pace until then, for one report at most."""
        pace = self._paces[world]
        self._add_first(world, pace)
        if pace.step_ns and not is_success:
            more_ns = min(now - pace.at_ns, pace.gap_ns)
            self._add(world, pace.at_ns, pace.at_ns + more_ns, more_ns / pace.step_ns)
            pace.at_ns, pace.step, pace.step_ns = now, pace.step + round(more_ns / pace.step_ns), None

    def _add(self, world: WorldName, from_ns: int, to_ns: int, steps: float) -> None:
        for role in self.job.worlds[world].roles:
            if self.job.roles[role].spec.kind != "task":
                continue
            self._stepping.setdefault(role, {})[world] = None
            self._bins.setdefault(role, Bins()).add(from_ns, to_ns, steps)
