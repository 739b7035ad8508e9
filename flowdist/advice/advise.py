"""Advice on a job: the best value of each lever, what it gains, and how sure that is; at last, all of that together.

With other seeds, the gain that is shown is not the luck of the best of many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from flowdist.advice.alternatives import (
    LEVERS,
    Change,
    Compile,
    Lever,
    between_restarts_ns,
    changed,
    changes_of,
    interval_change,
    with_interval,
)
from flowdist.advice.comparison import Gain, fewer, gain_of, goodputs
from flowdist.advice.intervals import Bounds, Point, best_of, bounds_of, sweep
from flowdist.advice.playing import leading_role, play, rarest_in
from flowdist.dsl.problems.problem import TopologyProblems
from flowdist.errors import FlowdistError
from flowdist.faults.grammar import FaultError
from flowdist.faults.kinds import having
from flowdist.graph import RoleSpec, format_duration
from flowdist.report.goodput import Estimate, daly_ns, estimate, needed_text
from flowdist.sim.experiment.experiment import Experiment
from flowdist.sim.experiment.outcome import Outcome
from flowdist.sim.experiment.play import Mode
from flowdist.sim.macro.scope import MacroRefused

MOST = 0.8  # of the largest gain in goodput: one spare node that has it is better than two
Tell = Callable[[str], None]  # called after each run with what is tried, in words


class Question(NamedTuple):
    """Job to advise on, with an end; `compile`, the topology with changes, raises FlowdistError for wrong ones."""

    job: Experiment
    mode: Mode
    compile: Compile
    choosing: Sequence[int]
    measuring: Sequence[int]
    levers: tuple[Lever, ...] = LEVERS

    @property
    def until_ns(self) -> int:
        """Return the time at which each run ends at the latest, in ns."""
        assert self.job.until_ns is not None
        return self.job.until_ns


class Measured(NamedTuple):
    """One change, or several at once, and what it gains."""

    changes: tuple[Change, ...]
    gain: Gain


class Tried(NamedTuple):
    """Alternative that was played to choose, with its gain there, or why it was not played."""

    change: Change
    gain: Gain | None
    reason: str = ""


class Advice(NamedTuple):
    """Answer to a question."""

    mode: Mode  # of all simulations
    role: str  # the role that the advice is about
    goodput: Estimate  # of today, with the seeds that measure
    failed: tuple[int, str]  # runs of today that failed, with the reason of the first
    points: list[Point]  # the sweep of the checkpoint interval, shortest first; empty without that lever
    best_ns: int | None  # the interval with most goodput in the sweep; None without it
    daly_ns: float | None  # the best interval by Daly's formula; None without restarts
    bounds: Bounds  # of the intervals
    measured: list[Measured]  # what was kept of each lever, best first
    together: Measured | None  # what `joined` has, at once; None for less than two changes
    tried: list[Tried]  # every other alternative
    notes: list[str]  # what a reader has to know to judge the advice, in sentences

    @property
    def sure(self) -> list[Measured]:
        """Return what surely saves hours or keeps runs from failing, best first."""
        return [one for one in self.measured if one.gain.verdict in ("saves", "ends")]

    @property
    def joined(self) -> list[Measured]:
        """Return what is worth doing together: all that saves hours, and the best of what keeps runs from failing."""
        ends = [one for one in self.sure if one.gain.verdict == "ends"]
        return [one for one in self.sure if one.gain.verdict == "saves" or one in ends[:1]]


def advise(question: Question, tell: Tell = lambda _: None) -> Advice:
    """Simulate the job of a question and its alternatives, and return what to change. `tell` is called after each run.

    Raises:
        FaultError: The job does not have what a fault or rate names, or the simulator cannot play it.
        FlowdistError: The job has no primary task, or a simulation has found a violation.
    """
    return _Advisor(question, tell).advise()


class _Advisor:
    """One pass through the phases choose, measure and together."""

    def __init__(self, question: Question, tell: Tell) -> None:
        self._question, self._tell = question, tell
        self._job, self._mode = question.job, question.mode
        self._role = leading_role(self._job.graph)
        self._bounds = bounds_of(self._role, question.until_ns, self._mode)
        self._tried: list[Tried] = []
        self._points: list[Point] = []
        self._best_ns: int | None = None
        self._chosen_today = self._play(self._job, question.choosing, "today")
        self._daly_ns = _daly_ns(self._role, self._chosen_today)

    def advise(self) -> Advice:
        """Choose, measure, put together, and return the advice."""
        kept = self._choose()
        today = self._play(self._job, self._question.measuring, "today")
        measured = [one for change in kept if (one := self._measure(today, (change,))) is not None]
        measured.sort(key=_worth, reverse=True)
        failed = [outcome for outcome in today if outcome.has_failed]
        rarest = fewer(rarest_in(today), *(one.gain.rarest for one in measured))
        advice = Advice(
            mode=self._mode,
            role=self._role.name,
            goodput=estimate(goodputs(today), rarest_in(today)),
            failed=(len(failed), failed[0].reason if failed else ""),
            points=self._points,
            best_ns=self._best_ns,
            daly_ns=self._daly_ns,
            bounds=self._bounds,
            measured=measured,
            together=None,
            tried=self._tried,
            notes=[*_notes(self._job, measured), *filter(None, [needed_text(len(today), rarest)])],
        )
        joined = [change for one in advice.joined for change in one.changes]
        return advice._replace(together=self._measure(today, tuple(joined)) if len(joined) > 1 else None)

    def _play(self, job: Experiment, seeds: Sequence[int], what: str) -> list[Outcome]:
        return play(job, self._mode, seeds, lambda: self._tell(what))

    def _choose(self) -> list[Change]:
        """Return the best change of each lever that gains anything with the choosing seeds."""
        found = list(self._best_interval()) if "interval" in self._question.levers else []
        by_lever: dict[Lever, list[Tried]] = {}
        for change in changes_of(self._job, self._chosen_today):
            if change.lever in self._question.levers:
                by_lever.setdefault(change.lever, []).append(self._try(change))
        for tried in by_lever.values():
            best = _best(tried)
            found += [best.change] if best is not None else []
            self._tried += [one for one in tried if one is not best]
        return found

    def _try(self, change: Change) -> Tried:
        """Play a change with the choosing seeds."""
        gain = self._gain((change,), self._chosen_today, self._question.choosing)
        return Tried(change, gain) if isinstance(gain, Gain) else Tried(change, None, gain)

    def _best_interval(self) -> Iterable[Change]:
        """Sweep the checkpoint interval, and yield the change to the best one if it is not today's."""
        role, today_ns = self._role, self._role.workload.checkpoint_every_ns
        guess_ns = self._daly_ns if self._daly_ns is not None else today_ns
        self._points = sweep(self._point, guess_ns, today_ns, self._bounds)
        failed = sum(outcome.has_failed for outcome in self._chosen_today)
        allowed = [point for point in self._points if point.interval_ns >= self._bounds.least_ns]
        allowed = [point for point in allowed if point.failed <= failed]
        self._best_ns = best_of(allowed, failed).interval_ns if allowed else today_ns
        if self._best_ns != today_ns:
            yield interval_change(self._job.graph, role, self._best_ns)

    def _point(self, interval_ns: int) -> Point:
        graph = with_interval(self._job.graph, self._role, interval_ns)
        what = f"{self._role.name} saves every {format_duration(interval_ns)}"
        found = self._play(self._job._replace(graph=graph), self._question.choosing, what)
        goodput = estimate(goodputs(found), rarest_in(found))
        return Point(interval_ns, goodput.mean, goodput.half, sum(outcome.has_failed for outcome in found))

    def _measure(self, today: list[Outcome], changes: tuple[Change, ...]) -> Measured | None:
        """Return what changes gain with the measuring seeds; None if they cannot be made together."""
        gain = self._gain(changes, today, self._question.measuring)
        return Measured(changes, gain) if isinstance(gain, Gain) else None

    def _gain(self, changes: tuple[Change, ...], today: list[Outcome], seeds: Sequence[int]) -> Gain | str:
        """Play changes, and return what they gain over today's outcomes; if they are not played, why in one line."""
        what = ", ".join(f"{change.what} {change.proposed}" for change in changes)
        try:
            job = changed(self._job, changes, self._question.compile)
            other = self._play(job, seeds, what)
        except (TopologyProblems, MacroRefused, FaultError) as error:
            return why_not(error)
        return gain_of(today, other, (self._job.units, job.units), self._role)


def why_not(error: FlowdistError) -> str:
    """Return in one line why a change is not played: the first error of the topology with it, or why it is refused."""
    if isinstance(error, TopologyProblems):
        first = next(problem for problem in error.problems if problem.severity == "error")
        return f"{first.code}: {' '.join(first.message.split())}"
    return " ".join(error.message.split())


def _worth(one: Measured) -> tuple[bool, int, float]:
    """Return the key by which changes are sorted: first what keeps most runs from failing, then what saves most."""
    ends = one.gain.verdict == "ends"
    return ends, -one.gain.still_failed if ends else 0, one.gain.share


def _best(tried: Sequence[Tried]) -> Tried | None:
    """Return the alternative that saves most, else the cheapest with most of the gain in goodput; None: none gains."""
    played = [(one, one.gain) for one in tried if one.gain is not None]
    allowed = [(one, g) for one, g in played if g.share > 0 or g.goodput.mean > 0 or g.still_failed < g.failed]
    if not allowed:
        return None
    least = min(gain.still_failed for _, gain in allowed)
    last = [(one, gain) for one, gain in allowed if gain.still_failed == least]
    most = max(gain.goodput.mean for _, gain in last)
    good = [(one, gain) for one, gain in last if gain.share > 0 or gain.goodput.mean >= min(MOST * most, most)]
    return max(good, key=lambda pair: (pair[1].share, pair[1].goodput.mean))[0]


def _daly_ns(role: RoleSpec, today: Sequence[Outcome]) -> float | None:
    """Return the best interval by Daly's formula for the restarts of today's runs; None without a restart."""
    between_ns = between_restarts_ns(role, today)
    return daly_ns(role.workload.blocking_ns, between_ns) if between_ns is not None else None


def _notes(job: Experiment, measured: Sequence[Measured]) -> list[str]:
    """Return what a reader has to know to judge the advice."""
    role, notes = leading_role(job.graph), []
    levers = {change.lever for one in measured for change in one.changes if one.gain.verdict != "unsure"}
    if role.min_replicas < role.max_replicas and not role.workload.depends_on_size:
        notes.append(
            f"the workload of {role.name} does not say how long a step of fewer workers takes: it is taken to be as "
            "long, on less data; write step_time={...} or scaling="
        )
    kinds = {rate.kind for rate in job.plan.rates} | {fault.kind for fault in job.plan.faults}
    if levers & {"lease", "heartbeat"} and kinds.isdisjoint(set(having("silences", "weakens-link")) - {"lost"}):
        notes.append(
            "a shorter lease also loses nodes that are silent only for a moment, and no rate here has such faults; "
            "add one, such as --rate node-pause=1/node-day/3s"
        )
    others = [other.name for other in job.graph.roles if other.kind == "task" and other.primary and other is not role]
    if others:
        notes.append(f"the interval, the size and the restarts of {', '.join(others)} were left as they are")
    return notes
