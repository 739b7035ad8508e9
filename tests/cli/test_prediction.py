"""Predictions in the folder of a run, `report` beside what happened, and refusals, as a user types them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from flowdist.cli.inspect.report import command as report_command
from flowdist.cli.predict.comparison import _incident, compare, comparison_text
from flowdist.cli.predict.forecaster import Forecaster
from flowdist.cli.predict.helper import Request, predict_one
from flowdist.cli.predict.saved import Predictions, read_predictions, write_predictions
from flowdist.cli.predict.texts import incident_text, job_text
from flowdist.cli.predict.times import Times, basis_of, find_times
from flowdist.cli.run.console import finish
from flowdist.cli.run.run import command as run_command
from flowdist.cli.simulate.calibrate import command as calibrate_command
from flowdist.control.job.facts import Deferred, Failure
from flowdist.control.job.state import JobState
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.ids import ReplicaId
from flowdist.errors import FlowdistError
from flowdist.faults.files import parse_plan
from flowdist.graph import SECOND, RoleGraph, WorkloadSpec, encode_graph
from flowdist.record.journal import Header, Record, encode_line
from flowdist.record.replay import Replay
from flowdist.record.story import story_of
from flowdist.runtime.run_folder.folder import PREDICTION
from flowdist.runtime.supervisor.host_process import RunResult
from flowdist.sim.forecast import ExpectedIncident, ExpectedJob
from flowdist.sim.prediction import Run
from flowdist.sim.result import SimResult
from tests.record.sheets import sheet_of
from tests.report.records import TOPOLOGIES, simulated

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


def ask(run_dir: Path, number: int, until_n: int = 0, file: str = "") -> None:
    options = tuple(parse_plan(FAULTS).options)
    predict_one(Request(str(run_dir), file, (), options, number, until_n, os.getpid()))


def predicted(run_dir: Path, result: SimResult) -> Path:
    """Predict the job and each incident from what was known when it opened."""
    ask(run_dir, 0)
    for one in story_of(header_of(result), result.lines[1:]).incidents:
        known = [line.n for line in result.lines if isinstance(line, Record) and line.t_ns <= one.opened_ns]
        ask(run_dir, one.number, known[-1])
    return run_dir


def report(*arguments: str | Path, code: int = 0) -> Result:
    done = CliRunner().invoke(report_command, list(map(str, arguments)))
    assert done.exit_code == code, done.output
    return done


def test_the_report_shows_each_prediction_beside_what_happened(run_dir: Path, result: SimResult) -> None:
    predicted(run_dir, result)
    told = report().stdout
    assert "\nPredicted beside actual (before the run, and as each incident opened; times: workload= of" in told
    assert "1. node_lost of node2: re-formed" in told and "lost work of trainer" in told and "first step" in told
    assert "decisions: as predicted, in 3 incidents" in told and "0s (0.0 %)" in told
    values = json.loads(report("--json").stdout)["predicted"]
    assert values["job"]["lasted_ns"] == {"predicted": result.now, "actual": result.now, "error": 0.0}
    assert values["job"]["outcome"] == {"predicted": "succeeded", "actual": "succeeded"}
    goodput = values["job"]["goodput"]
    assert goodput["predicted"] == pytest.approx(goodput["actual"], abs=0.02)
    for one in values["incidents"]:
        assert one["why"] == "" and one["decisions"] == [] and one["next_step_ns"]["error"] == 0.0
    assert sum(one["lost_ns"]["trainer"]["predicted"] for one in values["incidents"] if one["lost_ns"]) > 0


def test_a_run_without_predictions_has_none_in_its_report(run_dir: Path) -> None:
    assert "redicted" not in report().stdout
    content = json.loads(report("--json").stdout)
    assert content["predicted"] is None and content["not_predicted"] == ""


def test_a_run_is_predicted_afterwards_with_the_times_of_a_file(run_dir: Path) -> None:
    assert CliRunner().invoke(calibrate_command, [str(run_dir), "-o", "workload.toml"]).exit_code == 0
    told = report("--workload", "workload.toml").stdout
    assert "Predicted beside actual (with all faults known; times: workload.toml)" in told
    values = json.loads(report("--workload", "workload.toml", "--json").stdout)["predicted"]
    assert values["job"]["lasted_ns"]["error"] < 0.02 and [one["number"] for one in values["incidents"]] == [1, 2, 3]
    assert not (run_dir / PREDICTION).exists(), "a report writes nothing"


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
    gang = str(TOPOLOGIES / "gang.py")
    before = sorted((tmp_path / "runs").iterdir())
    done = CliRunner().invoke(run_command, [gang, "--workload", "workload.toml"])
    assert done.exit_code == 2 and words in done.stderr
    assert sorted((tmp_path / "runs").iterdir()) == before, "nothing has started"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is damaged"),
        ('{"format": 1, "flowdist": "0.1", "times": 3}', "is damaged"),
        ('{"format": 7, "flowdist": "9.1"}', "is of flowdist 9.1, in format 7; this version reads format 1"),
    ],
)
def test_predictions_that_cannot_be_read_leave_the_rest_of_the_report(run_dir: Path, content: str, words: str) -> None:
    (run_dir / PREDICTION).write_text(content)
    told = report().stdout
    assert "SUCCEEDED after" in told and words in told and "flowdist report RUN --workload" in told
    values = json.loads(report("--json").stdout)
    assert values["predicted"] is None and words in values["not_predicted"]


def test_an_incident_is_predicted_once_and_a_later_prediction_replaces_it(run_dir: Path) -> None:
    one, again = (ExpectedIncident(1, "exit", "trainer/0", result=text) for text in ("a", "b"))
    found = Predictions("times").with_incident(one).with_incident(again)
    assert found.incidents == (again,) and found.incident(2) is None
    write_predictions(run_dir, found)
    assert read_predictions(run_dir) == found
    twice = msgspec.to_builtins(found) | {"incidents": [msgspec.to_builtins(one)] * 2}
    (run_dir / PREDICTION).write_bytes(msgspec.json.encode(twice))
    with pytest.raises(FlowdistError, match="an incident is predicted twice"):
        read_predictions(run_dir)


def test_a_fault_that_the_simulator_cannot_carry_out_is_a_problem_of_the_prediction_alone(run_dir: Path) -> None:
    predict_one(Request(str(run_dir), "", (), (("--fail", "node9@30s"),), 0, 0, os.getpid()))
    found = read_predictions(run_dir)
    assert found is not None and found.job is None and "node9" in found.problem
    assert "the job is not predicted: " in job_text(found)
    assert "the job was not predicted: " in report().stdout


# Where the times come from.


def with_workload(graph: RoleGraph, workload: WorkloadSpec, source: str = "") -> RoleGraph:
    roles = tuple(msgspec.structs.replace(role, workload=workload) for role in graph.roles)
    return msgspec.structs.replace(graph, roles=roles, source=source)


def test_a_job_without_times_is_not_predicted_and_one_line_says_why(result: SimResult, tmp_path: Path) -> None:
    graph = header_of(result).graph
    known = find_times(with_workload(graph, WorkloadSpec(steps=700)), None)
    assert known == Times("") and known.name == "workload= of the topology"
    bare = with_workload(graph, WorkloadSpec(collective="fail"), str(tmp_path / "topology.py"))
    found = find_times(bare, None)
    assert found.why_not.startswith("nothing is predicted: no times are known of trainer: no workload= of")
    assert "flowdist calibrate RUN -o workload.toml" in found.why_not and "\n" not in found.why_not
    (tmp_path / "workload.toml").write_text('[roles.trainer]\nstep_time = "1s"\n')
    assert find_times(bare, None) == (str(tmp_path / "workload.toml"), (), "")
    (tmp_path / "workload.toml").write_text("")
    assert f"no table in {tmp_path / 'workload.toml'}" in find_times(bare, None).why_not


def test_a_report_of_a_run_without_times_says_why_it_cannot_be_predicted(run_dir: Path, result: SimResult) -> None:
    header = msgspec.structs.replace(header_of(result), graph=with_workload(header_of(result).graph, WorkloadSpec()))
    (run_dir / "journal.jsonl").write_bytes(b"".join(map(encode_line, [header, *result.lines[1:]])))
    Path("workload.toml").write_text("")
    assert "no times are known of trainer" in report("--workload", "workload.toml", code=2).stderr


@pytest.mark.parametrize("option", [("--listen", "127.0.0.1:0"), ("--on", "local")])
def test_a_job_over_several_hosts_is_predicted_afterwards_only(
    option: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(run_command, [str(TOPOLOGIES / "gang.py"), "--predict", *option])
    assert done.exit_code == 2 and "--predict does not go with --" in done.stderr
    assert "flowdist report RUN --workload workload.toml" in done.stderr


# Lines for the terminal, and the comparison.

JOB = ExpectedJob("succeeded", 90 * SECOND, {"trainer": {"productive": 90, "start-up": 10}}, ("trainer",))


def test_a_prediction_is_one_line() -> None:
    told = job_text(Predictions("workload.toml", job=JOB))
    assert told == "predicted: the job succeeds after 1m30s, goodput 90.0 % (times: workload.toml)"
    one = ExpectedIncident(2, "exit", "trainer/1", re_formed_ns=SECOND, next_step_ns=3 * SECOND, job=JOB)
    one = msgspec.structs.replace(one, lost_ns={"trainer": SECOND // 2})
    assert incident_text(one) == (
        "incident 2: predicted: re-formed after 1s, first step after 3s, lost work of trainer 500ms,"
        " the job succeeds after 1m30s"
    )
    ends = msgspec.structs.replace(JOB, outcome=None)
    never = ExpectedIncident(3, "exit", "trainer/1", result="waits", job=ends)
    assert incident_text(never) == "incident 3: predicted: no recovery (waits), the job does not end"
    assert incident_text(ExpectedIncident(4, "", "", "the record is damaged")).endswith("the record is damaged")


def compared(result: SimResult, predictions: Predictions, **changes: Any) -> dict[str, Any]:
    run = Run("run", header_of(result), result.lines[1:])
    sheet = sheet_of(run.header.graph, list(run.lines), run.header.known_nodes)
    summary = {"outcome": "succeeded", "time_ns": sheet.spent(), "not_reported": {}}
    return compare(run, predictions, {**summary, **changes})


def test_decisions_that_differ_are_listed_and_what_was_not_predicted_is_said(result: SimResult) -> None:
    first, second, _ = story_of(header_of(result), result.lines[1:]).incidents
    one = ExpectedIncident(1, first.kind, first.root, restarted=("trainer/0",), charged_to="trainer", job=JOB)
    told = "\n".join(comparison_text(compared(result, Predictions("times", job=JOB, incidents=(one,)))))
    assert "decisions that differ (predicted / actual):" in told
    assert "1. node_lost of node2: restarted: trainer/0 / " in told
    assert f"2. {second.kind} of {second.root}: not predicted: nothing was predicted" in told


def test_what_is_not_known_of_the_run_is_no_error_of_the_prediction(result: SimResult) -> None:
    """A job may end before its workers report a step: it has re-formed, and its first step and loss are not known."""
    (one, *_) = story_of(header_of(result), result.lines[1:]).incidents
    expected = ExpectedIncident(1, one.kind, one.root, "", one.restarted, one.stayed, one.charged_to, "recovered")
    expected = msgspec.structs.replace(expected, re_formed_ns=1, next_step_ns=5, lost_ns={"trainer": SECOND})
    short = one._replace(result="re-formed", next_step_ns=one.re_formed_ns)
    values = _incident(short, expected, {}, None)
    assert values["decisions"] == [] and values["next_step_ns"] == {"predicted": 5, "actual": None, "error": None}
    assert values["lost_ns"]["trainer"] == {"predicted": SECOND, "actual": None, "error": None}
    none = _incident(short, expected, {"trainer": 0}, None)["lost_ns"]["trainer"]
    assert none == {"predicted": SECOND, "actual": 0, "error": None}, "there is no share of nothing"


def test_what_silent_workers_do_not_report_is_not_compared(result: SimResult) -> None:
    silent = {"trainer": ["progress", "checkpoints"]}
    values = compared(result, Predictions("times", job=JOB), not_reported=silent)
    goodput = values["job"]["goodput"]
    assert goodput == {"predicted": None, "actual": None, "of": [], "without": ["trainer"]}
    shown = "\n".join(comparison_text(values))
    assert "trainer reported no step numbers, so its lost work is not known, and no goodput can be compared" in shown


TWO = msgspec.structs.replace(
    JOB,
    spent={**JOB.spent, "evaluator": {"productive": 10, "lost work": 90}},
    tasks=("trainer", "evaluator"),
)


def test_a_prediction_has_one_goodput_of_the_tasks_that_report_their_steps(result: SimResult) -> None:
    """A run once announced the goodput of all tasks, and its report showed another one, without any actual one."""
    actual = {"trainer": {"productive": 80, "lost work": 20}, "evaluator": {"productive": 100}}
    unsaid = {"evaluator": ["progress", "checkpoints"]}
    known = msgspec.structs.replace(TWO, tasks=("trainer",), others=("evaluator",))
    values = compared(result, Predictions("times", job=known), time_ns=actual, not_reported=unsaid)
    assert job_text(Predictions("times", job=known)).endswith("goodput 90.0 % of trainer (times: times)")
    shown = "\n".join(comparison_text(values))
    assert "  goodput of trainer  90.0 %     80.0 %     10.0 points\n" in shown
    assert "evaluator reported no step numbers, so its lost work is not known" in shown
    assert "the goodput is that of trainer, without evaluator" in shown and "% was predicted" not in shown


def test_a_goodput_that_was_announced_of_other_tasks_is_named_with_them(result: SimResult) -> None:
    """Only a calibration says beforehand that the workers of a role report nothing."""
    unsaid = {"evaluator": ["progress", "checkpoints"]}
    actual = {"trainer": {"productive": 80, "lost work": 20}, "evaluator": {"productive": 100}}
    values = compared(result, Predictions("times", job=TWO), time_ns=actual, not_reported=unsaid)
    assert values["job"]["goodput"]["predicted"] == 0.9
    text = "before the run, a goodput of 50.0 % was predicted: it is that of trainer, evaluator"
    assert values["not_compared"][1:] == [text]


def test_a_calibration_says_which_tasks_report_no_steps(run_dir: Path, result: SimResult) -> None:
    lines = [line for line in result.lines[1:] if not _is_step(line)]
    (run_dir / "journal.jsonl").write_bytes(b"".join(map(encode_line, [header_of(result), *lines])))
    file = run_dir.parent.parent / "w.toml"
    CliRunner().invoke(calibrate_command, [str(run_dir), "-o", str(file)])
    assert 'unreported = ["trainer"]' in file.read_text()
    graph = header_of(result).graph
    assert basis_of(graph, Times(str(file)), parse_plan([])).unreported == ("trainer",)
    file.write_text('[job]\nunreported = "trainer"\n')
    with pytest.raises(FlowdistError, match='write a list of roles, such as \\["evaluator"\\]'):
        basis_of(graph, Times(str(file)), parse_plan([]))


def _is_step(line: object) -> bool:
    return isinstance(line, Record) and isinstance(line.event, ev.ReplicaProgressed | ev.ReplicaStepped)


def test_the_length_of_a_job_that_lasts_is_not_compared(result: SimResult) -> None:
    values = compared(result, Predictions("times", job=JOB), outcome=None)
    assert values["job"]["lasted_ns"] == {"predicted": 90 * SECOND, "actual": None, "error": None}
    assert "unfinished" in "\n".join(comparison_text(values))


# The processes that predict.


def job_of(result: SimResult) -> JobState:
    return Replay(header_of(result)).follow(result.lines[1:]).job


@pytest.mark.real
@pytest.mark.slow
def test_a_prediction_whose_process_is_killed_is_made_again_at_the_end(
    run_dir: Path, result: SimResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr("flowdist.cli.predict.forecaster.FINISH_S", 100.0)  # also on a busy machine
    predicting = Forecaster(run_dir, Times(""), parse_plan(FAULTS), lambda kind, text: lines.append(f"{kind}: {text}"))
    predicting.start(0)
    assert predicting._process is not None
    predicting._process.kill()
    predicting._process.wait()
    for line in result.lines[1:]:
        if isinstance(line, Record):
            predicting.hear(line)
    predicting.look(job_of(result), result.now)
    predicting.finish(job_of(result))
    found = read_predictions(run_dir)
    assert found is not None and found.job is not None and [one.number for one in found.incidents] == [1, 2, 3]
    assert sum("predicted: the job succeeds" in line for line in lines) == 1 and len(lines) == 4, lines
    assert predicting._process is None


def test_a_run_that_is_resumed_keeps_its_predictions_and_asks_for_new_incidents_alone(
    run_dir: Path, result: SimResult
) -> None:
    known = Predictions("times", job=JOB)
    write_predictions(run_dir, known)
    predicting = Forecaster(run_dir, Times(""), parse_plan(FAULTS), lambda kind, text: None)
    predicting.start(result.now)  # it goes on after all its incidents
    predicting.hear([line for line in result.lines if isinstance(line, Record)][-1])
    predicting.look(job_of(result), result.now)
    predicting.finish(job_of(result))
    assert predicting._process is None and read_predictions(run_dir) == known


@pytest.mark.real
def test_an_incident_is_predicted_when_its_cause_is_known(run_dir: Path, result: SimResult) -> None:
    """While a node may be the cause of a failure, it is open what restarts: a prediction would have another root."""
    job = job_of(result)
    write_predictions(run_dir, Predictions("times", job=JOB))
    predicting = Forecaster(run_dir, Times(""), parse_plan(FAULTS), lambda kind, text: None)
    failure = Failure(ReplicaId("trainer", 1), "exit", "exit code 3")
    job.incidents[0].deferred.append(Deferred(failure, False, False, False, False, False))
    predicting.look(job, result.now)
    assert predicting._process is None
    job.incidents[0].deferred.clear()
    predicting.look(job, result.now)
    assert predicting._process is not None
    predicting.close()


@pytest.mark.real
def test_a_simulator_that_gives_no_answer_is_said_in_one_line(
    run_dir: Path, result: SimResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr("flowdist.cli.predict.forecaster.MODULE", "flowdist.no_such_module")
    predicting = Forecaster(run_dir, Times(""), parse_plan(FAULTS), lambda kind, text: lines.append(f"{kind}: {text}"))
    predicting.start(0)
    predicting.finish(job_of(result))
    (line,) = lines
    assert line.startswith("warning: not predicted: the job, incident 1, incident 2, incident 3: no answer")
    assert "no_such_module" in (run_dir / "prediction.log").read_text()
