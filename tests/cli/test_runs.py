"""Verbs about a run as a user types them, for runs that are over: output and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flowdist.cli.inspect.diff import command as diff_command
from flowdist.cli.inspect.list import command as list_command
from flowdist.cli.inspect.replay import command as replay_command
from flowdist.cli.inspect.run_state import report as report_command
from flowdist.cli.inspect.run_state import status as status_command
from flowdist.cli.inspect.timeline import command as timeline_command
from flowdist.cli.logs.logs import command as logs_command
from flowdist.cli.run.console import finish
from flowdist.cli.run.run import command as run_command
from flowdist.control.protocol.events import ReplicaStopped
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import RoleGraph, RoleSpec, encode_graph
from flowdist.record.journal import Header, Record, encode_line
from flowdist.record.reader import CheckChain
from flowdist.report.record.summary import rounded
from flowdist.runtime.run_folder.resume import resume_point, truncate_journal
from flowdist.runtime.run_folder.runs import write_end
from flowdist.runtime.supervisor.host_process import RunResult
from tests.record.sheets import sheet_of
from tests.report.records import TOPOLOGIES, simulated


def test_a_seed_without_rates_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(run_command, ["--seed", "4"])
    assert done.exit_code == 2 and "--seed 4: there is no --rate" in done.stderr


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folders of a run that ended as its simulation did, and of a run that died before its end."""
    result = simulated("gang.py", "node2@3m/2m")
    lines = [encode_line(line) for line in result.lines]
    header = result.lines[0]
    assert isinstance(header, Header)
    for name, part in (("gang-2", lines[:40]), ("gang-1", lines)):
        folder = tmp_path / "runs" / name
        (folder / "trainer/0/attempt_1/0").mkdir(parents=True)
        (folder / "trainer/0/attempt_1/0/stdout.log").write_text("one\ntwo\n")
        (folder / "trainer/0/attempt_2/0").mkdir(parents=True)
        (folder / "trainer/0/attempt_2/0/stdout.log").write_text("three\n")
        (folder / "trainer/0/attempt_2/0/stderr.log").write_text("oops\n")
        (folder / "journal.jsonl").write_bytes(b"".join(part))
        (folder / "graph.json").write_bytes(encode_graph(header.graph))
        (folder / "lock").touch()
    (tmp_path / "runs/latest").symlink_to("gang-1")
    sheet = sheet_of(header.graph, list(result.lines)[1:], header.known_nodes)
    ended = RunResult("succeeded", "", str(tmp_path / "runs/gang-1"), result.job, [], [], sheet)
    finish(ended, True, str)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def call(command, *arguments: str, code: int = 0) -> Result:  # type: ignore[no-untyped-def]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == code, done.output
    return done


def test_the_status_of_a_run_that_is_over_is_how_it_ended(runs: Path) -> None:
    told = call(status_command).output
    assert told.startswith("gang-1  succeeded  after ") and "  trainer  -   succeeded  3  " in told
    assert "the job has succeeded" in told
    content = json.loads(call(status_command, "gang-1", "--json").output)
    assert (content["kind"], content["state"], content["run"]) == ("status", "succeeded", "gang-1")
    assert len(content["replicas"]) == 4 and content["roles"][0]["restarts"] == 7


def test_a_long_journal_is_not_read_again_for_it(runs: Path) -> None:
    told = call(status_command).output
    (runs / "gang-1/journal.jsonl").write_text("")
    (runs / "gang-1/lock").touch()
    assert call(status_command).output == told
    (runs / "gang-1/status.json").write_text("{}")
    assert "has no header" in call(status_command, code=2).output


def test_the_status_of_a_run_that_died_is_how_it_was_then(runs: Path) -> None:
    told = call(status_command, "gang-2").output
    assert told.startswith("gang-2  died  after ") and "flowdist run --resume gang-2\n" in told
    assert json.loads(call(status_command, "gang-2", "--json").output)["state"] == "died"


def test_runs_are_listed_with_how_they_are(runs: Path) -> None:
    rows = [line.split()[:2] for line in call(list_command).output.splitlines()]
    assert sorted(rows[1:]) == [["gang-1", "succeeded"], ["gang-2", "died"]]
    only = json.loads(call(list_command, "--state", "died", "--json").output)
    assert [(run["run"], run["state"]) for run in only["runs"]] == [("gang-2", "died")]
    assert len(json.loads(call(list_command, "-n", "1", "--json").output)["runs"]) == 1
    assert "there are no running runs in runs" in call(list_command, "--state", "running").output
    assert "there are no runs in nowhere" in call(list_command, "--runs", "nowhere").output


def test_a_report_is_the_same_from_the_summary_and_from_the_journal(runs: Path) -> None:
    told = call(report_command).output
    assert "SUCCEEDED after" in told and "1. at 3m: node2 lost (killed)" in told
    written = json.loads(call(report_command, "--json").output)
    assert written["run_dir"] == str(runs / "gang-1"), "where it is now, not where it was written"
    (runs / "gang-1/summary.json").unlink()
    again = call(report_command).output
    assert again == told
    content = json.loads(call(report_command, "--json").output)
    assert (content["kind"], content["state"], content["outcome"]) == ("report", "succeeded", "succeeded")
    assert "the run died without an end" in call(report_command, "gang-2").output


def test_a_report_has_the_goodput_and_buckets_that_add_up(runs: Path) -> None:
    told = call(report_command).output
    assert "\ngoodput " in told and "\nWhere the time went\n  role     productive  start-up" in told
    content = json.loads(call(report_command, "--json").output)
    assert sum(content["time_ns"]["trainer"].values()) == 4 * round(content["lasted_s"] * 1e9)
    assert 0.3 < content["goodput"] < 1 and content["not_reported"] == {}
    died = json.loads(call(report_command, "gang-2", "--json").output)
    assert sum(died["time_ns"]["trainer"].values()) == 4 * round(died["lasted_s"] * 1e9)


@pytest.mark.parametrize("run", ["gang-1", "gang-2"])
def test_every_reader_of_a_run_has_one_figure_of_lost_work(runs: Path, run: str) -> None:
    lost_s = json.loads(call(report_command, run, "--json").output)["lost_work_s"]["trainer"]
    assert lost_s > 10
    status = json.loads(call(status_command, run, "--json").output)
    assert status["lost_work_ns"] == {"trainer": round(lost_s * 1e9)}
    assert f"{rounded(lost_s)}\n" in call(report_command, run).output
    page = call(timeline_command, run, "-o", "-").output
    assert f"{rounded(lost_s)} of work lost" in page
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert data["lost"] == [["trainer", round(lost_s * 1e6)]]
    drawn = json.loads(call(timeline_command, run, "-o", "-", "--format", "perfetto").output)["traceEvents"]
    ends = {(e["id"], e["ph"]): e["ts"] for e in drawn if e.get("cat") == "lost work" and "trainer/0" in e["id"]}
    shown = sum(ts if phase == "e" else -ts for (_, phase), ts in ends.items())
    assert shown == pytest.approx(lost_s * 1e6, abs=1)


def test_what_an_earlier_version_wrote_down_is_completed_from_the_journal(runs: Path) -> None:
    told = call(report_command).output
    summary = (runs / "gang-1/summary.json").read_text()
    (runs / "gang-1/summary.json").write_text(summary.replace('"goodput"', '"share"'))
    assert call(report_command).output == told
    (runs / "gang-1/summary.json").write_text(summary)
    (runs / "gang-1/journal.jsonl").unlink()  # as on a host that joined
    assert call(report_command).output == told


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ([], ["[trainer/0] three", "[trainer/0] oops"]),
        (["--all-attempts", "--stdout"], ["[trainer/0] one", "[trainer/0] two", "[trainer/0] three"]),
        (["trainer/0", "--attempt", "1", "-n", "1"], ["[trainer/0] two"]),
        (["--stderr", "--no-prefix"], ["oops"]),
        (["trainer/3"], []),
        (["-f", "--stdout"], ["[trainer/0] three"]),
    ],
)
def test_logs_of_workers(runs: Path, arguments: list[str], lines: list[str]) -> None:
    assert call(logs_command, *arguments).output.splitlines() == lines


def test_logs_of_a_run_that_is_named_where_roles_are_is_helped_with(runs: Path) -> None:
    told = call(logs_command, "gang-2", code=2).output
    assert "gang-2 is a run, and logs takes roles" in told and "write flowdist logs --run gang-2" in told


def test_events_are_the_journal(runs: Path) -> None:
    journal = (runs / "gang-1/journal.jsonl").read_text()
    assert call(logs_command, "--events").output == call(logs_command, "--events", "-f").output == journal
    last = call(logs_command, "--events", "-n", "2").output
    assert last == call(logs_command, "--events", "-n", "2", "-f").output and last.count("\n") == 2
    assert journal.endswith(last)


@pytest.mark.parametrize(
    ("command", "arguments", "text"),
    [
        (logs_command, ["--events", "trainer"], "--events is about the whole run"),
        (logs_command, ["--attempt", "1", "-f"], "--attempt 1 does not go with -f"),
        (logs_command, ["--attempt", "1", "--all-attempts"], "--attempt 1 does not go with --all-attempts"),
        (logs_command, ["--attempt", "3"], "there is no attempt 3\nhelp: the last one is 2"),
        (logs_command, ["trainer/2", "--attempt", "3"], "there is no attempt 3\nhelp: none has started"),
        (logs_command, ["trianer"], "did you mean 'trainer'?"),
        (status_command, ["gang-1", "--watch", "--json"], "--watch does not go with --json"),
        (status_command, ["gang"], "matches more than one run"),
        (status_command, ["gagn-1"], "did you mean 'gang-1'?"),
        (run_command, ["--resume", "gang-1"], "it has succeeded"),
    ],
)
def test_a_users_mistake_is_told_in_words(runs: Path, command, arguments: list[str], text: str) -> None:  # type: ignore[no-untyped-def]
    assert text in call(command, *arguments, code=2).output


@pytest.mark.parametrize("named", [[], ["latest"], ["gang-1"], ["runs/gang-1"], ["runs/gang-1/journal.jsonl"]])
def test_replay_and_timeline_know_a_run_as_the_other_verbs_do(runs: Path, named: list[str]) -> None:
    assert "the job has succeeded" in call(replay_command, *named).output
    assert call(timeline_command, *named, "-o", "-").output.startswith("<!doctype html>")


def test_diff_knows_runs_by_their_names(runs: Path) -> None:
    (runs / "gang-2").rename(runs / "other")
    by_name, by_folder = (
        call(diff_command, *two, code=1).output for two in (("gang", "oth"), ("runs/gang-1", "runs/other"))
    )
    assert by_name == by_folder.replace("runs/gang-1", "gang").replace("runs/other", "oth")
    (runs / "gang-3").mkdir()
    (runs / "gang-3/graph.json").write_bytes((runs / "gang-1/graph.json").read_bytes())
    assert "matches more than one run" in call(diff_command, "other", "gang", code=2).output


def test_on_a_host_that_has_joined_one_is_told_where_to_ask(runs: Path) -> None:
    for folder in ("gang-1", "gang-2"):
        (runs / folder / "joined").write_text("host0:29400\n")
    (runs / "latest").unlink()
    told = call(status_command, code=2).output
    assert "this host has joined host0:29400: ask there; its logs here: flowdist logs --run gang-" in told
    (runs / "gang-1/journal.jsonl").unlink()
    write_end(runs / "gang-1", {"outcome": "succeeded", "reason": "", "lasted_s": 2.0, "root_cause": ""})
    assert "gang-1" in call(report_command, "gang-1", code=2).output


def test_a_run_that_was_cancelled_is_not_resumed(runs: Path) -> None:
    journal = runs / "gang-1/journal.jsonl"
    journal.write_text(journal.read_text().replace('"outcome":"succeeded"', '"outcome":"cancelled"'))
    assert "it was cancelled" in call(run_command, "--resume", "gang-1", code=2).output


def test_to_watch_a_run_that_is_over_shows_how_it_ended(runs: Path) -> None:
    assert call(status_command, "--watch").output == call(status_command).output


@pytest.mark.parametrize("content", ["not json", '{"endpoint":3}', "[" * 10_000, "\udcff"])
def test_a_run_whose_endpoint_cannot_be_read_is_shown_and_not_resumed(runs: Path, content: str) -> None:
    path = runs / "gang-2/listens.json"
    path.write_text(content, errors="surrogateescape")
    assert "resume it: flowdist run --resume gang-2" in call(report_command, "gang-2").output
    told = call(run_command, "--resume", "gang-2", code=2).output
    assert "listens.json of run gang-2 cannot be read: " in told and f"to {path}, as the run had them" in told


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", '{"outcome":"succeeded","reason":"","lasted_s":1e999}'),
        ("summary.json", '{"outcome":["x"],"reason":3,"lasted_s":1}'),
        ("status.json", "\udcff"),
        ("environment.json", '{"starts":[3]}'),
    ],
)
def test_a_damaged_file_of_a_run_that_is_over_is_left_out(runs: Path, name: str, content: str) -> None:
    (runs / "gang-1" / name).write_text(content, errors="surrogateescape")
    assert "SUCCEEDED" in call(report_command, "gang-1").output
    assert "succeeded" in call(status_command, "gang-1").output
    assert "gang-1" in call(list_command).output


DAMAGES = {
    "a byte": lambda lines: [*lines[:30], lines[30].replace(b"event", b"evenu", 1), *lines[31:]],
    "no JSON": lambda lines: [*lines[:30], b"x" + lines[30], *lines[31:]],
    "no UTF-8": lambda lines: [*lines[:30], b"\xef" + lines[30], *lines[31:]],
    "doubled": lambda lines: [*lines[:30], lines[29], *lines[30:]],
    "another run": lambda lines: [
        *lines[:30],
        lines[30].replace(b'"check":"', b'"check":"0')[:-4] + b'"}\n',
        *lines[31:],
    ],
}


def sealed(lines: list[bytes]) -> list[bytes]:
    """Return the lines of a trace as those of a journal, with their checks."""
    chain = CheckChain()
    return [chain.add_check(line) for line in lines]


@pytest.fixture(params=DAMAGES)
def damaged(runs: Path, request: pytest.FixtureRequest) -> Path:
    """Damage line 31 of the journals of both runs."""
    for name in ("gang-1", "gang-2"):
        path = runs / name / "journal.jsonl"
        path.write_bytes(b"".join(DAMAGES[request.param](sealed(path.read_bytes().splitlines(keepends=True)))))
    return runs


def test_a_run_whose_journal_is_damaged_is_shown_up_to_the_bad_line(damaged: Path) -> None:
    """The run has died. Each verb shows what lies before the line, names it, and says how to go on; it ends with 2."""
    for command, words in (
        (status_command, "gang-2  died  after 3m6"),
        (report_command, "1. at 3m: node2 lost (killed)"),
        (replay_command, "28 events replayed: the same effects at each"),
        (logs_command, '"n":28,'),
    ):
        arguments = ("--events", "--run", "gang-2") if command is logs_command else ("gang-2",)
        done = call(command, *arguments, code=2)
        assert words in done.stdout and "Traceback" not in done.output, done.output
        assert "/journal.jsonl:31: " in done.stderr, done.stderr
        assert "lines 1 to 30 can be read: 28 events, up to 3m6" in done.stderr
        assert "help: go on from before it: flowdist run --resume gang-2 --truncate-at 31" in done.stderr
    assert call(timeline_command, "gang-2", "-o", "-", code=2).stdout.startswith("<!doctype html>")
    assert "journal.jsonl:31: " in call(diff_command, "gang-1", "gang-2", code=2).stderr
    for arguments in (["--fail", "node1@3m"], ["--with", str(TOPOLOGIES / "gang.py")]):
        assert "journal.jsonl:31: " in call(replay_command, "gang-2", *arguments, code=2).stderr
    assert call(replay_command, "gang-2", "--step", "20").exit_code == 0, "the bad line is after that"
    content = json.loads(call(status_command, "gang-2", "--json", code=2).stdout)
    assert content["state"] == "died" and content["now_ns"] == 186_118_200_000


def test_a_damaged_journal_of_a_run_that_is_over_hides_nothing_that_was_written_at_its_end(damaged: Path) -> None:
    assert "the job has succeeded" in call(status_command).output and "SUCCEEDED" in call(report_command).output
    assert "use an earlier copy of the file" in call(replay_command, code=2).stderr, "there is nothing to resume"
    assert "it has succeeded" in call(run_command, "--resume", "gang-1", "--truncate-at", "31", code=2).output


def test_list_says_that_a_journal_is_damaged(damaged: Path) -> None:
    rows = {run["run"]: run for run in json.loads(call(list_command, "--json").output)["runs"]}
    assert rows["gang-1"]["state"] == "succeeded" and rows["gang-2"]["state"] == "died"
    assert rows["gang-2"]["reason"].startswith("a line of its journal cannot be used: ")


def test_a_damaged_journal_is_not_resumed_and_can_be_cut_off_before_the_bad_line(damaged: Path) -> None:
    run_dir = damaged / "gang-2"
    whole = (run_dir / "journal.jsonl").read_bytes()
    told = call(run_command, "--resume", "gang-2", code=2).output
    assert "journal.jsonl:31: " in told and "flowdist run --resume gang-2 --truncate-at 31; the whole journal" in told
    for number, words in (
        (33, "journal.jsonl:31: "),
        (1, f"has {len(whole.splitlines())} lines"),
        (0, f"has {len(whole.splitlines())} lines"),
        (99, "name a line from 2 to 4"),
    ):
        assert words in call(run_command, "--resume", "gang-2", "--truncate-at", str(number), code=2).output
    assert (run_dir / "journal.jsonl").read_bytes() == whole, "nothing was changed so far"
    told = truncate_journal(run_dir, 31)
    assert told.startswith("the journal is cut off before line 31 (28 events, up to 3m6")
    assert told.endswith("; all of it is kept in journal.before-31.jsonl")
    assert (run_dir / "journal.before-31.jsonl").read_bytes() == whole
    assert (run_dir / "journal.jsonl").read_bytes() == b"".join(whole.splitlines(keepends=True)[:30])
    assert resume_point(run_dir).lines == 30
    assert "28 events replayed: the same effects" in call(replay_command, "gang-2").stdout
    assert truncate_journal(run_dir, 31).endswith("journal.before-31-2.jsonl"), "an earlier copy stays"


def test_a_journal_of_another_run_is_not_resumed(runs: Path) -> None:
    header = Header(RoleGraph("other", (RoleSpec("a", ("true",)),)), ())
    (runs / "gang-2/journal.jsonl").write_bytes(encode_line(header))
    told = call(run_command, "--resume", "gang-2", code=2).output
    assert "journal.jsonl:1: its graph is not that of graph.json beside it" in told and "start a new run" in told


def test_an_event_that_cannot_be_replayed_is_named_by_every_verb(runs: Path) -> None:
    path = runs / "gang-2/journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    number = json.loads(lines[-1])["n"] + 1
    wrong = Record(number, json.loads(lines[-1])["t_ns"], ReplicaStopped(ReplicaId("nosuch", 7), 1))
    path.write_bytes(b"".join(sealed([*lines, encode_line(wrong)])))
    for command in (status_command, report_command, replay_command, timeline_command):
        done = call(command, "gang-2", code=2)
        words = f"journal.jsonl:{len(lines) + 1}: event {number} (ReplicaStopped) cannot be: the job has no replica"
        assert words in done.stderr and f"--truncate-at {len(lines) + 1}" in done.stderr, done.output
    assert words in call(run_command, "--resume", "gang-2", code=2).output


def test_truncation_goes_with_a_resume(runs: Path) -> None:
    assert "--truncate-at goes with --resume" in call(run_command, "--truncate-at", "3", code=2).output
