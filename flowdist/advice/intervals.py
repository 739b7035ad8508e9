"""Search of the best checkpoint interval: a coarse sweep around a first guess, then a finer one around its best.

Goodput over the logarithm of the interval has one broad maximum. Draws make the curve rough, so the sweep neither
follows slopes nor stops at the first maximum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from flowdist.graph import HOUR, MINUTE, MS, SECOND, RoleSpec
from flowdist.sim.experiment.play import Mode

COARSE = 2.0  # factor between two intervals of the coarse sweep
REACH = 3  # steps of that factor to both sides of the guess
FURTHER = 12  # more steps of that factor, while an interval beside the best is missing
FINE = (2**0.5, 2**0.25)  # factors around the best so far; at the optimum 2 ** 0.125 costs 0.4 % of what is lost
US = 1_000  # ns in a microsecond
EXACT = 20  # an interval has so many parts of its unit at least, so that rounding changes it by 2.5 % at most
PLAYED = 500  # checkpoints of a run in protocol mode at most: each is played, and free ones are best at every step
UNITS = (
    12 * HOUR, 6 * HOUR, HOUR, 30 * MINUTE, 10 * MINUTE, 5 * MINUTE, MINUTE, 30 * SECOND, 10 * SECOND, 5 * SECOND,
    SECOND, 500 * MS, 100 * MS, 50 * MS, 10 * MS, 5 * MS, MS,
)  # fmt: skip


class Point(NamedTuple):
    """Interval that was simulated: in ns, with the goodput from 0 to 1, its error, and how many runs failed."""

    interval_ns: int
    goodput: float
    half: float | None
    failed: int


class Bounds(NamedTuple):
    """Shortest and longest interval to try, in ns."""

    least_ns: int
    most_ns: int

    def put(self, ns: float) -> int:
        """Return the interval as a round number within the bounds."""
        return min(self.most_ns, max(self.least_ns, rounded_ns(ns)))


def bounds_of(role: RoleSpec, until_ns: int, mode: Mode = "fast") -> Bounds:
    """Return the intervals that make sense: one step at least, and no more than all the work of a run.

    No checkpoint holds less than a step of work. A checkpoint that is written in the background is complete before the
    next begins. Each run ends at `until_ns` at the latest.
    """
    load = role.workload
    step_ns = role.longest_step_ns
    least_ns = written_ns(max(step_ns, -(-load.lag_ns // step_ns) * step_ns))
    most_ns = max(least_ns, written_ns(min(until_ns, load.steps * step_ns)))
    if mode == "exact":
        least_ns = max(least_ns, written_ns(most_ns // PLAYED))
    return Bounds(least_ns, most_ns)


def written_ns(ns: int) -> int:
    """Return the next time that `format_duration` writes without rounding, so that a command has what was played."""
    unit = US if ns < SECOND else MS
    return -(-ns // unit) * unit


def rounded_ns(ns: float) -> int:
    """Return a time as a multiple of the largest unit that it has `EXACT` of: 437 s become 7m20s, 20 minutes stay."""
    unit = next((unit for unit in UNITS if ns >= EXACT * unit), US)
    return max(1, round(ns / unit)) * unit


def sweep(play: Callable[[int], Point], guess_ns: float, today_ns: int, bounds: Bounds) -> list[Point]:
    """Play intervals around a guess, such as Daly's, and return them with the results, shortest first.

    Today's interval is among them, even where the bounds forbid it.
    """
    played = {today_ns: play(today_ns)}
    failed = played[today_ns].failed
    centre = bounds.put(guess_ns)
    _play(played, play, [bounds.put(centre * COARSE**k) for k in range(-REACH, REACH + 1)])
    for _ in range(FURTHER):
        at = best_of(played.values(), failed).interval_ns
        if not _play(played, play, [bounds.put(ns) for ns in _lacking(at, list(played))]):
            break
    for factor in FINE:
        at = best_of(played.values(), failed).interval_ns
        _play(played, play, [bounds.put(at / factor), bounds.put(at * factor)])
    return [played[ns] for ns in sorted(played)]


def _lacking(at: int, played: Sequence[int]) -> list[float]:
    """Return the intervals beside the best one on whose side no interval was played as near as the sweep is coarse."""
    reach = COARSE * (1 + 2 / EXACT)  # intervals are rounded
    sides = [
        (any(at / reach <= ns < at for ns in played), at / COARSE),
        (any(at < ns <= at * reach for ns in played), at * COARSE),
    ]
    return [ns for is_there, ns in sides if not is_there]


def _play(played: dict[int, Point], play: Callable[[int], Point], intervals: list[int]) -> bool:
    """Play the intervals that were not played yet, and return whether there was one."""
    new = [ns for ns in dict.fromkeys(intervals) if ns not in played]
    played.update((ns, play(ns)) for ns in new)
    return bool(new)


def best_of(points: Iterable[Point], failed: int) -> Point:
    """Return the point with most goodput and at most `failed` failed runs; of equal ones, the longest interval."""
    return max((p for p in points if p.failed <= failed), key=lambda point: (point.goodput, point.interval_ns))
