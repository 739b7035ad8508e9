"""Whatever a worker leaves where flowdist reads a file: its exit is reported, soon, and with little memory.

No test waits for a pipe or reads a large file in vain: each would take longer than a test may.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowdist import Topology
from flowdist.control.job.state import JobState
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import RoleGraph, RoleSpec
from flowdist.runtime.agent.workers import WorkerExits
from flowdist.runtime.left_files import modified_ns, read_from, read_number, read_small, size_of
from flowdist.runtime.processes.spawn_protocol import INJECTED_EXIT, injected_code, read_pid
from flowdist.runtime.run_folder.log_reader import find_logs, lines_of, start_of_last
from flowdist.runtime.run_folder.logs import CUT, LogFile, OutputWatch
from flowdist.runtime.run_folder.remote_error_report import collect_report
from flowdist.runtime.run_folder.root_cause import root_cause_text
from flowdist.runtime.wire.framing import encode
from flowdist.runtime.worker_env.secret_values import Mask
from flowdist.runtime.worker_env.stop_notice import ASKED, announce_stop
from flowdist.runtime.worker_env.worker_errors import ERROR_LINE_MAX, error_line, last_lines, read_error_file
from flowdist.testing import simulate
from flowdist.testing.kit import graph_of
from tests.choosing import examples

START = StartReplica("node0", ReplicaId("trainer", 0), 1, "trainer", 1, 0, 1, 0, 1, 0, 1, 0, "", 0)
GiB = 1 << 30


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(GiB)


def sealed(path: Path) -> None:
    path.write_text("secret")
    path.chmod(0)


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as link:
        before = Path.cwd()
        os.chdir(path.parent)  # the path of a socket has to be short
        link.bind(path.name)
        os.chdir(before)


ODD: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "a folder": lambda path: path.mkdir(),
    "a pipe that no process writes": os.mkfifo,
    "a terminal": lambda path: path.symlink_to("/dev/tty"),
    "endless zeros": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a GiB of holes": sparse,
    "an unreadable file": sealed,
    "a socket": bound,
    "an empty file": lambda path: path.touch(),
    "no text": lambda path: path.write_bytes(bytes(range(256)) * 100),
    "its own memory": lambda path: path.symlink_to("/proc/self/mem"),
}
CONTENTS = [
    b'{"message": {"message": 5, "extraInfo": 7}}',
    b'{"message": {"message": null, "extraInfo": {"py_callstack": [1]}}}',
    b'{"message": {"message": "\\ud800 half a character", "extraInfo": {"py_callstack": "\\udfff"}}}',
    b'{"message": "\\ud800"}',
    b'{"message": NaN}',
    b'{"message": {"message": NaN, "extraInfo": NaN}}',
    b'{"message": {"message": ' + b"9" * 5000 + b"}}",
    b'{"message": {"message": 1e400, "extraInfo": []}}',
    b'{"message": {"message": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    b'{"message": {"message": ' + b"[" * 900 + b"]" * 900 + b"}}",
    b"[" * 200_000,
    b'{"message": []}',
    b"[]",
    b"null",
    b'"message"',
    b'\xef\xbb\xbf{"message": "x"}',
    '{"message": "x"}'.encode("utf-16"),
    b'{"message": "\\u0000\\u001b[2J"}',
    b'{"message": "\\n\\n"}',
    b'{"message": "' + b"x" * 200_000 + b'"}',
    b'{"message": "' + b"x" * 2_000_000 + b'"}',
]


def assert_reported(folder: Path, code: int = 3) -> io.WorkerExited:
    """The exit is reported as it was, in a message that can be sent; so is the report for the controller's host."""
    exited = WorkerExits(Mask()).describe(START, 0, code, folder, was_killed=False)
    assert (exited.exit_code, exited.signal) == ((code, None) if code > 0 else (0, "KILL"))
    assert len(exited.detail) <= ERROR_LINE_MAX
    encode(exited)
    encode(collect_report(START, 0, folder, Mask()))
    return exited


@pytest.mark.parametrize("what", ODD)
def test_an_exit_is_reported_whatever_is_at_the_path_of_a_file(tmp_path: Path, what: str, failed: JobState) -> None:
    """One worker has left it at the path of one file, the next worker at that of another, and so on."""
    attempt = tmp_path / "trainer/0/attempt_1"
    (tmp_path / "trainer/0/attempt_x").mkdir(parents=True)
    tracemalloc.start()
    for number, name in enumerate(NAMES):
        folder = attempt / str(number)
        folder.mkdir(parents=True)
        ODD[what](folder / name)
        assert_reported(folder)
        assert injected_code(folder, -signal.SIGKILL) == -signal.SIGKILL
        assert read_pid(folder) is None
        assert all(len(line) < 2 << 20 for line in LogFile(folder / "stderr.log").new_lines(True, 8 << 20))
    assert announce_stop(attempt, len(NAMES)) is None
    OutputWatch(attempt).last_output_ns()
    root_cause_text(failed, tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20


NAMES = ("error.json", "stderr.log", "pid", INJECTED_EXIT, "injected_oom", ASKED)


@pytest.fixture(scope="module")
def failed() -> JobState:
    t = Topology("job", nodes=1)
    t.role("trainer", "true", restart=None)
    return simulate(graph_of(t), "trainer/0@10s").job


@pytest.mark.parametrize("content", CONTENTS, ids=[str(content[:40]) for content in CONTENTS])
def test_an_exit_is_reported_whatever_the_error_file_says(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "error.json").write_bytes(content)
    assert_reported(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


MESSAGES = st.one_of(
    JSON.map(lambda value: {"message": value}),
    st.tuples(JSON, JSON).map(lambda pair: {"message": {"message": pair[0], "extraInfo": pair[1]}}),
    st.tuples(JSON, JSON).map(lambda pair: {"message": {"message": pair[0], "extraInfo": {"py_callstack": pair[1]}}}),
)


@settings(max_examples=examples(50, 1000))
@given(st.binary(max_size=200) | MESSAGES.map(lambda content: json.dumps(content).encode()))
def test_any_content_of_an_error_file_is_a_text_or_nothing(tmp_path_factory: Any, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("worker")
    (folder / "error.json").write_bytes(content)
    assert_reported(folder)
    found = read_error_file(folder)
    assert found is None or msgspec.json.decode(msgspec.json.encode(found), type=tuple[str, str]) == found


def test_what_torch_writes_is_read(tmp_path: Path) -> None:
    error = {"message": "ValueError: bad shape\nmore", "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1"}}
    (tmp_path / "error.json").write_text(json.dumps({"message": error}))
    assert read_error_file(tmp_path) == ("ValueError: bad shape\nmore", "Traceback ...")
    assert error_line(tmp_path) == "ValueError: bad shape"
    assert assert_reported(tmp_path).raised_ns == modified_ns(tmp_path / "error.json")


def test_an_error_file_that_is_too_large_leaves_the_last_line_of_stderr(tmp_path: Path) -> None:
    (tmp_path / "error.json").write_text(json.dumps({"message": "x" * (300 << 10)}))
    (tmp_path / "stderr.log").write_text("one\ntwo\n\n")
    assert error_line(tmp_path) == "two"


def test_a_time_that_no_message_can_carry_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "error.json").write_text('{"message": "x"}')
    os.utime(tmp_path / "error.json", ns=(-(10**15), -(10**15)))
    assert assert_reported(tmp_path).raised_ns is None


@pytest.mark.parametrize("text", ["0", "-1", "1", "x", "", "9" * 40, "12\n13"])
def test_a_process_id_that_would_signal_others_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "pid").write_text(text)
    assert read_pid(tmp_path) is None


@pytest.mark.parametrize(("text", "code"), [("7", 7), ("-1", -9), ("256", -9), ("x", -9)])
def test_an_exit_code_that_a_fault_has_left_is_one(tmp_path: Path, text: str, code: int) -> None:
    (tmp_path / INJECTED_EXIT).write_text(text)
    assert injected_code(tmp_path, -signal.SIGKILL) == code


def test_a_file_is_read_in_parts(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"0123456789")
    assert [read_from(tmp_path / "log", *part) for part in ((0, 3), (8, 9), (12, 1), (-4, 2), (-40, 2))] == [
        b"012", b"89", b"", b"67", b"01",
    ]  # fmt: skip
    assert read_small(tmp_path / "log", 9) is None and read_small(tmp_path / "log", 10) == b"0123456789"
    assert read_number(tmp_path / "log") == 123456789 and read_number(tmp_path / "no\0such") is None
    assert last_lines(tmp_path / "no\0such", 3) == []


def test_a_line_without_end_is_shown_in_pieces_that_take_little_memory(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        for _ in range(40):
            log.write(b"x" * (1 << 20))
        log.write(b"end\nnext\nhalf")
    tracemalloc.start()
    lines, shown = [], 0
    for line in LogFile(tmp_path / "log").new_lines(final=True):
        shown += len(line.removesuffix(CUT))
        lines.append(line[-len(CUT) :])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert shown == (40 << 20) + len("endnexthalf") and peak < 12 << 20
    assert lines[:-3] == [CUT] * 40 and lines[-3:] == ["end", "next", "half"]


def test_one_look_at_a_log_reads_no_more_than_it_may(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"line\n" * 1000)
    log = LogFile(tmp_path / "log")
    assert [len(list(log.new_lines(False, 2500))) for _ in range(3)] == [500, 500, 0]


def test_no_link_is_followed_to_a_log(tmp_path: Path) -> None:
    """A worker could have any file of the user shown, at each place of the path of its log."""
    secret, run_dir = tmp_path / "secret", tmp_path / "run"
    (secret / "attempt_1/0").mkdir(parents=True)
    (secret / "attempt_1/0/stdout.log").write_text("a key\n")
    attempt = run_dir / "trainer/0/attempt_1"
    (attempt / "0").mkdir(parents=True)
    (attempt / "0/stdout.log").symlink_to(secret / "attempt_1/0/stdout.log")
    (attempt / "1").symlink_to(secret / "attempt_1/0")
    attempt.with_name("attempt_2").symlink_to(secret / "attempt_1")
    (run_dir / "trainer/1").symlink_to(secret)
    (run_dir / "ps").symlink_to(run_dir / "trainer")
    graph = RoleGraph("links", tuple(RoleSpec(name, ("true",), max_replicas=2, procs=2) for name in ("trainer", "ps")))
    (log,) = find_logs(run_dir, graph, [], ("stdout",))
    assert log.path == attempt / "0/stdout.log"
    assert list(lines_of(log.path)) == list(lines_of(log.path, 1)) == [] and start_of_last(log.path, 1) == 0
    assert (size_of(log.path), read_from(log.path, 0, 9), modified_ns(log.path)) == (0, None, None)
    (attempt / "0/stdout.log").unlink()
    (attempt / "0/stdout.log").write_text("a line\n")
    assert list(lines_of(log.path, 1)) == ["a line"]
