"""Ten bugs of resume logic, and three more: each is found by exploring, and shown with two faults at most."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from flowdist import Node, Restart, Topology, Workload
from flowdist.faults.grammar import parse_fault
from flowdist.graph import SECOND, RoleGraph
from flowdist.report.record.trace import stamp
from flowdist.testing import assert_recovers, assert_same_result, explore, graph_of
from flowdist.testing.campaign import Failure, campaign
from tests.choosing import slow
from tests.testing import resume_bugs as bugs

LOAD = Workload(steps=60, step_time="1s", startup="3s", checkpoint_every="10s", checkpoint_time="4s", restore_time="1s")
SEEDS = range(1, 61)
ROOT = Path(__file__).parents[2]


def job_of(model: type) -> RoleGraph:
    """Two or three trainers; or two with a parameter server."""
    t = Topology("planted", nodes=3 * [Node(cpu=1)])
    policy = Restart("role", max_restarts=5)
    if issubclass(model, bugs.Pushing):
        often = Restart("replica", max_restarts=3)
        ps = t.role("ps", "true", kind="service", cpu=0.5, ports=["rpc"], simulate=bugs.Table, restart=often)
        gate = ps.started(on_restart="restart")
        t.role("trainer", "true", replicas=2, cpu=0.5, depends_on=gate, simulate=model, restart=policy, workload=LOAD)
    else:
        t.role("trainer", "true", replicas="2:3", cpu=1, simulate=model, restart=policy, workload=LOAD)
    return graph_of(t)


def first_failure(model: type) -> Failure:
    report = campaign(job_of(model), SEEDS, fail_fast=True)
    assert report.failures, "it was not found"
    return report.failures[0]


@pytest.mark.parametrize("model", slow([bugs.Correct, bugs.Trusting, bugs.Pushing]), ids=lambda it: it.__name__)
def test_what_has_no_bug_comes_out_the_same_whatever_happens(model: type) -> None:
    report = campaign(job_of(model), SEEDS)
    assert report.failures == [] and report.recoveries > 30
    assert sum(count for (_, phase), count in report.coverage.items() if phase == "saving") > 10
    assert report.has_models and "saving" not in report.unseen


@pytest.mark.parametrize(
    ("model", "property", "text"),
    [
        (bugs.ForgottenOptimizer, "same result", "loss is"),
        (bugs.DataOffByOne, "exactly once", "is never used"),
        (bugs.ShardedByWorldSize, "exactly once", "samples too often"),
        (bugs.NoiseNotRestored, "same result", "loss is"),
        (bugs.PushedTwice, "same result", "error is"),
        (bugs.ScheduleRestarted, "same result", "loss is"),
        (bugs.DepartedShardMissing, "same result", "loss is"),
        (bugs.EachRankItsOwnLatest, "same start", "resume from different steps"),
        (bugs.StartedOtherwise, "same result", "loss is"),
        *slow(
            [
                (bugs.PublishedTooSoon, "survives", "the check sum is wrong"),
                (bugs.StaleGenerationWrites, "survives", "KeyError"),
                (bugs.LatestOverwritten, "survives", "JSONDecodeError"),
                (bugs.UncheckedRead, "same result", "is"),
            ]
        ),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_each_bug_is_found_and_made_small(model: type, property: str, text: str) -> None:
    failure = first_failure(model)
    assert (failure.property, 1 <= len(failure.faults) <= 2) == (property, True), failure
    assert text in failure.text
    if property != "survives":
        with pytest.raises(AssertionError, match=property):
            assert_same_result(job_of(model), *failure.faults, seed=failure.seed)


def test_a_failure_first_differs_from_a_run_that_passes_at_one_of_its_own_faults() -> None:
    """Seeds 7 and 14: a run that passed with a fault that the shortest plan lacks differed before."""
    for failure in campaign(job_of(bugs.DataOffByOne), (7, 14)).failures:
        (fault,) = map(parse_fault, failure.faults)
        assert fault.when.at_ns is not None
        assert f"passes: {stamp(fault.when.at_ns).strip()}" in failure.divergence, failure
        assert any(f"!! {fault.spec}" in line for line in failure.trace)


def long_job() -> RoleGraph:
    """The steps of its checkpoints have two digits, and then three: 10 .. 250."""
    t = Topology("long", nodes=2 * [Node(cpu=1)])
    load = Workload(steps=300, step_time="1s", startup="3s", checkpoint_every="50s", checkpoint_time="1s")
    policy = Restart("role", max_restarts=9)
    t.role("trainer", "true", replicas=2, cpu=1, simulate=bugs.NewestNameAsText, restart=policy, workload=load)
    return graph_of(t)


def test_an_old_checkpoint_is_a_finding_of_each_command() -> None:
    """Such a job went back to step 50 at each restart: the bounds held, and `explore` found nothing."""
    failures = [
        lambda: assert_recovers(long_job(), "trainer/1@260s", lost_work="1m"),
        lambda: explore(long_job(), seeds=range(1, 9)),
        lambda: assert_same_result(long_job(), "trainer/1@260s"),
    ]
    for find in failures:
        with pytest.raises(AssertionError, match=r"old checkpoint: trainer restored step 50 although \d50 was"):
            find()


@pytest.mark.parametrize("at", ["46s", "49s"])
def test_a_checkpoint_that_a_fault_has_damaged_may_be_passed_over(at: str) -> None:
    """If it was damaged after the failure, at 49 s, its ten steps were no lost work."""
    result = assert_same_result(job_of(bugs.Correct), f"trainer@{at}:torn-checkpoint", "trainer/1@48s")
    assert [resumed.step for resumed in result.played.resumed["trainer"]] == [0, 20]
    model, members = result.models["trainer"], 3
    assert model.lost_steps == 12, "ten of them were saved in the torn checkpoint"
    assert 0 <= model.lost_ns - 12 * SECOND < SECOND, "the step that was under way"
    assert result.spent["trainer"]["lost work"] == members * model.lost_ns


@pytest.mark.slow
def test_the_command_line_finds_a_bug_and_shows_it_again() -> None:
    topology = ROOT / "examples/resume_model/topology.py"
    bug = ["-p", "model=tests.testing.resume_bugs:DataOffByOne"]
    done = flowdist("simulate", str(topology), *bug, "--explore", "3", "--fail-fast", "--json")
    assert done.returncode == 3, done.stderr
    failure = json.loads(done.stdout)["failures"][0]
    assert failure["property"] == "exactly once" and len(failure["faults"]) == 1
    again = flowdist(*shlex.split(failure["replay"])[1:])
    assert again.returncode == 3 and "violated: exactly once: trainer: sample" in again.stderr
    done = flowdist("simulate", str(topology), "--fail", failure["faults"][0])
    assert done.returncode == 0 and "violated" not in done.stderr
    bug = ["-p", "model=tests.sim.user_models:AlwaysRaising"]
    done = flowdist("simulate", str(topology), *bug)
    assert done.returncode == 1 and "user code raised first in trainer/0" in done.stderr
    assert "RuntimeError: never works" in done.stderr and "user_models.py" in done.stderr


def flowdist(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flowdist", *arguments]
    return subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
