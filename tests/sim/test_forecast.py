"""Expectations of conversations and of simulated runs: what each incident costs, with times of other runs."""

from __future__ import annotations

import pytest

from flowdist.control.protocol import events as ev
from flowdist.graph import MS, SECOND
from flowdist.record.journal import FaultLine, Header, Line
from flowdist.record.story import story_of
from flowdist.sim.calibration.calibration import Calibration
from flowdist.sim.calibration.fit import RoleTimes
from flowdist.sim.calibration.observe import observe
from flowdist.sim.forecast import NOT_EXPECTED, _simulated_losses, expect, losses_by_incident
from flowdist.sim.prediction import Run
from flowdist.sim.result import SimResult
from tests.record.sheets import fail, step, trainers
from tests.report.records import simulated
from tests.sim.test_calibration import told, work

# Steps that are slower than those of the conversations, so that times and steps do not agree.
TIMES = Calibration(
    {
        "trainer": RoleTimes(
            {
                "steps": 1000,
                "step_ns": 60 * MS,
                "startup_ns": 5 * SECOND,
                "checkpoint_every_ns": 80 * 60 * MS,
                "checkpoint_ns": 0,
            }
        )
    },
    arrival_ns=0,
)


def failed_at_300(*more: Line) -> Run:
    """Return a run that saved at step 240 and failed at step 300, of steps of 47 ms."""
    talk = trainers()
    end = work(talk, 7, 1, 300, 0.047, save_every=80)
    step(talk, end, 300)
    step(talk, end + 0.005, 300)  # an agent may report the newest step again
    fail(talk, end + 0.01)
    header, lines = told(talk)
    return Run("run", header, sorted([*lines, *more], key=lambda line: line.t_ns))  # type: ignore[union-attr]


def injected_at_300(spec: str) -> Run:
    at_ns = next(line.t_ns for line in reversed(failed_at_300().lines) if not isinstance(line, Header))
    return failed_at_300(FaultLine(at_ns - MS, spec, "trainer/0/attempt_1/0"))


def test_the_lost_work_follows_from_the_step_of_a_fault_and_not_from_its_time() -> None:
    """At the time of the failure the simulation is at step 268: by the time, 28 steps would be lost, and not 60."""
    (one,) = expect(injected_at_300("trainer/0@step=trainer,300:exit=1"), TIMES).incidents
    assert one.why == "" and one.story is not None
    assert (one.story.kind, one.story.root, one.story.result) == ("exit", "trainer/0", "recovered")
    assert one.lost_ns == {"trainer": 60 * 60 * MS}
    assert one.story.next_step_ns == pytest.approx(5.06 * SECOND, abs=0.1 * SECOND)
    assert one.story.re_formed_ns is not None and one.story.re_formed_ns < SECOND


def test_a_fault_at_an_event_that_the_simulation_does_not_have_is_played_where_it_was() -> None:
    """Checkpoints of services are not simulated: a fault that waited for one would never come.

    At its time the simulation is at step 268.
    """
    (one,) = expect(injected_at_300("trainer/0@checkpoint=trainer,99:exit=1"), TIMES).incidents
    assert one.why == "" and one.lost_ns == {"trainer": 28 * 60 * MS}


def test_an_incident_that_the_simulation_does_not_have_is_not_predicted() -> None:
    talk = trainers()
    work(talk, 7, 1, 100, 0.047)
    talk.tell(ev.StoreLost("trainer", 1, "killed"))
    expected = expect(Run("run", *told(talk)), TIMES)
    (one,) = expected.incidents
    assert one.why == NOT_EXPECTED and one.story is None and expected.job.outcome == "succeeded"


def test_the_loss_of_a_run_belongs_to_the_incident_that_caused_it() -> None:
    talk = trainers()
    end = work(talk, 7, 1, 300, 0.1, save_every=80)
    step(talk, end, 300)
    fail(talk, end + 0.01)
    end = work(talk, end + 5, 241, 330, 0.1, save_every=80)
    step(talk, end, 330)
    fail(talk, end + 0.01)
    work(talk, end + 5, 321, 400, 0.1)
    losses = losses_by_incident(observe(*told(talk)))
    assert losses[1]["trainer"] == pytest.approx(6 * SECOND, rel=0.05)
    assert losses[2]["trainer"] == pytest.approx(1 * SECOND, rel=0.05)


def test_a_task_without_step_numbers_is_left_out_of_the_goodput() -> None:
    job = expect(failed_at_300(), TIMES).job
    assert job.tasks == ("trainer",) and job.others == ()
    silent = TIMES._replace(roles={"trainer": TIMES.roles["trainer"]._replace(reports_steps=False)})
    left_out = expect(failed_at_300(), silent).job
    assert left_out.tasks == () and left_out.others == ("trainer",)


# A simulated run, predicted by its own simulator.

FAULTS = ("node2@3m/2m", "trainer/1@7m30s:exit=3")


def parts(result: SimResult) -> Run:
    header = result.lines[0]
    assert isinstance(header, Header)
    return Run("run", header, result.lines[1:])


def test_the_simulator_knows_its_own_run() -> None:
    result = simulated("gang.py", *FAULTS)
    run = parts(result)
    story = story_of(run.header, run.lines)
    assert len(story.incidents) == 3, "a loss, a return and a failure"
    expected = expect(run, Calibration({"trainer": RoleTimes({})}, arrival_ns=0))
    assert [one.number for one in expected.incidents] == [1, 2, 3] and not expected.more
    for one, found in zip(story.incidents, expected.incidents, strict=True):
        assert found.story is not None and found.story.decision == one.decision
        assert found.story.re_formed_ns == one.re_formed_ns and found.story.next_step_ns == one.next_step_ns
    assert expected.job.outcome == "succeeded" and expected.job.lasted_ns == result.now


def test_the_losses_of_a_simulation_add_up_by_incident() -> None:
    result = simulated("gang.py", *FAULTS)
    found = _simulated_losses(result)
    assert sum(lost["trainer"] for lost in found.values()) == sum(model.lost_ns for model in result.models.values()) > 0
    assert found.keys() <= {1, 2, 3} and found[1]["trainer"] > 0 and found[3]["trainer"] > 0
