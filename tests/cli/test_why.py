"""`flowdist why`, and `replay --without`, as a user types them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from flowdist.cli.inspect.replay import command as replay_command
from flowdist.cli.inspect.whatif import doubts_of
from flowdist.cli.inspect.why import command as why_command
from flowdist.cli.simulate.calibrate import command as calibrate_command
from flowdist.cli.simulate.simulate import command as simulate_command
from flowdist.graph import SECOND
from flowdist.record.journal import AccountLine, FaultLine, Header, decode_line, encode_line
from flowdist.sim.experiment.outcome import Outcome
from flowdist.sim.experiment.record import of_record
from tests.sim.test_calibration import counted
from tests.sim.test_calibration import told as heard

GANG = str(Path(__file__).parents[2] / "scenarios/topologies/gang.py")
DECISIVE, SMALL = "node2@3m/8m", "trainer/0@12m:exit=3"


def run(verb: click.Command, *arguments: object) -> Result:
    return CliRunner().invoke(verb, [str(argument) for argument in arguments])


def why(*arguments: object) -> Result:
    return run(why_command, *arguments)


def told(*arguments: object) -> dict[str, Any]:
    result = why(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def simulated(path: Path, *arguments: str) -> Path:
    done = run(simulate_command, GANG, "-p", "replicas=4", *arguments, "--trace", path)
    assert done.exit_code in (0, 1, 4), done.output
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return simulated(tmp_path / "trace.jsonl", "--fail", DECISIVE, "--fail", SMALL)


def as_journal(trace: Path) -> Path:
    """Return the record as the journal of a real run: with the id of a run, and without the injected faults."""
    header, *lines = map(decode_line, trace.read_bytes().splitlines(keepends=True))
    assert isinstance(header, Header)
    kept = [line for line in lines if not isinstance(line, FaultLine | AccountLine)]
    folder = trace.with_name("a-run")
    folder.mkdir()
    named = msgspec.structs.replace(header, run_id="a-run")
    (folder / "journal.jsonl").write_bytes(b"".join(map(encode_line, [named, *kept])))
    return folder


def test_why_names_the_most_costly_fault_first_and_the_command_that_shows_it(trace: Path) -> None:
    done = why(trace)
    assert done.exit_code == 0 and done.stderr == "", done.output
    assert "1. Without the loss of node2 at 3m the job would have ended" in done.stdout
    assert "2. Without the failure of trainer/0 (exit code 3) at 12m the job would have ended" in done.stdout
    assert f"flowdist replay {trace} --without {DECISIVE}\n" in done.stdout
    assert "Without any of the 2 faults and drains: succeeded after 10m14s." in done.stdout


def test_the_command_of_an_answer_shows_the_same_end(trace: Path) -> None:
    answer = told(trace)
    assert answer["again"]["lasted_s"] == answer["as_it_was"]["lasted_s"] and answer["doubts"] == []
    for cause in answer["causes"]:
        _, verb, *words = shlex.split(cause["command"])
        assert verb == "replay"
        shown = json.loads(run(replay_command, *words, "--json").stdout)
        assert (shown["what_if"]["outcome"], shown["what_if"]["lasted_s"]) == (cause["outcome"], cause["lasted_s"])
        assert shown["again"]["lasted_s"] == pytest.approx(cause["lasted_s"] + cause["saved_s"])
        assert shown["asked"] == [f"--without {cause['without'][0]['fault']}"]


def test_the_faults_of_a_journal_are_reconstructed_and_named_the_same(trace: Path) -> None:
    journal = as_journal(trace)
    answer = told(journal)
    assert [cause["without"][0]["text"] for cause in answer["causes"]] == [
        *("the loss of node2 at 3m", "the failure of trainer/0 (exit code 3) at 12m"),
    ]
    assert answer["causes"][0]["without"][0]["fault"] == "node2@180s/480.0005s"
    assert answer["causes"][0]["command"] == f"flowdist replay {journal} --without node2@180s/480.0005s"


def test_what_a_run_injected_and_no_event_shows_is_said(tmp_path: Path) -> None:
    faults = [DECISIVE, "trainer/3@2m30s:slow=2x/10s", "node2@1m:pause/1s", "node1@13m:pause/1m"]
    trace = simulated(tmp_path / "t.jsonl", *(word for fault in faults for word in ("--fail", fault)))
    header, *lines = map(decode_line, trace.read_bytes().splitlines(keepends=True))
    assert isinstance(header, Header)
    assert of_record(msgspec.structs.replace(header, run_id="a-run"), lines).gaps.omitted[-2:] == (
        "node2@1m:pause/1s was injected, and left no event",
        "trainer/3@2m30s:slow=2x/10s was injected, and left no event",
    ), "a pause of a minute was noticed as a silent node"
    assert "Not repeated" not in why(trace).stdout


def test_a_hang_that_nobody_has_noticed_is_said_and_the_run_is_not_called_quiet(tmp_path: Path) -> None:
    topology, trace = tmp_path / "topology.py", tmp_path / "t.jsonl"
    topology.write_text(
        "from flowdist import Topology, Workload\nt = Topology('hangs', nodes=2)\n"
        "t.role('ps', 'true', kind='service')\n"
        "t.role('trainer', 'true', workload=Workload(steps=60))\n"
    )
    assert run(simulate_command, topology, "--fail", "ps@10s:hang", "--trace", trace).exit_code == 0
    header, *lines = map(decode_line, trace.read_bytes().splitlines(keepends=True))
    assert isinstance(header, Header)
    kept = [line for line in lines if not isinstance(line, AccountLine)]
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(b"".join(map(encode_line, [msgspec.structs.replace(header, run_id="a-run"), *kept])))
    done = why(journal)
    assert "Not repeated: ps@10s:hang was injected, and left no event" in done.stdout
    assert "Nothing else happened to this run from outside" in done.stdout


def test_a_newer_run_does_not_change_what_a_command_shows(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trace.parent)
    (trace.parent / "runs").mkdir()
    as_journal(trace).rename("runs/a-run")
    Path("runs/latest").symlink_to("a-run")
    assert told()["causes"][0]["command"].startswith("flowdist replay runs/a-run --without")


def test_the_number_of_simulations_is_an_option_and_the_answer_says_what_was_left_out(trace: Path) -> None:
    text = why(trace, "--simulations", 3).output
    assert "Played again 3 times" in text and "later causes by themselves. --simulations plays more." in text, text
    values = told(trace, "--simulations", 3)
    assert values["tried"] == 1 and values["not_tried_alone"] == told(trace)["tried"] - 1 > 0
    assert "plays more" not in why(trace).output and told(trace)["not_tried_alone"] == 0


def test_a_failed_job_names_what_alone_is_enough(tmp_path: Path) -> None:
    trace = simulated(tmp_path / "t.jsonl", "--fail", "node2@3m", "--fail", "trainer/0@90s", "--fail", "controller@2m")
    done = why(trace)
    first = "1. Without the loss of node2 at 3m the job would have succeeded, after "
    assert first in done.stdout and "It alone is enough to prevent that." in done.stdout
    assert "2 other causes made no difference alone." in done.stdout
    (cause,) = told(trace)["causes"]
    assert cause["is_enough"] and cause["saved_s"] is None


def test_nodes_that_are_lost_together_are_one_answer(tmp_path: Path) -> None:
    trace = simulated(tmp_path / "t.jsonl", "--fail", "node1@3m/8m", "--fail", "node2@3m/8m")
    (cause,) = told(trace)["causes"]
    assert [one["fault"] for one in cause["without"]] == ["node1@3m/8m", "node2@3m/8m"]
    assert cause["command"].endswith("--without node1@3m/8m --without node2@3m/8m")


def test_the_cost_of_one_incident(trace: Path) -> None:
    done = why(trace, 1)
    assert done.exit_code == 0, done.output
    assert "Incident 1: node_lost of node2\n\nWithout the loss of node2 at 3m the job would have ended" in done.stdout
    assert "These incidents would not have happened either: exit of trainer/0." in done.stdout
    answer = told(trace, 1)
    assert answer["incident"] == {"number": 1, "kind": "node_lost", "root": "node2"}
    assert answer["saved_s"] == told(trace)["causes"][0]["saved_s"] > 400


def test_a_number_alone_is_an_incident_of_the_newest_run_unless_a_run_has_that_name(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trace.parent)
    Path("runs").mkdir()
    as_journal(trace).rename("runs/a-run")
    Path("runs/latest").symlink_to("a-run")
    assert told(2) == told("latest", 2) and told(2)["incident"]["number"] == 2
    Path("runs/a-run").rename("runs/2")
    Path("runs/latest").unlink()
    assert "incident" not in told(2) and told(2, 2)["incident"]["number"] == 2


def test_a_run_to_which_nothing_happened_has_nothing_to_leave_out(tmp_path: Path) -> None:
    quiet = simulated(tmp_path / "quiet.jsonl")
    done = why(quiet)
    assert done.exit_code == 0 and "there is no fault to leave out" in done.stdout
    assert told(quiet)["causes"] == [] and told(quiet)["tried"] == 0


def test_a_record_that_ends_before_the_job_is_played_to_the_end(tmp_path: Path) -> None:
    trace = simulated(tmp_path / "cut.jsonl", "--fail", DECISIVE, "--until", "9m")
    done = why(trace)
    assert "the job did not end by itself" in done.stdout.lower() and "1. Without the loss of node2" in done.stdout
    assert done.stderr == "", "its length is no measure for the simulation"


def test_a_warning_says_that_the_simulation_of_the_run_is_off(trace: Path, tmp_path: Path) -> None:
    workload = tmp_path / "workload.toml"
    workload.write_text('[roles.trainer]\nstep_time = "3s"\n')
    done = why(trace, "--workload", workload)
    assert done.exit_code == 0, done.output
    assert "% off, so do not trust these answers" in done.stderr and "flowdist calibrate" not in done.stderr
    answer = told(trace, "--workload", workload)
    assert answer["doubts"] and answer["causes"][0]["command"].endswith(f"--workload {workload}")


@pytest.mark.parametrize(
    ("verb", "arguments", "text", "help"),
    [
        (why_command, ["nope"], "there is no run 'nope' in runs", "name a run in runs/"),
        (why_command, ["nope.jsonl"], "there is no file 'nope.jsonl'", "name a run in runs/"),
        (why_command, ["3"], "there is no run in runs yet", "start one with flowdist run"),
        (why_command, ["0"], "there is no run '0' in runs", "name a run in runs/"),
        (why_command, [GANG], "is no record of a run", "flowdist simulate"),
        (why_command, ["TRACE", "9"], "there is no incident 9: the run has 2 incidents", "flowdist report"),
        (why_command, ["TRACE", "0"], "0 is not in the range x>=1", ""),
        (why_command, ["TRACE", "--workload", "nope.toml"], "nope.toml", "help: "),
        (replay_command, ["TRACE", "--without", "node1@3m"], "--without node1@3m: the run had no such fault", DECISIVE),
        (replay_command, ["TRACE", "--without", DECISIVE, "--state"], "a what-if goes with --json only", "--state"),
    ],
)
def test_wrong_input_is_refused_in_words(
    trace: Path, verb: click.Command, arguments: list[str], text: str, help: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trace.parent)  # a folder without runs
    done = run(verb, *(trace if argument == "TRACE" else argument for argument in arguments))
    assert done.exit_code == 2 and text in done.output and help in done.output, done.output
    assert "Traceback" not in done.output


def test_a_trace_of_macro_mode_and_a_damaged_one_are_refused(trace: Path, tmp_path: Path) -> None:
    macro = simulated(tmp_path / "macro.jsonl", "--fail", DECISIVE, "--macro")
    assert why(macro).exit_code == 2 and "is a trace of macro mode" in why(macro).stderr
    lines = trace.read_bytes().splitlines(keepends=True)
    trace.write_bytes(b"".join([*lines[:5], b"{}\n", *lines[6:]]))
    done = why(trace)
    assert done.exit_code == 2 and "trace.jsonl:6" in done.stderr, done.output


def counted_run(folder: Path, *attempts: int, is_over: bool = True) -> Path:
    """Return the journal of a run whose steps flowdist counted: its script reports nothing."""
    header, lines = heard(counted(*attempts, is_over=is_over))
    folder.mkdir()
    named = msgspec.structs.replace(header, run_id=folder.name)
    (folder / "journal.jsonl").write_bytes(b"".join(map(encode_line, [named, *lines])))
    return folder


def test_a_script_that_reports_nothing_is_played_with_the_steps_that_were_counted(tmp_path: Path) -> None:
    """It was once played with the 600 steps of a topology that says nothing."""
    folder = counted_run(tmp_path / "a-run", 80, 200)
    answer = told(folder)
    assert answer["again"]["lasted_s"] == pytest.approx(answer["as_it_was"]["lasted_s"], rel=0.05)
    assert answer["doubts"] == [] and any("200 counted steps" in text for text in answer["not_repeated"])
    (cause,) = answer["causes"]
    assert cause["saved_s"] == pytest.approx(8 + 2, rel=0.1)


def test_a_run_whose_number_of_steps_nobody_knows_is_refused_unless_a_file_has_it(tmp_path: Path) -> None:
    folder, whole = counted_run(tmp_path / "a-run", 80, is_over=False), counted_run(tmp_path / "whole", 200)
    refused = why(folder)
    assert refused.exit_code == 2 and refused.stdout == ""
    assert "the workers of trainer reported no step numbers" in refused.stderr
    assert "call flowdist.worker.progress(step)" in refused.stderr and "--workload workload.toml" in refused.stderr
    file = tmp_path / "w.toml"
    assert run(calibrate_command, whole, "-o", file).exit_code == 0
    assert why(folder, "--workload", file).exit_code == 0


def test_who_has_calibrated_is_not_advised_to_calibrate(tmp_path: Path) -> None:
    was, again = (Outcome("succeeded", s * SECOND) for s in (10, 20))
    (text,) = doubts_of(was, again, "it", has_times=False)
    assert text.endswith("flowdist calibrate RUN RUN -o workload.toml, and --workload workload.toml")
    assert doubts_of(was, again, "it", has_times=True) == [text.partition(";")[0]]
    folder, file = counted_run(tmp_path / "a-run", 80, 200), tmp_path / "w.toml"
    file.write_text('[roles.trainer]\nsteps = 900\nstep_time = "100ms"\n')
    done = why(folder, "--workload", file)
    assert "so do not trust these answers" in done.stderr and "flowdist calibrate" not in done.stderr
    assert "counted steps" not in done.stdout, "the file says how many there are"
    shown = run(replay_command, folder, "--fail", "trainer/0@5s", "--workload", file)
    assert "do not trust" in shown.stderr and "flowdist calibrate" not in shown.stderr
