"""Comparison in pairs: an equal job gains exactly nothing, and what is sure follows from the differences alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowdist.advice import comparison
from flowdist.advice.comparison import Gain, is_sure
from flowdist.advice.words import runs_text
from flowdist.graph import HOUR, SECOND
from flowdist.sim.experiment.outcome import Outcome
from tests.choosing import examples
from tests.control.harness import role


def outcome(seed: int, goodput: float = 0.5, hours: float = 10, work: float = 100, *, failed: bool = False) -> Outcome:
    how, spent = "failed" if failed else "succeeded", {"trainer": {"productive": work}}
    return Outcome(how, round(hours * HOUR), spent=spent, goodput=goodput, seed=seed)  # type: ignore[arg-type]


def gain_of(today: Sequence[Outcome], other: Sequence[Outcome], units: tuple[int, int]) -> Gain:
    return comparison.gain_of(today, other, units, role("trainer"))


OUTCOMES = st.builds(
    lambda goodput, hours, work, failed: (goodput, hours, work, failed),
    st.floats(0, 1), st.floats(0.01, 1000), st.integers(0, 10**18), st.booleans(),
)  # fmt: skip


@settings(max_examples=examples(50, 1000))
@given(st.lists(OUTCOMES, min_size=2, max_size=20), st.integers(1, 100_000))
def test_a_job_that_is_equal_to_todays_gains_exactly_nothing(values: list[tuple[float, ...]], units: int) -> None:
    runs = [outcome(seed, *value[:3], failed=bool(value[3])) for seed, value in enumerate(values)]
    gain = gain_of(runs, runs, (units, units))
    assert gain.goodput == (0.0, 0.0) and gain.verdict == "unsure" and gain.better == 0
    assert gain.hours is None or gain.hours == (0.0, 0.0)


def test_a_small_gain_in_every_seed_is_sure_although_the_seeds_differ_widely() -> None:
    today = [outcome(seed, 0.2 + 0.05 * seed) for seed in range(10)]
    other = [outcome(seed, 0.21 + 0.05 * seed, work=105) for seed in range(10)]
    gain = gain_of(today, other, (8, 8))
    assert gain.goodput.mean == pytest.approx(0.01) and is_sure(gain.goodput) and gain.better == 10
    assert gain.hours is not None and gain.hours.mean == pytest.approx(80 - 80 / 1.05) and gain.verdict == "saves"
    assert gain.share == pytest.approx(1 - 1 / 1.05)


def test_a_gain_in_half_of_the_seeds_is_not_sure() -> None:
    today = [outcome(seed) for seed in range(10)]
    other = [
        outcome(seed, 0.5 + (0.1 if seed % 2 else -0.09), work=100 + (10 if seed % 2 else -9)) for seed in range(10)
    ]
    assert gain_of(today, other, (1, 1)).verdict == "unsure"


def test_a_gain_with_one_seed_is_never_sure() -> None:
    gain = gain_of([outcome(1)], [outcome(1, 0.9, work=200)], (1, 1))
    assert gain.goodput.half is None and gain.verdict == "unsure"


def test_a_gain_that_is_sure_but_tiny_is_no_advice() -> None:
    today = [outcome(seed) for seed in range(10)]
    other = [outcome(seed, 0.50001, work=100.001) for seed in range(10)]
    assert is_sure(gain_of(today, other, (1, 1)).goodput) and gain_of(today, other, (1, 1)).verdict == "unsure"


def test_a_spare_node_that_gains_less_than_it_costs_buys_goodput() -> None:
    today = [outcome(seed) for seed in range(10)]
    other = [outcome(seed, 0.55, work=110) for seed in range(10)]
    gain = gain_of(today, other, (4, 5))
    assert gain.hours is not None and gain.hours.mean == pytest.approx(40 - 50 / 1.1) and gain.costs
    assert gain.verdict == "buys"


def test_under_what_saves_hours_no_more_runs_may_fail() -> None:
    today = [outcome(seed) for seed in range(10)]
    other = [outcome(seed, 0.9, work=200, failed=seed == 3) for seed in range(10)]
    assert gain_of(today, other, (1, 1)).verdict == "unsure"


@pytest.mark.parametrize(("ended", "verdict"), [(5, "unsure"), (6, "ends")])
def test_fewer_failed_runs_are_advice_if_that_is_no_luck(ended: int, verdict: str) -> None:
    today = [outcome(seed, failed=seed < ended) for seed in range(20)]
    assert gain_of(today, [outcome(seed) for seed in range(20)], (1, 1)).verdict == verdict  # 2 ** -6 < 0.025


def test_fewer_failed_runs_for_more_money_are_bought() -> None:
    today = [outcome(seed, failed=seed < 10) for seed in range(20)]
    assert gain_of(today, [outcome(seed) for seed in range(20)], (4, 5)).verdict == "buys"


def test_a_run_without_any_work_counts_by_what_it_costs() -> None:
    today = [outcome(1, work=0), outcome(2, work=100)]
    gain = gain_of(today, [outcome(1), outcome(2)], (1, 1))
    assert gain.hours is not None and gain.hours.mean == pytest.approx(10 - 5)  # 10 h in the mean, for 50 of work
    none = gain_of(today, [outcome(1, work=0), outcome(2, work=0)], (1, 1))
    assert none.hours is None and none.share == 0.0 and none.verdict == "unsure"


def test_different_seeds_cannot_be_compared() -> None:
    with pytest.raises(AssertionError, match="same seeds"):
        gain_of([outcome(1)], [outcome(2)], (1, 1))


def test_runs_with_hardly_any_fault_are_no_ground_for_advice() -> None:
    usual, rare = (runs_text(range(1, 26), "fast", 2 * 60 * SECOND, faults) for faults in (0.4, 0.01))
    assert usual == "seeds 1:25 in macro mode, each 2m at most, 0 faults expected up to then"
    assert rare.startswith(usual) and "\nwarning: 0.25 faults are expected in all runs together" in rare
