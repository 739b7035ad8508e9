"""A record is reconstructed as faults and workloads, and the simulator has to repeat its decisions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from flowdist import Node, Restart, Topology, Workload
from flowdist.cli.shared.common import load
from flowdist.cli.shared.options import TopologyOptions
from flowdist.cli.simulate.simulate import _from_scenario
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import ReplicaId
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import Plan
from flowdist.faults.scenario import load_scenario
from flowdist.graph import MS, SECOND, RoleGraph, WorkloadSpec
from flowdist.record.journal import FaultLine, Header, Line, Record
from flowdist.report.record.summary import summary_of
from flowdist.sim.experiment.experiment import Experiment
from flowdist.sim.experiment.play import play
from flowdist.sim.experiment.record import reconstruct
from flowdist.sim.simulation import SimResult, Simulation, with_nodes
from flowdist.testing import simulate
from flowdist.testing.kit import graph_of

STORIES = sorted((Path(__file__).parents[2] / "scenarios").glob("*.toml"))


def played(path: Path, *more: str) -> tuple[RoleGraph, SimResult]:
    scenario = load_scenario(path)
    graph = with_nodes(load(_from_scenario(path, scenario, TopologyOptions(None, (), (), None, as_json=True))).graph)
    plan = parse_plan([*scenario.faults, *more], scenario.scale, scenario.add, scenario.drain)
    return graph, Simulation(graph, plan, seed=scenario.seed).run()


def story(result: SimResult) -> object:
    summary = summary_of(result.job, result.lines)
    incidents = [(i["kind"], i["root"], sorted(i["restarted"]), i["charged_to"]) for i in summary["incidents"]]
    roles = {
        name: (role["outcome"], role["generations"], role["restarts"], role["charged"])
        for name, role in summary["roles"].items()
    }
    return summary["outcome"], incidents, roles


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_every_scenario_told_again_from_its_trace_is_the_same_story(path: Path) -> None:
    _, then = played(path)
    header, lines = header_of(then)
    found = reconstruct(header, lines)
    again = play(found).exact
    assert again.violation is None
    assert story(again) == story(then)
    assert again.now == pytest.approx(then.now, rel=0.15)  # what a checkpoint cost is in the steps now


def header_of(result: SimResult) -> tuple[Header, list[Line]]:
    assert isinstance(result.lines[0], Header)
    return result.lines[0], result.lines[1:]


TRAINER = ReplicaId("trainer", 1)
GANG = next(path for path in STORIES if path.stem.startswith("r4_"))


@pytest.mark.parametrize(
    ("exit", "spelled"),
    [
        (ev.ReplicaExited(TRAINER, 1, "signal", 0, "SEGV"), "trainer/1@5s:exit=139"),
        (ev.ReplicaExited(TRAINER, 1, "signal", 0, "KILL"), "trainer/1@5s"),
        (ev.ReplicaExited(TRAINER, 1, "exit", 3), "trainer/1@5s:exit=3"),
        (ev.ReplicaExited(TRAINER, 1, "oom", 0, "KILL"), "trainer/1@5s:oom"),
        (ev.ReplicaExited(TRAINER, 1, "start_failed", 127), ""),
    ],
)
def test_a_failure_is_spelled_in_the_fault_grammar(exit: ev.ReplicaExited, spelled: str) -> None:
    header, lines = header_of(played(GANG)[1])
    before = [line for line in lines if isinstance(line, Record) and line.t_ns < 4 * SECOND]
    found = reconstruct(header, [*before, Record(len(before) + 1, 5 * SECOND + 499_000, exit)])
    assert [fault.spec for fault in found.plan.faults] == [spelled] * bool(spelled)
    assert spelled or found.gaps.omitted[0] == "trainer/1 did not come up at 5.00s (start_failed)"


def test_who_fails_in_the_wake_of_another_is_not_repeated_but_a_second_fault_is() -> None:
    header, lines = header_of(played(GANG)[1])

    def until_somebody_is_stopped() -> Iterator[Line]:
        for line in lines:
            if isinstance(line, Record) and isinstance(line.event, ev.ReplicaStopped):
                return
            yield line
        raise AssertionError("nobody was stopped")

    for hit in (False, True):
        told = list(until_somebody_is_stopped())
        last = next(line for line in reversed(told) if isinstance(line, Record))
        now = last.t_ns + 10 * MS
        fault = [FaultLine(now - 1 * MS, "trainer/3@2m", "trainer/3")] if hit else []
        failed = ev.ReplicaExited(ReplicaId("trainer", 3), 1, "signal", 0, "ABRT")  # a peer, in the open incident
        found = reconstruct(header, [*told, *fault, Record(last.n + 1, now, failed)])
        assert [f.target for f in found.plan.faults] == ["trainer/2", "trainer/3"][: 1 + hit]
        assert bool(found.gaps.omitted and "in the wake of another failure" in found.gaps.omitted[0]) != hit


def measured(header: Header, lines: list[Line]) -> tuple[dict[str, WorkloadSpec], list[str]]:
    """Return the workloads that a record shows, and what is said about roles without progress."""
    found = reconstruct(header, lines)
    missing = [text for text in found.gaps.omitted if "reported no progress" in text]
    return {role.name: role.workload for role in found.graph.roles}, missing


def test_steps_start_up_and_checkpoints_are_measured() -> None:
    graph, then = played(GANG)
    _, lines = header_of(then)
    workloads, missing = measured(header_of(then)[0], lines)
    work, declared = workloads["trainer"], graph.role("trainer").workload
    assert missing == []
    cycle = declared.checkpoint_every_ns + declared.checkpoint_ns
    assert work.checkpoint_every_ns == pytest.approx(cycle, rel=0.01)
    assert work.step_ns == pytest.approx(declared.step_ns * cycle / declared.checkpoint_every_ns, rel=0.01)
    assert work.startup_ns == pytest.approx(declared.startup_ns, rel=0.05)


def test_nodes_come_when_they_came() -> None:
    """Failures have the times of the run, so nodes have to come up at theirs, too."""
    late = {"node0": 3 * SECOND, "node1": 9 * SECOND}
    t = Topology("late", nodes=2 * [Node(cpu=1)])
    t.role("trainer", "true", replicas=2, restart=Restart(max_restarts=3), workload=Workload(steps=60, startup="2s"))
    graph, plan = with_nodes(graph_of(t)), parse_plan(["trainer/1@20s", "controller@5s"])
    then = play(Experiment(graph, plan, arrivals=late)).exact
    header, lines = header_of(then)
    found = reconstruct(header, lines)
    assert found.arrivals == late and story(then)[0] == "succeeded"
    again = play(found).exact
    assert story(again) == story(then) and again.now == pytest.approx(then.now, rel=0.01)
    formed = [
        next(line.t_ns for line in result.lines if isinstance(line, Record) and starts(line))
        for result in (again, then)
    ]
    assert formed[0] == formed[1] > 9 * SECOND


def test_a_preempted_node_that_connects_to_the_next_controller_is_still_taken_away() -> None:
    """The node joins again in the same incarnation, which is no return: one fault, not two."""
    t = Topology("taken", nodes=2 * [Node(cpu=1)])
    t.role("trainer", "true", replicas=2, restart=Restart(max_restarts=3), workload=Workload(steps=60, startup="2s"))
    then = Simulation(graph_of(t), parse_plan(["node1@20s:preempt=10s/30s", "controller@22s"])).run()
    found = reconstruct(*header_of(then))
    assert [fault.spec for fault in found.plan.faults if fault.target == "node1"] == ["node1@20.0005s:preempt=10s/40s"]


def test_without_progress_a_task_is_as_long_as_it_was_and_that_is_said() -> None:
    _, then = played(GANG)
    lines = without(header_of(then)[1], ev.ReplicaProgressed, ev.ReplicaStepped, ev.CheckpointOffered)
    workloads, missing = measured(header_of(then)[0], lines)
    assert missing == [f"trainer reported no progress: it is played as {workloads['trainer'].steps} steps of 1s"]
    alone = play(reconstruct(header_of(then)[0], lines)._replace(plan=Plan(), arrivals={})).exact
    restarted = max(line.t_ns for line in lines if isinstance(line, FaultLine))
    assert alone.now == pytest.approx(then.now - restarted, rel=0.05)


def starts(line: Record) -> bool:
    return any(isinstance(effect, StartReplica) for effect in line.effects)


def without(lines: list[Line], *told: type[ev.Event]) -> list[Line]:
    return [line for line in lines if not (isinstance(line, Record) and isinstance(line.event, told))]


def test_without_progress_the_pace_is_that_of_the_checkpoints_and_that_is_said() -> None:
    graph, then = played(GANG)
    lines = without(header_of(then)[1], ev.ReplicaProgressed, ev.ReplicaStepped)
    workloads, missing = measured(header_of(then)[0], lines)
    work, declared = workloads["trainer"], graph.role("trainer").workload
    assert missing == ["trainer reported no progress: its steps are played as its checkpoints tell of them"]
    cycle = declared.checkpoint_every_ns + declared.checkpoint_ns
    assert work.steps == pytest.approx(declared.steps, rel=0.01)
    assert (work.step_ns, work.checkpoint_every_ns) == (pytest.approx(cycle / 60, rel=0.01), pytest.approx(cycle))
    again = play(reconstruct(header_of(then)[0], lines)._replace(arrivals={})).exact
    assert again.now == pytest.approx(then.now, rel=0.02) and story(again) == story(then)
    told = [result.models["trainer"].lost_ns for result in (again, then)]
    assert told[0] == pytest.approx(told[1], rel=0.1)


def test_what_is_in_the_measured_times_is_not_paid_again() -> None:
    t = Topology("warm", nodes=2 * [Node(cpu=1)])
    load = {"steps": 600, "warmup": "40s", "restore_time": "5s", "checkpoint_time": "10s", "checkpoint_blocks": "2s"}
    t.role("trainer", "true", replicas=2, restart=Restart(max_restarts=3), workload=Workload(**load))  # type: ignore[arg-type]
    then = simulate(t, "trainer/1@350s")
    header, lines = header_of(then)
    found = reconstruct(header, lines)
    again = play(found._replace(arrivals={})).exact
    assert again.now == pytest.approx(then.now, rel=0.02) and story(again) == story(then)
    silent = without(lines, ev.ReplicaProgressed, ev.ReplicaStepped, ev.CheckpointOffered)
    work = measured(header, silent)[0]["trainer"]
    assert work.steps * work.step_ns == pytest.approx(then.now - 350 * SECOND, rel=0.02) and not work.warmup_ns


def test_who_never_says_what_it_saved_is_known_by_what_it_lost() -> None:
    """600 steps, a failure after 200 of them; the second attempt begins at 150: it loses 50, so it saves every 100."""
    header, lines = header_of(played(GANG)[1])
    started = [line for line in lines if isinstance(line, Record) and line.t_ns < 4 * SECOND]
    n = len(started)
    steps = [(10, 1, 1), (109, 1, 100), (209, 1, 200), (300, 2, 151), (400, 2, 251)]
    told = [
        Record(n + i, t * SECOND, ev.ReplicaProgressed(TRAINER, attempt, step))
        for i, (t, attempt, step) in enumerate(steps, 1)
    ]
    orders = [effect for line in started if isinstance(line, Record) for effect in line.effects]
    order = next(effect for effect in orders if isinstance(effect, StartReplica) and effect.replica == TRAINER)
    again = msgspec.structs.replace(order, attempt=2, generation=2)
    told[2] = msgspec.structs.replace(told[2], effects=(again,))  # after its last report it is started a second time
    work = measured(header, [*started, *told])[0]["trainer"]
    assert work.checkpoint_every_ns == pytest.approx(100 * SECOND, rel=0.01)
