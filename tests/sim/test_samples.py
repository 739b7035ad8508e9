"""R25 in virtual time: whatever fails, and however many ranks there are, each sample of each step counts once."""

from __future__ import annotations

from collections import Counter

from flowdist import Node, Restart, Topology, Workload, worker
from flowdist.control.membership.samples import why_not_once
from flowdist.faults.grammar import Plan, parse_fault
from flowdist.graph import RoleGraph
from flowdist.sim.faults.nemesis import Nemesis
from flowdist.sim.simulation import SimResult, Simulation
from flowdist.testing import graph_of
from flowdist.testing.campaign import horizon
from tests.choosing import examples
from tests.sim import user_models as models

STEPS = 40


def job(model: object) -> RoleGraph:
    """Three or four trainers, one on each node."""
    t = Topology("sampled", nodes=4 * [Node(cpu=1)])
    load = Workload(steps=STEPS, startup="2s", checkpoint_every="5s", checkpoint_time="1s")
    policy = Restart("role", max_restarts=1000)
    t.role("trainer", "true", replicas="3:4", cpu=1, simulate=model, restart=policy, workload=load, cooldown="5s")
    return graph_of(t)


def run(graph: RoleGraph, plan: Plan, seed: int = 0) -> SimResult:
    return Simulation(graph, plan, seed=seed).run()


def check(result: SimResult) -> None:
    """Check the ledger by what every step has really used, as the simulator has seen it."""
    ledger = result.job.worlds["trainer"].ledger
    assert why_not_once(ledger) == []
    steps = result.played.steps["trainer"]
    samples = worker.samples(models.Sampled.SIZE, global_batch=models.Sampled.BATCH, seed=3)
    for step, played in steps.items():
        assert Counter(played.samples) == Counter((step, sample) for sample in samples.batch(step).samples)
    for part in ledger:
        assert all(steps[step].generation == part.generation for step in range(part.begin, min(part.end, len(steps))))


def test_four_ranks_three_and_four_again_use_each_sample_once() -> None:
    result = run(job(models.Sampled), Plan((parse_fault("node1@step=trainer,12:lost/20s"),)))
    check(result)
    ledger = result.job.worlds["trainer"].ledger
    assert [part.ranks for part in ledger] == [4, 3, 4] and ledger[0].begin == 0 and ledger[-1].end >= STEPS - 5


def test_random_plans_use_each_sample_once() -> None:
    graph = job(models.Sampled)
    nemesis = Nemesis(graph, horizon(graph), ())
    shapes = Counter[tuple[int, ...]]()
    for seed in range(examples(60, 1000)):
        result = run(graph, nemesis.plan(seed), seed)
        check(result)
        shapes[tuple(part.ranks for part in result.job.worlds["trainer"].ledger)] += 1
    assert sum(len(set(shape)) > 1 for shape in shapes) > 3  # worlds of several sizes, or the plans show nothing


def test_a_model_that_leaves_out_a_step_is_told_so() -> None:
    result = run(job(models.Skipping), Plan((parse_fault("trainer/1@step=trainer,12"),)))
    (why,) = why_not_once(result.job.worlds["trainer"].ledger)
    assert why.startswith("no committed checkpoint contains the steps from")
