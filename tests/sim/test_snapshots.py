"""Snapshots in the memory of simulated nodes (R24): what gangs go on from, whatever happens in between."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from flowdist.control.protocol.effects import Decided, StartReplica
from flowdist.faults.grammar import Plan, parse_fault
from flowdist.graph import SECOND, Cluster, NodeSpec, RestartPolicy, RoleGraph, RoleSpec, SnapshotSpec, WorkloadSpec
from flowdist.record.journal import Record
from flowdist.record.status import RecentDecisions, status_of
from flowdist.report.live.status import status_text
from flowdist.report.record.state import state_text
from flowdist.sim.engine.vault import ShardName
from flowdist.sim.simulation import SimResult, Simulation
from flowdist.sim.user_code.workload import COPIED_BYTES
from tests.choosing import examples
from tests.proofs.judge.snapshots import snapshot_complaints

SIZE = 200_000_000  # 47 ms to the own vault, 187 ms to a buddy
COPY_NS = SIZE * SECOND // COPIED_BYTES // 20  # that is waited for in each step, of one worker on a node
SHARES = 8  # parts of the histories, each a test of its own


def job(copies: int = 2, nodes: int = 3, procs: int = 1, steps: int = 200, least: int = 1) -> RoleGraph:
    load = WorkloadSpec(
        steps=steps, checkpoint_every_ns=100 * (SECOND + COPY_NS), restore_ns=30 * SECOND, startup_spread=0.0
    )
    role = RoleSpec(
        "trainer",
        ("true",),
        min_replicas=least,
        max_replicas=nodes,
        procs=procs,
        restart=RestartPolicy(max_restarts=100),
        snapshots=SnapshotSpec(copies, 20, "rack", SIZE),
        workload=load,
    )
    racks = (NodeSpec(f"node{number}", cpu=1.0, labels=(("rack", f"r{number // 2}"),)) for number in range(nodes))
    return RoleGraph("job", (role,), cluster=Cluster(tuple(racks)))


def simulated(graph: RoleGraph, *faults: str, seed: int = 0, until: int | None = None) -> SimResult:
    result = Simulation(graph, Plan(tuple(map(parse_fault, faults))), seed=seed).run(until)
    assert result.violation is None, result.violation
    assert snapshot_complaints(result.lines) == []
    return result


def texts(result: SimResult) -> list[str]:
    records = [line for line in result.lines if isinstance(line, Record)]
    return [effect.text for line in records for effect in line.effects if isinstance(effect, Decided)]


def resumed(result: SimResult) -> list[int | None]:
    """The step of the snapshot that each generation but the first has gone on from; None: of a checkpoint."""
    records = [line for line in result.lines if isinstance(line, Record)]
    starts = [effect for line in records for effect in line.effects if isinstance(effect, StartReplica)]
    firsts = {start.generation: start for start in reversed(starts)}
    return [None if (chosen := firsts[each].snapshot) is None else chosen.step for each in sorted(firsts)[1:]]


def test_after_the_loss_of_a_node_the_steps_since_the_last_snapshot_are_lost_and_no_others() -> None:
    result = simulated(job(), "node2@153s")
    assert resumed(result) == [140]
    assert result.models["trainer"].lost_steps == 6, (
        "153 s are 5 s of start-up, 1 s of a checkpoint and 146 steps of 1.0023 s"
    )


def test_training_waits_for_the_copies_of_snapshots_which_count_as_checkpoint() -> None:
    seldom = job(steps=90)
    spec = SnapshotSpec(2, 1, "rack", COPIED_BYTES)  # a second in each step, which takes one itself
    often = replace(seldom, roles=(replace(seldom.roles[0], snapshots=spec),))
    most, least = (simulated(each).spent["trainer"] for each in (often, seldom))
    assert most["productive"] == pytest.approx(3 * 90 * SECOND, rel=1e-6)
    assert most["checkpoint"] - least["checkpoint"] == pytest.approx(3 * 90 * (SECOND - COPY_NS), rel=0.02)
    crash = simulated(often, "trainer/1@60s").spent["trainer"]
    assert crash["lost work"] < 3 * 4 * SECOND, "a step and its copy at most"


def test_a_world_without_snapshots_goes_back_to_its_checkpoint() -> None:
    result = simulated(job(copies=1), "node2@153s")
    assert resumed(result) == [None] and result.models["trainer"].lost_steps == 46


@pytest.mark.parametrize(
    ("at", "step"),
    [("146.37s", 120), ("146.4s", 140), ("146.53s", 140)],  # the snapshot of step 140 begins at 146.33 s
)
def test_a_worker_that_dies_while_it_saves_leaves_a_torn_copy_that_nobody_reads(at: str, step: int) -> None:
    assert resumed(simulated(job(), f"trainer/1@{at}")) == [step]


def test_a_node_that_dies_before_its_buddy_has_the_copy_takes_the_snapshot_with_it() -> None:
    assert resumed(simulated(job(), "node1@146.48s")) == [120]
    assert resumed(simulated(job(), "node1@146.58s")) == [140]


def test_a_buddy_that_cannot_be_reached_gets_no_copy_and_the_next_snapshot_is_sent_again() -> None:
    graph = job(nodes=2)
    assert resumed(simulated(graph, "node0@146.43s:partition=node1/2s", "node1@155s")) == [120]
    assert resumed(simulated(graph, "node0@146.43s:partition=node1/2s", "node1@175s")) == [160]


def test_a_paused_node_completes_its_copies_when_it_resumes() -> None:
    assert resumed(simulated(job(), "node1@146.35s:pause/1s", "trainer/0@148.3s")) == [140]


def test_a_controller_that_dies_and_returns_knows_the_copies() -> None:
    assert resumed(simulated(job(), "controller@146.43s", "node2@153s")) == [140]


def test_broken_copies_are_found_when_they_are_read_and_all_ranks_read_another_state() -> None:
    result = simulated(job(), "node0@150s:broken-copy", "node2@150s:broken-copy", "trainer/1@151s")
    assert resumed(result) == [140, None]
    found = "trainer: of step 140 the shard of rank 0 is broken on node2 (its checksum is wrong)"
    assert [text for text in texts(result) if "is broken on" in text] == [
        f"{found}; the checkpoint of step 100 is next"
    ]


def test_a_world_of_another_size_reads_the_shards_of_the_old_one() -> None:
    result = simulated(job(nodes=4, procs=2), "node3@153s")
    assert resumed(result)[0] == 140
    assert any("8 shards" in text for text in texts(result))


def test_the_memory_of_a_node_holds_few_snapshots() -> None:
    sim = Simulation(job(copies=3))
    result = sim.run(190 * SECOND)
    assert result.violation is None
    steps = {name.step for node in sim.nodes.values() for name in node.vault.held}
    assert steps == {180} and all(len(node.vault.held) == 3 for node in sim.nodes.values())
    assert ShardName("trainer", 1, 180, 2) in sim.nodes["node0"].vault.held


OF_NODES = (
    "", "", "/12s", "/12s", ":lost/15s", ":pause/3s", ":pause/9s", ":leave/9s", ":partition=OTHER/2s",
    ":partition=controller/3s", ":partition=controller/15s", ":broken-copy", ":broken-copy", ":preempt=30s/9s",
    ":drop=0.2/20s", ":reorder=0.3/20s", ":duplicate=0.3/20s", ":delay=400ms/20s", ":drain",
)  # fmt: skip
OF_RANKS = ("", "", ":exit=3", ":pause/2s")
OF_OTHERS = ("controller@AT", "controller@AT", "trainer@AT:torn-checkpoint")


def history(number: int) -> tuple[RoleGraph, list[str]]:
    """A random job with faults, most of them soon after the step of a snapshot, or after another fault."""
    draw = Random(number)
    nodes = draw.choice((2, 2, 3, 4))
    graph = job(draw.randint(1, nodes), nodes, draw.choice((1, 1, 2)), steps=110, least=1)
    faults, at_ms = [], 0
    for _ in range(draw.randint(1, 4)):
        near = draw.random() < 0.5 and at_ms
        at_ms = at_ms + draw.choice((20, 90, 300, 2000, 6000)) if near else 5000 + draw.randint(1, 6) * 20_000
        at_ms += draw.randint(0, 400)
        node, other = draw.sample(range(nodes), 2)
        kinds = [f"node{node}@AT{kind}" for kind in OF_NODES] + [f"trainer/{node}@AT{kind}" for kind in OF_RANKS]
        kind = draw.choice((*kinds, *OF_OTHERS))
        faults.append(kind.replace("AT", f"{at_ms}ms").replace("OTHER", f"node{other}"))
    return graph, faults


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.timeout(600)  # of 10,000 histories, each takes some 30 ms
def test_no_generation_goes_on_from_a_torn_stale_fenced_or_mixed_snapshot(share: int) -> None:
    for number in range(share, examples(320, 10_000), SHARES):
        graph, faults = history(number)
        try:
            simulated(graph, *faults, seed=number % 3, until=1000 * SECOND)
        except AssertionError as error:
            raise AssertionError(f"history {number}: {faults}") from error


def test_the_state_and_the_status_of_a_job_show_the_newest_whole_snapshot() -> None:
    result = simulated(job(), until=190 * SECOND)
    shown = state_text(result.job, None)
    row = next(line for line in shown.splitlines() if line.strip().startswith("trainer  running"))
    assert "in memory" in shown and "180 (2 of each shard)" in row
    (world,) = status_of(result.job, RecentDecisions()).worlds
    assert (world.snapshot, world.copies) == (180, 2)
    assert "\n  trainer has step 180 in memory, 2 copies of each shard\n" in status_text(
        status_of(result.job, RecentDecisions())
    )
