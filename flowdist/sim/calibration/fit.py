"""Times of a job's workers from the observations of its records.

The time of a step and the time that a checkpoint costs come from the intervals between two reports of one member.

* Where workers report the time of saving, all else is steps. Sums over all intervals are used, because a report may
  come in the middle of a save, and the time of that save when it is over.
* Else an interval without a checkpoint near it has steps alone, and their mean is the time of a step. The other
  intervals have more time than their steps: saving, evaluation, the barrier behind it, all of which a checkpoint costs.
* If each interval has a checkpoint near it, the two cannot be told apart, and saving counts as steps.

Means are used for both, because a job takes as long as the sum of its steps.

The start-up of a generation is the time from its order to its first step, less that step, what it says it restored,
and the time for which it waited for the imports of a node.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from flowdist.graph import MS, RoleSpec, format_duration
from flowdist.sim.calibration.counted import CURE, Length, commit_steps, counted_fields, counted_length, silent_fields
from flowdist.sim.calibration.observe import Generation, Mark, Observed
from flowdist.sim.engine.network import LATENCY_NS
from flowdist.sim.engine.node import SPAWN_NS

ORDER_NS = 2 * LATENCY_NS + SPAWN_NS  # from an order to start until the report that processes run, as it is simulated
NOTHING: Mapping[str, Distribution] = MappingProxyType({})
SIZES_DIFFER = 0.1  # share by which a step of another number of workers has to differ, to be no chance
SPREAD_MIN = 3  # starts from which their spread is measured
CLEAR_MIN = 2  # intervals without a checkpoint, and steps in them, from which a step time is measured
PART = 10  # intervals of which one step time is shown
SAVE_LAG_NS = 20 * MS  # from the acceptance of a checkpoint until the time of its saving is reported, at most


class Interval(NamedTuple):
    """Time between two reports of one member: steps done, checkpoints accepted, saving reported in between."""

    ns: int
    steps: int
    offers: int
    saving_ns: int
    size: int  # workers of the role
    is_clear: bool  # no checkpoint was accepted in it or in the next interval, which may have begun to save


class RoleTimes(NamedTuple):
    """Times of one role: measured `fields` of its `WorkloadSpec`, and the distributions behind them by name."""

    fields: dict[str, Any]
    measured: Mapping[str, Distribution] = NOTHING
    unknown: tuple[str, ...] = ()  # what the records do not show
    silent: tuple[str, ...] = ()  # how a task is played whose workers report no progress, or no step numbers
    tells_saving: bool = True  # False: workers report less than half of what a checkpoint costs them
    length: Length = "known"  # what is known of the number of steps of a task whose steps were counted
    reports_steps: bool = True  # False: workers never reported the number of a step; lost work is not known
    tells_restarts: bool = True  # False: each start was the first on its node; a warm one may take any shorter time


def role_times(role: RoleSpec, runs: Sequence[Observed]) -> RoleTimes:
    """Return the times of a role as all given records together show them."""
    fit = _RoleFit(role, runs)
    fit.measure()
    for name, value in fit.fields.items():  # the interval of checkpoints stays a multiple of the step
        fit.fields[name] = rounded(value) if name.endswith("_ns") and value and name != "checkpoint_every_ns" else value
    found = {name: distribution(samples, fit.used.get(name)) for name, samples in fit.samples.items()}
    measured = {name: one for name, one in found.items() if one is not None}
    texts = tuple(fit.unknown), tuple(fit.silent)
    return RoleTimes(fit.fields, measured, *texts, fit.tells_saving, fit.length, fit.reports_steps, fit.tells_restarts)


def median(samples: Sequence[int]) -> int:
    """Return the median of durations, in whole ns."""
    return round(statistics.median(samples))


class _RoleFit:
    """Measurement of one role. Each method adds to `fields`, `samples` and `unknown` what it can."""

    def __init__(self, role: RoleSpec, runs: Sequence[Observed]) -> None:
        self._role, self._runs = role, runs
        self._all = [one for run in runs for one in self._of_role(run)]
        self._step_ns = 0  # of the largest number of workers; 0: unknown
        self._by_size: dict[int, int] = {}  # step times by number of workers, where they differ
        self._cost_ns = 0  # of a checkpoint, for which workers do not step
        self.fields: dict[str, Any] = {}
        self.samples: dict[str, list[int]] = {}
        self.used: dict[str, int] = {}  # by the name of samples, whose median is not what the workload gets
        self.unknown: list[str] = []
        self.silent: list[str] = []
        self.tells_saving = self.tells_restarts = True
        self.length: Length = "known"

    def _of_role(self, run: Observed) -> list[Generation]:
        return [one for one in run.generations if one.role == self._role.name and one.starts]

    def measure(self) -> None:
        """Measure everything. A service has no steps and no checkpoints."""
        if not self._all:
            self.unknown.append("it never started")
            return
        if self._role.kind == "task" and not any(one.marks for one in self._all):
            self.fields, text = silent_fields(self._role, self._all)
            self.silent.append(text)
        elif self._role.kind == "task":
            self._measure_steps()
            self._measure_checkpoints()
            self._measure_length()
            self._measure_starts()
        else:
            self._measure_starts()
        self._measure_imports()
        stops = [ns for run in self._runs for ns in run.stops.get(self._role.name, ())]
        if stops:
            self.used["stop"] = max(0, median(stops) - 2 * LATENCY_NS)
            self._set("stop_ns", "stop", stops)
            self.fields["stop_ns"] = self.used["stop"]

    def _set(self, field: str, name: str, samples: list[int]) -> None:
        self.fields[field], self.samples[name] = median(samples), samples

    # Steps and what a checkpoint costs.

    def _measure_steps(self) -> None:
        intervals = [each for run in self._runs for one in self._of_role(run) for each in _intervals(run, one)]
        steps = sum(each.steps for each in intervals)
        if not steps:
            self.unknown.append("its step time: no worker reported two steps of one attempt")
            return
        clear = [each for each in intervals if each.is_clear]
        is_apart = len(clear) >= CLEAR_MIN and sum(each.steps for each in clear) >= CLEAR_MIN
        self._set_step_time(clear if is_apart else intervals)
        saves = [ns for one in self._all for ns in _saves(one)]
        if any(each.offers for each in intervals):
            self._measure_cost(intervals, is_apart)
        elif any(saves):  # an incident was open at each checkpoint
            self._cost_ns, self.samples["save, blocking"] = median(saves), saves

    def _measure_cost(self, intervals: Sequence[Interval], is_apart: bool) -> None:
        """Measure what a checkpoint costs, and whether the workers report it; then the step time anew.

        `is_apart`: there are intervals without checkpoints, and the step time so far is theirs.
        """
        near = [each for each in intervals if not each.is_clear]
        offers = sum(each.offers for each in near)
        told = sum(each.saving_ns for each in intervals) // offers
        left = sum(each.ns - each.steps * self._step_at(each.size) for each in near) // offers if is_apart else told
        self.tells_saving = 2 * told >= left
        self._cost_ns = max(0, told if self.tells_saving else left)
        if not is_apart and not told:
            self.unknown.append("the time of saving, which counts as steps: say it with worker.saving()")
        if not self._cost_ns:
            return
        self.samples["save, blocking"], self.used["save, blocking"] = [self._cost_ns], self._cost_ns
        if self.tells_saving:
            self._set_step_time(intervals)
            self.samples["save, blocking"] = [ns for one in self._all for ns in _saves(one)]

    def _set_step_time(self, used: Sequence[Interval]) -> None:
        """Set the step time to the mean of these intervals, without the saving that was reported in them."""
        time, steps = sum(each.ns - each.saving_ns for each in used), sum(each.steps for each in used)
        self._by_size = {}
        self.samples = {name: found for name, found in self.samples.items() if not name.startswith("step")}
        self._step_ns = max(1, rounded(round(time / steps)))
        self.fields |= {"step_ns": self._step_ns, "step_times": (), "batch_workers": 0}
        self._sample_steps("step", used, self._step_ns)
        self._compare_sizes(used)

    def _sample_steps(self, name: str, intervals: Sequence[Interval], used_ns: int) -> None:
        """Note mean step times of parts of these intervals, of clear ones if there are any, and the time that is used.

        Workers report every half a second at most, so an interval of quick steps has now two of them, now three, and
        its mean is half a step off. A part has `PART` intervals then.
        """
        clear = [each for each in intervals if each.is_clear and each.steps] or [e for e in intervals if e.steps]
        size = 1 if all(each.steps == 1 for each in clear) else PART
        whole = max(1, len(clear) // size)  # the last part has what is left over
        parts = [clear[i * size : (i + 1) * size if i + 1 < whole else None] for i in range(whole)]
        self.used[name] = used_ns
        self.samples[name] = [
            max(0, sum(each.ns - each.saving_ns for each in part)) // sum(each.steps for each in part) for part in parts
        ]

    def _compare_sizes(self, used: Sequence[Interval]) -> None:
        """Give the workload a step time for each number of workers, if they differ by more than `SIZES_DIFFER`."""
        sizes = sorted({each.size for each in used if each.steps})
        if len(sizes) < 2:
            return
        times = []
        for size in sizes:
            of_size = [each for each in used if each.size == size and each.steps]
            whole = sum(each.ns - each.saving_ns for each in of_size) // sum(each.steps for each in of_size)
            times.append((size, max(1, rounded(whole)), of_size))
        if max(abs(ns - self._step_ns) for _, ns, _ in times) > SIZES_DIFFER * self._step_ns:
            self._step_ns, self._by_size = times[-1][1], {size: ns for size, ns, _ in times}
            self.fields |= {"step_ns": self._step_ns, "step_times": tuple(self._by_size.items())}
            del self.samples["step"]
            for size, ns, of_size in times:
                self._sample_steps(f"step, {size} workers", of_size, ns)

    def _step_at(self, size: int) -> int:
        """Return the time of a step, in ns, of that many workers."""
        return self._by_size.get(size, self._step_ns)

    def _measure_checkpoints(self) -> None:
        gaps, times = [], []
        for one in self._all:
            before = [(one.ordered_ns, one.resumed)] if one.resumed is not None else []
            pairs = list(pairwise([*before, *one.offers]))
            gaps += [step - last for (_, last), (_, step) in pairs if last is not None and step > last]
            times += [at - last for (last, _), (at, _) in pairwise(one.offers)]
        if not any(one.offers for one in self._all):
            self.unknown.append("its checkpoints: none was committed, so nothing is known of saving and resuming")
            self._guess_from_loss()
            return
        if gaps and self._step_ns:
            unit = commit_steps(self._all) if self._is_counted else 1
            self.fields["checkpoint_every_ns"] = max(1, round(median(gaps) * unit) * self._step_ns)
        elif times:
            self.fields["checkpoint_every_ns"] = max(1, median(times) - self._cost_ns)
        lags = [lag for one in self._all for lag in self._lags(one)]
        takes = median(lags) if lags else 0
        if takes <= self._cost_ns + max(self._cost_ns // 2, 2 * self._step_ns):
            self.fields |= {"checkpoint_ns": self._cost_ns, "checkpoint_blocks_ns": None}
            return
        self.samples["save, until complete"] = lags
        every = self.fields.get("checkpoint_every_ns", takes)
        takes = min(takes, self._cost_ns + every)  # a checkpoint is complete before the next begins
        self.fields |= {"checkpoint_ns": takes, "checkpoint_blocks_ns": self._cost_ns}

    def _lags(self, one: Generation) -> Iterator[int]:
        """Yield how long after its step each checkpoint was complete, as far as the reports around it show that."""
        clock = one.clock
        for number, (at, step) in enumerate(one.offers):
            before = [mark for mark in clock if not mark.is_count and mark.step <= step and mark.at_ns <= at]
            if before and self._step_ns:
                mark = before[-1]
                saves = sum(when > mark.at_ns for when, _ in one.offers[:number])
                done_ns = mark.at_ns + (step - mark.step) * self._step_at(one.size) + saves * self._cost_ns
                yield max(0, at - done_ns)

    def _guess_from_loss(self) -> None:
        """Estimate the interval of checkpoints from steps that were done again: n of them mean 2n in it."""
        reached, lost = 0, []
        for one in self._all:
            steps = [mark.step for mark in one.clock if not mark.is_count]
            if steps and steps[0] <= reached:
                lost.append(reached - steps[0] + 1)
            reached = max([reached, *steps])
        if lost and self._step_ns:
            every = 2 * round(statistics.mean(lost))
            if all(one.clock[0].step <= 1 for one in self._all if one.clock):  # each began from the start
                every = 2 * max(reached, self._role.workload.steps)
            self.fields["checkpoint_every_ns"] = every * self._step_ns
            self.fields |= {"checkpoint_ns": 0, "checkpoint_blocks_ns": None}

    def _measure_length(self) -> None:
        """Measure the number of steps, and how long the workers take to exit after the last one."""
        last = max((one.reached for one in self._all), default=0)
        done = [one for one in self._all if one.is_done]
        if self._is_counted:
            self._measure_count()
        elif last:
            self.fields["steps"] = last if done else max(last, self._role.workload.steps)
        ends = [end for one in done if (end := self._finish_ns(one)) is not None]
        if ends:
            self._set("finish_ns", "finish", ends)

    @property
    def reports_steps(self) -> bool:
        """Return whether a worker reported the number of a step, as far as that can be asked: the task has started."""
        return self._role.kind != "task" or not self._all or any(one.reached for one in self._all)

    @property
    def _is_counted(self) -> bool:
        """Return whether steps were counted, and no worker reported the number of one."""
        return any(one.clock for one in self._all) and not self.reports_steps

    def _measure_count(self) -> None:
        """Measure the number of steps of a task whose steps were counted, and what restarts did again."""
        found = counted_length(self._all)
        self.length = found.length
        if found.steps:
            self.fields["steps"] = found.steps
        else:
            self.unknown.append(f"its number of steps: they were counted, and no attempt shows all of them; {CURE}")
        if self._step_ns and not any(one.offers for one in self._all):
            fields, text = counted_fields(self._role, found, self._step_ns)
            self.fields |= fields
            self.silent += [text] if text else []

    def _finish_ns(self, one: Generation) -> int | None:
        """Return the time from the last step of a generation to the exit of its last member; None: unknown.

        The last report comes with the exit, however long ago its step was done, so the report before it counts.
        """
        exit_ns = max(one.exits.values())
        clock = one.clock
        before = [mark for mark in clock if exit_ns - mark.at_ns > 2 * MS]
        if not before or not self._step_ns:
            return None
        steps = clock[-1].step - before[-1].step
        offers = [] if clock[-1].is_count else one.offers  # their numbers need not be those of counted steps
        saves = sum(at > before[-1].at_ns and step < clock[-1].step for at, step in offers)
        return max(0, exit_ns - before[-1].at_ns - steps * self._step_at(one.size) - saves * self._cost_ns)

    # Starts.

    def _measure_starts(self) -> None:
        names = {"cold": "cold start", "warm": "warm start", "rejoin": "start in place"}
        found: dict[str, list[int]] = {kind: [] for kind in names}
        restores: list[int] = []
        warmups: list[int] = []
        for one in self._all:
            begun = self._start_of(one)
            if begun is None:
                continue
            takes, warmup, restore = begun
            found[one.kind].append(takes)
            warmups += [warmup] if warmup is not None else []
            restores += [restore] if restore else []
        for kind, name in names.items():
            if found[kind]:
                self.samples[name] = found[kind]
        self._set_starts(found)
        if restores:
            self._set("restore_ns", "restore", restores)
        elif self._role.kind == "task":
            self.fields["restore_ns"] = 0
            self.unknown.append(
                "the time of restoring, which counts as start-up: it was short, or not reported (worker.restoring())"
            )
        if warmups:
            self._set("warmup_ns", "warm-up", warmups)
        elif self._role.kind == "task":
            self.fields["warmup_ns"] = 0
            self.unknown.append("the warm-up before the first step, which counts as start-up")

    def _set_starts(self, found: dict[str, list[int]]) -> None:
        """Set the start-up fields; a kind of start that no record has is taken from the other, and that is said."""
        cold, warm = found["cold"], found["warm"]
        if self._role.kind == "service" and not self._role.has_readiness:
            self.fields["startup_ns"] = 0
            self.unknown.append("its start-up: it has no ready_when=, so it serves as soon as its processes run")
        elif cold or warm:
            self.fields["startup_ns"] = median(cold or warm)
        else:
            self.unknown.append("its start-up: no start came to a first step, or got ready")
        if warm and cold:
            self.fields["warm_startup_ns"] = median(warm)
        elif warm and not any(run.imports for run in self._runs):
            self.unknown.append("a cold start: all starts were warm, and cold ones are taken to be as long")
        elif cold:
            self.tells_restarts = False
            self.unknown.append("a warm start: no start was warm, so restarts are taken to be as long as cold starts")
        if found["rejoin"]:
            self.fields["rejoin_ns"] = median(found["rejoin"])
        of_one_kind = max(cold, warm, key=len)
        if len(of_one_kind) >= SPREAD_MIN and median(of_one_kind):
            spread = (max(of_one_kind) - min(of_one_kind)) / 2 / median(of_one_kind)
            self.fields["startup_spread"] = min(1.0, round(spread, 3))

    def _start_of(self, one: Generation) -> tuple[int, int | None, int] | None:
        """Return start-up, warm-up (None: unknown) and restore of a generation, in ns; None if it did not come up."""
        ready = max(one.ready.values()) if len(one.ready) == len(one.starts) else None
        if self._role.kind == "service":
            return None if ready is None else (max(0, ready - one.begun_ns - ORDER_NS), None, 0)
        clock, first = one.clock, one.first
        if first is None or not self._step_ns:
            return None
        restore = one.spent_by("restoring", first.at_ns)
        steps = _first_steps(one, first)
        begun, warmup = first.at_ns - steps * self._step_at(one.size), None
        if steps == 0 and len(clock) > 1 and clock[1].step > clock[0].step:
            after = (clock[1].step - clock[0].step) * self._step_at(one.size)
            warmup = max(0, clock[1].at_ns - clock[0].at_ns - after)
        elif ready is not None and ready < begun:
            begun, warmup = ready, begun - ready
        return max(0, begun - one.begun_ns - ORDER_NS - restore), warmup, restore

    def _measure_imports(self) -> None:
        """Measure how long a node imports the modules of the workers, unless these start without waiting.

        Nodes that joined a running job count, because only then a world waits for it; without such nodes, all.
        """
        imports = [each for run in self._runs for each in run.imports]
        if self._role.kind == "service" or any(self._role.name in each.before for each in imports):
            return
        chosen = [each.took_ns for each in imports if each.is_late] or [each.took_ns for each in imports]
        if chosen:
            self._set("import_ns", "imports of a node", chosen)
        if not any(each.is_late for each in imports):
            self.unknown.append("the imports of a node that joins a running job: none joined")


def _first_steps(one: Generation, first: Mark) -> int:
    """Return how many steps a generation had done at its first report; 1 if it is not known from where it resumed."""
    if first.is_count:
        return first.step
    if one.resumed is None or first.step < one.resumed:
        return 1
    return first.step - one.resumed


def _saves(one: Generation) -> Iterator[int]:
    """Yield the time of saving, in ns, that was reported for each checkpoint of a generation but the last."""
    for (before, _), (at, _) in pairwise([(one.ordered_ns, 0), *one.offers]):
        middle = at + SAVE_LAG_NS
        yield one.spent_by("saving", middle) - one.spent_by("saving", before + SAVE_LAG_NS)


def _intervals(run: Observed, one: Generation) -> Iterator[Interval]:
    """Yield the intervals between the reports of the member that stands for a generation, without disturbed ones."""
    exit_ns = max(one.exits.values(), default=None)
    clock = one.clock
    for number, (last, mark) in enumerate(pairwise(clock)):
        if last.is_count != mark.is_count or (exit_ns is not None and exit_ns - mark.at_ns < 2 * MS):
            continue  # the last report comes with the exit, long after the last step
        after = clock[number + 2 : number + 3]
        if mark.step == last.step and not any(each.is_count == mark.is_count for each in after):
            continue  # repeated to the next controller: the steps after it are in no interval, so neither is this time
        if any(since < mark.at_ns and until > last.at_ns for since, until in run.disturbed):
            continue
        saving = one.spent_by("saving", mark.at_ns) - one.spent_by("saving", last.at_ns)
        offers = one.offers_within(last.at_ns, mark.at_ns)
        later = clock[number + 2].at_ns if number + 2 < len(clock) else mark.at_ns
        is_clear = not one.offers_within(last.at_ns, later)
        yield Interval(mark.at_ns - last.at_ns, mark.step - last.step, offers, saving, one.size, is_clear)


class Distribution(NamedTuple):
    """Summary of measured durations in ns. `used_ns` stands for all: the simulator gets it, and tables show it."""

    times: int
    least_ns: int
    p10_ns: int
    median_ns: int
    p90_ns: int
    most_ns: int
    mean_ns: int
    used_ns: int

    @property
    def text(self) -> str:
        """Return the distribution for people: `1.2s (0.9s to 1.5s, 4 times)`."""
        middle, low, high = (format_duration(rounded(ns)) for ns in (self.used_ns, self.least_ns, self.most_ns))
        return f"{middle} (once)" if self.times == 1 else f"{middle} ({low} to {high}, {self.times} times)"


def distribution(samples: Sequence[int], used_ns: int | None = None) -> Distribution | None:
    """Return the distribution of durations in ns, or None; `used_ns` stands for all of them (None: their median)."""
    if not samples:
        return None
    ordered = sorted(samples)
    low, middle, high = (_quantile(ordered, share) for share in (0.1, 0.5, 0.9))
    mean = round(statistics.fmean(ordered))
    used = middle if used_ns is None else used_ns
    return Distribution(len(ordered), ordered[0], low, middle, high, ordered[-1], mean, used)


def _quantile(ordered: Sequence[int], share: float) -> int:
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return round(ordered[below] + (at - below) * (ordered[above] - ordered[below]))


def rounded(ns: int) -> int:
    """Return a duration in ns with four digits, so that a file and a table show no digits that mean nothing."""
    unit = 1
    while abs(ns) >= 10_000 * unit:
        unit *= 10
    return (ns + unit // 2) // unit * unit
