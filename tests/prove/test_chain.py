"""Points that are played in one run: which they are, in which order, and when what they show does not count."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from flowdist.prove.chain import came, is_as_planned, next_chain
from flowdist.prove.compare import findings
from flowdist.prove.history import Attempt, Run
from flowdist.prove.points import Kill, Point, points
from tests.prove.histories import EVERY, NOTHING, POINT, RANKS, STEPS, attempt, clean_run, resumed, save, watched

ALL = points(watched(), resumed(8), 6, RANKS[0], power=True)


def behind(run: Run, begun: int) -> list[Attempt]:
    """Give the last attempts of a run the calls that stand in front of theirs."""
    for worker, attempts in run.attempts.items():
        attempts[-1].begun = begun
        attempts[-1].calls = watched().calls_behind(worker, begun) + attempts[-1].calls
        attempts[-1].done = len(attempts[-1].calls)
    return [attempts[-1] for attempts in run.attempts.values()]


@given(st.integers(1, 8))
def test_each_point_is_played_once_and_in_the_order_of_the_run(longest: int) -> None:
    left, played = deque(ALL), list[Point]()
    while left:
        chain = next_chain(watched(), left, longest)
        assert 1 <= len(chain) <= longest
        steps = [next(s for s in (*_numbers(point), STEPS)) for point in chain]
        assert steps == sorted(steps)
        played += chain
    assert sorted(point.name for point in played) == sorted(point.name for point in ALL)


def _numbers(point: Point) -> list[int]:
    kill = point.kills[0]
    return [kill.nth] if kill.on == "step" else [point.save * EVERY] if kill.on == "call" else []


def test_a_loss_of_power_and_two_kills_in_one_save_have_runs_of_their_own() -> None:
    left = deque(ALL)
    while left:
        chain = next_chain(watched(), left, 8)
        if any(kill.power for point in chain for kill in point.kills) or chain[0].name.endswith("twice"):
            assert len(chain) == 1 or not chain[0].save


def test_points_count_whose_kills_all_came() -> None:
    one, two = POINT, replace(POINT, kills=(POINT.kills[0], POINT.kills[0]))
    assert came([one, two, one], 3) == [one, two]
    assert came([one, two, one], 2) == [one]
    assert came([two, one], 1) == []


def test_a_resumed_attempt_has_the_calls_of_the_run_without_a_fault_in_front_of_its_own() -> None:
    run = resumed(8)
    behind(run, 8)
    first = run.attempts[RANKS[0]][-1]
    assert first.calls == clean_run().attempts[RANKS[0]][0].calls
    assert Kill(RANKS[0], "call", 1, "write", "ckpt/12.tmp").is_at(first.calls[:-2])


def test_an_attempt_that_makes_other_calls_is_not_as_planned() -> None:
    run = resumed(4, killed_after=6)
    behind(run, 4)
    assert is_as_planned(watched(), run)
    for attempts in run.attempts.values():
        attempts.append(attempt(0, 8))
    run.kills = 2
    assert is_as_planned(watched(), run)
    run.attempts[RANKS[0]][1].calls.pop(len(save(4)))  # it does not open the file of its second save
    assert not is_as_planned(watched(), run)


def test_a_worker_that_was_started_once_more_or_not_at_all_is_not_as_planned() -> None:
    run = resumed(8)
    assert is_as_planned(watched(), run)
    run.attempts[RANKS[1]].pop()
    assert not is_as_planned(watched(), run)


def test_an_attempt_between_two_kills_is_compared_as_the_last_one_is() -> None:
    run = resumed(8)
    wrong = attempt(0, 4, 10, rates=[0.7])
    run.attempts[RANKS[0]].insert(1, wrong)
    run.attempts[RANKS[1]].insert(1, attempt(1, 4, 10))
    run.kills = 2
    assert [each.kind for each in findings(watched(), run, POINT, NOTHING)] == ["lost save", "schedule"]
