"""The journal of a real run, told again in the simulator: what-if questions start from what really happened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowdist.cli.inspect.replay import command as replay_command
from flowdist.cli.inspect.why import command as why_command
from tests.runtime.harness import Job

pytestmark = pytest.mark.real

# The ranks step together, as those of a gang do. They go on long after the fault: told again they start at once, where
# the nodes of the run took their time to join.
TRAINER = """
import os, time
from flowdist import worker
me = worker.info()
open(f"up-{me.generation}-{me.rank}", "w").close()
while not all(os.path.exists(f"up-{me.generation}-{rank}") for rank in range(me.world_size)):
    time.sleep(0.01)
latest = worker.latest()
begin = int(latest.name) if latest else 0
for step in range(begin + 1, 121):
    time.sleep(0.05)  # the work
    worker.progress(step)
    if step % 10 == 0 and worker.info().rank == 0:
        open(str(step), "w").close()
        worker.commit(str(step), step=step)
"""

TOPOLOGY = """
from flowdist import Node, Restart, Topology
t = Topology("told", nodes=2 * [Node(cpu=1)])
t.role("trainer", ["python", "trainer.py"], replicas=2, cpu=1, restart=Restart("role", max_restarts=3, backoff="0s"))
"""


@pytest.mark.slow
def test_a_real_run_told_again_restarts_what_it_restarted_and_answers_what_if(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text(TRAINER)
    (tmp_path / "topology.py").write_text(TOPOLOGY)
    with Job(tmp_path, "--fail", "trainer/1@step=trainer,25:exit=3") as job:
        assert job.finish() == 0, job.text
        assert job.alive() == []
    asked = [str(job.run_dir), "--with", str(tmp_path / "topology.py"), "--set", "trainer.restart.max_restarts=0"]
    result = CliRunner().invoke(replay_command, [*asked, "--json"])
    told = json.loads(result.stdout)
    assert result.exit_code == 1, "without a budget the same failure would have ended the job"
    assert [told[column]["outcome"] for column in ("as_it_was", "again", "what_if")] == ["succeeded"] * 2 + ["failed"]
    assert [fault.endswith(":exit=3") for fault in told["faults"]] == [True]
    was, again = told["as_it_was"], told["again"]
    answer = json.loads(CliRunner().invoke(why_command, [str(job.run_dir), "--json"]).stdout)
    assert answer["causes"][0]["without"][0]["fault"].startswith("trainer/1@")
    for key in ("root", "kind", "restarted", "charged_to"):
        assert [i[key] for i in was["incidents"]] == [i[key] for i in again["incidents"]]
    assert was["roles"]["trainer"]["replicas"] == again["roles"]["trainer"]["replicas"]
