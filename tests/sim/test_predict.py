"""Expectations of conversations and of simulated runs: what each incident costs, with times of other runs."""

from __future__ import annotations

import pytest

from flowdist.control.protocol import events as ev
from flowdist.graph import MS, SECOND
from flowdist.record.journal import FaultLine, Header, Line
from flowdist.record.reader import WholeRecord
from flowdist.sim.calibration.calibration import Calibration, calibrate
from flowdist.sim.calibration.fit import RoleTimes
from flowdist.sim.calibration.observe import observe
from flowdist.sim.experiment.compare import Comparison
from flowdist.sim.experiment.outcome import IncidentOutcome, of_record
from flowdist.sim.experiment.predict import _simulated_losses, losses_of, predict
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


def expected(found: Comparison) -> IncidentOutcome:
    """Return the prediction of the only incident."""
    (one,) = found.matches.values()
    return one


def failed_at_300(*more: Line) -> WholeRecord:
    """Return a run that saved at step 240 and failed at step 300, of steps of 47 ms."""
    talk = trainers()
    end = work(talk, 7, 1, 300, 0.047, save_every=80)
    step(talk, end, 300)
    step(talk, end + 0.005, 300)  # an agent may report the newest step again
    fail(talk, end + 0.01)
    header, lines = told(talk)
    return WholeRecord("run", header, sorted([*lines, *more], key=lambda line: line.t_ns))  # type: ignore[union-attr]


def injected_at_300(spec: str) -> WholeRecord:
    at_ns = next(line.t_ns for line in reversed(failed_at_300().lines) if not isinstance(line, Header))
    return failed_at_300(FaultLine(at_ns - MS, spec, "trainer/0/attempt_1/0"))


def test_the_lost_work_follows_from_the_step_of_a_fault_and_not_from_its_time() -> None:
    """At the time of the failure the simulation is at step 268: by the time, 28 steps would be lost, and not 60."""
    one = expected(predict(injected_at_300("trainer/0@step=trainer,300:exit=1"), TIMES))
    assert (one.kind, one.root, one.result) == ("exit", "trainer/0", "recovered")
    assert 0 <= one.lost_ns["trainer"] - 60 * 60 * MS < 60 * MS  # and the step that it was in
    assert one.next_step_ns == pytest.approx(5.06 * SECOND, abs=0.1 * SECOND)
    assert one.re_formed_ns is not None and one.re_formed_ns < SECOND


def test_a_fault_at_an_event_that_the_simulation_does_not_have_is_played_where_it_was() -> None:
    """Checkpoints of services are not simulated: a fault that waited for one would never come.

    At its time the simulation is at step 268.
    """
    one = expected(predict(injected_at_300("trainer/0@checkpoint=trainer,99:exit=1"), TIMES))
    assert 0 <= one.lost_ns["trainer"] - 28 * 60 * MS < 60 * MS


def test_an_incident_that_the_simulation_does_not_have_is_not_predicted() -> None:
    talk = trainers()
    work(talk, 7, 1, 100, 0.047)
    talk.tell(ev.StoreLost("trainer", 1, "killed"))
    found = predict(WholeRecord("run", *told(talk)), TIMES)
    ((one, other),) = found.pairs
    assert one is not None and other is None and found.b.outcome == "succeeded"


def test_the_loss_of_a_run_belongs_to_the_incident_that_caused_it() -> None:
    talk = trainers()
    end = work(talk, 7, 1, 300, 0.1, save_every=80)
    step(talk, end, 300)
    fail(talk, end + 0.01)
    end = work(talk, end + 5, 241, 330, 0.1, save_every=80)
    step(talk, end, 330)
    fail(talk, end + 0.01)
    work(talk, end + 5, 321, 400, 0.1)
    run = observe(*told(talk))
    first, second = losses_of(run, calibrate([run]))
    assert (first.incident, second.incident) == (1, 2)
    assert first.ns == pytest.approx(6 * SECOND, rel=0.05) and second.ns == pytest.approx(1 * SECOND, rel=0.05)


# A simulated run, predicted by its own simulator.

FAULTS = ("node2@3m/2m", "trainer/1@7m30s:exit=3")


def parts(result: SimResult) -> WholeRecord:
    header = result.lines[0]
    assert isinstance(header, Header)
    return WholeRecord("run", header, result.lines[1:])


def test_the_simulator_knows_its_own_run() -> None:
    result = simulated("gang.py", *FAULTS)
    run = parts(result)
    was = of_record(run.header, run.lines)
    assert len(was.incidents) == 3, "a loss, a return and a failure"
    found = predict(run, Calibration({"trainer": RoleTimes({})}, arrival_ns=0))
    assert not found.differences and list(found.matches) == [1, 2, 3]
    for one, other in zip(was.incidents, found.b.incidents, strict=True):
        assert other.re_formed_ns == one.re_formed_ns and other.next_step_ns == one.next_step_ns
    assert found.b.outcome == "succeeded" and found.b.lasted_ns == result.now


def test_the_losses_of_a_simulation_add_up_by_incident() -> None:
    result = simulated("gang.py", *FAULTS)
    found = list(_simulated_losses(result))
    assert sum(loss.ns for loss in found) == sum(model.lost_ns for model in result.models.values()) > 0
    assert {loss.incident for loss in found if loss.ns} == {1, 2, 3}
