"""Comparison of two jobs that were simulated with the same seeds: differences in pairs, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from flowdist.advice.playing import rarest_in, work_of
from flowdist.graph import HOUR, RoleSpec
from flowdist.report.goodput import Estimate, Rarest, estimate
from flowdist.sim.experiment.outcome import Outcome

LEAST_GAIN = 0.0005  # share of goodput or of the cost: a smaller gain is no advice, however sure
CHANCE = 0.025  # chance at which fewer failed runs are luck: the one-sided level of a 95 % interval

# saves: less is paid for the same work; ends: fewer runs fail, for no more money; buys: more goodput or fewer failed
# runs, for more money; unsure: none of them
Verdict = Literal["saves", "ends", "buys", "unsure"]


class Gain(NamedTuple):
    """Gain of a job over the job of today, with the same seeds."""

    goodput: Estimate  # difference, as a share from -1 to 1
    # GPU hours (node hours without GPUs) saved in one run, for the work that the job of today does in it; negative:
    # more are paid. None: no run did any work.
    hours: Estimate | None
    share: float  # the same as a part of what today's run costs
    better: int  # seeds with more goodput than today
    seeds: int
    failed: int  # runs that fail today
    still_failed: int  # runs that fail with the change
    ended: int  # runs that fail today and do not fail with the change
    rarest: Rarest | None = None  # the rate that has hit least often in all runs; None: there are no rates

    @property
    def verdict(self) -> Verdict:
        """Return what the difference shows for sure, at 95 % confidence.

        More failed runs are never advised: a run that fails early has no time to lose more.
        """
        if self.still_failed > self.failed:
            return "unsure"
        begun = self.still_failed - (self.failed - self.ended)
        ends = _luck(self.ended, begun) <= CHANCE
        if ends and not self.costs:
            return "ends"
        if self.share > LEAST_GAIN and is_sure(self.hours):
            return "saves"
        return "buys" if ends or (self.goodput.mean > LEAST_GAIN and is_sure(self.goodput)) else "unsure"

    @property
    def costs(self) -> bool:
        """Return whether more is paid for the same work, for sure."""
        return self.hours is not None and self.hours.half is not None and self.hours.mean + self.hours.half < 0


def is_sure(gain: Estimate | None) -> bool:
    """Return whether the gain is above 0 with all of its confidence interval; never for a single seed."""
    return gain is not None and gain.half is not None and gain.mean - gain.half > 0


def gain_of(today: Sequence[Outcome], other: Sequence[Outcome], units: tuple[int, int], role: RoleSpec) -> Gain:
    """Return what another job gains over today's by the work of a role. A job equal to today's gains exactly 0.

    `units` are the numbers of GPUs (or nodes) of both jobs.
    """
    pairs = list(zip(today, other, strict=True))
    assert all(one.seed == two.seed for one, two in pairs), "differences are those of the same seeds"
    saved = _hours_saved(today, other, units, role)
    rarest, shares = fewer(rarest_in(today), rarest_in(other)), list(zip(goodputs(today), goodputs(other), strict=True))
    hours = estimate(saved, rarest) if saved else None
    paid = math.fsum(units[0] * one.lasted_ns / HOUR for one in today) / len(today)
    return Gain(
        goodput=estimate([two - one for one, two in shares], rarest),
        hours=hours,
        share=hours.mean / paid if hours is not None and paid else 0.0,
        better=sum(two > one for one, two in shares),
        seeds=len(pairs),
        failed=sum(one.has_failed for one in today),
        still_failed=sum(two.has_failed for two in other),
        ended=sum(one.has_failed and not two.has_failed for one, two in pairs),
        rarest=rarest,
    )


def fewer(*rarest: Rarest | None) -> Rarest | None:
    """Return the one that has hit least often; None: there are no rates."""
    return min((one for one in rarest if one is not None), key=lambda one: one.hits, default=None)


def goodputs(outcomes: Sequence[Outcome]) -> list[float]:
    """Return the goodput of each run; 0 for one whose tasks have had no time."""
    return [outcome.goodput or 0.0 for outcome in outcomes]


def _hours_saved(
    today: Sequence[Outcome], other: Sequence[Outcome], units: tuple[int, int], role: RoleSpec
) -> list[float]:
    """Return a value for each seed, whose mean is the hours that the other job saves for the work of one run of today.

    The pay for a unit of work is a ratio of sums: a single run may do no work. Values are linearised, so that their
    spread gives the ratio's error (Cochran, "Sampling Techniques", 3rd edition, 1977, 2.11). Empty: no work with any
    seed.
    """
    work, other_work = ([work_of(one, role) for one in runs] for runs in (today, other))
    worked = math.fsum(other_work)
    if not worked:
        return []
    ratio = math.fsum(units[1] * two.lasted_ns for two in other) / worked
    scale = math.fsum(work) / worked
    paid, other_paid = (
        [unit * one.lasted_ns for one in runs] for unit, runs in zip(units, (today, other), strict=True)
    )
    return [
        (a - ratio * b - scale * (c - ratio * d)) / HOUR
        for a, b, c, d in zip(paid, work, other_paid, other_work, strict=True)
    ]


def _luck(ended: int, begun: int) -> float:
    """Return the chance that so many of the runs that fail in one job alone do so today, by a one-sided sign test."""
    total = ended + begun
    return math.fsum(math.comb(total, k) / 2.0**total for k in range(ended, total + 1))
