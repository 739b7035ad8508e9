"""timeline, diff and replay as a user types them: output, refusals and exit codes."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from flowdist.cli.inspect.diff import command as diff_command
from flowdist.cli.inspect.replay import command as replay_command
from flowdist.cli.inspect.timeline import command as timeline_command
from flowdist.cli.simulate.simulate import command as simulate_command
from flowdist.control.protocol.events import CheckpointOffered, Event, ReplicaProgressed, ReplicaSpent, ReplicaStepped
from flowdist.record.journal import FORMAT, AccountLine, Header, Line, Record, decode_line, encode_line

GANG = str(Path(__file__).parents[2] / "scenarios/topologies/gang.py")


def timeline(*arguments: str) -> Result:
    return CliRunner().invoke(timeline_command, arguments)


def diff(*arguments: str) -> Result:
    return CliRunner().invoke(diff_command, arguments)


def replay(*arguments: str) -> Result:
    return CliRunner().invoke(replay_command, arguments)


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(simulate_command, [GANG, *arguments])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    assert simulate("--fail", "node2@3m/2m", "--trace", str(path)).exit_code == 0
    return path


def test_timeline_writes_a_page_beside_the_trace(trace: Path) -> None:
    done = timeline(str(trace))
    assert done.exit_code == 0 and done.stdout == "" and "11 attempts" in done.stderr
    page = trace.with_name("trace.html").read_text()
    assert page.startswith("<!doctype html>") and "2 incidents" in page
    assert timeline(str(trace), "-o", "-").stdout == page


def test_timeline_takes_the_folder_of_a_run(trace: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "journal.jsonl").write_bytes(trace.read_bytes())
    assert timeline(str(run)).exit_code == 0 and (run / "timeline.html").is_file()


def test_simulate_draws_what_timeline_draws(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "direct.html"
    assert simulate("--fail", "node2@3m/2m", "--html", str(page)).exit_code == 0
    assert page.read_text() == timeline(str(trace), "-o", "-").stdout
    done = simulate("--html", str(tmp_path / "no" / "where.html"))
    assert done.exit_code == 2 and "cannot be written" in done.stderr


@pytest.mark.parametrize(("name", "form"), [("a.json", None), ("a.txt", "perfetto"), ("a.html", "perfetto")])
def test_timeline_writes_for_perfetto(trace: Path, tmp_path: Path, name: str, form: str | None) -> None:
    assert timeline(str(trace), "-o", str(tmp_path / name), *(["--format", form] if form else [])).exit_code == 0
    content = json.loads((tmp_path / name).read_text())
    assert content["displayTimeUnit"] == "ms" and len(content["traceEvents"]) > 50


def test_timeline_tells_where_it_is_decided_otherwise_by_now(trace: Path) -> None:
    trace.write_text(re.sub(r'"grace_ns":\d+', '"grace_ns":7', trace.read_text(), count=1))
    done = timeline(str(trace))
    assert done.exit_code == 3 and "event 33 is decided otherwise by now" in done.stderr
    assert replay(str(trace), "--step", "32").exit_code == 0
    assert replay(str(trace), "--step", "33").exit_code == 3


def test_a_what_if_of_a_record_that_does_not_replay_is_refused(trace: Path) -> None:
    trace.write_text(re.sub(r'"grace_ns":\d+', '"grace_ns":7', trace.read_text(), count=1))
    done = replay(str(trace), "--fail", "node1@3m")
    assert done.exit_code == 2 and "does not replay: the record says StopReplica" in done.stderr
    assert "use the version of flowdist that wrote the record" in done.stderr


def test_diff_is_0_for_the_same_and_1_for_others(trace: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    simulate("--fail", "node1@3m/2m", "--trace", str(other))
    assert diff(str(trace), str(trace)).exit_code == 0
    done = diff(str(trace), str(other))
    assert done.exit_code == 1 and "spec: node2@3m/2m / node1@3m/2m" in done.stdout
    told = json.loads(diff(str(trace), str(other), "--json").stdout)
    assert (told["kind"], told["equal"], told["what"], told["same_lines"]) == ("diff", False, "fault", 19)


def test_replay_shows_the_state_after_an_event_or_at_a_time(trace: Path) -> None:
    done = replay(str(trace), "--step", "20")
    assert done.exit_code == 0 and "incident 1, stopping" in done.stdout
    told = json.loads(replay(str(trace), "--step", "20", "--json").stdout)
    assert (told["format"], told["kind"], told["n"], told["differs_at"]) == (1, "state", 20, None)
    assert replay(str(trace), "--until", "180010ms", "--state").stdout == done.stdout
    assert replay(str(trace), "--step", "0").stdout.startswith("before the first event")


def test_replay_stops_at_a_time(trace: Path) -> None:
    told = json.loads(replay(str(trace), "--until", "3m", "--json").stdout)
    assert (told["events"], told["outcome"], len(told["faults"])) == (19, None, 1)
    whole = json.loads(replay(str(trace), "--json").stdout)
    assert whole["events"] == 80 and whole["digest"] != told["digest"]
    assert f"digest {whole['digest']}" in simulate("--fail", "node2@3m/2m").stdout


def test_what_if_shows_the_record_its_simulation_and_the_other_beside_each_other(trace: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    result = replay(str(trace), "--fail", "trainer/0@8m", "--trace", str(other))
    assert result.exit_code == 0, result.output
    assert "Faults of the run: --fail node2@3m/2m" in result.output, "a trace has its faults as they were given"
    assert "incidents             2          2          3" in result.output
    assert "the same for" in result.output and "!! trainer/0@8m hits trainer/0" in result.output
    assert replay(str(other)).exit_code == 0  # the trace of a what-if is a record like others
    told = json.loads(replay(str(trace), "--fail", "trainer/0@8m", "--json").stdout)
    assert told["kind"] == "what-if" and told["faults"] == ["--fail node2@3m/2m"]
    assert told["as_it_was"]["lasted_s"] == told["again"]["lasted_s"]
    assert [len(told[column]["incidents"]) for column in ("as_it_was", "again", "what_if")] == [2, 2, 3]


def as_of_a_run(trace: Path) -> list[Line]:
    """Return the lines of a trace with the id of a run: what-ifs measure the times of its workers."""
    header, *lines = map(decode_line, trace.read_bytes().splitlines())
    assert isinstance(header, Header)
    return [replace(header, run_id="a-run"), *(line for line in lines if not isinstance(line, AccountLine))]


def leave_out(trace: Path, *events: type[Event]) -> None:
    """Remove these events from what is now the record of a run, as if the workers had not sent them."""
    kept = [line for line in as_of_a_run(trace) if not (isinstance(line, Record) and isinstance(line.event, events))]
    numbers = itertools.count(1)
    told = [replace(line, n=next(numbers)) if isinstance(line, Record) else line for line in kept]
    trace.write_bytes(b"".join(map(encode_line, told)))


@pytest.mark.parametrize(
    "untold", [(ReplicaProgressed, ReplicaStepped, CheckpointOffered), (ReplicaProgressed, ReplicaStepped)]
)
def test_what_if_counts_the_goodput_of_who_told_nothing_alike_in_each_column(
    trace: Path, untold: tuple[type[Event], ...]
) -> None:
    leave_out(trace, *untold)
    told = json.loads(replay(str(trace), "--fail", "trainer/0@8m", "--json").stdout)
    was, again, then = (told[column] for column in ("as_it_was", "again", "what_if"))
    assert was["not_reported"] == again["not_reported"] == then["not_reported"] and "trainer" in was["not_reported"]
    assert again["goodput"] == pytest.approx(was["goodput"], abs=0.02), "simulated with what was measured"
    assert "lost_work_s" not in again["roles"]["trainer"] and again["roles"]["trainer"]["step"] == -1
    for column in (again, then):
        assert sum(column["time_ns"]["trainer"].values()) == pytest.approx(4e9 * column["lasted_s"])
    text = replay(str(trace), "--fail", "trainer/0@8m").stdout
    assert "The work that restarts cost is not known, and goodput is counted alike in each column" in text
    is_unknown = CheckpointOffered in untold
    assert (was["goodput"] is None) == is_unknown == ("unknown" in again["time_ns"]["trainer"])
    said = "goodput unknown: trainer reported neither" if is_unknown else "(trainer reported no progress)"
    assert said in text


@pytest.mark.parametrize("saving_s", [6.0, 0.01])
def test_what_if_counts_saving_alike_in_each_column(trace: Path, saving_s: float) -> None:
    """Reported saving is a cost of its own in the simulation, too; where only commits are timed, it is work in both."""
    lines, saves = list[Line](), Counter[tuple[object, int]]()
    for line in as_of_a_run(trace):
        lines.append(line)
        if isinstance(line, Record) and isinstance(line.event, ReplicaProgressed) and not line.effects:
            key = line.event.replica, line.event.attempt
            saves[key] += 1
            lines.append(replace(line, event=ReplicaSpent(*key, "saving", round(saves[key] * saving_s * 1e9))))
    numbers = itertools.count(1)
    told = [replace(line, n=next(numbers)) if isinstance(line, Record) else line for line in lines]
    trace.write_bytes(b"".join(map(encode_line, told)))
    asked = json.loads(replay(str(trace), "--fail", "trainer/0@8m", "--json").stdout)
    was, again = asked["as_it_was"], asked["again"]
    assert (was["time_ns"]["trainer"].get("checkpoint", 0) > 1e9) == (saving_s > 1)
    assert again["time_s"]["trainer"].get("checkpoint", 0) == pytest.approx(
        was["time_s"]["trainer"].get("checkpoint", 0), rel=0.2, abs=1
    )
    assert again["goodput"] == pytest.approx(was["goodput"], abs=0.04) and asked["doubts"] == []


def test_what_if_of_who_reports_progress_knows_what_restarts_cost(trace: Path) -> None:
    result = replay(str(trace), "--fail", "trainer/0@8m")
    assert "lost work" in result.stdout and "not known" not in result.stdout


def test_what_if_names_no_record_that_nobody_has(trace: Path) -> None:
    told = replay(str(trace), "--fail", "node1@5m").stdout
    assert "what differs" in told and "the state before that" not in told, "`again` is no file to be replayed"


def test_what_if_the_policies_had_been_others(trace: Path) -> None:
    result = replay(str(trace), "--with", GANG, "-p", "replicas=4", "--set", "trainer.pending_timeout=1m")
    assert result.exit_code == 1, result.output
    assert "outcome               succeeded  succeeded  failed" in result.output
    assert "below its minimum for 1m" in result.output
    told = json.loads(replay(str(trace), "--with", GANG, "--set", "trainer.workload.steps=300", "--json").stdout)
    lasted = [told[column]["lasted_s"] for column in ("again", "what_if")]
    assert lasted[1] < 0.6 * lasted[0]  # values of --set win over measured ones


@pytest.mark.parametrize(
    ("verb", "arguments", "text"),
    [
        (timeline, ["nope.jsonl"], "there is no file 'nope.jsonl'"),
        (timeline, [GANG], ":1: the file is no journal and no trace: "),
        (timeline, [str(Path(GANG).parent)], "is not a folder of a run"),
        (timeline, ["TRACE", "-o", "x.pdf"], "-o x.pdf: its suffix names no format"),
        (timeline, ["TRACE", "-o", "/nowhere/x.html"], "cannot be written"),
        (diff, ["TRACE", "nope.jsonl"], "there is no file 'nope.jsonl'"),
        (replay, ["TRACE", "--step", "81"], "--step 81: there are 80 events"),
        (replay, ["TRACE", "--until", "soon"], "--until soon is not a duration"),
        (replay, ["TRACE", "--until", "3m", "--step", "3"], "--step does not go with --until"),
        (replay, ["TRACE", "--set", "trainer.cpu=2"], "--set trainer.cpu=2: of which topology?"),
        (replay, ["TRACE", "-p", "nodes=2"], "-p nodes=2: of which topology?"),
        (replay, ["TRACE", "--trace", "x.jsonl"], "--trace goes with a question"),
        (replay, ["TRACE", "--fail", "node1@3m", "--state"], "a what-if goes with --json only"),
        (replay, ["TRACE", "--fail", "node77@3m"], "there is no 'node77'"),
    ],
)
def test_a_users_mistake_is_told_in_words(trace: Path, verb, arguments: list[str], text: str) -> None:  # type: ignore[no-untyped-def]
    done = verb(*(str(trace) if argument == "TRACE" else argument for argument in arguments))
    assert done.exit_code == 2, done.output
    assert text in done.output and "help" in done.output


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda lines: [*lines[:5], *lines[6:]], "event 6 follows event 4"),
        (lambda lines: [*lines[:5], lines[5].replace(b'"t_ns":1700000', b'"t_ns":17'), *lines[6:]], "runs backwards"),
        (lambda lines: [*lines, *lines], "a second header, after event 80"),
        (lambda lines: lines[1:], "has no header"),
        (
            lambda lines: [b'"format":9'.join(lines[0].rsplit(b'"format":%d' % FORMAT, 1)), *lines[1:]],
            "format is 9, and this version of",
        ),
        (lambda lines: [*lines[:3], b"\xff\n", *lines[3:]], "trace.jsonl:4: the line is damaged: JSON is malformed"),
        (lambda lines: [], "has no header"),
    ],
)
def test_a_record_that_was_edited_is_refused_with_the_place(trace: Path, edit, text: str) -> None:  # type: ignore[no-untyped-def]
    trace.write_bytes(b"".join(edit(trace.read_bytes().splitlines(keepends=True))))
    done = replay(str(trace))
    assert done.exit_code == 2 and text in done.output, done.output


def test_a_last_line_that_is_cut_off_is_left_out(trace: Path) -> None:
    *lines, account = trace.read_bytes().splitlines(keepends=True)
    assert b'"type":"account"' in account
    trace.write_bytes(b"".join(lines)[:-10])
    assert json.loads(replay(str(trace), "--json").stdout)["events"] == 79
    assert timeline(str(trace)).exit_code == 0


def test_a_topology_that_the_run_was_not_of_is_refused_with_what_happened_in_it(trace: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text("from flowdist import Topology\nt = Topology('other', nodes=2)\nt.role('trainer', 'true')\n")
    done = replay(str(trace), "--with", str(other))
    words = "other.py is not the topology of this run, which had this fault: there is no 'node2'"
    assert done.exit_code == 2 and words in done.stderr
    own = replay(str(trace), "--with", GANG, "--fail", "node77@1m")
    assert own.exit_code == 2 and "there is no 'node77'" in own.stderr and "is not the topology" not in own.stderr


@pytest.mark.parametrize(
    "given", ["collective=fail", "collective_timeout=1m", "rejoin_time=1s", "step_time=2s", "step_spread=0.1"]
)
def test_every_field_of_a_workload_can_be_set_in_a_what_if(trace: Path, given: str) -> None:
    done = replay(str(trace), "--with", GANG, "--set", f"trainer.workload.{given}", "--json")
    assert given in json.loads(done.stdout)["asked"][0]


def test_what_if_tells_in_json_what_it_tells_in_words(trace: Path) -> None:
    asked = (str(trace), "--fail", "trainer/0@9h", "--fail", "trainer/1@5m:hang")
    told = json.loads(replay(*asked, "--json").stdout)
    assert told["violation"] is None and told["unfired"] == ["trainer/0@9h"]


def test_where_nothing_has_run_the_latest_run_is_not_called_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for done in (timeline(), replay(), replay("runs/latest")):
        assert done.exit_code == 2 and "error: there is no run in runs yet" in done.stderr
        assert "start one with flowdist run, or name a run" in done.stderr
