"""The sweep of the checkpoint interval: it finds the best of smooth and rough curves, and stays within its bounds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowdist.advice.intervals import Bounds, Point, best_of, bounds_of, rounded_ns, sweep
from flowdist.graph import HOUR, MINUTE, MS, SECOND, RoleSpec, WorkloadSpec, format_duration, parse_duration
from tests.choosing import examples


def role(**fields: object) -> RoleSpec:
    return RoleSpec("trainer", ("true",), workload=msgspec.structs.replace(WorkloadSpec(), **fields))


def goodput(best_ns: float, waste: float) -> Callable[[float], float]:
    """Return a curve with one maximum, at `best_ns`, where `waste` is lost: as saving and redoing are in theory."""
    return lambda ns: 1 - waste / 2 * (ns / best_ns + best_ns / ns)


def swept(curve: Callable[[float], float], guess_ns: float, today_ns: int, bounds: Bounds) -> list[Point]:
    return sweep(lambda ns: Point(ns, curve(ns), 0.0, 0), guess_ns, today_ns, bounds)


WIDE = Bounds(SECOND, 100 * HOUR)


@pytest.mark.parametrize("wrong", [0.02, 0.2, 1, 5, 50])
def test_the_sweep_finds_the_best_interval_from_a_guess_that_is_far_away(wrong: float) -> None:
    curve, best_ns = goodput(20 * MINUTE, 0.2), 20 * MINUTE
    points = swept(curve, wrong * best_ns, HOUR, WIDE)
    found = best_of(points, 0)
    assert curve(best_ns) - found.goodput < 0.002
    assert [point.interval_ns for point in points] == sorted({point.interval_ns for point in points})
    assert len(points) < 26, "each is a simulation with all seeds"


def test_the_sweep_is_not_lost_on_a_rough_curve() -> None:
    draws = random.Random(1)
    noise = {ns: draws.uniform(-0.002, 0.002) for ns in range(100)}
    curve = goodput(20 * MINUTE, 0.2)
    points = swept(lambda ns: curve(ns) + noise[int(ns / SECOND) % 100], 5 * MINUTE, HOUR, WIDE)
    assert 0.8 - curve(best_of(points, 0).interval_ns) < 0.005


@pytest.mark.parametrize(("rises", "best"), [(1, 2 * HOUR), (-1, 2 * SECOND)])
def test_where_goodput_only_rises_or_falls_the_best_is_the_bound(rises: int, best: int) -> None:
    points = swept(lambda ns: 0.5 + rises * ns / (1000 * HOUR), MINUTE, MINUTE, Bounds(2 * SECOND, 2 * HOUR))
    assert best_of(points, 0).interval_ns == best


def test_todays_interval_is_played_although_the_bounds_forbid_it() -> None:
    points = swept(goodput(MINUTE, 0.1), MINUTE, 100 * MS, WIDE)
    assert points[0].interval_ns == 100 * MS and all(point.interval_ns >= SECOND for point in points[1:])


def test_an_interval_with_more_failed_runs_than_today_is_not_the_best() -> None:
    good, safe = Point(MINUTE, 0.9, None, 3), Point(HOUR, 0.5, None, 1)
    assert best_of([good, safe], 1) == safe and best_of([good, safe], 3) == good


def test_of_equal_intervals_the_longest_saves_least_often() -> None:
    assert best_of([Point(MINUTE, 0.5, None, 0), Point(HOUR, 0.5, None, 0)], 0).interval_ns == HOUR


@settings(max_examples=examples(50, 1000))
@given(
    step_ns=st.integers(1, 20 * MINUTE),
    steps=st.integers(1, 10**6),
    lag_ns=st.integers(0, HOUR),
    guess_ns=st.floats(0, 1e18),
    best_ns=st.floats(1e3, 1e16),
)
def test_no_interval_is_below_a_step_and_each_is_what_its_text_says(
    step_ns: int, steps: int, lag_ns: int, guess_ns: float, best_ns: float
) -> None:
    spec = role(steps=steps, step_ns=step_ns, checkpoint_ns=lag_ns, checkpoint_blocks_ns=0)
    bounds = bounds_of(spec, 100 * HOUR)
    curve = goodput(best_ns, 0.1)
    for point in swept(curve, guess_ns, bounds.least_ns, bounds):
        assert point.interval_ns >= max(step_ns, lag_ns)
        assert parse_duration(format_duration(point.interval_ns)) == point.interval_ns


def test_the_shortest_interval_is_a_step_of_the_size_that_steps_slowest() -> None:
    sizes = ((1, 8 * SECOND), (4, 2 * SECOND))
    spec = msgspec.structs.replace(
        role(steps=100, step_ns=2 * SECOND, step_times=sizes), min_replicas=1, max_replicas=4
    )
    assert bounds_of(spec, HOUR) == Bounds(8 * SECOND, 800 * SECOND)


def test_free_checkpoints_are_not_played_at_every_step() -> None:
    spec = role(steps=100_000, step_ns=30 * MS, checkpoint_ns=0)
    assert bounds_of(spec, 100 * HOUR, "fast").least_ns == 30 * MS
    assert bounds_of(spec, 100 * HOUR, "exact").least_ns == 6 * SECOND  # 500 of them in 50 minutes


@pytest.mark.parametrize(("ns", "text"), [(437.2 * SECOND, "7m20s"), (20 * MINUTE, "20m"), (3.14159 * SECOND, "3.1s")])
def test_intervals_are_round(ns: float, text: str) -> None:
    assert format_duration(rounded_ns(ns)) == text
    assert math.isclose(rounded_ns(ns), ns, rel_tol=0.03)
