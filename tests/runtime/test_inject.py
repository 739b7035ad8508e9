"""Faults of a plan are due at the right time and ask the supervisor for the right action, which a fake records."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from flowdist.control.job.state import JobState
from flowdist.control.protocol.events import DrainRequested, NodeJoined, NodePreempted, ScaleRequested
from flowdist.control.protocol.ids import ReplicaId
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import FaultError
from flowdist.faults.kinds import KINDS, having
from flowdist.faults.rates import Arrivals
from flowdist.graph import HOUR, SECOND, Cluster, NodeSpec, RoleGraph
from flowdist.runtime.injection.injector import CAN, Injector, check_faults
from flowdist.runtime.wire.frames import LinkFault, Operation, RemoteFault
from tests.control.harness import Talk, graph, role


class ProcessControl:
    def __init__(self) -> None:
        self.done: list[object] = []

    def kill_node(self, name: str, back_after_ns: int | None) -> None:
        self.done.append((name, back_after_ns))

    def make_node_leave(self, name: str, back_after_ns: int | None) -> None:
        self.done.append("leaves")

    def guardian_of(self, name: str) -> int | None:
        return None

    def add_link_fault(self, fault: LinkFault) -> None:
        self.done.append(fault)

    def kill_controller(self) -> None:
        self.done.append("controller")

    def operate(self, event: Operation) -> None:
        self.done.append(event)

    def note_fault(self, spec: str, target: str) -> None:
        pass

    def warn(self, text: str) -> None:
        raise AssertionError(text)

    def is_remote(self, node: str) -> bool:
        return node == "far"

    def apply_remotely(self, fault: RemoteFault) -> None:
        self.done.append(fault)


def job() -> tuple[RoleGraph, JobState]:
    """Two nodes, one of each zone."""
    nodes = tuple(NodeSpec(f"node{i}", labels=(("zone", zone),)) for i, zone in enumerate("ab"))
    topology = msgspec.structs.replace(graph(role("trainer")), cluster=Cluster(nodes))
    talk = Talk(topology, auto=False)
    for node in nodes:
        talk.tell(NodeJoined(node.name, node))
    return topology, talk.job


def carried_out(*faults: str, rates: tuple[str, ...] = (), at: int) -> list[object]:
    topology, state = job()
    plan = parse_plan(faults, rates=rates)
    check_faults(plan, topology)
    control = ProcessControl()
    Injector(plan, topology, Path(), control).fire(state, at)
    return control.done


def test_orders_are_carried_out_like_faults() -> None:
    orders = ("trainer@3s:scale=2", "node1@4s:drain", "zone=a@5s:drain", "node1@9s:drain")
    assert carried_out(*orders, at=5 * SECOND) == [
        ScaleRequested("trainer", 2),
        DrainRequested("node1"),
        DrainRequested("node0"),
    ]


@pytest.mark.parametrize("kind", [kind for kind in CAN["node"] if kind not in (*having("order"), "pause")])
def test_each_kind_of_fault_of_a_node_is_carried_out_and_a_kill_alone_kills_it(kind: str) -> None:
    argument = {"duration": "=30s", "nodes": "=controller", "probability": "=0.1"}.get(KINDS[kind].argument, "")
    [done] = carried_out(f"node1@3s:{kind}{argument}", at=4 * SECOND)
    assert (done == ("node1", None)) == (kind == "kill")


def test_all_nodes_of_a_label_are_hit() -> None:
    assert carried_out("zone=b@3s/1m", at=3 * SECOND) == [("node1", 60 * SECOND)]
    assert carried_out("zone=b@3s:preempt=30s", at=3 * SECOND) == [NodePreempted("node1", 30 * SECOND)]


def test_a_rate_strikes_again_and_again() -> None:
    topology, state = job()
    control = ProcessControl()
    injector = Injector(parse_plan(rates=["node-kill=60/node-hour/5s"]), topology, Path(), control)
    first = injector.next_ns()
    assert first is not None
    injector.fire(state, first - 1)
    assert control.done == []
    injector.fire(state, first)
    assert len(control.done) == 1 and (injector.next_ns() or 0) > first
    injector.fire(state, HOUR)
    assert 80 < len(control.done) < 160  # two nodes, one a minute each
    assert Injector(parse_plan(rates=["node-kill=60/node-hour/5s"]), topology, Path(), control).next_ns() == first


def test_another_seed_draws_other_faults_those_that_simulate_would() -> None:
    topology, state = job()
    plan = parse_plan(rates=["node-kill=60/node-hour/5s"])

    def first_ten(seed: int, since_ns: int = 0) -> list[int]:
        injector, times = Injector(plan, topology, Path(), ProcessControl(), seed=seed, since_ns=since_ns), []
        while len(times) < 10:
            times.append(injector.next_ns() or 0)
            injector.fire(state, times[-1])
        return times

    nodes = [node.name for node in topology.cluster.nodes]
    for seed in (0, 4):
        arrivals = Arrivals(plan.rates, topology, nodes, seed)
        assert first_ten(seed) == [fault.when.at_ns for fault in (arrivals.pop() for _ in range(10))]
    assert first_ten(4) != first_ten(0)
    assert first_ten(4, since_ns=first_ten(4)[4])[:5] == first_ten(4)[5:], "a job that is resumed goes on from there"


def test_rates_that_run_cannot_carry_out_are_refused() -> None:
    with pytest.raises(FaultError, match="flowdist run cannot carry out 'flap' of"):
        check_faults(parse_plan(rates=["zone-flap=1/day:5s"]), job()[0])


def test_a_host_may_have_any_name_that_is_not_similar_to_a_known_one() -> None:
    topology = job()[0]
    for text in ("gpu07@3s:pause/5s", "controller@3s:partition=gpu07", "gpu07@3s:drain"):
        check_faults(parse_plan([text]), topology, has_guests=True)
        with pytest.raises(FaultError, match=r"there is no (node )?'gpu07'"):
            check_faults(parse_plan([text]), topology)
    check_faults(parse_plan(drains=["gpu07@3s"]), topology, has_guests=True)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("trianer@3s", "there is no 'trianer'"),
        ("trainer/7@3s", "trainer has 1 replica at most"),
        ("gpu07/0@3s", "there is no 'gpu07'"),
        ("gpu07@3s:exit=3", "exit of a node means nothing here"),
        ("gpu07@3s:partition=gpu08", "run cannot cut gpu07 off from gpu08"),
        ("gpu07@3s:flap=3s", "flowdist run cannot carry out 'flap'"),
        ("gpu07@3s:add", "--add and --rate are for one machine"),
    ],
)
def test_faults_that_no_host_can_have_are_refused_beforehand(fault: str, why: str) -> None:
    with pytest.raises(FaultError, match=why):
        check_faults(parse_plan([fault]), job()[0], has_guests=True)
    with pytest.raises(FaultError, match="--add and --rate are for one machine"):
        check_faults(parse_plan(rates=["node-kill=60/node-hour/5s"]), job()[0], has_guests=True)


def test_a_worker_of_another_host_is_hit_there() -> None:
    topology, _ = job()
    talk = Talk(topology)
    talk.tell(NodeJoined("far", NodeSpec("far")))
    assert talk.up() == []
    talk.wait(10)
    assert talk.up() == ["trainer/0"]
    control = ProcessControl()
    plan = parse_plan(["far@1s:pause/5s", "trainer@2s:exit=3", "trainer/0.0@3s:slow=2x"])
    check_faults(plan, topology, has_guests=True)
    Injector(plan, topology, Path(), control).fire(talk.job, 3 * SECOND)
    trainer = ReplicaId("trainer", 0)
    assert control.done == [
        RemoteFault("far", "pause", "", 5 * SECOND),
        RemoteFault("far", "exit", "3", None, trainer, 1),
        RemoteFault("far", "slow", "2x", None, trainer, 1, 0),
    ]
