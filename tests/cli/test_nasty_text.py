"""Text of hosts, workers and files reaches no terminal as it is: every verb, with text that a terminal would obey."""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings

from flowdist.cli.main import main
from flowdist.cli.run.console import Console, Shown
from flowdist.cli.shared.common import write_trace
from flowdist.control.protocol import events as ev
from flowdist.graph import SECOND, NodeSpec, RestartPolicy, encode_graph
from flowdist.record.journal import FaultLine, Header, Line, UnsavedLine
from flowdist.text.streams import print_printable_only
from tests.choosing import examples
from tests.control.harness import graph, role
from tests.report.records import Conversation
from tests.text.nasty import nasty_text, obeyed

ALL = "\x1b[2J\x1b]0;title\x07\x1b[31mred\r\b\x9b2J\x7f\u202e\u200b\u2028\U000e0041\udcff\nflowdist 0.00s | lie"
VERBS = """
status
status --watch --plain
logs
logs --no-prefix
logs --events
logs -f
logs \x1b[2J
list
report
report RUN\x1b[2J
timeline --format html -o -
timeline --format perfetto -o -
timeline \x9b2J
replay
replay --state
replay --until \x1b[2J
diff latest other
why
why \x1b[2J
explain \x1b[2J
check \x1b]0;title\x07.py
simulate --fail \x1b[2J
run --resume \x1b[2J
scale trainer=\x1b[2J
\x1b[2J
--\x1b[2J
"""


class _Terminal(io.TextIOWrapper):
    """Stream that says that it is a terminal, and keeps what it gets."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="replace", write_through=True)

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode(errors="surrogateescape")


@contextmanager
def terminals(*words: str) -> Iterator[tuple[_Terminal, _Terminal]]:
    """Replace the command line and the output of this process by these words and two terminals."""
    before = sys.argv, sys.stdout, sys.stderr
    interrupt = signal.getsignal(signal.SIGINT)  # main() ignores it from when the process is about to end
    out, err = _Terminal(), _Terminal()
    sys.argv, sys.stdout, sys.stderr = ["flowdist", *words], out, err
    try:
        yield out, err
    finally:
        sys.argv, sys.stdout, sys.stderr = before
        signal.signal(signal.SIGINT, interrupt)


def shown(*words: str) -> tuple[str, str]:
    """Return what a command line shows on the terminal, stdout and stderr."""
    with terminals(*words) as (out, err), pytest.raises(SystemExit):
        main()
    return out.text, err.text


def _record(text: str) -> tuple[Header, list[Line]]:
    """Return the record of a job in which nodes, causes, paths, faults and errors have this text."""
    policy = RestartPolicy(scope="role", max_restarts=1, backoff_ns=0)
    job = graph(role("trainer", min_replicas=1, max_replicas=2, restart=policy), nodes=1, cpu=4.0)
    names = ("node1", f"n{text}")
    cluster = msgspec.structs.replace(job.cluster, nodes=tuple(NodeSpec(name, cpu=4.0) for name in names))
    job = msgspec.structs.replace(job, name=f"job{text}", cluster=cluster)
    talk = Conversation(job, f"run{text}")

    def tell(event: ev.Event) -> None:
        talk.now += SECOND
        talk.tell(event)

    first = next(iter(talk.controller.state.replicas))
    tell(ev.CheckpointOffered(first, 1, 1, text, 1))
    talk.lines.append(FaultLine(talk.now, f"{text}@3s", text))
    talk.lines.append(UnsavedLine(talk.now, "trainer", 3, text))
    tell(ev.ReplicaExited(first, 1, "exit", 3, detail=text))
    tell(ev.NodeGone(names[1], text))
    last = talk.controller.state.replicas[first]
    tell(ev.ReplicaExited(first, last.attempt, "exit", 3, detail=text))
    return talk.header, talk.lines


def _run(folder: Path, text: str) -> None:
    """Make the folder of a run that has failed, with this text wherever a host, a worker or a file may have text."""
    header, lines = _record(text)
    (folder / "trainer/0/attempt_1/0").mkdir(parents=True)
    for stream in ("stdout", "stderr"):
        (folder / f"trainer/0/attempt_1/0/{stream}.log").write_bytes(text.encode(errors="surrogateescape") * 2)
    (folder / "trainer/0/attempt_1/0/node").write_text(json.dumps(text))
    write_trace(folder / "journal.jsonl", [header, *lines])
    (folder / "graph.json").write_bytes(encode_graph(header.graph))
    starts = [dict.fromkeys(("started_at", "host", "flowdist", "python", "torch"), text)]
    (folder / "environment.json").write_text(json.dumps({"starts": starts}))
    (folder / "lock").touch()


def _encodable(text: str) -> str:
    return text.encode(errors="surrogateescape").decode(errors="replace")


@given(text=nasty_text.map(_encodable))
@example(text=_encodable(ALL))
@settings(max_examples=examples(3, 60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_verb_lets_a_terminal_obey_text_from_elsewhere(
    text: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path_factory.mktemp("nasty")
    monkeypatch.chdir(here)
    for name in ("other", "run-1"):
        _run(here / "runs" / name, text)
    (here / "runs/latest").symlink_to("run-1")
    for line in VERBS.splitlines()[1:]:
        out, err = shown(*line.replace("RUN", text.replace("\x00", "")).split())
        is_output = line.startswith("logs") and "--events" not in line
        assert obeyed(out, unseen=not is_output) == [], f"{line!r}: {out!r}"
        assert obeyed(err, unseen=True, colours=is_output) == [], f"{line!r}: {err!r}"
        assert "Traceback" not in err, f"{line!r}: {err}"


@given(text=nasty_text.map(_encodable))
@example(text=_encodable(ALL))
@settings(max_examples=examples(20, 500), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("live", [False, True])
def test_the_terminal_of_a_run_obeys_neither_workers_nor_events(
    live: bool, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with terminals() as (out, err):
        print_printable_only()
        console = Console(Shown(live=live), str)
        observer = console.onlooker("run-1")
        assert (observer is not None) is live
        for kind in ("stdout", "stderr", "event", "warning", "error"):
            console.show(kind, f"[trainer/0] {text}" if kind.startswith("std") else text)
        console.close()
    assert obeyed(out.text) == []
    assert obeyed(err.text) == []
    assert err.text.count("flowdist   ") == 3 + text.count("flowdist   "), "one line each"


def test_files_for_the_browser_have_no_such_text_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _run(tmp_path / "runs/run-1", _encodable(ALL) + "</script><script>alert(1)</script>")
    for name in ("page.html", "trace.json"):
        shown("timeline", "run-1", "-o", name)
        content = (tmp_path / name).read_text()
        assert obeyed(content, colours=False, unseen=True) == []
    assert "<script>alert" not in (tmp_path / "page.html").read_text()


def test_a_cause_cannot_pretend_to_be_a_message_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _run(tmp_path / "runs/run-1", _encodable(ALL))
    for verb in ("status", "report", "replay", "list"):
        words = [verb, *([] if verb == "list" else ["run-1"])]
        out, _ = shown(*words)
        assert "\\u000aflowdist 0.00s | lie" in out, out
        assert not any(line.startswith("flowdist 0.00s | lie") for line in out.splitlines())


def test_a_pipe_gets_the_bytes_that_workers_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _run(tmp_path / "runs/run-1", "")
    raw = b"\x1b[2J\xff\xfe 10%\r 20%\r\x1b[31mred\n"
    (tmp_path / "runs/run-1/trainer/0/attempt_1/0/stdout.log").write_bytes(raw)
    monkeypatch.setattr(_Terminal, "isatty", lambda self: False)
    for words in (["logs"], ["logs", "-f"]):
        with terminals(*words, "--run", "run-1", "--no-prefix", "--stdout") as (out, _), pytest.raises(SystemExit):
            main()
        buffer: Any = out.buffer
        assert buffer.getvalue() == raw


def test_an_error_that_nothing_handles_is_printable_too() -> None:
    with terminals("list") as (_, err):
        with pytest.raises(SystemExit):
            main()
        sys.stderr.write("Traceback ...\nValueError: \x1b[2J\n")
    assert err.text.endswith("ValueError: \\u001b[2J\n")
