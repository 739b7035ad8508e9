"""Files of a run that somebody has changed: commands read the journal instead. What flowdist writes is sound."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from flowdist.cli.inspect.run_state import report as report_command
from flowdist.cli.inspect.run_state import status as status_command
from flowdist.cli.run.console import finish
from flowdist.errors import FlowdistError
from flowdist.graph import encode_graph
from flowdist.record.journal import Header, encode_line
from flowdist.record.replay import Replay
from flowdist.report.record.spending import time_of_run
from flowdist.report.record.summary import summary_of
from flowdist.runtime import saved_files
from flowdist.runtime.run_folder.resume import saved_endpoint
from flowdist.runtime.run_folder.runs import status_at_end
from flowdist.runtime.saved_files import read_sealed, sealed
from flowdist.runtime.supervisor.host_process import RunResult
from tests.record.sheets import sheet_of
from tests.report.records import simulated
from tests.runtime.sound_files import SavedStatus, Summary

Edit = Callable[[Any], object]

# Changes by which a file still has the right types, or does not.
EDITS: list[tuple[str, Edit]] = [
    ("summary.json", lambda s: s["time_ns"].pop("trainer")),
    ("summary.json", lambda s: s.update(goodput=0.5)),
    ("summary.json", lambda s: s.update(reason="all is well")),
    ("summary.json", lambda s: s["incidents"][0].update(charged_to="other")),
    ("summary.json", lambda s: s.update(seal="0" * 64)),
    ("summary.json", lambda s: s.pop("seal")),
    ("summary.json", lambda s: s.clear()),
    ("status.json", lambda s: s["replicas"][0].update(phase="gone")),
    ("status.json", lambda s: s["roles"].append(s["roles"][0])),
    ("status.json", lambda s: s.update(now_ns=-1)),
]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the folder of a run that ended as its simulation did."""
    result = simulated("gang.py", "node2@3m/2m")
    header = result.lines[0]
    assert isinstance(header, Header)
    folder = tmp_path_factory.mktemp("runs") / "gang"
    folder.mkdir()
    (folder / "journal.jsonl").write_bytes(b"".join(map(encode_line, result.lines)))
    (folder / "graph.json").write_bytes(encode_graph(header.graph))
    (folder / "lock").touch()
    sheet = sheet_of(header.graph, list(result.lines)[1:], header.known_nodes)
    finish(RunResult("succeeded", "", str(folder), result.job, [], [], sheet), True, str)
    return folder


@pytest.mark.parametrize(
    ("topology", "faults"),
    [
        ("gang.py", ("node2@3m/2m", "trainer/1@5m:hang")),
        ("ps.py", ("ps/0@2m", "node1@4m:lost/1m")),
        ("core.py", ("controller@1m", "node0@2m:drain")),
        ("actors.py", ("node1@1m:preempt=20s",)),
    ],
)
def test_no_run_contradicts_itself_at_any_time(topology: str, faults: tuple[str, ...]) -> None:
    header, *lines = simulated(topology, *faults).lines
    assert isinstance(header, Header)
    replay = Replay(header)
    for number, line in enumerate(lines):
        replay.hear(line)
        if number % 7 and number < len(lines) - 1:
            continue
        end = {"outcome": replay.job.outcome or "cancelled", "root_cause": ""}
        summary = {**summary_of(replay.job, ()), **time_of_run(replay.job.graph, replay.sheet), **end}
        msgspec.json.decode(json.dumps(summary), type=Summary)
        msgspec.json.decode(msgspec.json.encode(status_at_end(Path("x"), header, replay)), type=SavedStatus)


@contextlib.contextmanager
def changed(path: Path, edit: Edit) -> Iterator[None]:
    """Change the JSON of a file until the end of the block."""
    sound = path.read_text()
    content = json.loads(sound)
    edit(content)
    assert content != json.loads(sound)
    path.write_text(json.dumps(content))
    try:
        yield
    finally:
        path.write_text(sound)


def output(command: Any, run_dir: Path, *options: str) -> str:
    done = CliRunner().invoke(command, [run_dir.name, "--runs", str(run_dir.parent), *options])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(("name", "edit"), EDITS)
def test_a_file_that_was_changed_is_not_read(run_dir: Path, name: str, edit: Edit) -> None:
    command = report_command if name == "summary.json" else status_command
    assert read_sealed(run_dir / name) is not None
    told = output(command, run_dir)
    with changed(run_dir / name, edit):
        assert read_sealed(run_dir / name) is None
        assert output(command, run_dir) == told
    sound = (run_dir / name).read_text()
    (run_dir / name).write_text(sound[:-9])
    assert read_sealed(run_dir / name) is None
    (run_dir / name).write_text(sound)


def test_a_file_of_another_version_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_text(sealed({"a": [1, "x, y"]}))
    assert read_sealed(tmp_path / "x") == {"a": [1, "x, y"]} and read_sealed(tmp_path / "y") is None
    monkeypatch.setattr(saved_files, "__version__", "0.0.1")
    assert read_sealed(tmp_path / "x") is None


def test_a_summary_of_another_end_than_that_of_the_journal_is_not_used(run_dir: Path) -> None:
    path, told = run_dir / "summary.json", output(report_command, run_dir)
    sound = read_sealed(path)
    path.write_text(sealed({**sound, "outcome": "failed"}))
    assert output(report_command, run_dir) == told
    path.write_text(sealed(sound))


@pytest.mark.parametrize("endpoint", ["host0", "host0:x", "host0:99999", "", ":29400"])
def test_an_endpoint_without_host_or_port_is_damaged(endpoint: str, tmp_path: Path) -> None:
    (tmp_path / "listens.json").write_text(json.dumps({"endpoint": endpoint, "job": "x"}))
    with pytest.raises(FlowdistError, match=r"listens.json of run .* cannot be read"):
        saved_endpoint(tmp_path)
