"""Means with confidence intervals, and the best checkpoint interval by theory."""

from __future__ import annotations

import math

import pytest

from flowdist.report.goodput import daly_ns, estimate, young_ns


def test_a_mean_with_its_confidence() -> None:
    """Computed by hand: 1, 2, 3 has a deviation of 1, and t is 4.303 for two degrees of freedom."""
    assert estimate([1.0, 2.0, 3.0]) == (2.0, pytest.approx(4.303 / math.sqrt(3)))
    assert estimate([5.0]) == (5.0, None)
    many = estimate([0.0, 2.0] * 50)
    assert many.mean == 1.0
    assert many.half == pytest.approx(1.9842 * math.sqrt(100 / 99) / 10, rel=1e-4), "99 degrees"


def test_the_interval_that_was_covered_covers_the_mean() -> None:
    """About 95 of 100 intervals contain the known mean of many samples."""
    hits = 0
    for sample in range(400):
        values = [((sample * 7919 + i * 104729) % 1009) / 1009 for i in range(12)]
        mean, half = estimate(values)
        assert half is not None
        hits += abs(mean - 504 / 1009) <= half
    assert 0.9 < hits / 400 <= 1.0


def test_dalys_interval_is_the_best_of_the_exact_model() -> None:
    """Daly's exact time for exponential failures has its minimum there, found by search."""
    between, saving = 3600.0, 60.0

    def total(interval: float) -> float:
        return (math.exp((interval + saving) / between) - 1) / interval

    best = min((seconds / 10 for seconds in range(100, 30_000)), key=total)
    assert daly_ns(saving, between) == pytest.approx(best, rel=0.005)
    assert young_ns(saving, between) == pytest.approx(best, rel=0.1)


def test_checkpoints_that_take_longer_than_failures_come() -> None:
    assert daly_ns(100.0, 10.0) == 10.0
