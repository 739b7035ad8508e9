"""Files of a run that are valid by their types and contradict themselves: commands read the journal instead."""

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
from flowdist.runtime.run_folder.results import SavedStatus, Summary
from flowdist.runtime.run_folder.resume import saved_endpoint
from flowdist.runtime.run_folder.runs import status_at_end
from flowdist.runtime.supervisor.host_process import RunResult
from tests.record.sheets import sheet_of
from tests.report.records import simulated

Edit = Callable[[Any], object]

# What is changed in a sound file, and the relation that does not hold then.
SUMMARIES: list[tuple[Edit, str]] = [
    (lambda s: s["time_ns"].pop("trainer"), "each role has a time account"),
    (lambda s: s["roles"].update(other=s["roles"]["trainer"]), "each role has a time account"),
    (lambda s: s["tasks"].append("other"), "the tasks are among the roles"),
    (lambda s: s["tasks"].append("trainer"), "the tasks are among the roles"),
    (lambda s: s["not_reported"].update(other=["progress"]), "only tasks report their work"),
    (lambda s: s["not_reported"].update(trainer=["progress", "progress"]), "each kind of report is listed once"),
    (lambda s: s["time_s"]["trainer"].update(productive=1.0), "the same in seconds and nanoseconds"),
    (lambda s: s["time_s"]["trainer"].pop("productive"), "the same in seconds and nanoseconds"),
    (lambda s: s["lost_work_s"].clear(), "the lost work of each role is known"),
    (lambda s: s["lost_work_s"].update(trainer=1e6), "a world loses no more than its members"),
    (lambda s: s["time_ns"]["trainer"].update(productive=10**400), "too large"),
    (lambda s: s.update(goodput=0.5), "the goodput follows from the times"),
    (lambda s: s.update(goodput=None), "the goodput follows from the times"),
    (lambda s: s.update(time_ns={"trainer": {}}, time_s={"trainer": {}}), "the goodput follows from the times"),
    (lambda s: s.update(tasks=[]), "the goodput follows from the times"),
    (lambda s: s.update(rates=["node-kill=1/day"]), "rates have a seed"),
    (lambda s: s["causes"].update(hang=1), "each incident has one cause"),
    (lambda s: s["incidents"].pop(), "each incident has one cause"),
    (lambda s: s["incidents"][0].update(number=7), "numbered from 1"),
    (lambda s: s["incidents"][0]["restarted"].append("other/0"), "each replica is one of a role"),
    (lambda s: s["incidents"][0]["restarted"].append("trainer/0"), "restarts a replica once"),
    (lambda s: s["incidents"][0].update(stayed_in_place=["trainer/0"]), "restarts a replica once"),
    (lambda s: s["incidents"][0].update(charged_to="other"), "a role pays"),
    (lambda s: s["incidents"][0].update(took_s=None), "an incident that is over has an end"),
    (lambda s: s["incidents"][0].update(result="still open"), "an incident that is over has an end"),
    (lambda s: s["incidents"][0].update(result="still open", took_s=None, first_step_s=0.1), "first step is after"),
    (lambda s: s["incidents"][0].update(first_step_s=s["lasted_s"]), "no incident is later"),
    (lambda s: s["incidents"][0].update(t_s=s["lasted_s"] + 1), "no incident is later"),
    (lambda s: s["incidents"][0].update(took_s=s["lasted_s"]), "no incident is later"),
    (lambda s: s.update(unsaved=[{"world": "trainer"}]), "missing required field `reason`"),
    (lambda s: s["roles"]["trainer"].update(lost_work_s="x"), "Expected `float`"),
    (lambda s: s["roles"]["trainer"].update(outcome="x"), "Invalid enum value"),
    (lambda s: s["time_ns"]["trainer"].update(x=1), "Invalid enum value"),
    (lambda s: s.update(not_reported={"trainer": []}), "length >= 1"),
]
STATUSES: list[tuple[Edit, str]] = [
    (lambda s: s["replicas"][0].update(name="other/0"), "each role counts its replicas"),
    (lambda s: s["replicas"][0].update(name="trainer/1"), "replicas have own names"),
    (lambda s: s["replicas"][0].update(node="other"), "each node is listed"),
    (lambda s: s["replicas"][0].update(phase="gone"), "each role counts its replicas"),
    (lambda s: s["replicas"].pop(), "each role counts its replicas"),
    (lambda s: s["roles"][0].update(name="other"), "each role counts its replicas"),
    (lambda s: s["roles"].append(s["roles"][0]), "own names"),
    (lambda s: s["nodes"].append(s["nodes"][0]), "own names"),
    (lambda s: s["roles"][0].update(target=5), "the target is between the limits"),
    (lambda s: s["roles"][0].update(max_replicas=5), "each role has all its replicas"),
    (lambda s: s["restarts"][0].update(role="other"), "each restart is one of a role"),
    (lambda s: s["open_incidents"].append(incident(kind="x")), "among those that are counted"),
    (lambda s: s["open_incidents"].append(incident(opened_ns=s["now_ns"] + 1)), "no incident is later"),
    (lambda s: s["said"][-1].update(t_ns=s["now_ns"] + 1), "in the order of time"),
    (lambda s: s["said"][-1].update(t_ns=0), "in the order of time"),
    (lambda s: s["time_ns"].pop("trainer"), "each role has a time account"),
    (lambda s: s.update(goodput=None), "the goodput follows from the times"),
    (lambda s: s.update(goodput=0.5), "the goodput follows from the times"),
    (lambda s: s["time_ns"]["trainer"].update(productive=1), "the goodput follows from the times"),
    (lambda s: s["nodes"][0].update(phase="x"), "Invalid enum value"),
    (lambda s: s["roles"][0].update(kind="x"), "Invalid enum value"),
    (lambda s: s["roles"][0].update(outcome="x"), "Invalid enum value"),
    (lambda s: s["replicas"][0].update(stalled="x"), "Invalid enum value"),
    (lambda s: s["open_incidents"].append(incident(phase="x")), "Invalid enum value"),
    (lambda s: s.update(now_ns=-1), "Expected `int` >= 0"),
    (lambda s: s["time_ns"]["trainer"].update(done=-1), "Expected `int` >= 0"),
]


def incident(**changed: object) -> dict[str, object]:
    """Return an open incident of the status that is sound in the run of these tests, but for what is changed."""
    sound = {"number": 1, "opened_ns": 0, "phase": "stopping", "kind": "node_lost", "root": "", "reason": "x"}
    return {**sound, "awaits": 0, **changed}


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


CASES = [("summary.json", *case) for case in SUMMARIES] + [("status.json", *case) for case in STATUSES]


@pytest.mark.parametrize(("name", "edit", "relation"), CASES, ids=[f"{name}-{text}" for name, _, text in CASES])
def test_a_file_that_contradicts_itself_is_damaged(run_dir: Path, name: str, edit: Edit, relation: str) -> None:
    kind, command = (Summary, report_command) if name == "summary.json" else (SavedStatus, status_command)
    msgspec.json.decode((run_dir / name).read_bytes(), type=kind)
    told = output(command, run_dir)
    with changed(run_dir / name, edit):
        with pytest.raises((msgspec.ValidationError, OverflowError), match=relation):
            msgspec.json.decode((run_dir / name).read_bytes(), type=kind)
        assert output(command, run_dir) == told


def test_a_summary_of_another_end_than_that_of_the_journal_is_not_used(run_dir: Path) -> None:
    told = output(report_command, run_dir)
    with changed(run_dir / "summary.json", lambda s: s.update(outcome="failed")):
        assert output(report_command, run_dir) == told


def test_a_key_of_a_summary_does_not_replace_the_kind_of_the_output(run_dir: Path) -> None:
    with changed(run_dir / "summary.json", lambda s: s.update(kind="x", format=7)):
        told = json.loads(output(report_command, run_dir, "--json"))
    assert (told["kind"], told["format"]) == ("report", 1)


@pytest.mark.parametrize("endpoint", ["host0", "host0:x", "host0:99999", "", ":29400"])
def test_an_endpoint_without_host_or_port_is_damaged(endpoint: str, tmp_path: Path) -> None:
    (tmp_path / "listens.json").write_text(json.dumps({"endpoint": endpoint, "job": "x"}))
    with pytest.raises(FlowdistError, match=r"listens.json of run .* cannot be read"):
        saved_endpoint(tmp_path)
