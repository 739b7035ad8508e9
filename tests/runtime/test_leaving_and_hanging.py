"""R14 and R15 on real processes: leaving a node at one agreed step, and finding the rank that hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.events import DrainRequested
from flowdist.record.journal import Line, Record
from flowdist.runtime.run_folder.logs import STACKS_FOLLOW
from tests.runtime.harness import Job

pytestmark = pytest.mark.real

# Ranks go in step by a pair of files, as a collective would make them; each asks before every step.
STEPPER = """
import json, os, pathlib, time
from flowdist import worker

info = worker.info()
here = pathlib.Path(f"{info.generation}-{info.rank}")
others = [pathlib.Path(f"{info.generation}-{rank}") for rank in range(info.world_size)]

def wait_for_the_others(step):
    while any(not path.exists() or int(path.read_text() or 0) < step for path in others):
        time.sleep(0.001)

def write(path, text):
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.rename(path)

step = json.loads(worker.latest().read_text())["step"] if worker.latest() else 0
print(f"rank {info.rank} of {info.world_size} from step {step}", flush=True)
while step < 400 or info.generation == 1:
    if worker.should_stop(step + 1):
        print(f"rank {info.rank} stops before step {step + 1}", flush=True)
        if info.rank == 0:
            path = worker.checkpoint_dir() / f"step-{step}.json"
            path.write_text(json.dumps({"step": step}))
            print("committed" if worker.commit(path, step=step) else "refused", flush=True)
        break
    step += 1
    write(here, str(step))
    worker.progress(step)  # before it waits, so that whoever stands still is behind the others
    wait_for_the_others(step)
    time.sleep(0.002)
print(f"rank {info.rank} ends", flush=True)
"""

TOPOLOGY = """
from flowdist import Node, On, Restart, Topology

t = Topology("leaving", nodes=[Node(cpu=1), Node(cpu=1)])
t.role("trainer", "python stepper.py", replicas="1:2", {more}
       restart=Restart(max_restarts=1, rules=[On("hang")]))
"""


PROGRESS = "    worker.progress(step)  # before it waits, so that whoever stands still is behind the others\n"
WAIT = "    wait_for_the_others(step)\n"


def stepper_job(folder: Path, *arguments: str, more: str = "", script: str = STEPPER) -> Job:
    (folder / "stepper.py").write_text(script)
    (folder / "topology.py").write_text(TOPOLOGY.replace("{more}", more))
    return Job(folder, *arguments)


def sizes(lines: list[Line]) -> list[int]:
    """Of each generation."""
    starts = [e for line in lines if isinstance(line, Record) for e in line.effects if isinstance(e, StartReplica)]
    return [start.group_world_size for start in starts if start.group_rank == 0]


def stops(job: Job) -> list[str]:
    return [line.rpartition(" ")[2] for line in job.output if "stops before step" in line]


def test_r14_every_rank_stops_at_one_step_when_its_node_is_drained(tmp_path: Path) -> None:
    with stepper_job(tmp_path) as job:
        job.until("from step 0", 2)
        job.operate(DrainRequested("node1"))
        job.until("rank 0 of 1 from step")
        assert job.finish() == 0, job.text
        first = stops(job)
        assert len(first) == 2 and len(set(first)) == 1 and "refused" not in job.text
        again = next(line for line in job.output if "rank 0 of 1 from step" in line)
        assert int(again.rpartition(" ")[2]) == int(first[0]) - 1  # nothing was lost
        assert sizes(job.journal()[1]) == [2, 1]
        assert "charged" not in "".join(line for line in job.output if "incident" in line)


@pytest.mark.slow
def test_r14_a_preempted_node_is_left_before_it_is_taken(tmp_path: Path) -> None:
    with stepper_job(tmp_path, "--fail", "node1@step=trainer,5:preempt=30s") as job:
        assert job.finish() == 0, job.text
        assert len(set(stops(job))) == 1 and len(stops(job)) == 2
        assert sizes(job.journal()[1]) == [2, 1]
        assert not any("node1 lost (" in line for line in job.output)  # it had not been taken yet


FINISHER = """
import os, pathlib, time
from flowdist import worker

worker.progress(5)
while not pathlib.Path(os.environ["FLOWDIST_NOTICE"]).exists():
    time.sleep(0.001)
print("done", flush=True)
"""


def test_r16_what_ends_under_a_notice_without_having_been_told_to_stop_has_succeeded(tmp_path: Path) -> None:
    with stepper_job(tmp_path, "--fail", "node1@step=trainer,5:preempt=60s", script=FINISHER) as job:
        assert job.finish() == 0, job.text
        assert sizes(job.journal()[1]) == [2]


MUTE = """
import time
from flowdist import worker

if worker.info().generation == 1:
    time.sleep(600)  # before its first step, with nothing printed
"""


def test_r15_a_world_that_is_silent_before_its_first_step_hangs(tmp_path: Path) -> None:
    with stepper_job(tmp_path, more='hang_after="1s",', script=MUTE) as job:
        assert job.finish() == 0, job.text
        assert "trainer: it hangs: no output for 1s; nothing tells trainer/0, trainer/1 apart" in job.text
        assert sizes(job.journal()[1]) == [2, 2]


def test_r15_a_rank_that_is_stopped_is_found_although_all_are_at_one_step(tmp_path: Path) -> None:
    level = STEPPER.replace(PROGRESS + WAIT, WAIT + PROGRESS)  # both report a step when both have done it
    assert level != STEPPER
    with stepper_job(tmp_path, "--fail", "trainer/1@step=trainer,5:hang", more='hang_after="1s",', script=level) as job:
        assert job.finish() == 0, job.text
        incidents = [line for line in job.output if "it hangs: no progress for 1s" in line]
        assert "trainer/1 failed on node1" in incidents[0]
        assert "a process of it is stopped (SIGSTOP, or a debugger)" in incidents[0]
        assert sizes(job.journal()[1]) == [2, 2]


@pytest.mark.slow
def test_r15_the_rank_that_stands_still_is_found_and_the_stacks_are_written(tmp_path: Path) -> None:
    with stepper_job(tmp_path, "--fail", "trainer/1@step=trainer,5:hang", more='hang_after="1s",') as job:
        assert job.finish() == 0, job.text
        assert "trainer/1 failed on node1: it hangs: no progress for 1s" in job.text
        stacks = (job.run_dir / "trainer/0/attempt_1/0/stderr.log").read_text()
        assert "wait_for_the_others" in stacks and "Current thread" in stacks
        assert f"{STACKS_FOLLOW}\nFatal Python error: Aborted\n" in stacks  # they are no crash of the user's program
        assert f"[trainer/0] {STACKS_FOLLOW}" in job.text
        assert sizes(job.journal()[1]) == [2, 2]
        assert job.alive() == []
