"""Properties of whole jobs in the simulator, judged by their record and by their progress.

`judge_run` takes any topology and plan of faults. `judge_restart` compares what one failure restarts with the static
restart table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
from hypothesis import strategies as st

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import StopReplica
from flowdist.control.protocol.ids import ReplicaId
from flowdist.faults.grammar import NOTHING, Plan, parse_fault
from flowdist.graph import HOUR, MINUTE, SECOND, Cluster, NodeSpec, RoleGraph
from flowdist.record.journal import FaultLine, Line, Record
from flowdist.sim.engine.queue import CRASHES
from flowdist.sim.simulation import SimResult, Simulation
from flowdist.testing.strategies import fault_plans, topologies
from tests.proofs.judge.restart_rules import Complaint, complaints, crash
from tests.proofs.restart_table import Cause, restart_set
from tests.testing.drawn import restarting_topologies, with_steady_services

UNTIL_NS = 3 * HOUR
BOUND_NS = 25 * MINUTE  # above the longest wait of any policy, with detection and start-up


class Run(NamedTuple):
    """Case of `judge_run`: a job, the plan of its faults, and the seed of the simulation."""

    graph: RoleGraph
    plan: Plan
    seed: int


def runs() -> st.SearchStrategy[Run]:
    """Return a Hypothesis strategy for cases with any topology and any faults."""
    graphs = st.one_of(topologies(), topologies(gpus=True)).map(with_steady_services)
    return graphs.flatmap(lambda graph: st.builds(Run, st.just(graph), fault_plans(graph), st.integers(0, 2)))


def quiet_runs() -> st.SearchStrategy[Run]:
    """Return a Hypothesis strategy for cases without faults, in which a role starts after the success of another.

    The nodes have little room, so that it may depend on the seats which the other role gives back.
    """

    def waits(graph: RoleGraph) -> bool:
        return any(gate.condition == "succeeded" for role in graph.roles for gate in role.gates)

    def tight(graph: RoleGraph, more: int) -> RoleGraph:
        wanted = sum(role.min_replicas for role in graph.roles) + more
        nodes = graph.cluster.nodes
        cluster = Cluster(tuple(NodeSpec(node.name, cpu=float(max(1, wanted // len(nodes)))) for node in nodes))
        return msgspec.structs.replace(graph, cluster=cluster)

    graphs = st.builds(tight, topologies().filter(waits).map(with_steady_services), st.integers(0, 3))
    return st.builds(Run, graphs, st.just(NOTHING), st.just(0))


def judge_simulation(
    simulate: Callable[[], SimResult], judge: Callable[[SimResult], list[Complaint]]
) -> list[Complaint]:
    """Simulate a case, and return what is wrong; empty if nothing is.

    Args:
        simulate: Runs the simulation.
        judge: Judges the result. It is not called if control crashes, or if a check of the simulator fails: that is the
            one complaint then.
    """
    try:
        result = simulate()
    except CRASHES as error:
        return [crash(error)]
    if result.violation is not None:
        return [Complaint(result.violation.property, str(result.violation))]
    return judge(result)


def judge_run(run: Run) -> list[Complaint]:
    """Simulate the case for three hours at most, and return what is wrong; empty if nothing is.

    That is the first of these to find something: the simulator's own checks, the rules that the record breaks, missing
    progress after the last fault, and a job that does not succeed although it has room and no fault.
    """

    def judge(result: SimResult) -> list[Complaint]:
        return complaints(result.lines) or _makes_progress(run, result) or _succeeds_without_faults(run, result)

    return judge_simulation(lambda: Simulation(run.graph, run.plan, seed=run.seed).run(UNTIL_NS), judge)


def _makes_progress(run: Run, result: SimResult) -> list[Complaint]:
    """Return a complaint if the job neither makes progress nor ends within `BOUND_NS` after its last fault is over."""
    times = [line.t_ns for line in result.lines if isinstance(line, FaultLine)]
    times += [scale.at_ns for scale in run.plan.scales] + [drain.at_ns for drain in run.plan.drains]
    healed = max(times, default=0) + max((fault.duration_ns or 0 for fault in run.plan.faults), default=0)
    if result.now <= healed + BOUND_NS or any(_is_progress(line, healed) for line in result.lines):
        return []
    return [Complaint("liveness", f"no progress within {BOUND_NS / MINUTE:g} min: {result.job.ending_reason}")]


def _is_progress(line: Line, since: int) -> bool:
    if not isinstance(line, Record) or not since <= line.t_ns <= since + BOUND_NS:
        return False
    return isinstance(line.event, ev.CheckpointOffered) or (
        isinstance(line.event, ev.ReplicaExited) and line.event.kind is None
    )


def _succeeds_without_faults(run: Run, result: SimResult) -> list[Complaint]:
    """Return a complaint if a job without faults does not succeed although its nodes have room for all minima (R2).

    Jobs with GPUs or with placement rules are left out, because their room is not computed here.
    """
    roles = run.graph.roles
    room = sum(int(node.cpu) for node in run.graph.cluster.nodes)
    placed = any(role.placement.near or role.placement.apart or role.resources.gpu for role in roles)
    if run.plan != NOTHING or placed or room < sum(role.min_replicas for role in roles):
        return []
    if result.job.outcome == "succeeded":
        return []
    end = result.job.ending_reason or "; ".join(result.waiting)
    return [Complaint("R2", f"a job with room and without faults ends as {result.job.outcome}: {end}")]


class Restart(NamedTuple):
    """Case of `judge_restart`: a job, and the name of the replica or node that fails while the job runs."""

    graph: RoleGraph
    target: str


def restarts() -> st.SearchStrategy[Restart]:
    """Return a Hypothesis strategy for cases: a job, and any of its replicas or nodes as the target."""

    def targets(graph: RoleGraph) -> st.SearchStrategy[str]:
        replicas = [f"{role.name}/{i}" for role in graph.roles for i in range(role.max_replicas)]
        return st.sampled_from([*replicas, *(node.name for node in graph.cluster.nodes)])

    return restarting_topologies().flatmap(lambda graph: st.builds(Restart, st.just(graph), targets(graph)))


def judge_restart(case: Restart) -> list[Complaint]:
    """Let the target fail after 10 s, and compare what restarts with the static restart table of the topology (R5).

    Returns:
        A complaint if other replicas fail or are ordered to stop than the table says, or if the simulation fails.
    """
    plan = Plan((parse_fault(f"{case.target}@10s"),))
    return judge_simulation(
        lambda: Simulation(case.graph, plan).run(20 * SECOND), lambda result: _differs_from_table(case, result)
    )


def _differs_from_table(case: Restart, result: SimResult) -> list[Complaint]:
    """Return a complaint if the first failure after 10 s restarts other replicas than the restart table says."""
    later = [line for line in result.lines if isinstance(line, Record) and line.t_ns >= 10 * SECOND]
    first = next((line for line in later if isinstance(line.event, ev.ReplicaExited | ev.NodeGone)), None)
    if first is None:
        return []  # nothing was running there
    hit = _hit(result, first)
    cause: Cause = "node_lost" if isinstance(first.event, ev.NodeGone) else "failure"
    wanted = set(hit)
    for replica in hit:
        table = restart_set(case.graph, replica.role, cause)
        wanted |= {other for other in result.job.replicas if table.get(other.role) == "role"}
    found = {effect.replica for effect in first.effects if isinstance(effect, StopReplica)} | set(hit)
    if found == wanted:
        return []
    more, less = (", ".join(map(str, sorted(names))) for names in (found - wanted, wanted - found))
    text = f"{case.target} fails: {more or 'nothing'} restarts against the table, {less or 'nothing'} is missing"
    return [Complaint("R5", text)]


def _hit(result: SimResult, first: Record) -> list[ReplicaId]:
    """Return the replicas that the first failure ended: the one that exited, or all that started on the lost node."""
    if isinstance(first.event, ev.ReplicaExited):
        return [first.event.replica]
    assert isinstance(first.event, ev.NodeGone)
    started = [e for line in result.lines if isinstance(line, Record) and line.n < first.n for e in line.effects]
    return [e.replica for e in started if getattr(e, "gpus", None) is not None and e.node == first.event.node]  # type: ignore[union-attr]
