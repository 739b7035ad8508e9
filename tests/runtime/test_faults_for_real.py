"""Every kind of fault that `run` carries out: on real processes it leads to what it leads to in simulation.

The trainers of one gang wait for ever in each generation but the last; what ends a generation is a fault.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowdist.cli.run.run import command
from flowdist.control.protocol.events import NodeJoined, ReplicaStarted
from flowdist.dsl.load import load_topology
from flowdist.faults.files import parse_plan
from flowdist.faults.rates import Arrivals
from flowdist.record.journal import FaultLine, Record
from flowdist.report.record.summary import summary_of
from flowdist.runtime.supervisor.host_process import WIND_DOWN_S
from flowdist.sim.simulation import Simulation, with_nodes
from tests.runtime.harness import Deaths, Job
from tests.runtime.test_run import decisions, replayed, world_sizes

pytestmark = pytest.mark.real

TRAINER = """
import json, os, sys
from flowdist import worker
info = worker.info()
for step in range(1, 4):
    worker.progress(step)
newest = worker.latest()
print("generation", info.generation, "of", info.world_size, "from", newest and newest.read_text(), flush=True)
path = worker.checkpoint_dir() / f"checkpoint-{info.generation}-{info.attempt}"
if info.rank == 0:
    path.write_text("0123456789")
    assert worker.commit(path, step=info.generation)
if info.generation == LAST:
    sys.exit(0)
open("never", "r").read()
"""
TOPOLOGY = """
from flowdist import Node, Restart, Topology, Workload
t = Topology("gang", nodes=[Node("node0", cpu=2, labels={"zone": "a"}), Node("node1", cpu=2, labels={"zone": "b"})])
t.role("trainer", ["python", "trainer.py"], replicas="1:3", cpu=2, cooldown="0s",
       restart=Restart("role", max_restarts=3, backoff="0s"), workload=Workload(steps=100, startup="1s"))
"""


def gang(folder: Path, last: int) -> Path:
    os.mkfifo(folder / "never")
    (folder / "trainer.py").write_text(TRAINER.replace("LAST", str(last)))
    (folder / "topology.py").write_text(TOPOLOGY)
    return folder / "topology.py"


def both(folder: Path, last: int, faults: Sequence[str], adds: Sequence[str] = ()) -> tuple[dict, list[int], Job]:  # type: ignore[type-arg]
    """The summary and the sizes of the worlds, the same in simulation and for real; and the real job."""
    topology = gang(folder, last)
    options = [word for fault in faults for word in ("--fail", fault)] + [
        word for add in adds for word in ("--add", add)
    ]
    with Job(folder, *options) as job:
        assert job.finish() == 0, job.text
        assert job.alive() == []
        real, lines = replayed(job), job.journal()[1]
        assert {line.spec for line in lines if isinstance(line, FaultLine)} == set(faults), job.text
    loaded = load_topology(str(topology)).graph
    result = Simulation(with_nodes(loaded), parse_plan(faults, adds=adds)).run()
    assert result.violation is None and result.unfired == []
    assert decisions(summary_of(result.job, result.lines)) == decisions(real), job.text
    assert world_sizes(result.lines) == world_sizes(lines)
    return real, world_sizes(lines), job


def kinds(summary: dict) -> list[str]:  # type: ignore[type-arg]
    return [incident["kind"] for incident in summary["incidents"]]


@pytest.mark.slow
def test_a_silent_node_is_given_up_after_its_lease_and_taken_back_when_it_is_heard(tmp_path: Path) -> None:
    faults = ["node1@generation=trainer,1+300ms:lost/8s", "node1@generation=trainer,3+300ms:pause/8s"]
    summary, sizes, job = both(tmp_path, 5, faults)
    assert sizes == [2, 1, 2, 1, 2] and kinds(summary) == ["node_lost", "joined"] * 2
    assert job.text.count("node1 lost (not heard for 5s); lost replicas: trainer/1") == 2, job.text


@pytest.mark.slow
def test_a_link_that_is_cut_in_one_direction_or_in_both_is_silence_too(tmp_path: Path) -> None:
    faults = [
        "node1@generation=trainer,1+300ms:cut-to=controller/8s",
        "controller@generation=trainer,3+300ms:partition=node1/8s",
    ]
    summary, sizes, _ = both(tmp_path, 5, faults)
    assert sizes == [2, 1, 2, 1, 2] and kinds(summary) == ["node_lost", "joined"] * 2


@pytest.mark.slow
def test_nodes_leave_and_die_by_their_label_and_replicas_run_out_of_memory(tmp_path: Path) -> None:
    faults = ["trainer/1@generation=trainer,1+300ms:oom", "node1@generation=trainer,2+300ms:leave/4s",
              "zone=b@generation=trainer,4+300ms/4s"]  # fmt: skip
    summary, sizes, job = both(tmp_path, 6, faults)
    assert sizes == [2, 2, 1, 2, 1, 2] and kinds(summary)[0] == "oom", kinds(summary)
    assert "out of memory" in job.text, job.text


@pytest.mark.slow
def test_what_is_only_slow_or_stands_still_for_a_while_is_no_failure(tmp_path: Path) -> None:
    faults = ["trainer/1@generation=trainer,1+200ms:pause/1s", "trainer/0@generation=trainer,1+200ms:slow=4x/1s",
              "node1@generation=trainer,1+200ms:delay=200ms/2s", "node0@generation=trainer,1+200ms:drop=0.3/2s",
              "trainer/0@generation=trainer,1+3s"]  # fmt: skip
    summary, sizes, _ = both(tmp_path, 2, faults)
    assert sizes == [2, 2] and kinds(summary) == ["signal"]


@pytest.mark.slow
def test_a_node_joins_later(tmp_path: Path) -> None:
    summary, sizes, _ = both(tmp_path, 3, ["aaa@generation=trainer,2+300ms"], adds=["aaa@6s"])
    assert sizes == [2, 3, 2] and kinds(summary) == ["joined", "node_lost"]


@pytest.mark.slow
def test_a_run_that_is_resumed_does_not_wait_for_a_node_that_had_been_added(tmp_path: Path) -> None:
    gang(tmp_path, 99)
    with Job(tmp_path, "--add", "aaa@1s") as job:
        job.until("of 3 from", 3)
        with Deaths(job.alive()) as deaths:
            job.process.kill()
            assert deaths.survivors() == []
    with Job(tmp_path, "--resume", "latest") as again:
        again.until("of 2 from", 2)
        again.process.send_signal(signal.SIGINT)
        assert again.finish() == 130 and again.alive() == []


def test_whoever_resumes_from_a_torn_checkpoint_finds_half_of_it(tmp_path: Path) -> None:
    gang(tmp_path, 2)
    torn, kill = "trainer@checkpoint=trainer,1+100ms:torn-checkpoint", "trainer/0@checkpoint=trainer,1+300ms"
    with Job(tmp_path, "--fail", torn, "--fail", kill) as job:
        assert job.finish() == 0, job.text
        assert "generation 2 of 2 from 01234\n" in job.text, job.text


@pytest.mark.slow
@pytest.mark.parametrize("how", ["pause", "lost"])
def test_a_job_that_ends_while_a_node_is_held_up_leaves_nothing(tmp_path: Path, how: str) -> None:
    gang(tmp_path, 2)
    with Job(tmp_path, "--fail", f"node1@generation=trainer,1+300ms:{how}") as job:
        job.until("the job has succeeded")
        over_s = time.monotonic()
        assert job.finish() == 0, job.text
        assert time.monotonic() - over_s < WIND_DOWN_S  # let go, it has ended by itself
        assert world_sizes(job.journal()[1]) == [2, 1] and job.alive() == []


def test_a_run_that_is_killed_while_a_node_stands_still_leaves_nothing(tmp_path: Path) -> None:
    gang(tmp_path, 2)
    faults = ("node1@generation=trainer,1:pause", "trainer/0@generation=trainer,1:slow=10x")
    with Job(tmp_path, *(word for fault in faults for word in ("--fail", fault))) as job:
        job.until("slow=10x hits")
        with Deaths(job.alive()) as deaths:
            job.process.kill()
            assert deaths.survivors() == []
        assert job.alive() == []


@pytest.mark.slow
def test_a_controller_that_takes_over_finds_the_link_cut(tmp_path: Path) -> None:
    gang(tmp_path, 2)
    faults = ("node1@generation=trainer,1+100ms:lost/4s", "controller@generation=trainer,1+500ms",
              "trainer/0@generation=trainer,1+6s")  # fmt: skip
    with Job(tmp_path, *(word for fault in faults for word in ("--fail", fault))) as job:
        assert job.finish() == 0, job.text
        lines = job.journal()[1]
        formed_ns = next(
            line.t_ns for line in lines if isinstance(line, Record) and isinstance(line.event, ReplicaStarted)
        )
        joins = [line.t_ns for line in lines if isinstance(line, Record) and isinstance(line.event, NodeJoined)
                 and line.event.node == "node1"]  # fmt: skip
        assert len(joins) == 2 and joins[1] - formed_ns >= 4.1e9, "had it found no cut, the node would come at once"
        hit = [line.spec for line in lines if isinstance(line, FaultLine)]
        assert hit[:2] == list(faults[:2])  # where the agent has fenced meanwhile, the job is over before the third


@pytest.mark.parametrize(
    ("fault", "says", "helps"),
    [
        ("trainer@3s:disk-full", "the disk is that of the whole machine", "checkpoint_dir="),
        ("node0@3s:partition=node1", "run cannot cut node0 off from node1", "partition=controller"),
        ("node0@3s:cut-to=controller,node1", "run cannot cut node0 off from node1", "cut-to=controller"),
        ("trainer/0@3s:slow=0.5x", "a real process cannot be made faster", "slow=2x"),
        ("node0@3s:slow=2x", "slow of a node means nothing here", "what a node can suffer: kill, lost"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, says: str, helps: str
) -> None:
    gang(tmp_path, 1)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command, ["--fail", fault])
    assert result.exit_code == 2 and says in result.output and helps in result.output, result.output
    assert not (tmp_path / "runs").exists()


KILLED_TWICE = """
import os, sys
if int(os.environ["FLOWDIST_ATTEMPT"]) >= 3:
    sys.exit(0)
open("never", "r").read()
"""


@pytest.mark.slow
def test_faults_at_random_are_those_of_the_seed_which_is_shown_and_kept(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    (tmp_path / "main.py").write_text(KILLED_TWICE)
    (tmp_path / "topology.py").write_text(
        "from flowdist import Restart, Topology\n"
        't = Topology("x")\n'
        't.role("main", ["python", "main.py"], restart=Restart("role", max_restarts=99, backoff="0s"))\n'
    )
    rate = "main-kill=1/replica-second"
    with Job(tmp_path, "--rate", rate, "--seed", "4") as run:
        assert run.finish() == 0, run.text
        assert f"faults at random, by --seed 4: {rate}: 1 of them, together a fault in 1s" in run.text
        assert f"Faults at random: {rate}; the same with --seed 4" in run.text
        summary = json.loads((run.run_dir / "summary.json").read_text())
        assert (summary["seed"], summary["rates"]) == (4, [rate])
        graph = load_topology(str(tmp_path / "topology.py")).graph
        arrivals = Arrivals(parse_plan(rates=[rate]).rates, graph, ["node0"], 4)
        drawn = [fault.spec for fault in arrivals.until(round(summary["lasted_s"] * 1e9))]
        carried_out = [fault["spec"] for fault in summary["faults"]]
        assert len(carried_out) >= 2 and set(carried_out) <= set(drawn)


def test_a_fault_that_would_take_the_last_node_for_good_is_told_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "brief.py").write_text("print('done')\n")
    with Job(tmp_path, "brief.py", "--fail", "node0@1h") as job:
        assert job.finish() == 0
    assert "no room is left for the minimum of trainer, and a node comes back only with a /DURATION" in job.output[0]
