"""`flowdist report` with a prediction beside what happened, and refusals, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from flowdist.cli.inspect.run_state import report as report_command
from flowdist.cli.run.console import finish
from flowdist.cli.shared.predicted import _incident, predicted_text, values_of
from flowdist.cli.simulate.calibrate import command as calibrate_command
from flowdist.control.protocol import events as ev
from flowdist.graph import SECOND, RoleGraph, WorkloadSpec, encode_graph
from flowdist.record.journal import Header, Record, encode_line
from flowdist.runtime.supervisor.host_process import RunResult
from flowdist.sim.calibration.calibration import Calibration
from flowdist.sim.calibration.fit import RoleTimes
from flowdist.sim.experiment.compare import compare
from flowdist.sim.experiment.outcome import IncidentOutcome, Outcome, of_record
from flowdist.sim.result import SimResult
from tests.record.sheets import sheet_of
from tests.report.records import simulated

FAULTS = ("node2@3m/2m", "trainer/1@7m30s:exit=3")


def header_of(result: SimResult) -> Header:
    header = result.lines[0]
    assert isinstance(header, Header)
    return header


@pytest.fixture(scope="module")
def result() -> SimResult:
    return simulated("gang.py", *FAULTS)


@pytest.fixture
def run_dir(result: SimResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder of a run that was as its simulation."""
    header, folder = header_of(result), tmp_path / "runs/gang-1"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_bytes(b"".join(map(encode_line, result.lines)))
    (folder / "graph.json").write_bytes(encode_graph(header.graph))
    (folder / "lock").touch()
    (tmp_path / "runs/latest").symlink_to("gang-1")
    sheet = sheet_of(header.graph, list(result.lines)[1:], header.known_nodes)
    finish(RunResult("succeeded", "", str(folder), result.job, [], [], sheet), True, str)
    monkeypatch.chdir(tmp_path)
    return folder


def report(*arguments: str | Path, code: int = 0) -> Result:
    done = CliRunner().invoke(report_command, list(map(str, arguments)))
    assert done.exit_code == code, done.output
    return done


def test_a_report_predicts_only_with_times(run_dir: Path) -> None:
    assert "redicted" not in report().stdout
    assert json.loads(report("--json").stdout)["predicted"] is None


def test_a_run_is_predicted_with_the_times_of_a_file(run_dir: Path, result: SimResult) -> None:
    assert CliRunner().invoke(calibrate_command, [str(run_dir), "-o", "workload.toml"]).exit_code == 0
    before = sorted(run_dir.iterdir())
    told = report("--workload", "workload.toml").stdout
    assert "\nPredicted beside actual (with all faults known; times: workload.toml)" in told
    assert "1. node_lost of node2: re-formed" in told and "lost work of trainer" in told and "first step" in told
    assert "decisions: as predicted, in 3 incidents" in told
    values = json.loads(report("--workload", "workload.toml", "--json").stdout)["predicted"]
    assert values["times"] == "workload.toml"
    assert values["job"]["lasted_ns"]["actual"] == result.now and values["job"]["lasted_ns"]["error"] < 0.02
    assert values["job"]["outcome"] == {"predicted": "succeeded", "actual": "succeeded"}
    goodput = values["job"]["goodput"]
    assert goodput["predicted"] == pytest.approx(goodput["actual"], abs=0.02)
    assert [one["number"] for one in values["incidents"]] == [1, 2, 3]
    for one in values["incidents"]:
        assert one["why"] == "" and one["decisions"] == [] and one["next_step_ns"]["error"] < 0.1
    assert sum(one["lost_ns"]["trainer"]["predicted"] for one in values["incidents"] if one["lost_ns"]) > 0
    assert sorted(run_dir.iterdir()) == before, "a report writes nothing"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "workload.toml cannot be read: No such file"),
        ("[roles", "workload.toml: "),
        ("[roles.trainer]\nstep = 1\n", "workload.toml:2: trainer has no 'step'; did you mean 'steps'"),
        ("[roles.trainr]\n", "the job has no role 'trainr'; did you mean 'trainer'"),
    ],
)
def test_a_file_of_times_that_cannot_be_used_is_refused_in_words(
    run_dir: Path, tmp_path: Path, content: str | None, words: str
) -> None:
    if content is not None:
        (tmp_path / "workload.toml").write_text(content)
    assert words in report("--workload", "workload.toml", code=2).stderr


def with_workload(graph: RoleGraph, workload: WorkloadSpec) -> RoleGraph:
    roles = tuple(msgspec.structs.replace(role, workload=workload) for role in graph.roles)
    return msgspec.structs.replace(graph, roles=roles)


@pytest.mark.parametrize("workload", [WorkloadSpec(), WorkloadSpec(collective="fail")])
def test_a_run_without_times_is_not_predicted_and_one_line_says_why(
    workload: WorkloadSpec, run_dir: Path, result: SimResult
) -> None:
    header = msgspec.structs.replace(header_of(result), graph=with_workload(header_of(result).graph, workload))
    (run_dir / "journal.jsonl").write_bytes(b"".join(map(encode_line, [header, *result.lines[1:]])))
    Path("workload.toml").write_text("")
    words = "no times are known of trainer: no workload= of its own in the topology, no table in workload.toml"
    refused = report("--workload", "workload.toml", code=2).stderr
    assert words in refused and "flowdist calibrate RUN -o workload.toml" in refused
    Path("workload.toml").write_text('[roles.trainer]\nstep_time = "1s"\n')
    report("--workload", "workload.toml")


# The comparison.

JOB = Outcome("succeeded", 90 * SECOND, steps={"trainer": 9}, spent={"trainer": {"productive": 90, "start-up": 10}})
SILENT = Calibration({"evaluator": RoleTimes({}, reports_steps=False)})


def incidents_of(result: SimResult) -> tuple[IncidentOutcome, ...]:
    return of_record(header_of(result), result.lines[1:]).incidents


def compared(
    result: SimResult, job: Outcome, *expected: IncidentOutcome, times: Calibration | None = None, **changes: Any
) -> dict[str, Any]:
    was, header = of_record(header_of(result), result.lines[1:]), header_of(result)
    sheet = sheet_of(header.graph, list(result.lines[1:]), header.known_nodes)
    summary = {"outcome": "succeeded", "time_ns": sheet.spent(), "not_reported": {}, **changes}
    found = compare(was, job._replace(incidents=expected))
    return {"times": "times", **values_of(found, times or Calibration({}), (), summary)}


def test_decisions_that_differ_are_listed_and_what_was_not_predicted_is_said(result: SimResult) -> None:
    first, second, third = incidents_of(result)
    one = first._replace(restarted=("trainer/0",), charged_to="trainer")
    told = "\n".join(predicted_text(compared(result, JOB, one, third._replace(kind="oom"))))
    assert "decisions that differ (predicted / actual):" in told
    assert "1. node_lost of node2: restarted: trainer/0 / " in told
    instead = "the simulation has oom of trainer/1 in its place"
    assert f"2. {second.kind} of {second.root}: not predicted: {instead}" in told
    assert f"3. {third.kind} of {third.root}: not predicted: the simulation of the run has no such incident" in told


def test_an_incident_that_the_prediction_alone_has_is_named(result: SimResult) -> None:
    first, second, third = incidents_of(result)
    values = compared(result, JOB, first, second, third, third._replace(number=4, root="trainer/2"))
    assert values["more_incidents"] == ["the simulation has an incident more: exit of trainer/2"]


def test_what_is_not_known_of_the_run_is_no_error_of_the_prediction(result: SimResult) -> None:
    """A job may end before its workers report a step: it has re-formed, and its first step and loss are not known."""
    (one, *_) = incidents_of(result)
    expected = one._replace(result="recovered", re_formed_ns=1, next_step_ns=5, lost_ns={"trainer": SECOND})
    short = one._replace(result="re-formed", next_step_ns=one.re_formed_ns)
    values = _incident(short, expected, ())
    assert values["decisions"] == [] and values["next_step_ns"] == {"predicted": 5, "actual": None, "error": None}
    assert values["lost_ns"]["trainer"] == {"predicted": SECOND, "actual": None, "error": None}
    none = _incident(short._replace(lost_ns={"trainer": 0}), expected, ())["lost_ns"]["trainer"]
    assert none == {"predicted": SECOND, "actual": 0, "error": None}, "there is no share of nothing"


def test_what_silent_workers_do_not_report_is_not_compared(result: SimResult) -> None:
    silent = {"trainer": ["progress", "checkpoints"]}
    values = compared(result, JOB, not_reported=silent)
    goodput = values["job"]["goodput"]
    assert goodput == {"predicted": None, "actual": None, "of": [], "without": ["trainer"]}
    shown = "\n".join(predicted_text(values))
    assert "trainer reported no step numbers, so its lost work is not known, and no goodput can be compared" in shown


def test_a_prediction_has_one_goodput_of_the_tasks_that_report_their_steps(result: SimResult) -> None:
    """A run once announced the goodput of all tasks, and its report showed another one, without any actual one."""
    spent = {**JOB.spent, "evaluator": {"productive": 10, "lost work": 90}}
    actual = {"trainer": {"productive": 80, "lost work": 20}, "evaluator": {"productive": 100}}
    unsaid = {"evaluator": ["progress", "checkpoints"]}
    job = JOB._replace(spent=spent, steps={"trainer": 9, "evaluator": 0})
    for times in (SILENT, None):
        values = compared(result, job, times=times, time_ns=actual, not_reported=unsaid)
        shown = "\n".join(predicted_text(values))
        assert "  goodput of trainer  90.0 %     80.0 %     10.0 points\n" in shown
        assert "evaluator reported no step numbers, so its lost work is not known" in shown
        assert "the goodput is that of trainer, without evaluator" in shown


def test_a_calibration_says_which_tasks_report_no_steps(run_dir: Path, result: SimResult) -> None:
    lines = [line for line in result.lines[1:] if not _is_step(line)]
    (run_dir / "journal.jsonl").write_bytes(b"".join(map(encode_line, [header_of(result), *lines])))
    file = run_dir.parent.parent / "w.toml"
    CliRunner().invoke(calibrate_command, [str(run_dir), "-o", str(file)])
    assert 'unreported = ["trainer"]' in file.read_text()
    goodput = json.loads(report("--workload", "w.toml", "--json").stdout)["predicted"]["job"]["goodput"]
    assert goodput["of"] == [] and goodput["without"] == ["trainer"]
    file.write_text('[job]\nunreported = "trainer"\n')
    refused = report("--workload", "w.toml", code=2).stderr
    assert 'write a list of roles, such as ["evaluator"]' in refused


def _is_step(line: object) -> bool:
    return isinstance(line, Record) and isinstance(line.event, ev.ReplicaProgressed | ev.ReplicaStepped)


def test_the_length_of_a_job_that_lasts_is_not_compared(result: SimResult) -> None:
    values = compared(result, JOB, outcome=None)
    assert values["job"]["lasted_ns"] == {"predicted": 90 * SECOND, "actual": None, "error": None}
    assert "unfinished" in "\n".join(predicted_text(values))
