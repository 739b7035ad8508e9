"""Distribution of a measured duration: how often it was measured, and how it is spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from flowdist.graph import format_duration


class Distribution(NamedTuple):
    """Summary of measured durations in ns: how often they were measured, the least, three quantiles, most and mean.

    `used_ns` is the one figure that stands for all: the simulator gets it, and tables show it.
    """

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
    """Return the distribution of durations in ns; None if there are none. Quantiles are interpolated linearly.

    `used_ns` is the figure that stands for all of them; None: their median.
    """
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
