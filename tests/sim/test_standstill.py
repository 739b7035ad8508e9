"""Virtual time goes on while nodes import, whatever happens; a simulation in which it stops says so."""

from __future__ import annotations

import pytest

from flowdist.control.protocol.effects import StartReplica
from flowdist.dsl import Node, Restart, Topology, Workload
from flowdist.errors import FlowdistError
from flowdist.faults.grammar import Plan, parse_fault
from flowdist.graph import MS, SECOND, NodeSpec
from flowdist.record.journal import Record
from flowdist.sim.engine.node import SimNode
from flowdist.sim.engine.queue import STANDSTILL, Queue, Violation
from flowdist.sim.experiment.outcome import of_simulation
from flowdist.sim.experiment.play import checked
from flowdist.sim.result import SimResult
from flowdist.sim.simulation import Simulation
from flowdist.testing import graph_of, simulate


def importing(procs: int = 1) -> Topology:
    t = Topology("imports", nodes=3 * [Node(cpu=1)])
    load = Workload(startup="1s", import_time="16s", steps=100, step_time="100ms")
    restart = Restart(max_restarts=3, backoff="0s")
    t.role("trainer", "true", replicas=f"1:2x{procs}", restart=restart, workload=load)
    return t


def lasted(result: SimResult) -> float:
    assert result.violation is None and result.job.outcome == "succeeded"
    return round(result.now / SECOND, 1)


@pytest.mark.parametrize("procs", [1, 2])
@pytest.mark.parametrize("fault", ["node1@6s", "node1@6s/5s", "node1@6s:lost/2s", "node1@6s:lost", "node1@6s:drain"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_node_may_go_while_its_workers_wait_for_imports(fault: str, procs: int, seed: int) -> None:
    result = simulate(importing(procs), fault, seed=seed)
    assert 26.5 <= lasted(result) < 30, "the survivor waits for its own imports alone: 16 s, a start-up, 10 s of work"


def test_who_waits_for_imports_is_stopped_at_once() -> None:
    """Production drops a worker that waits for its fork server. Until then its place in the world is not free."""
    result = simulate(importing(), "node1@6s")
    begun = [line.t_ns for line in result.lines if isinstance(line, Record) for one in line.effects if is_second(one)]
    assert begun[0] - result.job.incidents[0].opened_ns < 10 * MS


def is_second(effect: object) -> bool:
    return isinstance(effect, StartReplica) and effect.generation == 2


def test_actions_that_plan_each_other_for_one_moment_are_a_defect_that_names_itself() -> None:
    queue = Queue()

    def plan_again() -> None:
        queue.at(queue.now, plan_again)

    queue.at(7 * SECOND, plan_again)
    with pytest.raises(
        Violation, match=r"^standstill: virtual time stands still at 7s: .*plan_again \(100 of the last"
    ):
        queue.run()
    assert queue.handled == STANDSTILL + 2 and queue.now == 7 * SECOND


@pytest.mark.parametrize("schedule", [0, 5])
def test_a_moment_may_have_any_number_of_actions(schedule: int) -> None:
    queue, done = Queue(schedule), [0]

    def once_more(left: int) -> None:
        done[0] += 1
        if left:
            queue.after(0, once_more, left - 1)

    for _ in range(2 * STANDSTILL):
        queue.at_apart(SECOND, once_more, 1)
    queue.run()
    assert done == [4 * STANDSTILL] and queue.now == SECOND


class Restless(SimNode):
    """A node with a planted defect: woken at a deadline, it does nothing about it."""

    def _wake(self, due: int) -> None:
        self._queue.at(due, self._wake, due)


class WithDefect(Simulation):
    def new_node(self, spec: NodeSpec, starts: int) -> SimNode:
        return Restless(self.ctx, spec, self._controller, self.work, self.running, starts)


def test_a_simulation_that_stands_still_stops_with_the_name_of_what_keeps_happening() -> None:
    plan = Plan((parse_fault("node1@6s:lost/2s"),))
    result = WithDefect(graph_of(importing()), plan).run()
    found = str(result.violation)
    assert "standstill: virtual time stands still at " in found and "Restless._wake of node" in found
    with pytest.raises(FlowdistError, match="standstill: virtual time stands still"):
        checked(of_simulation(result), may_stand_still=True)


def test_a_job_that_never_ends_is_a_result() -> None:
    result = simulate(importing(), "trainer/0@20s:hang")
    assert result.violation is not None
    outcome = of_simulation(result)
    assert checked(outcome, may_stand_still=True) is outcome and outcome.outcome is None
    with pytest.raises(FlowdistError, match="the simulation has found a violation: liveness"):
        checked(outcome)
