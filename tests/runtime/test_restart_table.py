"""What the plan says would restart is what restarts, on real processes."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from flowdist.control.protocol.effects import StartReplica
from flowdist.dsl.load import load_topology
from flowdist.record.journal import Record
from tests.proofs.restart_table import restart_set
from tests.runtime.harness import Job

pytestmark = pytest.mark.real

CLOSED = re.compile(r"incident \d+: (re-formed|recovered) after")

HEAD = """
from flowdist import Restart, Topology

t = Topology("table")
wait = ["python", "-c", "import signal; signal.pause()"]

def role(name, scope, *gates, **more):
    if scope == "replica":
        more["gang"] = False
    return t.role(name, wait, cpu=0.1, depends_on=gates, restart=Restart(scope, max_restarts=9), grace="1s", **more)

"""

TOPOLOGIES = {
    "edges": """
a = role("a", "replica", replicas=2)
b = role("b", "role", a.started(on_restart="restart"), replicas=2)
c = role("c", "role", b.started(on_restart="reconnect"))
d = role("d", "replica", a.started(on_restart="reconnect"), replicas=2)
""",
    "domain": """
a = role("a", "domain")
b = role("b", "replica", replicas=2)
c = role("c", "role", b.started(on_restart="restart"))
d = role("d", "job")
t.restart_together("pair", a, b)
""",
    "world": """
a = role("a", "role", replicas=2)
b = role("b", "role")
t.world("core", a, b)
c = role("c", "replica", b.started(on_restart="restart"))
d = role("d", "role", c.started(on_restart="reconnect"))
""",
}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_table_is_what_happens(tmp_path: Path, name: str) -> None:
    (tmp_path / "topology.py").write_text(HEAD + TOPOLOGIES[name])
    graph = load_topology(str(tmp_path / "topology.py"), {}, (), None).graph
    total = sum(spec.max_replicas for spec in graph.roles)
    with Job(tmp_path) as job:
        job.until("starts on", total)
        attempts = {f"{spec.name}/{i}": 1 for spec in graph.roles for i in range(spec.max_replicas)}
        for spec in graph.roles:
            victim = f"{spec.name}/0"
            folder = job.run_dir / spec.name / "0" / f"attempt_{attempts[victim]}" / "0"
            os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
            assert any(CLOSED.search(line) for line in job.lines())
            before = dict(attempts)
            for line in job.journal()[1]:
                for effect in line.effects if isinstance(line, Record) else ():
                    if isinstance(effect, StartReplica):
                        attempts[str(effect.replica)] = effect.attempt
            restarted = {replica for replica in attempts if attempts[replica] > before[replica]}
            table = restart_set(graph, spec.name, "failure")
            told = {
                replica
                for replica in attempts
                if table.get(replica.partition("/")[0]) == "role" or (replica == victim and spec.name in table)
            }
            assert restarted == told, f"{victim}: {restarted} restarted, the table says {told}"
        job.process.send_signal(signal.SIGINT)
        assert job.finish() == 130 and job.alive() == []
