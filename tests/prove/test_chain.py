"""Points that are played in one run: which they are, in which order, and when what they show does not count."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from flowdist.prove.chain import Queue, came, is_as_planned
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
    queue, played = Queue(watched(), ALL, longest), list[Point]()
    while chain := queue.take():
        assert 1 <= len(chain) <= longest
        steps = [next(s for s in (*_numbers(point), STEPS)) for point in chain]
        assert steps == sorted(steps)
        queue.note(chain, len(chain), set())
        played += chain
    assert sorted(point.name for point in played) == sorted(point.name for point in ALL)


@given(st.lists(st.sampled_from(["well", "shows", "otherwise", "half"])))
@example(
    ["well", "half", "well", "well", "well", "shows", "well", "well", "shows", "well", "shows"]
)  # it has a point's name
def test_each_point_counts_once_whatever_its_runs_are_like(runs: list[str]) -> None:
    """A run that shows something, or does otherwise, says nothing of the points of its chain."""
    queue, played = Queue(watched(), ALL), list[str]()
    ways = iter(runs)
    while chain := queue.take():
        way = next(ways, "well")
        count = {"well": len(chain), "half": (len(chain) + 1) // 2}.get(way, 0) if len(chain) > 1 else 1
        queue.note(chain, count, {"weights"} if way == "shows" else set())
        played += [point.name for point in chain[:count]]
    assert sorted(name for name in played if name in {point.name for point in ALL}) == sorted(p.name for p in ALL)


def test_a_chain_that_shows_what_no_kill_shows_alone_is_played_as_one_point() -> None:
    for kind, last in (("losses", [ALL[1].name + " + " + ALL[2].name]), ("weights", [])):
        queue = Queue(watched(), ALL[:3])
        queue.note(queue.take(), 1, {"weights"} if kind == "weights" else set())
        if kind == "weights":
            queue.note(queue.take(), 1, set())
        chain = queue.take()
        if len(chain) == 1:
            continue
        queue.note(chain, 0, {kind})
        rest = [queue.take() for _ in chain]
        for each in rest:
            queue.note(each, 1, set())
        joined = queue.take()
        assert [point.name for point in joined] == last
        assert [queue.place(point) for point in (*joined, *ALL[:3])] == [3] * len(last) + [0, 1, 2]


def _numbers(point: Point) -> list[int]:
    kill = point.kills[0]
    return [kill.nth] if kill.on == "step" else [point.save * EVERY] if kill.on == "call" else []


def test_a_loss_of_power_and_two_kills_in_one_save_have_runs_of_their_own() -> None:
    queue = Queue(watched(), ALL)
    while chain := queue.take():
        queue.note(chain, len(chain), set())
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
