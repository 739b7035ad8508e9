"""What pages show of a run: values of secrets are hidden there as `flowdist logs` hides them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowdist.cli.main import cli
from flowdist.control.protocol.events import ReplicaExited
from flowdist.graph.role_graph import SecretRef
from flowdist.record.journal import Header, encode_line
from flowdist.record.replay import Replay
from flowdist.ui.follow import LOG_BYTES, FollowedRun
from tests.control.harness import Talk, graph, r, restart, role

VALUE = "hunter2-<&>-of-all"


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of which the journal and a log have a secret, as a worker has written it."""
    monkeypatch.setenv("SOME_KEY", VALUE)
    talk = Talk(graph(role("trainer", restart=restart(), secrets=(SecretRef("KEY", env="SOME_KEY"),))))
    talk.join("node0")
    talk.tell(ReplicaExited(r("trainer/0"), 1, "exit", 1, detail=f"ValueError: the key {VALUE} is refused"))
    header = Header(talk.graph, ("node0",), "a-run")
    replay = Replay(header)
    lines = [replay.decide(event, at) for event, at in talk.record]
    (tmp_path / "journal.jsonl").write_bytes(b"".join(map(encode_line, [header, *lines])))
    log = tmp_path / "trainer/0/attempt_1/0/stdout.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"with {VALUE}\n")
    return tmp_path


def test_the_page_and_its_logs_hide_what_logs_hides(run_dir: Path):
    run = FollowedRun(run_dir)
    assert run.logs("trainer/0", 1) == "trainer/0 stdout\nwith ***\n"
    page = run.page()
    assert "the key *** is refused" in page and "hunter2" not in page
    shown = json.dumps(run.data_after(0))
    assert "the key *** is refused" in shown and "hunter2" not in shown


def test_the_end_of_a_long_log_begins_with_a_whole_line(run_dir: Path):
    """The first line that is shown would else have a part of the secret, which no mask knows."""
    rest = f"{'x' * (LOG_BYTES - 6)}\n"
    (run_dir / "trainer/0/attempt_1/0/stdout.log").write_text(f"with {VALUE}\n{rest}")
    assert FollowedRun(run_dir).logs("trainer/0", 1) == f"trainer/0 stdout\n{rest}"


@pytest.mark.parametrize("form", ["html", "perfetto"])
def test_a_timeline_that_is_written_hides_them_too(run_dir: Path, form: str):
    done = CliRunner().invoke(cli, ["timeline", str(run_dir / "journal.jsonl"), "--format", form, "-o", "-"])
    assert done.exit_code == 0, done.output
    assert "the key *** is refused" in done.stdout and "hunter2" not in done.stdout
