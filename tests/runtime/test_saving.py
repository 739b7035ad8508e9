"""Real jobs whose scripts save and restore: that time has buckets of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flowdist.control.protocol.events import ReplicaSpent
from flowdist.record.journal import Record
from tests.runtime.harness import Job

pytestmark = pytest.mark.real

TOPOLOGY = """
from flowdist import Restart, Topology
t = Topology("saves", nodes=1)
t.role("trainer", script="train.py", restart=Restart("role", max_restarts=1))
"""
# It saves for 0.2 s after every other step, without the file that a real one would write.
TRAIN = """
import time
from flowdist import worker

{begin}
for step in range(1, {steps} + 1):
    time.sleep(0.05)
    worker.progress(step)
    if step % 2 == 0 and {saves}:
        with {timer}:
            time.sleep(0.2)
"""


def run_of(
    folder: Path, begin: str = "", saves: bool = True, timer: str = "worker.saving()", steps: int = 8
) -> dict[str, Any]:
    """Run the script, and return its summary, with the events ReplicaSpent of its journal and what it has printed."""
    folder.mkdir(exist_ok=True)
    train = TRAIN.format(begin=begin, saves=saves, timer=timer, steps=steps)
    (folder / "train.py").write_text("from contextlib import nullcontext\n" + train)
    (folder / "topology.py").write_text(TOPOLOGY)
    with Job(folder) as run:
        assert run.finish() == 0, run.text
        summary: dict[str, Any] = json.loads((run.run_dir / "summary.json").read_text())
        events = [line.event for line in run.journal()[1] if isinstance(line, Record)]
        return {**summary, "spent": [each for each in events if isinstance(each, ReplicaSpent)], "text": run.text}


def test_saving_and_restoring_of_a_real_job_are_in_its_summary(tmp_path: Path) -> None:
    run = run_of(tmp_path, begin="with worker.restoring():\n    time.sleep(0.1)", steps=4)
    times = run["time_s"]["trainer"]
    restored = next(each.ns for each in run["spent"] if each.on == "restoring")
    assert restored >= 100_000_000, "as the worker has measured it"
    # It runs for the controller when it hears so: what it had restored until then is in its start-up.
    assert times["start-up"] + times["restore"] >= restored / 1e9 and times["restore"] > 0.01, times
    assert times["checkpoint"] >= 2 * 0.2, times
    assert times["productive"] < sum(times.values()) - times["checkpoint"] - times["restore"], times
    assert ", restore " in run["text"] and ", checkpoint " in run["text"]
    by_kind = [len([each for each in run["spent"] if each.on == on]) for on in ("restoring", "saving")]
    assert by_kind[0] == 1 and by_kind[1] <= 2, run["spent"]


@pytest.mark.slow
def test_a_run_that_saves_has_a_lower_goodput_than_one_that_does_not(tmp_path: Path) -> None:
    saved = run_of(tmp_path / "saved", steps=20)
    untimed = run_of(tmp_path / "untimed", timer="nullcontext()", steps=20)
    plain = run_of(tmp_path / "plain", saves=False, steps=20)
    assert untimed["spent"] == plain["spent"] == []
    assert saved["goodput"] < plain["goodput"] < untimed["goodput"], "without the timer, it seems to train all the time"
