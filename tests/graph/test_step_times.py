"""The time of a step by the number of workers: tables, what is between entries, and scaling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowdist.graph import RoleSpec, WorkloadSpec
from flowdist.graph.sizes import scaled, step_time_at

TABLE = ((1, 2000), (4, 600), (8, 500))


@pytest.mark.parametrize(("workers", "ns"), [(1, 2000), (4, 600), (8, 500), (2, 1125), (3, 782), (6, 545), (100, 500)])
def test_between_two_entries_the_speed_changes_evenly(workers: int, ns: int) -> None:
    assert step_time_at(TABLE, workers) == ns  # 2 of 1 to 4: 1 / (1/2000 + (1/600 - 1/2000) / 3) = 1125


def test_below_the_first_entry_a_step_takes_as_long_as_there() -> None:
    assert step_time_at(((2, 700), (4, 400)), 1) == 700


@given(st.integers(2, 1000), st.integers(1, 10**12), st.floats(0.01, 1))
def test_a_smaller_world_is_slower_by_the_part_that_scales(most: int, step_ns: int, scaling: float) -> None:
    table = scaled(step_ns, most, scaling)
    half = step_time_at(table, most // 2)
    assert step_time_at(table, most) == step_ns
    assert half == pytest.approx(step_ns / (1 - scaling * (1 - (most // 2) / most)), rel=1e-6, abs=most)


def test_without_scaling_each_size_takes_as_long() -> None:
    assert scaled(600, 4, 0) == scaled(600, 4, 0.0) == ((4, 600),)
    assert scaled(600, 1, 1) == ((1, 600),)


def test_workers_with_batches_of_their_own_need_more_steps_for_the_same_samples() -> None:
    load = WorkloadSpec(step_ns=600, batch_workers=4)
    assert [load.step_ns_at(workers) for workers in (4, 3, 1)] == [600, 800, 2400]
    assert load.depends_on_size
    assert not WorkloadSpec().depends_on_size


def test_the_longest_step_of_a_role_is_that_of_the_worst_size() -> None:
    role = RoleSpec(
        "a", ("true",), min_replicas=1, max_replicas=3, workload=WorkloadSpec(step_times=((1, 5), (2, 9), (3, 4)))
    )
    assert role.longest_step_ns == 9
