"""calibrate, simulate --workload, replay --workload and diff by incident, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from flowdist.cli.inspect.diff import command as diff_command
from flowdist.cli.inspect.replay import command as replay_command
from flowdist.cli.simulate.calibrate import _rows
from flowdist.cli.simulate.calibrate import command as calibrate_command
from flowdist.cli.simulate.simulate import command as simulate_command
from flowdist.errors import FlowdistError
from flowdist.record.journal import AccountLine, Header, decode_line, encode_line
from flowdist.record.reader import WholeRecord
from flowdist.sim.calibration.calibration import calibrate as measure
from flowdist.sim.calibration.observe import observe
from flowdist.sim.experiment.compare import Figure
from flowdist.sim.experiment.predict import predict
from flowdist.testing import calibrate, calibrated

GANG = str(Path(__file__).parents[2] / "scenarios/topologies/gang.py")


def run(command, *arguments: object) -> Result:  # type: ignore[no-untyped-def]
    return CliRunner().invoke(command, list(map(str, arguments)))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    fault = "trainer/1@3m:exit=3"
    assert run(simulate_command, GANG, "--fail", fault, "--trace", path).exit_code == 0
    return path


@pytest.fixture
def workload(trace: Path) -> Path:
    path = trace.with_name("workload.toml")
    done = run(calibrate_command, trace, "-o", path)
    assert done.exit_code == 0, done.output
    return path


def test_calibrate_shows_distributions_what_is_unknown_and_the_error_on_what_was_held_out(trace: Path) -> None:
    done = run(calibrate_command, trace)
    for words in (
        "cold start",
        "warm start",
        "step",
        "the runs cannot tell",
        "detection, exit",
        "its first two thirds",
    ):
        assert words in done.stdout
    told = json.loads(run(calibrate_command, trace, "--json").stdout)
    total = told["held_out"][0]["figures"][0]
    assert total["what"] == "total" and total["error"] < 0.02 and told["held_out"][0]["decisions"] == []


def test_two_runs_predict_each_other(trace: Path) -> None:
    other = trace.with_name("other.jsonl")
    assert run(simulate_command, GANG, "--fail", "trainer/2@5m:exit=3", "--trace", other).exit_code == 0
    told = json.loads(run(calibrate_command, trace, other, "--json").stdout)
    assert [one["run"] for one in told["held_out"]] == [str(trace), str(other)]
    assert all(one["decisions"] == [] and one["figures"][0]["error"] < 0.02 for one in told["held_out"])


def test_a_simulation_with_the_measured_times_is_as_long_as_the_run(trace: Path, workload: Path) -> None:
    given = ("--fail", "trainer/1@3m:exit=3", "--json")
    lasted = [
        json.loads(run(simulate_command, GANG, *given, *more).stdout)["lasted_s"]
        for more in ((), ("--workload", workload))
    ]
    assert lasted[1] == pytest.approx(lasted[0], rel=0.01)
    by_hand = run(simulate_command, GANG, "--workload", workload, "--set", "trainer.workload.step_time=2s", "--json")
    assert json.loads(by_hand.stdout)["lasted_s"] > 1.7 * lasted[0], "--set wins over the file"


def test_a_damaged_journal_is_said_and_the_lines_before_the_damage_count(trace: Path) -> None:
    lines = trace.read_bytes().splitlines(keepends=True)
    trace.write_bytes(b"".join([*lines[:-8], b"damage\n", *lines[-8:]]))
    done = run(calibrate_command, trace)
    assert done.exit_code == 2 and "cold start" in done.stdout
    assert f"trace.jsonl:{len(lines) - 7}: the line is damaged" in done.stderr
    with pytest.raises(FlowdistError, match="damaged"):
        calibrate(trace)


def test_a_record_in_which_nothing_ran_is_refused(trace: Path) -> None:
    trace.write_bytes(b"".join(trace.read_bytes().splitlines(keepends=True)[:2]))
    done = run(calibrate_command, trace)
    assert done.exit_code == 2 and "no worker ever started" in done.stderr


def test_a_workload_file_that_does_not_fit_is_refused_in_words(workload: Path) -> None:
    workload.write_text(workload.read_text().replace('roles."trainer"', 'roles."trainr"').replace("[job]", "[jb]"))
    done = run(simulate_command, GANG, "--workload", workload)
    assert done.exit_code == 2 and f"{workload}:5: unknown key 'jb'; did you mean 'job'" in done.stderr
    workload.write_text(workload.read_text().replace("[jb]", "[job]"))
    done = run(simulate_command, GANG, "--workload", workload)
    assert done.exit_code == 2 and "the job has no role 'trainr'; did you mean 'trainer'" in done.stderr
    with pytest.raises(FlowdistError, match="no role 'trainr'"):
        calibrated(GANG, workload)


def test_in_python_the_times_of_a_run_are_those_of_a_topology(trace: Path, workload: Path) -> None:
    graphs = [calibrated(GANG, times) for times in (workload, calibrate(trace))]
    assert graphs[0] == graphs[1] and graphs[0].role("trainer").workload.warm_startup_ns is not None


def test_a_what_if_warns_where_the_simulation_of_the_run_itself_is_off(trace: Path, workload: Path) -> None:
    asked = (trace, "--fail", "trainer/2@5m:exit=3", "--json")
    assert json.loads(run(replay_command, *asked).stdout)["doubts"] == []
    slow = (
        workload.read_text()
        .replace('step_time = "1.0', 'step_time = "2.0')
        .replace('step_time = "1s"', 'step_time = "2s"')
    )
    workload.write_text(slow)
    (doubt,) = json.loads(run(replay_command, *asked, "--workload", workload).stdout)["doubts"]
    assert "% off" in doubt and "flowdist calibrate" not in doubt, "the times are those of a calibration already"
    assert "warning: the run lasted" in run(replay_command, *asked[:-1], "--workload", workload).stderr
    alone = run(replay_command, trace, "--workload", workload)
    assert alone.exit_code == 2 and "--workload goes with a question" in alone.stderr


def as_run(trace: Path) -> Path:
    """Return the same record as a journal of a real run: with a name."""
    header, *lines = map(decode_line, trace.read_bytes().splitlines(keepends=True))
    assert isinstance(header, Header)
    path = trace.with_name("run.jsonl")
    kept = [line for line in lines if not isinstance(line, AccountLine)]
    path.write_bytes(b"".join(map(encode_line, [msgspec.structs.replace(header, run_id="a-run"), *kept])))
    return path


def test_a_run_and_its_simulation_are_compared_by_incident(trace: Path) -> None:
    other = trace.with_name("other.jsonl")
    assert run(simulate_command, GANG, "--fail", "trainer/1@3m10s:exit=3", "--trace", other).exit_code == 0
    done = run(diff_command, as_run(trace), other)
    assert done.exit_code == 0 and "the same decisions: 1 incidents" in done.stdout
    assert "until the next step" in done.stdout and "exit of trainer/1: at" in done.stdout
    by_line = run(diff_command, as_run(trace), other, "--by", "line")
    assert by_line.exit_code == 1 and "the same for" in by_line.stdout


def test_decisions_that_differ_are_named(trace: Path) -> None:
    other = trace.with_name("other.jsonl")
    faults = ("--fail", "trainer/1@3m:exit=3", "--fail", "trainer/2@6m:exit=3")
    assert run(simulate_command, GANG, *faults, "--trace", other).exit_code == 0
    done = run(diff_command, as_run(trace), other, "--json")
    told = json.loads(done.stdout)
    assert done.exit_code == 1 and told["kind"] == "diff" and not told["same_decisions"]
    assert told["differences"] == [
        "incident 2 (exit of trainer/2) is in the second record alone",
        "trainer: 2 generations / 3",
    ]
    assert [[one is not None for one in pair] for pair in told["incidents"]] == [[True, True], [False, True]]
    refused = run(diff_command, as_run(trace), other, "--by", "incident", "--no-times")
    assert refused.exit_code == 2 and "--by incident goes without" in refused.stderr


def test_an_error_of_what_did_not_happen_is_no_share(trace: Path) -> None:
    """It was once shown in per cent of one nanosecond."""
    header, *lines = map(decode_line, trace.read_bytes().splitlines(keepends=True))
    assert isinstance(header, Header)
    found = predict(WholeRecord("a", header, lines), measure([observe(header, lines)]))
    rows = _rows([("a", found._replace(a=found.a._replace(lost_ns={})))])
    (row,) = [row for row in rows if row[1] == "lost work of trainer"]
    assert row[2] == "0s" and row[3] != "0s" and row[4] == "-"
    assert Figure("", 0, 0).error == 0 and Figure("", 0, 5).error is None and Figure("", 4, 5).error == 0.25


def test_a_what_if_says_that_the_time_of_a_restart_is_unknown_where_nothing_was_restarted(tmp_path: Path) -> None:
    """Each start of the run was cold. Its what-if was played with cold restarts, and nothing said so."""
    calm = tmp_path / "trace.jsonl"
    assert run(simulate_command, GANG, "--trace", calm).exit_code == 0
    asked = (as_run(calm), "--fail", "trainer/2@5m:exit=3")
    (text,) = json.loads(run(replay_command, *asked, "--json").stdout)["unknown"]
    assert text.startswith("how long a restart of trainer takes is unknown: each start in the run was the first on its")
    assert f"warning: {text}" in run(replay_command, *asked).stderr
    known = ("--with", GANG, "--set", "trainer.workload.warm_startup=1s")
    assert json.loads(run(replay_command, *asked, *known, "--json").stdout)["unknown"] == []
    calmly = (asked[0], "--scale", "trainer=4@90m")
    assert json.loads(run(replay_command, *calmly, "--json").stdout)["unknown"] == [], "nothing is restarted"


def test_a_run_with_a_restart_tells_how_long_one_takes(trace: Path) -> None:
    asked = (as_run(trace), "--fail", "trainer/2@5m:exit=3", "--json")
    assert json.loads(run(replay_command, *asked).stdout)["unknown"] == []
