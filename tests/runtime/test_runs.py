"""Runs by their folders: finding one, its state, and its logs, without a process."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowdist.cli.run.console import finish
from flowdist.cli.shared.records import replay_of
from flowdist.control.controller import Controller
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.ids import ReplicaId
from flowdist.errors import FlowdistError
from flowdist.graph import NodeSpec, RoleGraph, RoleSpec, SecretRef, encode_graph
from flowdist.record.journal import Header, encode_line, record
from flowdist.report.record.summary import summary_text
from flowdist.runtime.run_folder.folder import find_run, is_locked, lock_run, new_run, run_dirs
from flowdist.runtime.run_folder.log_reader import LogTail, find_logs, latest_attempts, lines_of, parse_target
from flowdist.runtime.run_folder.resume import resume_point, run_is_over
from flowdist.runtime.run_folder.runs import (
    describe,
    environment_of,
    has_begun,
    known_mask,
    operate,
    resume_help,
    state_of,
    status_at_end,
    written_status,
)
from flowdist.runtime.supervisor.host_process import cancelled_before_start
from flowdist.runtime.worker_env.run_environment import write_environment
from flowdist.runtime.worker_env.secret_values import Mask

GRAPH = RoleGraph("x", (RoleSpec("ps", ("true",)), RoleSpec("trainer", ("true",), max_replicas=3, procs=2)))
BOTH = ("stdout", "stderr")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    for number, name in enumerate(("word2vec-20261120-1-aaaa", "word2vec-20261121-1-bbbb", "gpt-20261121-1-cccc")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "graph.json").write_bytes(encode_graph(GRAPH))
        os.utime(folder / "graph.json", (1000 + number, 1000 + number))
    (tmp_path / "latest").symlink_to("gpt-20261121-1-cccc")
    return tmp_path


def journal(run_dir: Path, *events: ev.Event) -> list[bytes]:
    controller, lines = Controller(GRAPH, ("node0",)), [encode_line(Header(GRAPH, ("node0",), run_dir.name))]
    for number, event in enumerate((ev.NodeJoined("node0", NodeSpec("node0")), *events), 1):
        lines.append(encode_line(record(number, number, event, controller.handle(event, number))))
    (run_dir / "journal.jsonl").write_bytes(b"".join(lines))
    return lines


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("latest", "gpt-20261121-1-cccc"),
        ("gpt", "gpt-20261121-1-cccc"),
        ("word2vec-20261120", "word2vec-20261120-1-aaaa"),
        ("word2vec-20261121-1-bbbb", "word2vec-20261121-1-bbbb"),
    ],
)
def test_a_run_is_named_by_its_name_or_the_beginning_of_it(base: Path, name: str, found: str) -> None:
    run_dir, graph = find_run(base, name)
    assert run_dir == base / found and graph == GRAPH


def test_a_run_is_named_by_its_folder(base: Path) -> None:
    assert find_run(base / "elsewhere", str(base / "latest"))[0] == base / "gpt-20261121-1-cccc"


def test_a_run_may_be_named_by_its_path(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(base.parent)
    for runs in (base, Path(base.name)):
        assert (
            find_run(runs, f"{base.name}/gpt")[0] == find_run(runs, f"{base}/gpt-")[0] == base / "gpt-20261121-1-cccc"
        )
        with pytest.raises(FlowdistError) as caught:
            find_run(runs, f"{base.name}/gtp-20261121-1-cccc")
        assert caught.value.message == f"there is no run 'gtp-20261121-1-cccc' in {runs}"
        assert caught.value.help == "did you mean 'gpt-20261121-1-cccc'?"
    with pytest.raises(FlowdistError, match="there is no run 'elsewhere/gpt' in"):
        find_run(base, "elsewhere/gpt")


@pytest.mark.parametrize(
    ("name", "text", "help"),
    [
        (
            "word2vec",
            "matches more than one run: word2vec-20261121-1-bbbb, word2vec-20261120-1-aaaa",
            "more of its name",
        ),
        ("gtp-20261121-1-cccc", "there is no run 'gtp-20261121-1-cccc'", "did you mean 'gpt-20261121-1-cccc'?"),
        ("zzz", "there is no run 'zzz'", "known: gpt-20261121-1-cccc, word2vec-20261121-1-bbbb"),
        ("", "there is no run ''", "known: gpt"),
    ],
)
def test_the_error_for_a_missing_run_has_a_help(base: Path, name: str, text: str, help: str) -> None:
    with pytest.raises(FlowdistError) as caught:
        find_run(base, name)
    assert text in caught.value.message and help in caught.value.help and caught.value.exit_code == 2


def test_the_error_without_any_run_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(FlowdistError) as caught:
        find_run(tmp_path / "runs", "mine")
    assert caught.value.message == f"there is no run 'mine' in {tmp_path / 'runs'}"
    assert caught.value.help.startswith("there are no runs in") and "--runs" in caught.value.help


def test_where_there_is_no_run_yet_the_error_says_how_one_is_started(tmp_path: Path) -> None:
    with pytest.raises(FlowdistError) as caught:
        find_run(tmp_path / "runs", "latest")
    assert caught.value.message == f"there is no run in {tmp_path / 'runs'} yet", "nobody has typed 'latest'"
    assert caught.value.help.startswith("start one with flowdist run, or name the folder")


def test_a_graph_that_cannot_be_read_is_an_error_in_words(base: Path) -> None:
    (base / "gpt-20261121-1-cccc/graph.json").write_text("{}")
    with pytest.raises(FlowdistError, match="the graph of latest cannot be read"):
        find_run(base, "latest")


def test_runs_are_listed_the_newest_first(base: Path) -> None:
    assert [path.name[:12] for path in run_dirs(base)] == ["gpt-20261121", "word2vec-202", "word2vec-202"]


def test_a_run_whose_lock_is_held_is_running_and_one_without_an_end_has_died(base: Path) -> None:
    run_dir = base / "gpt-20261121-1-cccc"
    assert state_of(run_dir).state == "died"
    journal(run_dir)
    with (run_dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_locked(run_dir) and state_of(run_dir).state == "running"
    assert not is_locked(run_dir) and state_of(run_dir) == ("died", "", 1)


def test_lock_run_waits_for_is_locked(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`flowdist list` may check a run in the instant in which a joining host takes the lock of its own folder."""
    run_dir = base / "gpt-20261121-1-cccc"
    with (run_dir / "lock").open("w") as looks:
        fcntl.flock(looks, fcntl.LOCK_SH)
        monkeypatch.setattr("time.sleep", lambda _: fcntl.flock(looks, fcntl.LOCK_UN))
        os.close(lock_run(run_dir))
        fcntl.flock(looks, fcntl.LOCK_SH)
        with pytest.raises(FlowdistError, match="is still running"):
            lock_run(run_dir, -1)


def test_how_a_run_has_ended_is_in_its_journal_whatever_came_after(base: Path) -> None:
    run_dir = base / "gpt-20261121-1-cccc"
    late = ev.ReplicaStopped(ReplicaId("ps", 0), 1)
    journal(run_dir, ev.NodeGone("node0"), ev.CancelRequested("enough"), late, late)
    assert state_of(run_dir) == ("cancelled", "enough", 3)
    with (run_dir / "journal.jsonl").open("ab") as file:
        file.write(b'{"type":"event","n":7,"t_')
    assert state_of(run_dir) == ("cancelled", "enough", 3)


def test_after_too_many_late_lines_the_end_is_read_from_the_summary(base: Path) -> None:
    run_dir = base / "gpt-20261121-1-cccc"
    *_, last = journal(run_dir)
    (run_dir / "journal.jsonl").write_bytes(last * 3000)
    assert state_of(run_dir).state == "died"
    (run_dir / "summary.json").write_text('{"outcome": "failed", "reason": "why", "lasted_s": 2}')
    assert state_of(run_dir) == ("failed", "why", 2 * 10**9)
    (run_dir / "summary.json").write_text("not json")
    assert state_of(run_dir).state == "died"


def test_a_run_that_was_interrupted_before_it_began_was_cancelled(base: Path) -> None:
    """It has no journal that could say so, but its summary does, and it cannot be resumed."""
    run_dir = new_run(base, GRAPH)
    assert state_of(run_dir).state == "died" and not has_begun(run_dir)
    finish(cancelled_before_start(run_dir, GRAPH), as_json=True, mask=str)
    assert state_of(run_dir) == ("cancelled", "interrupted before it began", 0)
    status = written_status(run_dir)
    assert status is not None and status.state == "cancelled"
    told = summary_text(json.loads((run_dir / "summary.json").read_text()))
    assert told.startswith("CANCELLED after 0s: interrupted before it began") and "the time went" not in told
    with pytest.raises(FlowdistError, match=f"run {run_dir.name} is over: it was cancelled"):
        resume_point(run_dir)
    journal(run_dir)
    assert has_begun(run_dir)
    resume_point(run_dir)


@pytest.mark.parametrize(("outcome", "has_hint"), [("cancelled", True), ("failed", True), ("succeeded", False)])
def test_a_run_that_is_over_cannot_be_resumed_but_its_checkpoints_can_be_used(
    base: Path, outcome: str, has_hint: bool
) -> None:
    run_dir = new_run(base, GRAPH)
    saved = run_dir / "checkpoints/trainer"
    saved.mkdir()
    start = "start a new run with flowdist run"
    assert run_is_over(run_dir, outcome).help == start, "an empty folder has no checkpoints"
    (saved / "latest.json").touch()
    option = f"--set checkpoint_dir={run_dir}/checkpoints"
    expected = f"{start}; add {option} to go on from the checkpoints of this one" if has_hint else start
    assert run_is_over(run_dir, outcome).help == expected


def test_the_error_of_resume_names_the_checkpoints_of_a_cancelled_run(base: Path) -> None:
    run_dir = new_run(base, GRAPH)
    journal(run_dir, ev.NodeGone("node0"), ev.CancelRequested("enough"))
    (run_dir / "checkpoints/step-3.pt").touch()
    with pytest.raises(FlowdistError, match="is over: it was cancelled") as caught:
        resume_point(run_dir)
    assert f"checkpoint_dir={run_dir}/checkpoints" in caught.value.help


def test_a_request_to_a_run_that_is_over_is_answered_with_its_end(base: Path) -> None:
    run_dir = base / "gpt-20261121-1-cccc"
    with pytest.raises(FlowdistError) as caught:
        describe(run_dir)
    assert "has died" in caught.value.message and "flowdist run --resume gpt-20261121-1-cccc" in caught.value.help
    journal(run_dir)
    with pytest.raises(FlowdistError) as caught:
        describe(run_dir)
    assert "has died" in caught.value.message and "flowdist run --resume gpt-20261121-1-cccc" in caught.value.help
    journal(run_dir, ev.NodeGone("node0"), ev.CancelRequested("enough"))
    with pytest.raises(FlowdistError, match="is over: it was cancelled"):
        operate(run_dir, ev.ScaleRequested("trainer", 2))


@pytest.mark.slow
def test_a_request_to_a_run_without_controller_fails_after_a_while(base: Path) -> None:
    run_dir = base / "gpt-20261121-1-cccc"
    with (run_dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(FlowdistError, match="is on another host"):
            describe(run_dir)
        journal(run_dir)
        with pytest.raises(FlowdistError, match="does not answer"):
            describe(run_dir, patience_s=0.1)


def test_the_command_to_resume_names_the_folder_where_it_is_not_the_usual_one(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal(base / "latest")
    assert f"--runs {base}" in resume_help(base / "latest")
    monkeypatch.chdir(base)
    base.rename(base.with_name("runs"))
    monkeypatch.chdir(base.parent)
    assert resume_help(Path.cwd() / "runs/latest").endswith("flowdist run --resume latest")


def test_the_command_to_resume_names_the_folder_if_the_current_one_is_gone_or_its_name_has_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert resume_help(Path("/a folder/latest")).endswith("flowdist run --resume latest --runs '/a folder'")
    monkeypatch.undo()


def test_the_status_at_the_end_of_a_journal(base: Path) -> None:
    run_dir = base / "gpt-20261121-1-cccc"
    journal(run_dir, ev.ScaleRequested("trainer", 2))
    record, replay, _ = replay_of(run_dir / "journal.jsonl")
    told = status_at_end(run_dir, record.header, replay)
    assert told.run_id == run_dir.name and told.roles[1].target == 2
    assert [notice.text for notice in told.said][-2:] == [
        "trainer: scaled to 2 replicas by the operator",
        "trainer: generation 2 forms with 2 replicas of at most 2",  # its store was opening
    ]


@pytest.fixture
def logs(base: Path) -> Path:
    """ps/0 with two attempts, trainer/0 and /1 with two workers each; the second of trainer/1 wrote nothing."""
    run_dir = base / "gpt-20261121-1-cccc"
    for place in (
        "ps/0/attempt_1/0",
        "ps/0/attempt_10/0",
        *(f"trainer/{i}/attempt_1/{k}" for i in (0, 1) for k in (0, 1)),
    ):
        (run_dir / place).mkdir(parents=True)
        for stream in BOTH:
            (run_dir / place / f"{stream}.log").write_text(f"{place} {stream}\n")
    (run_dir / "trainer/1/attempt_1/1/stdout.log").unlink()
    (run_dir / "ps/0/notes").mkdir()
    return run_dir


def told(run_dir: Path, *targets: str, streams: tuple[str, ...] = BOTH, attempt: int | None = None) -> Iterator[str]:
    meant = [parse_target(text, GRAPH) for text in targets]
    for log in find_logs(run_dir, GRAPH, meant, streams, attempt):  # type: ignore[arg-type]
        yield f"{log.name} {log.attempt} {log.stream}"


def test_logs_come_by_role_replica_attempt_and_worker(logs: Path) -> None:
    assert list(told(logs, streams=("stdout",))) == [
        "ps/0 1 stdout",
        "ps/0 10 stdout",
        "trainer/0.0 1 stdout",
        "trainer/0.1 1 stdout",
        "trainer/1.0 1 stdout",
        "trainer/1.1 1 stdout",
    ]
    assert list(told(logs, "trainer/1.0", "ps", attempt=1)) == [
        "ps/0 1 stdout",
        "ps/0 1 stderr",
        "trainer/1.0 1 stdout",
        "trainer/1.0 1 stderr",
    ]
    assert list(told(logs, "trainer/2")) == []


def test_the_last_attempt_is_that_of_the_highest_number(logs: Path) -> None:
    found = latest_attempts(find_logs(logs, GRAPH, [], BOTH))
    assert [log.attempt for log in found if log.name == "ps/0"] == [10, 10]


@pytest.mark.parametrize(
    ("text", "message", "help"),
    [
        ("trainr/0", "there is no role 'trainr'", "did you mean 'trainer'?"),
        ("zebra", "there is no role 'zebra'", "roles: ps, trainer"),
        ("trainer/3", "there is no replica trainer/3", "the last one is trainer/2"),
        ("trainer/1.2", "there is no worker trainer/1.2", "has 2 workers, from 0"),
        ("ps/0.1", "there is no worker ps/0.1", "has 1 worker, from 0"),
        ("trainer/x", "'trainer/x' names no logs", "trainer/0.1"),
        ("trainer.1", "there is no role 'trainer.1'", "did you mean 'trainer'?"),
    ],
)
def test_the_error_for_an_impossible_target_has_a_help(text: str, message: str, help: str) -> None:
    with pytest.raises(FlowdistError) as caught:
        parse_target(text, GRAPH)
    assert message in caught.value.message and help in caught.value.help


@pytest.mark.parametrize("content", ["", "a\nb\nc\n", "a\nb\nc", "\n\n\n", "x" * 200_000 + "\nend\n"])
@pytest.mark.parametrize("last", [0, 1, 2, 3, 50])
def test_the_last_lines_of_a_file(tmp_path: Path, content: str, last: int) -> None:
    (tmp_path / "log").write_text(content)
    lines = content.removesuffix("\n").split("\n") if content else []
    assert list(lines_of(tmp_path / "log", last)) == (lines[-last:] if last else [])
    assert list(lines_of(tmp_path / "log")) == lines


def test_no_file_has_no_lines(tmp_path: Path) -> None:
    assert list(lines_of(tmp_path / "log")) == list(lines_of(tmp_path / "log", 3)) == []


def test_a_log_tail_yields_added_lines_and_later_attempts(logs: Path) -> None:
    follow = LogTail(logs, GRAPH, [parse_target("ps", GRAPH)], ("stdout",))
    follow.start(latest_attempts(find_logs(logs, GRAPH, [parse_target("ps", GRAPH)], ("stdout",))), last=1)
    assert [line for _, line in follow.new_lines()] == ["ps/0/attempt_10/0 stdout"], "nothing of the first attempt"
    with (logs / "ps/0/attempt_10/0/stdout.log").open("a") as file:
        file.write("more\nhalf")
    (logs / "ps/0/attempt_11/0").mkdir(parents=True)
    (logs / "ps/0/attempt_11/0/stdout.log").write_text("again\n")
    assert [line for _, line in follow.new_lines()] == ["more"]
    follow.find_new_files()
    assert [(log.attempt, line) for log, line in follow.new_lines()] == [(11, "again")]
    assert [line for _, line in follow.new_lines(final=True)] == ["half"] and not list(follow.new_lines(final=True))


def test_where_and_how_a_run_was_started_is_written_each_time_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = RoleSpec("a", ("true",), secrets=(SecretRef("KEY", env="SOME_KEY"), SecretRef("FILE", file="/none")))
    graph = RoleGraph("x", (secret,))
    run_dir = new_run(tmp_path, graph)
    monkeypatch.setenv("SOME_KEY", "hunter2")
    monkeypatch.setattr("sys.argv", ["flowdist", "run", "--", "--key=hunter2"])
    for _ in range(2):
        write_environment(run_dir, graph, Mask(["hunter2"]), "1.2.3")
    first, second = environment_of(run_dir)
    assert first["argv"] == ["flowdist", "run", "--", "--key=***"] and first["flowdist"] == "1.2.3"
    assert first["cwd"] == str(Path.cwd()) and first["python"] and first["host"] and second["started_at"]
    assert first["secrets"] == [
        {"role": "a", "name": "KEY", "source": "SOME_KEY"},
        {"role": "a", "name": "FILE", "source": "/none"},
    ]
    assert json.loads((run_dir / "environment.json").read_text())["format"] == 1
    assert "hunter2" not in (run_dir / "environment.json").read_text()
    assert known_mask(graph, os.environ)("say hunter2") == "say ***", "what cannot be read here is not hidden"


@pytest.mark.parametrize("content", ["", "[]", '{"starts": 1}'])
def test_a_run_of_before_there_was_such_a_file_has_no_starts(tmp_path: Path, content: str) -> None:
    assert environment_of(tmp_path) == []
    (tmp_path / "environment.json").write_text(content)
    assert environment_of(tmp_path) == []
