"""Real jobs whose survivors stay: same process, same memory, another generation; and who cannot is restarted."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowdist.control.protocol.effects import StopReplica
from flowdist.control.protocol.events import NodePreempted, ReplicaElastic, ReplicaStopped, ScaleRequested
from flowdist.graph import SECOND
from flowdist.record.journal import Record
from tests.choosing import slow
from tests.runtime.harness import Job
from tests.runtime.test_run import replayed

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

# Each step adds 1 to every weight, on every rank alike: the sum says how many steps are in the model.
TRAIN = """
import os, time
import torch, torch.distributed as dist
from flowdist import worker

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def train(state):
    info = worker.info()
    say(f"begins {info.replica}.{info.local_rank} pid {os.getpid()} generation {info.generation}",
        f"rank {dist.get_rank()} of {dist.get_world_size()} step {state.step}",
        f"weight {state.model.weight[0, 0].item():g}")
    while True:
        ones = torch.ones(1)
        dist.all_reduce(ones)
        assert ones.item() == dist.get_world_size()
        with torch.no_grad():
            state.model.weight += 1
        state.step += 1
        state.commit()
        if state.step == 5:
            say("warm", info.replica, os.getpid())
        time.sleep(0.02)
        extra(state, info)

def extra(state, info):
    EXTRA

model = torch.nn.Linear(2, 1)
torch.nn.init.zeros_(model.weight)
worker.elastic(train, worker.ElasticState(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), step=0))
"""
TOPOLOGY = """
from flowdist import Node, Restart, Topology
t = Topology("stay", nodes=[NODES], lease="1m")  # an agent that gets no CPU for seconds is no part of any test here
policy = Restart("role", max_restarts=5)
t.role("trainer", script="train.py", replicas="REPLICAS", restart=policy, join_window="5m", FIELDS)
"""
NODE = "Node(cpu=4)"
BEGINS = re.compile(
    r"begins (?P<who>\S+) pid (?P<pid>\d+) generation (?P<generation>\d+) "
    r"rank (?P<rank>\d+) of (?P<size>\d+) step (?P<step>\d+) weight (?P<weight>\S+)"
)


def job(
    folder: Path,
    replicas: str,
    *,
    nodes: str = NODE,
    fields: str = 'stop_grace="30s"',
    extra: str = "pass",
    train: str = TRAIN,
) -> Job:
    (folder / "train.py").write_text(train.replace("EXTRA", extra))
    topology = TOPOLOGY.replace("NODES", nodes).replace("REPLICAS", replicas).replace("FIELDS", fields)
    (folder / "topology.py").write_text(topology)
    return Job(folder)


def begun(run: Job, generation: int, workers: int) -> dict[str, dict[str, str]]:
    """By worker, how it began that generation; waits until all have."""
    found: dict[str, dict[str, str]] = {}
    lines = iter([*run.output])
    while len(found) < workers:
        line = next(lines, None) or run.until("begins ")
        match = BEGINS.search(line)
        if match is not None and match["generation"] == str(generation):
            found[match["who"]] = match.groupdict()
    return found


def warm(run: Job, workers: int) -> None:
    """So many have done some steps, and that all who have begun can stay in place is known."""
    missing = workers - sum("warm" in line for line in run.output)
    if missing > 0:
        run.until("warm", missing)
    begun = {match["who"].partition(".")[0] for line in run.output if (match := BEGINS.search(line))}
    run.recorded(ReplicaElastic, len(begun))


def end(run: Job) -> None:
    run.process.send_signal(signal.SIGINT)
    run.finish()
    assert run.alive() == []
    replayed(run)


def kept(before: dict[str, dict[str, str]], after: dict[str, dict[str, str]]) -> list[str]:
    return sorted(who for who in after if who in before and before[who]["pid"] == after[who]["pid"])


@pytest.mark.parametrize("replicas", [*slow(["4"]), "1x4"])
def test_one_of_four_is_killed_and_the_others_keep_process_and_state(tmp_path: Path, replicas: str) -> None:
    with job(tmp_path, replicas) as run:
        first = begun(run, 1, 4)
        warm(run, 4)
        victim = min(first, key=lambda who: first[who]["rank"] != "1")
        os.kill(int(first[victim]["pid"]), signal.SIGKILL)
        second = begun(run, 2, 4)
        assert kept(first, second) == sorted(set(first) - {victim})
        states = {(worker["step"], worker["weight"]) for worker in second.values()}
        assert len(states) == 1, states  # the newcomer has it too
        step, weight = states.pop()
        assert int(step) >= 5 and step == weight
        assert {worker["rank"] for worker in second.values()} == {"0", "1", "2", "3"}
        end(run)
        (incident,) = json.loads((run.run_dir / "summary.json").read_text())["incidents"]
        assert len(incident["restarted"]) == 1
        assert len(incident["stayed_in_place"]) == (3 if replicas == "4" else 0)
        assert ("stayed in place; re" in run.text) == (replicas == "4")


@pytest.mark.slow
def test_rank_0_is_killed_and_whoever_has_most_tells_the_newcomer(tmp_path: Path) -> None:
    with job(tmp_path, "2") as run:
        first = begun(run, 1, 2)
        warm(run, 2)
        os.kill(int(first["trainer/0.0"]["pid"]), signal.SIGKILL)
        second = begun(run, 2, 2)
        assert kept(first, second) == ["trainer/1.0"]
        assert second["trainer/0.0"]["rank"] == "0" and int(second["trainer/0.0"]["step"]) >= 5
        assert second["trainer/0.0"]["weight"] == second["trainer/1.0"]["weight"]
        end(run)


@pytest.mark.slow
def test_survivors_that_wait_for_a_newcomer_in_vain_leave_again(tmp_path: Path) -> None:
    dies = "if worker.info().generation == 2: os._exit(3)\nmodel = torch"  # before it has come to the process group
    with job(tmp_path, "3", train=TRAIN.replace("model = torch", dies)) as run:
        first = begun(run, 1, 3)
        warm(run, 3)
        os.kill(int(first["trainer/1.0"]["pid"]), signal.SIGKILL)
        third = begun(run, 3, 3)
        assert kept(first, third) == ["trainer/0.0", "trainer/2.0"]
        assert int(third["trainer/1.0"]["step"]) >= 5
        end(run)


@pytest.mark.slow
def test_a_worker_that_does_not_come_out_of_its_step_in_time_is_restarted(tmp_path: Path) -> None:
    stuck = "if info.rank == 0 and state.step >= 5: time.sleep(3600)"
    with job(tmp_path, "3", fields='stop_grace="5s"', extra=stuck) as run:
        first = begun(run, 1, 3)
        warm(run, 3)
        os.kill(int(first["trainer/2.0"]["pid"]), signal.SIGKILL)
        second = begun(run, 2, 3)
        assert kept(first, second) == ["trainer/1.0"]
        assert "trainer/0 has not left its generation in place: it is restarted" in run.text
        assert int(second["trainer/0.0"]["step"]) >= 5  # of the one who stayed
        end(run)


@pytest.mark.slow
def test_an_error_of_the_user_is_no_reformation(tmp_path: Path) -> None:
    wrong = "if info.rank == 1 and state.step == 5 and info.generation == 1: raise ValueError('wrong')"
    with job(tmp_path, "2", extra=wrong) as run:
        first, second = begun(run, 1, 2), begun(run, 2, 2)
        assert kept(first, second) == ["trainer/0.0"]
        assert "ValueError: wrong" in run.text
        end(run)


@pytest.mark.slow
def test_an_operator_scales_and_the_newcomer_gets_the_state(tmp_path: Path) -> None:
    with job(tmp_path, "1:3", extra="if info.generation == 2: say('steps', info.replica)") as run:
        begun(run, 1, 3)
        warm(run, 1)
        run.operate(ScaleRequested("trainer", 2))
        second = begun(run, 2, 2)
        for name in ("trainer/0", "trainer/1"):
            run.until(f"steps {name}")
        run.operate(ScaleRequested("trainer", 3))
        third = begun(run, 3, 3)
        assert kept(second, third) == ["trainer/0.0", "trainer/1.0"]
        assert third["trainer/2.0"]["step"] == third["trainer/0.0"]["step"] != "0"
        end(run)


@pytest.mark.slow
def test_a_node_that_is_taken_away_costs_the_others_no_process(tmp_path: Path) -> None:
    nodes = ", ".join(["Node(cpu=1)"] * 3)
    with job(tmp_path, "1:3", nodes=nodes) as run:
        first = begun(run, 1, 3)
        warm(run, 1)
        run.operate(NodePreempted("node1", SECOND))
        second = begun(run, 2, 2)
        assert len(kept(first, second)) == 2
        end(run)


@pytest.mark.slow
def test_a_node_that_falls_silent_holds_nobody_in_a_collective(tmp_path: Path) -> None:
    nodes = ", ".join(["Node(cpu=1)"] * 3)
    with job(tmp_path, "1:3", nodes=nodes) as run:
        first = begun(run, 1, 3)
        warm(run, 1)
        victim = next(who for who in first if first[who]["rank"] == "1")
        os.kill(int(first[victim]["pid"]), signal.SIGSTOP)  # the others wait for it in an all_reduce
        run.operate(NodePreempted("node1", 0))
        second = begun(run, 2, 2)
        assert len(kept(first, second)) == 2
        end(run)


@pytest.mark.slow
def test_r21_a_controller_that_dies_with_a_worker_costs_the_others_nothing(tmp_path: Path) -> None:
    with job(tmp_path, "3") as run:
        first = begun(run, 1, 3)
        warm(run, 3)
        os.kill(run.named("flowdist.runtime.controller.controller_main")[0], signal.SIGKILL)
        os.kill(int(first["trainer/2.0"]["pid"]), signal.SIGKILL)
        second = begun(run, 2, 3)
        assert kept(first, second) == ["trainer/0.0", "trainer/1.0"]
        end(run)


@pytest.mark.slow
def test_each_attempt_in_one_process_has_its_own_log(tmp_path: Path) -> None:
    with job(tmp_path, "2") as run:
        first = begun(run, 1, 2)
        warm(run, 1)
        os.kill(int(first["trainer/1.0"]["pid"]), signal.SIGKILL)
        begun(run, 2, 2)
        logs = [run.run_dir / f"trainer/0/attempt_{n}/0/stdout.log" for n in (1, 2)]
        assert [re.findall(r"generation (\d)", log.read_text()) for log in logs] == [["1"], ["2"]]
        pids = [int((log.parent / "pid").read_text()) for log in logs]
        assert pids[0] == pids[1]
        end(run)
        _, lines = run.journal()
        records = [line for line in lines if isinstance(line, Record)]
        told = [e for line in records for e in line.effects if isinstance(e, StopReplica) and e.in_place]
        assert told and any(isinstance(line.event, ReplicaStopped) and line.event.suspended for line in records)


PLAIN = """
import torch.distributed as dist
from flowdist import worker

def train(state):
    state.step += 1
    state.commit()
    return dist.get_world_size(), state.step

print(worker.elastic(train, worker.ElasticState(step=0), backend="gloo"), dist.is_initialized())
"""


@pytest.mark.slow
def test_without_flowdist_it_trains_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLAIN)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout == "(1, 1) False\n"
