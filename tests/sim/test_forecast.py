"""Forecasts of conversations and of simulated runs: what an incident will cost, from what is known when it opens."""

from __future__ import annotations

import msgspec
import pytest

from flowdist.control.protocol import events as ev
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import NOTHING
from flowdist.graph import MS, SECOND
from flowdist.record.journal import FaultLine, Header, Line
from flowdist.record.story import story_of
from flowdist.sim.calibration.calibration import Calibration, calibrated
from flowdist.sim.calibration.fit import RoleTimes
from flowdist.sim.calibration.observe import observe
from flowdist.sim.forecast import (
    NOT_EXPECTED,
    Basis,
    ExpectedIncident,
    ExpectedJob,
    _at_steps,
    _simulated_losses,
    _with_coming,
    expect_afterwards,
    expect_incident,
    expect_job,
    losses_by_incident,
)
from flowdist.sim.prediction import Run, as_injected
from flowdist.sim.reconstruct import reconstruct
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
FAULT = "trainer/0@step=trainer,600"


def failed_at_300(*more: Line) -> Run:
    """Return a run that saved at step 240 and failed at step 300, of steps of 47 ms."""
    talk = trainers()
    end = work(talk, 7, 1, 300, 0.047, save_every=80)
    step(talk, end, 300)
    step(talk, end + 0.005, 300)  # an agent may report the newest step again
    fail(talk, end + 0.01)
    header, lines = told(talk)
    return Run("run", header, sorted([*lines, *more], key=lambda line: line.t_ns))  # type: ignore[union-attr]


def basis(run: Run, *faults: str) -> Basis:
    return Basis(calibrated(run.header.graph, TIMES), parse_plan(faults), TIMES.arrival_ns)


def test_the_lost_work_follows_from_the_step_of_the_run_and_not_from_its_time() -> None:
    """At the time of the failure the simulation is at step 235: by the time, 75 steps would be lost, and not 60."""
    run = failed_at_300()
    found = expect_incident(basis(run), run, 1)
    assert found.why == "" and (found.kind, found.root, found.result) == ("exit", "trainer/0", "recovered")
    assert found.lost_ns == {"trainer": 60 * 60 * MS}
    assert found.next_step_ns == pytest.approx(5.06 * SECOND, abs=0.1 * SECOND)
    assert found.re_formed_ns is not None and found.re_formed_ns < SECOND
    assert found.job is not None and found.job.outcome == "succeeded"
    assert found.job.lasted_ns == pytest.approx((5 + 300 * 0.06 + 5 + 760 * 0.06) * SECOND, rel=0.02)


def test_a_failure_at_a_step_that_was_done_before_keeps_its_time() -> None:
    talk = trainers()
    end = work(talk, 7, 1, 300, 0.1, save_every=80)
    step(talk, end, 300)
    fail(talk, end + 0.01)
    end = work(talk, end + 5, 241, 270, 0.1)
    step(talk, end, 270)
    fail(talk, end + 0.01)
    header, lines = told(talk)
    plan = reconstruct(header, lines).plan
    first, second = _at_steps(plan, observe(header, lines)).faults
    assert (first.when.event, first.when.number, first.kind, first.arg) == ("step", 300, "exit", "1")
    assert second == plan.faults[1] and second.when.at_ns is not None


def test_announced_faults_count_until_they_have_happened() -> None:
    run = failed_at_300()
    with_one, without = (expect_incident(basis(run, *faults), run, 1).job for faults in ((FAULT,), ()))
    assert with_one is not None and without is not None
    assert with_one.lasted_ns - without.lasted_ns == pytest.approx((5 + 40 * 0.06) * SECOND, abs=0.2 * SECOND)
    spec = "trainer/0@step=trainer,300:exit=1"
    at_ns = next(line.t_ns for line in reversed(run.lines) if not isinstance(line, Header))
    injected = failed_at_300(FaultLine(at_ns - MS, spec, "trainer/0/attempt_1/0"))
    again = expect_incident(basis(injected, spec), injected, 1)
    assert again.why == "" and again.job is not None
    assert again.job.lasted_ns == pytest.approx(without.lasted_ns, abs=0.2 * SECOND), "it does not happen twice"


def test_a_fault_at_an_event_that_the_simulation_does_not_have_is_played_where_it_was() -> None:
    """Checkpoints of services are not simulated: a fault that waited for one would never come."""
    at_ns = next(line.t_ns for line in reversed(failed_at_300().lines) if not isinstance(line, Header))
    spec = "trainer/0@checkpoint=trainer,99:exit=1"
    run = failed_at_300(FaultLine(at_ns - MS, spec, "trainer/0/attempt_1/0"))
    found = expect_incident(basis(run, spec), run, 1)
    assert found.why == "" and found.lost_ns == {"trainer": 60 * 60 * MS}


def test_an_incident_that_the_simulation_does_not_have_is_not_predicted() -> None:
    talk = trainers()
    work(talk, 7, 1, 100, 0.047)
    talk.tell(ev.StoreLost("trainer", 1, "killed"))
    run = Run("run", *told(talk))
    found = expect_incident(basis(run), run, 1)
    assert found.why == NOT_EXPECTED and found.job is not None and found.job.outcome == "succeeded"


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
    job = expect_job(basis(failed_at_300()))
    assert job.tasks == ("trainer",) and job.others == () and job.goodput is not None
    left_out = expect_job(basis(failed_at_300())._replace(unreported=("trainer",)))
    assert left_out.tasks == () and left_out.others == ("trainer",) and left_out.goodput is None


# A simulated run, predicted by its own simulator.

FAULTS = ("node2@3m/2m", "trainer/1@7m30s:exit=3")


def parts(result: SimResult) -> Run:
    header = result.lines[0]
    assert isinstance(header, Header)
    return Run("run", header, result.lines[1:])


def until(run: Run, t_ns: int) -> Run:
    return run._replace(lines=[line for line in run.lines if not isinstance(line, Header) and line.t_ns <= t_ns])


def test_the_simulator_knows_its_own_run_from_the_beginning_of_each_incident() -> None:
    result = simulated("gang.py", *FAULTS)
    run = parts(result)
    story, at = story_of(run.header, run.lines), Basis(run.header.graph, parse_plan(FAULTS))
    assert len(story.incidents) == 3, "a loss, a return and a failure"
    for one in story.incidents:
        found = expect_incident(at, until(run, one.opened_ns), one.number)
        assert found.decision == one.decision
        assert (found.re_formed_ns, found.next_step_ns) == (one.re_formed_ns, one.next_step_ns)
        assert found.job is not None and found.job.lasted_ns == result.now
    whole = expect_job(at)
    assert (whole.lasted_ns, whole.outcome) == (result.now, "succeeded")
    assert whole.goodput is not None and 0.3 < whole.goodput < 1


def test_an_order_that_is_still_to_come_is_part_of_the_forecast() -> None:
    run = parts(simulated("gang.py", "trainer/1@3m:exit=3"))
    (one,) = story_of(run.header, run.lines).incidents

    def lasts(*scales: str) -> int:
        at = Basis(run.header.graph, parse_plan(scales=scales))
        job = expect_incident(at, until(run, one.opened_ns), 1).job
        assert job is not None
        return job.lasted_ns

    assert lasts("trainer=2@8m") > lasts() + SECOND, "the world re-forms once more"
    assert lasts("trainer=2@1s") == lasts(), "an order whose time is over did not come, or the run has it"


def test_what_was_announced_and_has_come_does_not_come_again() -> None:
    faults = ("trainer@2m:scale=2", "trainer/1@5m:exit=3", "trainer/0@20m")
    run = parts(simulated("gang.py", *faults))
    (*_, last) = story_of(run.header, run.lines).incidents
    known = until(run, last.opened_ns)
    happened = as_injected(reconstruct(run.header, known.lines).plan, known)
    plan = _with_coming(happened, parse_plan(faults), known)
    assert [fault.spec for fault in plan.faults] == ["trainer/1@5m:exit=3", "trainer/0@20m"]
    assert [(scale.role, scale.replicas) for scale in plan.scales] == [("trainer", 2)]


def test_the_losses_of_a_simulation_add_up_by_incident() -> None:
    result = simulated("gang.py", *FAULTS)
    found = _simulated_losses(result)
    assert sum(lost["trainer"] for lost in found.values()) == sum(model.lost_ns for model in result.models.values()) > 0
    assert found.keys() <= {1, 2, 3} and found[1]["trainer"] > 0 and found[3]["trainer"] > 0


def test_a_node_that_was_not_announced_to_return_stays_away_in_the_forecast() -> None:
    result = simulated("gang.py", "node2@3m/2m")
    run = parts(result)
    lines = [line for line in run.lines if not isinstance(line, FaultLine)]
    (opened, *_) = (one.opened_ns for one in story_of(run.header, lines).incidents)
    found = expect_incident(Basis(run.header.graph, NOTHING), until(run._replace(lines=lines), opened), 1)
    assert found.why == "" and found.kind == "node_lost"
    assert found.job is not None and found.job.outcome == "succeeded"


def test_a_node_that_has_returned_is_back_when_it_was_back_and_not_when_it_was_announced() -> None:
    """The agent may take longer to connect than in the runs that were measured: its world grows later then."""
    run = parts(simulated("gang.py", "node2@3m/2m"))
    returned = story_of(run.header, run.lines).incidents[1]
    lines = [
        msgspec.structs.replace(line, spec="node2@3m/70s") if isinstance(line, FaultLine) else line
        for line in run.lines
    ]
    at = Basis(run.header.graph, parse_plan(["node2@3m/70s"]), arrival_ns=20 * SECOND)
    found = expect_incident(at, until(run._replace(lines=lines), returned.opened_ns), 2)
    assert found.why == "" and found.job is not None
    assert found.job.lasted_ns == pytest.approx(story_of(run.header, run.lines).lasted_ns, abs=SECOND)
    assert found.lost_ns == expect_incident(Basis(run.header.graph, NOTHING), until(run, returned.opened_ns), 2).lost_ns


def test_a_forecast_afterwards_has_all_incidents_of_the_run() -> None:
    run = parts(simulated("gang.py", *FAULTS))
    calibration = Calibration({"trainer": RoleTimes({})}, arrival_ns=0)
    job, incidents, more = expect_afterwards(run, calibration)
    assert [one.number for one in incidents] == [1, 2, 3] and not more
    assert all(one.why == "" for one in incidents) and job.outcome == "succeeded"


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (ExpectedJob, {"lasted_ns": -1}),
        (ExpectedJob, {"tasks": ["nobody"]}),
        (ExpectedJob, {"spent": {"trainer": {"dreaming": 1}}}),
        (ExpectedIncident, {"number": 0}),
        (ExpectedIncident, {"lost_ns": {"trainer": -5}}),
    ],
)
def test_values_that_cannot_be_are_refused_when_they_are_read(kind: type, change: dict[str, object]) -> None:
    job = ExpectedJob("succeeded", 5, {"trainer": {"productive": 5}}, ("trainer",))
    one = job if kind is ExpectedJob else ExpectedIncident(1, "exit", "trainer/0", job=job)
    assert msgspec.json.decode(msgspec.json.encode(one), type=kind) == one
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(one) | change), type=kind)
