"""FSDP2 on three hosts, with its state in their memory alone: a host is lost in silence, and no bit is different."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flowdist.control.protocol.events import CopyHeld, NodeSilent
from flowdist.record.journal import Record
from tests.frameworks.examples import WAIT_TOGETHER, with_lines
from tests.lab.network import Lab
from tests.runtime.harness import Job

pytest.importorskip("torch")
pytestmark = [pytest.mark.real, pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(600)]

TOPOLOGY = """
import os
from flowdist import Restart, Snapshots, Topology

t = Topology("memory", nodes="1:3")
again, kept = Restart("role", max_restarts=0), Snapshots(copies=2, every=5)
t.role("trainer", ["python", "{script}"], replicas=4, cpu=os.cpu_count() / 2, placement="pack", restart=again,
       snapshots=kept, env={{"OMP_NUM_THREADS": "1"}})
"""
ENDPOINT = "h0:29400"


def train(lab: Lab, break_it: Callable[[Lab], None] | None) -> Job:
    """Train on two of three hosts to the end; if one is to break, it does so in step 13."""
    script = with_lines(lab.folder, "memory_in_place", WAIT_TOGETHER if break_it else "")
    topology = lab.folder / "topology.py"
    topology.write_text(TOPOLOGY.format(script=script))
    env = {"FLOWDIST_TOKEN": "of this lab alone"}
    job = lab.start("h0", "run", str(topology), "--listen", ENDPOINT, env=env)
    job.until("h0 joined")
    lab.start("h1", "join", ENDPOINT, env=env)
    if break_it:
        job.until("begins at step 0")
        lab.start("h2", "join", ENDPOINT, env=env)
        job.until("h2 joined")
        job.recorded(CopyHeld, 2 * 2 * 4)  # of steps 5 and 10, on both hosts
        break_it(lab)
    assert job.finish() == 0, lab.text
    return job


def said(job: Job, words: str) -> list[str]:
    return [line.partition(words)[2] for line in job.output if words in line]


@pytest.mark.parametrize("name", ["power_off", "isolate"])
def test_a_host_that_is_lost_in_silence_costs_no_bit_of_a_sharded_state(name: str, lab: Lab) -> None:
    undisturbed = train(lab, None)
    job = train(lab, lambda lab: getattr(lab, name)("h1"))
    assert (
        len([line for line in job.journal()[1] if isinstance(line, Record) and isinstance(line.event, NodeSilent)]) == 1
    )
    assert said(job, "begins at step ") == ["0", "10"], job.text
    assert "stayed in place" in job.text
    assert said(job, "] final ") == said(undisturbed, "] final ") != []
