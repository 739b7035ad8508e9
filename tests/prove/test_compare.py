"""What a run with a kill shows, by made-up runs: each cause is named, and a right run shows nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowdist.prove.compare import HELP, Ends, Finding, began_at, findings, reached_save, sums_differ
from flowdist.prove.history import Attempt, Call, Run, Step, Worker
from flowdist.prove.proving import too_many
from flowdist.prove.watched import Watched
from tests.prove.histories import EVERY, KILL, NOTHING, POINT, RANKS, STEPS, attempt, resumed, save, step, watched


def shown(run: Run, ends: Ends = NOTHING) -> list[str]:
    return [finding.kind for finding in findings(watched(), run, POINT, ends)]


def changed(run: Run, from_step: int, **changes: object) -> Run:
    """Change all steps of the last attempts from a step on, counted in the whole run."""
    for attempts in run.attempts.values():
        last = attempts[-1]
        begun = STEPS - len(last.steps)
        last.steps = [
            msgspec.structs.replace(each, **changes) if begun + at >= from_step else each
            for at, each in enumerate(last.steps)
        ]
    return run


@given(st.integers(1, STEPS - 1), st.data())
def test_a_run_that_resumes_from_its_last_save_shows_nothing(killed_after: int, data: st.DataObject) -> None:
    begun = data.draw(
        st.sampled_from([each for each in range(killed_after + 1) if each >= killed_after // EVERY * EVERY])
    )
    assert shown(resumed(begun, killed_after=killed_after)) == []


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"weights": "other"}, "weights"),
        ({"optimizer": "other", "gradients": "other"}, "optimizer"),
        ({"rates": [0.7]}, "schedule"),
        ({"scale": [1.0]}, "scaler"),
        ({"samples": [[0, 1, 2, 3]]}, "data again"),
        ({"random": {"torch": "other", "python": "p"}, "losses": ["7.0"]}, "random numbers"),
        ({"losses": ["7.0"]}, "losses"),
    ],
)
def test_what_was_not_restored_is_named(changes: dict[str, object], kind: str) -> None:
    assert shown(resumed(8, **changes)) == [kind]


def test_a_generator_that_nobody_draws_from_is_no_finding() -> None:
    assert shown(resumed(8, random={"torch": "other"})) == []


def test_a_generator_of_the_script_itself_is_named_by_its_variable() -> None:
    script = watched()
    for attempts in script.clean.attempts.values():
        attempts[0].steps = [
            msgspec.structs.replace(each, own={"noise": f"n{at}"}) for at, each in enumerate(attempts[0].steps)
        ]
    (finding,) = findings(script, resumed(8, own={"noise": "n0"}, losses=["7.0"]), POINT, NOTHING)
    assert finding.kind == "random numbers" and "the generator of noise is not where it was" in finding.text
    assert [each.kind for each in findings(script, resumed(8, losses=["7.0"]), POINT, NOTHING)] == ["losses"]
    assert findings(script, resumed(8, own={"noise": "n0"}), POINT, NOTHING) == []


def test_what_a_server_lacks_is_named_by_its_variable_if_the_step_itself_has_all() -> None:
    script = watched()
    attempts = script.clean.attempts[RANKS[0]]
    steps = enumerate(attempts[0].steps)
    attempts[0].steps = [msgspec.structs.replace(s, variables={"shard.rate of ps.0": f"r{at}"}) for at, s in steps]
    run = resumed(8, variables={"shard.rate of ps.0": "r0"}, losses=["7.0"])
    run.attempts[Worker("ps", 0)] = [Attempt(), Attempt(opened=["server.py", "ckpt/8/ps0.npz"])]
    run.attempts[Worker("ps", 0)][1].places = {"read ckpt/8/ps0.npz": "server.py:7", "read server.py": "server.py:1"}
    (finding,) = findings(script, run, POINT, NOTHING)
    assert (finding.kind, finding.place) == ("server state", "server.py:7")
    assert finding.text.endswith("a server does not have what step 8 has left: shard.rate of ps.0")
    assert [each.kind for each in findings(script, resumed(8, losses=["7.0"]), POINT, NOTHING)] == ["losses"]
    assert findings(script, resumed(8, variables={"shard.rate of ps.0": "r0"}), POINT, NOTHING) == []
    both = resumed(8, variables={"shard.rate of ps.0": "r0"}, weights="other")
    assert [each.kind for each in findings(script, both, POINT, NOTHING)] == ["weights"]


def test_the_place_is_where_a_worker_with_steps_reads_and_not_a_server() -> None:
    run, server = resumed(8, weights="other"), Attempt(reads=["ckpt/8/ps0.npz"])
    server.places = {"read ckpt/8/ps0.npz": "server.py:7"}
    run.attempts = {Worker("a", 0): [Attempt(), server], **run.attempts}
    run.attempts[RANKS[0]][1].places = {"read ckpt/8.pt": "train.py:3"}
    (finding,) = findings(watched(), run, POINT, NOTHING)
    assert finding.place == "train.py:3"


def test_the_first_step_that_differs_is_named() -> None:
    (finding,) = findings(watched(), changed(resumed(8), 10, losses=["7.0"]), POINT, NOTHING)
    assert (finding.kind, finding.step) == ("losses", 11)


def test_a_cause_on_one_rank_explains_what_differs_on_the_other() -> None:
    """Its gradients come to all: rank 0, whose generator is right, has other losses, too."""
    run = resumed(8, losses=["7.0"], gradients="other")
    last = run.attempts[RANKS[1]][1]
    last.steps = [msgspec.structs.replace(each, random={"torch": "other", "python": "p"}) for each in last.steps]
    assert shown(run) == ["random numbers"]


def test_samples_that_are_used_again_and_never_are_named_as_ranges() -> None:
    run = resumed(8)
    for worker, (_, last) in run.attempts.items():
        last.steps = [
            msgspec.structs.replace(each, samples=step(at, worker.rank).samples) for at, each in enumerate(last.steps)
        ]
    (finding,) = findings(watched(), run, POINT, NOTHING)
    assert finding.kind == "data again"
    assert "samples 0..3, 8..11, 16..19, 24..27 are used again and samples 64..67, 72..75" in finding.text


def test_a_save_that_was_complete_and_is_not_resumed_from_is_lost() -> None:
    (finding,) = findings(watched(), resumed(4), POINT, NOTHING)
    assert finding.kind == "lost save" and "the save of step 8 was complete" in finding.text


def test_a_save_that_may_be_incomplete_need_not_be_resumed_from() -> None:
    """The kill came in front of the last call of the save of step 8."""
    run = resumed(4, killed_after=8)
    run.attempts[RANKS[0]][0].done -= 1
    assert shown(run) == []
    assert reached_save(watched(), run) == 4


def test_a_script_that_reads_nothing_does_not_resume() -> None:
    script = replace(watched(), saved=frozenset())
    assert reached_save(script, resumed(0)) == 0
    (finding,) = findings(script, resumed(0), POINT, NOTHING)
    assert finding.kind == "no resume" and "begins anew after step 9" in finding.text


def test_one_step_too_many_is_named() -> None:
    run = resumed(8)
    for attempts in run.attempts.values():
        attempts[1].steps = attempts[1].steps[:-1]
    assert shown(run) == ["steps"]


def test_a_job_that_was_done_already_need_not_step_again() -> None:
    run = resumed(STEPS, killed_after=STEPS)
    assert shown(run) == []
    early = Run({worker: [attempt(worker.rank, 0, 9), Attempt()] for worker in RANKS}, kills=1)
    assert shown(early) == ["steps"]


def test_a_job_that_cannot_resume_says_with_which_error_and_where_it_wrote() -> None:
    run = resumed(8)
    run.outcome = "failed"
    run.attempts[RANKS[0]][1].code, run.attempts[RANKS[0]][1].error = 1, "EOFError: Ran out of input"
    run.attempts[RANKS[0]][0].places["write ckpt/12.tmp"] = "train.py:88"
    (finding,) = findings(watched(), run, POINT, NOTHING)
    assert finding == Finding("torn save", "the job cannot resume: EOFError: Ran out of input", "train.py:88")
    run.outcome, run.waits = "hung", "default.0"
    assert shown(run) == ["hang"]


def test_an_entry_that_differs_at_the_end_is_named_if_nothing_before_does() -> None:
    ends = Ends({"ckpt/12.pt": "['ema']['0.weight'] differs"})
    (finding,) = findings(watched(), resumed(8), POINT, ends)
    assert finding.text == "ckpt/12.pt: ['ema']['0.weight'] differs at the end"
    assert shown(resumed(8, weights="other"), ends) == ["weights"]
    assert findings(watched(), resumed(8), POINT, ends, tolerance=None) == []


def with_variables(clean: list[dict[str, str]], **changes: object) -> tuple[Watched, Run]:
    """Return a script with these variables in each step, and a run that is resumed at step 8."""
    script = watched()
    for attempts in script.clean.attempts.values():
        steps = zip(attempts[0].steps, clean, strict=True)
        attempts[0].steps = [msgspec.structs.replace(each, variables=values) for each, values in steps]
    return script, resumed(8, **changes)


def test_variables_that_differ_are_named_where_nothing_else_is() -> None:
    script, run = with_variables(
        [{"good": f"={at}", "recent": f"d{at}", "same": "=1"} for at in range(STEPS)],
        variables={"good": "=0", "recent": "d0", "same": "=1"},
    )
    ends = Ends({"ckpt/12.pt": "['best'] differs"})
    (finding,) = findings(script, run, POINT, ends)
    assert finding.text == "ckpt/12.pt: ['best'] differs at the end; other values: good (0, not 8), recent"
    assert findings(script, run, POINT, NOTHING) == []
    for then, text in (("0.3333333333333333", "0.5, not 0.333333"), ("0.5000000001", "0.5, not 0.5000000001")):
        script, run = with_variables([{"rate": f"={then}"}] * STEPS, variables={"rate": "=0.5"})
        (finding,) = findings(script, run, POINT, ends)
        assert finding.text == f"ckpt/12.pt: ['best'] differs at the end; other values: rate ({text})"
    script, run = with_variables([{"good": f"={at}"} for at in range(STEPS)], variables={"good": "=3"}, losses=["7.0"])
    (finding,) = findings(script, run, POINT, NOTHING)
    assert finding.kind == "losses" and finding.text.endswith("; other values: good (3, not 8)")


def test_a_step_that_is_taken_twice_is_named_if_a_number_of_the_script_is_behind() -> None:
    script, run = with_variables([{"step": f"={at}"} for at in range(STEPS)], variables={"step": "=7"}, losses=["7.0"])
    assert [each.kind for each in findings(script, run, POINT, NOTHING)] == ["losses"], "it takes as many steps in all"
    for each in (script.clean, run):
        for attempts in each.attempts.values():  # which samples it uses is not seen
            attempts[-1].steps = [msgspec.structs.replace(step, samples=[]) for step in attempts[-1].steps]
    for attempts in run.attempts.values():
        attempts[1].steps.append(attempts[1].steps[-1])
    (finding,) = findings(script, run, POINT, NOTHING)
    assert finding.kind == "steps" and "13 steps in all, and 12 without a kill; other values: step (7" in finding.text


def test_a_schedule_that_goes_another_way_later_is_named() -> None:
    """What it is given was not restored. Its own state was."""
    script = watched()
    for attempts in script.clean.attempts.values():
        attempts[0].steps = [msgspec.structs.replace(s, schedule=f"s{at}") for at, s in enumerate(attempts[0].steps)]
    ends = Ends({"ckpt/12.pt": "['plateau']['best'] differs"})
    run = resumed(8)
    for attempts in run.attempts.values():
        states = ["s8", "s9", "other", "other"]
        attempts[1].steps = [
            msgspec.structs.replace(each, schedule=state) for each, state in zip(attempts[1].steps, states, strict=True)
        ]
    (finding,) = findings(script, run, POINT, ends)
    assert finding.kind == "schedule" and finding.text.endswith("the state of a schedule differs from step 11 on")
    assert findings(script, run, POINT, NOTHING) == []
    other = resumed(8, schedule="counts in another way")
    assert [each.kind for each in findings(script, other, POINT, ends)] == ["the end"]


def test_a_job_that_begins_anew_with_the_weights_alone_does_not_resume() -> None:
    run = resumed(8)
    for worker, attempts in run.attempts.items():
        anew = attempt(worker.rank, 0).steps
        attempts[1].steps = [msgspec.structs.replace(anew[0], weights="w8"), *anew[1:]]
    (finding,) = findings(watched(), run, POINT, NOTHING)
    assert finding.kind == "no resume" and "with the weights of step 8: all 12 steps" in finding.text
    for attempts in run.attempts.values():
        attempts[1].steps[0] = msgspec.structs.replace(attempts[1].steps[0], optimizer="o8")
    assert shown(run) != ["no resume"], "it has more than the weights"


@pytest.mark.parametrize(("rewritten", "kind"), [(False, "lost save"), (True, "optimizer")])
def test_a_save_that_was_half_removed_is_lost_though_its_rest_is_taken(rewritten: bool, kind: str) -> None:
    script, run = watched(), resumed(4, killed_after=8, optimizer="other", gradients="other")
    part = [Call("open", "ckpt/4.optimizer", "", 0, 4), Call("write", "ckpt/4.optimizer", "", 9, 4)]
    gone = [Call("unlink", "ckpt/4.optimizer", "", 0, 8), *(call._replace(steps=8) for call in part * rewritten)]
    script.clean.attempts[RANKS[0]][0].calls = [*save(4), *part, *gone, *save(8), *save(12)]
    killed = run.attempts[RANKS[0]][0]
    killed.calls = [*save(4), *part, *gone, save(8)[0]]
    killed.done, killed.places["write ckpt/4.optimizer"] = len(killed.calls) - 1, "train.py:5"
    script = Watched(script.clean, script.saved)
    (finding,) = findings(script, run, POINT, NOTHING)
    assert finding.kind == kind and (rewritten or finding.place == "train.py:5")
    assert rewritten or "the save of step 4 was removed before the next one was complete" in finding.text


def test_files_that_pile_up_are_found_by_two_kills() -> None:
    twice = replace(POINT, kills=(KILL, KILL))
    ends = Ends({}, ("ckpt/a.tmp", "ckpt/b.tmp"))
    assert [each.kind for each in findings(watched(), resumed(8), twice, ends)] == ["leftovers"]
    assert findings(watched(), resumed(8), twice, Ends({}, ("ckpt/a.tmp",))) == []


def test_files_of_one_folder_do_not_pile_up(tmp_path: Path) -> None:
    """A folder with a fixed name is the same one after each kill, however many files it has."""
    (tmp_path / "ckpt/empty").mkdir(parents=True)
    (tmp_path / "ckpt/12.pt").write_text("")
    assert too_many(["ckpt/12.pt", "ckpt/new/a.pt", "ckpt/new/b.pt"], tmp_path) == ("ckpt/new",)
    assert too_many(["ckpt/8/a.pt", "ckpt/9/a.pt", "c.pt"], tmp_path) == ("c.pt", "ckpt/8", "ckpt/9")
    assert too_many(["ckpt/empty/a.1", "ckpt/empty/a.2"], tmp_path) == ("ckpt/empty/a.1", "ckpt/empty/a.2")


@given(st.integers(0, STEPS - 1), st.integers(0, STEPS))
def test_where_an_attempt_began_is_found_whatever_is_expected(begun: int, expected: int) -> None:
    clean = [step(number, 0) for number in range(STEPS)]
    assert began_at(clean, clean[begun:], expected) == begun


@pytest.mark.parametrize("lost", ["weights", "optimizer", "samples", "random", "count"])
def test_where_an_attempt_began_is_found_if_one_thing_was_not_restored(lost: str) -> None:
    clean = [step(number, 0) for number in range(STEPS)]
    first = msgspec.structs.replace(clean[8], **{lost: getattr(clean[0], lost)})
    assert began_at(clean, [first, *clean[9:]], 8) == 8


def test_without_equal_runs_the_samples_are_compared_all_the_same() -> None:
    run = resumed(8, samples=[[0, 1, 2, 3]], losses=["7.0"])
    assert [each.kind for each in findings(watched(), run, POINT, NOTHING, tolerance=None)] == ["data again"]
    assert findings(watched(), resumed(8, losses=["7.0"]), POINT, NOTHING, tolerance=None) == []


def test_each_kind_has_help() -> None:
    for kind in HELP:
        assert Finding(kind, "").help


def test_calls_of_a_save_are_told_apart_by_their_file() -> None:
    assert len(save(4)) == 4 and [each.step for each in watched().saves] == [4, 8, 12]


def test_the_first_step_of_an_attempt_may_lack_the_losses_of_steps_that_were_skipped() -> None:
    """A scaler skips the optimizer's step 9 once: the run without a kill has two losses before it."""
    script = watched()
    for attempts in script.clean.attempts.values():
        attempts[0].steps[8] = msgspec.structs.replace(
            attempts[0].steps[8], losses=["9.0", *attempts[0].steps[8].losses]
        )
    assert findings(script, resumed(8), POINT, NOTHING) == []
    assert [each.kind for each in findings(script, resumed(8, losses=["9.0"]), POINT, NOTHING)] == ["losses"]


def test_a_save_in_the_background_is_behind_the_step_after_which_its_calls_come() -> None:
    """Its calls come some steps later, now more and now fewer: what comes after step 8 is of step 7, or of 5."""
    for begun in (8, 7, 5):
        assert findings(watched(), resumed(begun), POINT, NOTHING) == []
    for begun in (4, 3, 0):
        assert [each.kind for each in findings(watched(), resumed(begun), POINT, NOTHING)] == ["lost save"]


def test_steps_that_a_script_reports_say_where_it_began_though_it_draws_from_the_start_again() -> None:
    clean = [Step(count=number, random={"python": f"p{number}"}) for number in range(STEPS)]
    again = [msgspec.structs.replace(step, random=clean[at].random) for at, step in enumerate(clean[8:])]
    assert began_at(clean, again, 0) == began_at(clean, again, 8) == 8


def test_a_generator_that_nobody_seeds_does_not_hide_where_the_others_say_that_an_attempt_began() -> None:
    """It counts one step too far: its generators are those of the step before."""
    clean = [Step(count=number, random={"python": f"p{number}"}) for number in range(STEPS)]
    again = [Step(count=number + 1, random={"python": f"p{number}", "numpy": "any"}) for number in range(8, STEPS)]
    assert began_at(clean, again, 8) == 8


def test_a_file_that_is_missing_at_the_end_is_said_to_be() -> None:
    (finding,) = findings(watched(), resumed(8), POINT, Ends({"ckpt/12.pt": "it is missing"}))
    assert finding.text == "ckpt/12.pt: it is missing at the end"


def test_what_else_was_not_restored_is_said_with_the_cause() -> None:
    (finding,) = findings(watched(), resumed(8, weights="other", random={"torch": "t", "python": "p"}), POINT, NOTHING)
    assert finding.kind == "weights" and finding.text.endswith("; the same holds of: random numbers")


def fetched_ahead(begun: int, *, until: int = STEPS) -> list[Step]:
    """Return the steps of an attempt whose loader fetches one batch before it gives one out."""
    batches = [[[at]] for at in range(begun, STEPS)] + [[]]
    first, *rest = batches
    fetched = [first + rest[0], *rest[1:]]
    return [
        msgspec.structs.replace(step(at, 0), samples=fetched[at - begun], loaders=["a"] * len(fetched[at - begun]))
        for at in range(begun, until)
    ]


@pytest.mark.parametrize(("position", "kinds"), [(8, []), (7, ["data again"])])
def test_a_position_one_batch_too_early_is_seen_although_the_loader_fetches_ahead(
    position: int, kinds: list[str]
) -> None:
    clean = Run({RANKS[0]: [Attempt(fetched_ahead(0))]})
    again = fetched_ahead(position)[: STEPS - 8]
    losses = [msgspec.structs.replace(new, samples=old.samples, loaders=old.loaders)
              for new, old in zip(fetched_ahead(8), again, strict=True)]  # fmt: skip
    run = Run({RANKS[0]: [Attempt(fetched_ahead(0, until=9)), Attempt(losses)]}, kills=1)
    script = Watched(clean, frozenset({"ckpt"}))
    assert [each.kind for each in findings(script, run, POINT, NOTHING)] == kinds


def test_a_loop_may_fetch_what_it_skips_with_a_loader_that_fetches_ahead() -> None:
    clean = Run({RANKS[0]: [Attempt(fetched_ahead(0))]})
    steps = fetched_ahead(8)
    skipped = [[at] for at in range(8)]
    steps[0] = msgspec.structs.replace(
        steps[0], samples=[*skipped, *steps[0].samples], loaders=["a"] * (8 + len(steps[0].loaders))
    )
    run = Run({RANKS[0]: [Attempt(fetched_ahead(0, until=9)), Attempt(steps)]}, kills=1)
    assert findings(Watched(clean, frozenset({"ckpt"})), run, POINT, NOTHING) == []


@pytest.mark.parametrize("kept", ["weights", "optimizer", "count"])
def test_an_attempt_that_restores_one_thing_alone_began_where_that_was_left(kept: str) -> None:
    """All else is as at the first step: it was not restored."""
    clean = watched().first(RANKS[0]).steps
    fresh = msgspec.structs.replace(clean[0], **{kept: getattr(clean[8], kept)})
    assert began_at(clean, [fresh], 8) == 8
    assert began_at(clean, [clean[0]], 8) == 0


def test_gradients_that_three_ranks_sum_up_in_another_order_are_no_finding() -> None:
    """Two ranks cannot: a sum of two numbers is the same either way. A loss that differs says that it is not that."""
    clean = Run({Worker("t", rank): [attempt(rank % 2, 0)] for rank in range(3)})
    script = Watched(clean, frozenset({"ckpt"}))
    again = Run(
        {w: [attempt(w.rank % 2, 0, 9), attempt(w.rank % 2, 8, gradients="other")] for w in clean.attempts}, kills=1
    )
    assert sums_differ(script, again)
    assert findings(script, again, POINT, NOTHING, tolerance=1e-3) == []
    assert not sums_differ(watched(), resumed(8, gradients="other"))
    wrong = Run(
        {w: [attempt(w.rank % 2, 0, 9), attempt(w.rank % 2, 8, losses=["7.0"])] for w in clean.attempts}, kills=1
    )
    assert not sums_differ(script, wrong)
    assert [each.kind for each in findings(script, wrong, POINT, NOTHING, tolerance=1e-3)] == ["losses"]
