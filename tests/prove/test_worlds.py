"""A run whose world becomes smaller: what is restored and which samples come are compared, and losses are not."""

from __future__ import annotations

import msgspec
import pytest

from flowdist.prove.history import Attempt, Run, Step
from flowdist.prove.worlds import of_worlds
from tests.prove.histories import EVERY, RANKS, STEPS, attempt, step, watched


def shrunk(begun: int, *, position: int, killed_after: int = 9, **changes: object) -> Run:
    """Return a run that goes on with one rank, whose samples begin at `position`; its first step has `changes`."""
    steps = [
        msgspec.structs.replace(step(number, 0), samples=[[at % 96 for at in range(start, start + 4)]], losses=["7"])
        for number, start in zip(range(begun, STEPS), range(position, 10_000, 4), strict=False)
    ]
    steps[0] = msgspec.structs.replace(steps[0], **changes)
    run = Run({worker: [attempt(worker.rank, 0, killed_after)] for worker in RANKS}, kills=1)
    run.attempts[RANKS[0]].append(Attempt(steps, kills=1))
    return run


def kinds(run: Run) -> list[str]:
    script = watched()
    for attempts in script.clean.attempts.values():
        attempts[0].steps = [
            msgspec.structs.replace(each, optimizer=f"o{at}") for at, each in enumerate(attempts[0].steps)
        ]
    return [finding.kind for finding in of_worlds(script, run)]


@pytest.mark.parametrize("begun", [4, 8])
def test_a_run_that_goes_on_where_it_was_shows_nothing(begun: int) -> None:
    assert kinds(shrunk(begun, position=8 * begun, killed_after=begun + 1)) == []


def test_samples_that_come_again_before_the_others_are_found() -> None:
    """Its position counts batches of a rank, as if the world had not changed: it goes on far too early."""
    assert kinds(shrunk(8, position=0)) == ["data again"]


def test_batches_that_a_loop_fetches_and_skips_are_not_used() -> None:
    run = shrunk(8, position=64)
    first = run.attempts[RANKS[0]][-1].steps[0]
    skipped = [list(range(at, at + 4)) for at in range(0, 64, 4)]
    run.attempts[RANKS[0]][-1].steps[0] = msgspec.structs.replace(first, samples=[*skipped, *first.samples])
    assert kinds(run) == []


@pytest.mark.parametrize("name", ["weights", "optimizer"])
def test_what_all_ranks_have_alike_has_to_be_restored(name: str) -> None:
    assert kinds(shrunk(8, position=64, **{name: "other"})) == [name]


def test_a_state_that_each_rank_has_for_itself_is_not_compared() -> None:
    run = shrunk(8, position=64, optimizer="other")
    script = watched()
    mine = script.clean.attempts[RANKS[1]][0]
    mine.steps = [msgspec.structs.replace(each, optimizer=each.optimizer + " of rank 1") for each in mine.steps]
    assert of_worlds(script, run) == []


def test_a_restart_from_an_older_save_is_found() -> None:
    assert "lost save" in kinds(shrunk(4, position=8 * EVERY, killed_after=9))


def test_the_world_grows_again_from_what_the_smaller_one_has_left() -> None:
    run = shrunk(8, position=64)
    smaller = run.attempts[RANKS[0]][-1].steps
    smaller[2:] = []
    for worker in RANKS:
        grown = [
            msgspec.structs.replace(
                step(number, worker.rank),
                weights=f"v{number}",
                samples=[[at + 4 * worker.rank for at in range(start, start + 4)]],
            )
            for number, start in zip(range(9, STEPS), range(68, 96, 8), strict=False)
        ]
        run.attempts[worker].append(Attempt(grown, kills=2))
    run.kills = 2
    smaller[1] = msgspec.structs.replace(smaller[1], weights="v9")
    assert kinds(run) == []
    _change(run.attempts[RANKS[0]][-1].steps, optimizer="other")
    _change(run.attempts[RANKS[1]][-1].steps, optimizer="other")
    assert kinds(run) == ["optimizer"]


def _change(steps: list[Step], **changes: object) -> None:
    steps[0] = msgspec.structs.replace(steps[0], **changes)


def test_samples_that_come_again_near_the_end_of_an_epoch_are_found() -> None:
    """Few others are left then, so that each draw alone looks like the next epoch; some stay behind for good."""
    run = shrunk(8, position=24)  # of 96, 64 are used; 24..39 come again, and 64..95 never
    first = run.attempts[RANKS[0]][-1].steps
    run.attempts[RANKS[0]][-1].steps = [*first, *first[:1]]
    assert kinds(run) == ["data again"]


def test_a_loop_without_a_loader_shows_no_samples() -> None:
    run, script = shrunk(8, position=64), watched()
    for each in (*run.attempts.values(), *script.clean.attempts.values()):
        for one in each:
            one.steps = [msgspec.structs.replace(each_step, samples=[]) for each_step in one.steps]
    assert of_worlds(script, run) == []


def test_a_run_that_differs_from_others_by_chance_is_compared_with_itself() -> None:
    run = shrunk(8, position=64, weights="of this run")
    for worker in RANKS:
        first = run.attempts[worker][0].steps
        first[8] = msgspec.structs.replace(first[8], weights="of this run")
    assert kinds(run) == []
