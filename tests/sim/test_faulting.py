"""Each kind of fault: its effect on processes, disks and links, and the decisions that follow."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from flowdist import Node, On, Restart, Topology, Workload
from flowdist.cli.shared.simulated import simulated_summary
from flowdist.control.controller import Controller
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.events import CheckpointOffered, NodeGone, NodeJoined, ReplicaLeftStep
from flowdist.dsl.load import load_topology
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import Plan, parse_fault, parse_scale
from flowdist.graph import MINUTE, MS, SECOND, Cluster, NodeSpec, Resources
from flowdist.record.journal import FaultLine, Header, Record, UnsavedLine
from flowdist.record.timesheet import Timesheet
from flowdist.report.record.summary import summary_text
from flowdist.report.record.timeline import timeline_of
from flowdist.report.record.trace import trace_lines
from flowdist.sim.engine.network import LATENCY_NS, RESEND_NS, STRAY_NS, Link
from flowdist.sim.simulation import SimResult, Simulation, Violation, with_nodes
from flowdist.testing import simulate
from tests.control.harness import graph as graph_of
from tests.control.harness import r, role

TOPOLOGIES = Path(__file__).parents[2] / "scenarios/topologies"


def run(name: str, *faults: str, seed: int = 0, scales: tuple[str, ...] = (), **params: object) -> SimResult:
    arguments = {key: str(value) for key, value in params.items()}
    graph = with_nodes(load_topology(str(TOPOLOGIES / name), arguments, (), None).graph)
    plan = Plan(tuple(map(parse_fault, faults)), tuple(map(parse_scale, scales)))
    return Simulation(graph, plan, seed=seed).run()


def lasted(result: SimResult) -> int:
    assert result.violation is None and result.job.outcome == "succeeded" and not result.unfired
    return result.now // SECOND


NOMINAL = 615  # s: 5 of start-up, 600 steps of 1 s, 9 checkpoints of 1 s, and a moment


def test_nothing_wrong_takes_as_long_as_the_workload_says() -> None:
    assert lasted(run("gang.py")) == NOMINAL - 1


@pytest.mark.parametrize(
    ("fault", "more"),
    [
        ("trainer/1@2m:pause/20s", 20),
        ("node1@2m:pause/2s", 2),
        ("trainer/1@2m:slow=4x/40s", 30),  # 40 s at a quarter of the speed
        ("node1@2m:partition=node2/20s", 20),
        ("node1@2m:cut-to=node2,node3/20s", 20),
        ("node1@2m:drop=0.5/1m", 0),
        ("node1@2m:delay=300ms/1m", 0),
        ("node1@2m:partition=controller/2s", 0),  # shorter than the lease
    ],
)
def test_what_holds_up_a_world_costs_that_time_and_no_restart(fault: str, more: int) -> None:
    result = run("gang.py", fault)
    assert lasted(result) == NOMINAL - 1 + more
    assert not result.job.incidents


@pytest.mark.parametrize(
    "fault",
    ["node1@2m:partition=controller/1m", "node1@2m:cut-to=controller/1m", "node1@2m:pause/1m", "node1@2m:lost/1m"],
)
def test_a_node_that_is_not_heard_is_fenced_and_replaced_and_comes_back(fault: str) -> None:
    result = run("gang.py", fault)
    assert lasted(result) > NOMINAL
    assert [incident.kind for incident in result.job.incidents] == ["node_lost", "joined"]


def test_a_node_that_hears_nothing_fences_by_itself() -> None:
    result = run("gang.py", "controller@2m:cut-to=node1/20s")
    assert [incident.kind for incident in result.job.incidents] == ["node_lost"]
    assert "came back without what it ran" in result.job.incidents[0].reason
    assert lasted(result) > NOMINAL


def test_a_pause_without_end_is_a_hang_and_is_found_as_one() -> None:
    result = run("core.py", "trainer/1@2m:pause")
    assert [incident.kind for incident in result.job.incidents] == ["hang"]
    assert lasted(result) > 0


def test_a_torn_checkpoint_costs_the_work_since_the_one_before() -> None:
    whole, torn = run("gang.py", "trainer@3m"), run("gang.py", "trainer@2m50s:torn-checkpoint", "trainer@3m")
    assert torn.models["trainer"].lost_steps == whole.models["trainer"].lost_steps + 60


def test_the_checkpoint_of_a_joint_world_is_torn_by_a_fault_of_one_of_its_replicas() -> None:
    t = Topology("joint", nodes=2 * [Node(cpu=2)])
    load = Workload(steps=600, checkpoint_every="1m", checkpoint_time="0s")
    roles = [t.role(name, "true", restart=Restart(max_restarts=3), workload=load) for name in ("actor", "learner")]
    t.world("core", *roles)
    whole, torn = simulate(t, "actor/0@3m"), simulate(t, "learner/0@2m50s:torn-checkpoint", "actor/0@3m")
    assert torn.unfired == [] and torn.models["core"].lost_steps == whole.models["core"].lost_steps + 60


def test_a_gang_of_several_workers_a_replica_that_gets_on_is_not_held_to_hang() -> None:
    t = Topology("several", nodes=2)
    policy, load = Restart("role", max_restarts=3), Workload(steps=900, startup="5s")
    t.role("trainer", "true", replicas="2x4", cpu=4, apart=True, hang_after="2m", restart=policy, workload=load)
    assert simulate(t).job.incidents == []
    [incident] = simulate(t, "trainer/1@6m:hang").job.incidents
    assert incident.kind == "hang"


@pytest.mark.parametrize("kind", ["torn-checkpoint", "lost-checkpoint", "corrupt-checkpoint"])
def test_where_no_checkpoint_is_none_is_damaged(kind: str) -> None:
    """As in a real run, a fault that hits nothing has not fired."""
    result = run("gang.py", f"trainer@30s:{kind}", f"all@40s:{kind}")
    assert [fault.spec for fault in result.unfired] == [f"trainer@30s:{kind}", f"all@40s:{kind}"]
    assert not run("gang.py", f"trainer@2m30s:{kind}", f"all@3m30s:{kind}").unfired


def test_all_are_the_checkpoints_of_all_roles() -> None:
    every, one = (
        run("gang.py", "all@2m50s:torn-checkpoint", "trainer@3m"),
        run("gang.py", "trainer@2m50s:torn-checkpoint", "trainer@3m"),
    )
    assert every.models["trainer"].lost_steps == one.models["trainer"].lost_steps > 60


def test_a_full_disk_means_that_nothing_is_saved_until_it_is_not() -> None:
    full = run("gang.py", "trainer@1m:disk-full/3m", "trainer@3m50s")
    assert full.models["trainer"].lost_steps > 180
    assert run("gang.py", "trainer@1m:disk-full/1m", "trainer@4m30s").models["trainer"].lost_steps < 60


def unsaved(result: SimResult) -> list[tuple[str, int, str]]:
    return [(line.world, line.step, line.reason) for line in result.lines if isinstance(line, UnsavedLine)]


def test_each_checkpoint_that_a_full_disk_costs_has_a_line_with_the_reason() -> None:
    full = run("gang.py", "trainer@1m:disk-full/3m", "trainer@3m50s")
    assert unsaved(full) == [("trainer", step, "the disk of trainer is full") for step in (60, 120, 180)]
    summary = simulated_summary(full)
    assert [line["step"] for line in summary["unsaved"]] == [60, 120, 180]
    assert "Not saved: 3 of the checkpoints of trainer: the disk of trainer is full" in summary_text(summary)
    assert "Not saved" not in summary_text(simulated_summary(run("gang.py", "trainer@3m50s")))
    assert any("step 120 is not saved" in text for text in trace_lines(full.lines))


def test_a_record_with_checkpoints_that_came_to_nothing_replays() -> None:
    header, *lines = run("gang.py", "trainer@1m:disk-full/1m").lines
    assert isinstance(header, Header)
    timeline = timeline_of(header, lines)
    assert timeline.differs_at is None and len(timeline.unsaved) == 1
    controller = Controller(header.graph, header.known_nodes)
    sheet = Timesheet(controller.state)
    for line in lines:
        if isinstance(line, Record):
            controller.handle(line.event, line.t_ns)
        sheet.hear(line)
    assert sheet.lasted() == controller.state.now == timeline.end_ns


def zoned(**times: str) -> Topology:
    t = Topology("zoned", nodes=[Node(cpu=1, labels={"zone": zone}) for zone in "aabb"])
    load = Workload(steps=300, startup="2s", checkpoint_every="1m")
    t.role("trainer", "true", replicas="2:4", cpu=1, restart=Restart(max_restarts=3), workload=load, **times)  # type: ignore[arg-type]
    return t


def test_all_nodes_of_a_label_are_cut_off_from_another_and_all_are_joined_again() -> None:
    result = simulate(zoned(), "zone=a@1m:partition=node2/30s", "zone=b@3m:partition=node0,node2/10s")
    stood_s = result.spent["trainer"]["stalled"] / 4 / SECOND
    assert (result.job.outcome, round(stood_s)) == ("succeeded", 40)


def test_nodes_that_are_cut_off_again_before_they_are_joined_stay_apart() -> None:
    result = simulate(zoned(), "node1@every=1m:partition=node2/70s", until="5m")
    assert result.violation is None and result.models["trainer"].step_at(result.now) < 60


def test_a_node_that_is_back_at_once_is_not_taken_for_the_one_that_died() -> None:
    """The proof of a death has to arrive before the join of the next agent."""
    t = Topology("loose", nodes=2)
    t.role("worker", "true", gang=False, restart=Restart("replica", max_restarts=3), workload=Workload(steps=300))
    for fault in ("node0@1m/0s", "node0@1m/5ms", "node0@1m:preempt=0s/0s"):
        assert simulate(t, fault).violation is None, fault


@pytest.mark.parametrize(("fault", "dies"), [("node1@2m1s", 121), ("node1@2m1s:preempt=1s", 122), ("node1@2m30s", 150)])
def test_a_node_that_is_cut_off_can_be_killed_and_is_not_there_when_the_cut_ends(fault: str, dies: int) -> None:
    result = simulate(zoned(), "node1@2m:lost/1m", fault)
    events = [(line.t_ns, line.event) for line in result.lines if isinstance(line, Record)]
    assert [at for at, event in events if event == NodeGone("node1", "killed")] == [dies * SECOND + 10 * MS]
    assert [event.node for _, event in events if isinstance(event, NodeJoined)] == ["node0", "node1", "node2", "node3"]
    assert result.job.outcome == "succeeded" and not result.unfired


def test_the_workers_of_a_node_that_is_cut_off_end_as_it_is_killed() -> None:
    """They would step until the lease is over, had it not been killed."""
    cut, killed = (simulate(zoned(), "node1@2m:lost", *more) for more in ((), ("node1@2m1s",)))
    lost = [result.spent["trainer"]["lost work"] / 4 / SECOND for result in (cut, killed)]
    assert lost[0] - lost[1] > 1.5


def test_a_node_that_is_cut_off_and_killed_comes_back_anew() -> None:
    result = simulate(zoned(), "node1@2m:lost/1m", "node1@2m1s/10s")
    joined = [line for line in result.lines if isinstance(line, Record) and isinstance(line.event, NodeJoined)]
    assert [(line.t_ns // SECOND, line.event.incarnation) for line in joined][4:] == [(131, 1001)]


def test_a_node_that_takes_long_to_leave_is_back_when_it_has_left() -> None:
    result = simulate(zoned(grace="40s"), "trainer/0@50s:hang", "node0@1m:leave/5s", collective="hang")
    joined = [line.t_ns // SECOND for line in result.lines[1:] if getattr(line, "event", None).__class__ is NodeJoined]
    assert joined[:4] == [0, 0, 0, 0] and len(joined) == 5 and 100 <= joined[4] <= 102
    assert result.job.outcome == "succeeded"


def test_a_label_stands_for_all_nodes_that_have_it() -> None:
    result = run("core.py", "zone=a@2m/3m")
    assert [line.target for line in result.lines if type(line).__name__ == "FaultLine"] == ["node0", "node2"]
    assert lasted(result) > 0


def test_dependents_wait_for_a_service_that_is_away_and_not_for_one_that_has_ended() -> None:
    away = run("ps.py", "ps/0@4m", on_restart="reconnect")
    assert NOMINAL < lasted(away) < NOMINAL + 8  # the server's start-up
    service = role("a", kind="service", min_replicas=1, max_replicas=3)
    graph = graph_of(service, role("main", gates=()), nodes=2)
    plan = Plan((), (parse_scale("a=1@40s"),))
    assert lasted(Simulation(graph, plan).run()) > 0


def test_the_same_seed_loses_the_same_packets_and_another_others() -> None:
    digests = [run("gang.py", "node1@1m:drop=0.4/5m", "node1@3m:lost/3s", seed=seed).digest for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]


def test_what_is_lost_is_said_again_and_nothing_overtakes_it() -> None:
    link = Link("node0", seed=1)
    assert link.arrivals("up", 1000) == [1000 + LATENCY_NS]
    link.disturb("f", "drop", 0.9)
    times = [at for i in range(50) for at in link.arrivals("up", 2000 + i)]
    assert times == sorted(times) and max(times) >= 2000 + RESEND_NS
    link.heal("f")
    assert link.is_quiet


def test_what_was_replaced_while_its_node_was_paused_is_gone_in_a_moment() -> None:
    result = run("gang.py", "node1@2m:pause/1m", replicas=3)
    assert lasted(result) > 0 and result.job.replicas[r("trainer/1")].attempt == 2


def test_an_attempt_that_goes_on_beside_its_successor_after_a_pause_is_seen() -> None:
    graph = load_topology(str(TOPOLOGIES / "gang.py"), {"replicas": "3"}, (), None).graph
    simulation = Simulation(graph, Plan((parse_fault("node1@2m:pause/1m"),)))
    node = simulation.nodes["node1"]
    handle = node.agent.handle

    def stop_nobody(event: io.AgentInput, now: int) -> list[io.AgentOutput]:
        return [output for output in handle(event, now) if not isinstance(output, io.SignalWorkers)]

    node.agent.handle = stop_nobody  # type: ignore[method-assign]  # its lease is over, and its workers go on
    result = simulation.run()
    assert isinstance(result.violation, Violation) and result.violation.property == "split brain"


def test_where_the_time_went() -> None:
    spent = {name: {b: ns / SECOND for b, ns in s.items()} for name, s in run("gang.py", "node1@2m/3m").spent.items()}
    trainer = spent["trainer"]
    assert trainer["productive"] == 2400 - 120 and 179 < trainer["waiting"] < 181  # 120 of the steps were done by three
    assert trainer["lost work"] > 100 and trainer["re-formation"] < 1
    hang = run("core.py", "trainer/1@2m:hang").spent["trainer"]
    assert hang["detection"] == pytest.approx(4 * 32 * SECOND, rel=0.05)
    slow = run("gang.py", "trainer/1@2m:slow=4x/40s").spent["trainer"]
    assert slow["stalled"] == pytest.approx(4 * 30 * SECOND, rel=0.01) and slow["lost work"] == 0
    backoff = run("gang.py", "trainer/0@1m:exit=1", "trainer/0@2m:exit=1").spent["trainer"]
    assert backoff["back-off"] == 4 * SECOND


def test_a_node_that_two_faults_took_away_is_brought_back_once() -> None:
    result = run("gang.py", "node0@1m:leave/5s", "node0@1m1s/20s")
    assert result.violation is None and result.job.outcome == "succeeded"


@pytest.mark.parametrize("kind", ["duplicate=0.4", "reorder=0.4", "drop=0.4", "delay=200ms", "flap=400ms"])
def test_messages_that_come_twice_late_or_in_another_order_change_no_outcome(kind: str) -> None:
    """All links are bad while the job starts, and while it recovers from a lost node and a failed replica."""
    bad = [f"node{i}@{at}:{kind}/1m" for i in range(4) for at in ("0s", "3m")]
    result = run("gang.py", *bad, "node1@3m0.6s/20s", "trainer/0@4m:exit=3", seed=3)
    assert lasted(result) > NOMINAL
    assert result.job.worlds["trainer"].generation >= 3


def test_a_link_says_things_twice_and_in_another_order() -> None:
    link = Link("node0", seed=1)
    link.disturb("f", "duplicate", 0.5)
    copies = [link.arrivals("up", 1000) for _ in range(200)]
    assert 70 < sum(len(times) == 2 for times in copies) < 130
    assert all(times[-1] - times[0] <= STRAY_NS for times in copies)
    link.heal("f")
    link.disturb("g", "reorder", 0.5)
    times = [at for i in range(200) for at in link.arrivals("down", 2000 + i)]
    assert times != sorted(times) and len(times) == 200
    link.heal("g")
    assert link.is_quiet


def test_a_link_that_flaps_is_cut_and_whole_in_turns() -> None:
    """Cut for less than the lease each time: nothing follows. For longer: the node is lost each time."""
    assert not run("gang.py", "node1@2m:flap=1s/1m").job.incidents
    kinds = [incident.kind for incident in run("gang.py", "node1@2m:flap=20s/1m").job.incidents]
    assert kinds.count("node_lost") == 2  # from 2m00 to 2m20, from 2m40 to 3m00


def test_a_partition_that_comes_again_and_again() -> None:
    result = run("gang.py", "node1@every=2m:partition=node2/5s")
    assert lasted(result) > NOMINAL + 20 and not result.job.incidents


def test_a_second_fault_hits_the_generation_that_is_starting() -> None:
    result = run("gang.py", "node1@2m/1m", "node2@start=trainer,2/1m")
    first, second = (incident.opened_ns for incident in result.job.incidents[:2])
    assert lasted(result) > NOMINAL and second - first < SECOND


def test_orders_are_faults_like_others() -> None:
    """Orders at an event: a role is scaled after the second checkpoint, a node is added, another drained."""
    result = run(
        "gang.py",
        "trainer@checkpoint=trainer,2:scale=3",
        "node9@6m:add",
        "node1@7m:drain",
        replicas="2:4",
    )
    assert lasted(result) >= NOMINAL - 1
    assert {"scaled", "drained"} <= {incident.kind for incident in result.job.incidents}
    assert "node9" in result.job.nodes and result.hits["scale", "steady"] == 1


def test_all_nodes_of_a_label_are_drained() -> None:
    graph = graph_of(role("main", min_replicas=1, max_replicas=1), nodes=3)
    nodes = tuple(msgspec.structs.replace(node, labels=(("zone", "a"),)) for node in graph.cluster.nodes[1:])
    cluster = msgspec.structs.replace(graph.cluster, nodes=(graph.cluster.nodes[0], *nodes))
    result = Simulation(msgspec.structs.replace(graph, cluster=cluster), parse_plan(["zone=a@1m:drain"])).run()
    assert sorted(result.hits) == [("drain", "steady")] and result.hits["drain", "steady"] == 2


def test_what_a_rate_brings_is_what_its_faults_written_out_bring() -> None:
    graph = load_topology(str(TOPOLOGIES / "gang.py"), {}, (), None).graph
    plan = parse_plan(rates=["node-kill=100/node-day/1m", "trainer-exit=30/replica-day:3", "controller-kill=1/hour"])
    drawn = Simulation(graph, plan, seed=2).run(20 * MINUTE)
    specs = [line.spec for line in drawn.lines if isinstance(line, FaultLine)]
    assert len(specs) > 3
    assert Simulation(graph, parse_plan(specs), seed=2).run(20 * MINUTE).digest == drawn.digest


def on_gpus(*faults: str, share: int = 1000) -> SimResult:
    need = Resources(cpu=0, gpu=1, gpu_share=share)
    trainer = msgspec.structs.replace(role("trainer", min_replicas=1, max_replicas=3), resources=need)
    nodes = tuple(NodeSpec(f"node{i}", gpu=2) for i in range(2))
    graph = msgspec.structs.replace(graph_of(trainer), cluster=Cluster(nodes))
    return Simulation(graph, Plan(tuple(map(parse_fault, faults)))).run()


def test_a_gpu_that_a_node_does_not_have_has_no_xid() -> None:
    assert [fault.spec for fault in run("gang.py", "node1@1m:xid=79").unfired] == ["node1@1m:xid=79"]
    assert [fault.spec for fault in on_gpus("node0@1m:xid=13,7", "node0@2m:xid=13,1").unfired] == ["node0@1m:xid=13,7"]


def test_a_gpu_with_an_xid_is_left_and_the_gang_goes_on_elsewhere() -> None:
    result = on_gpus("node0@1m:xid=79", "node0@2m:xid=13,1", "node1@3m:xid=48", "node1@4m:xid=79,1")
    assert lasted(result) > NOMINAL
    assert [(i.kind, i.root) for i in result.job.incidents if i.kind == "gpu_lost"] == [
        *[("gpu_lost", "node0"), ("gpu_lost", "node1"), ("gpu_lost", "node1")]
    ]
    assert [list(node.bad_gpus) for node in result.job.nodes.values()] == [[0], [0, 1]]


def test_a_gpu_that_fails_takes_all_who_share_it_along() -> None:
    result = on_gpus("node0@1m:xid=79", share=300)
    assert lasted(result) > NOMINAL and len(result.job.incidents) == 1


def test_r14_a_member_that_hears_late_of_the_agreed_step_leaves_there_too() -> None:
    """Its orders take 400 ms: the other members have saved and left before it knows where to stop."""
    faults = ("node1@4m2.228s:delay=400ms/30s", "node0@4m4.082s:preempt=30s/31s")
    result = simulate(TOPOLOGIES / "core.py", *faults, seed=73)
    assert result.job.outcome == "succeeded", result.job.ending_reason
    left = [line.event for line in result.lines if isinstance(getattr(line, "event", None), ReplicaLeftStep)]
    assert len(left) == 6


def test_a_node_that_has_run_a_member_before_holds_nobody_up_when_it_is_paused() -> None:
    """The node came back after its replicas had been placed elsewhere."""
    t = Topology("roomy", nodes=4 * [Node(cpu=4)])
    t.role("trainer", "true", replicas=4, cpu=2, workload=Workload(steps=300))
    away = "node3@60s:partition=controller/55s"
    once, twice = (simulate(t, away, *more) for more in ((), ("node3@200s:pause/3s",)))
    assert all(start.node != "node3" for start in once.models["trainer"].members.values())
    assert once.now == twice.now and once.job.outcome == "succeeded"


def test_a_checkpoint_at_an_agreed_step_counts_like_any_other() -> None:
    """The script commits there, too: a fault that waits for the second checkpoint does not come after the third."""
    result = run("gang.py", "node1@1m20s:drain", "trainer/0@checkpoint=trainer,2+3s", replicas="2:4")
    (fault,) = [line.t_ns for line in result.lines if isinstance(line, FaultLine) and line.spec.startswith("trainer/0")]
    offers = [
        line.t_ns for line in result.lines if isinstance(line, Record) and isinstance(line.event, CheckpointOffered)
    ]
    assert 80 * SECOND < offers[1] == fault - 3 * SECOND < 90 * SECOND


def two_trainers(steps: int, seconds: int) -> Topology:
    t = Topology("two", nodes=2 * [Node(cpu=1)])
    policy = Restart("role", max_restarts=1, rules=[On("oom", do="fail")])
    load = Workload(steps=steps, step_time=f"{seconds}s", startup="1s", checkpoint_every="1m")
    t.role("trainer", "true", replicas=2, cpu=1, pending_timeout="5m", restart=policy, workload=load)
    return t


@pytest.mark.parametrize("before_ms", [900, 500, 50, 5])
def test_r16_who_has_done_all_steps_under_a_notice_has_succeeded(before_ms: int) -> None:
    """There is no step any more at which it could be told to stop, and no room to do anything again."""
    t = two_trainers(600, 1)
    nominal = simulate(t).now
    result = simulate(t, f"node1@{nominal // 1_000_000 - before_ms}ms:preempt=60s")
    assert result.job.outcome == "succeeded" and not result.job.incidents
    assert result.now <= nominal + SECOND


def test_r9_a_failure_before_the_agreed_step_has_its_own_kind() -> None:
    t = two_trainers(20, 30)
    result = simulate(t, "node1@70s:drain", "trainer/0@80s:oom")
    assert result.job.outcome == "failed" and 'rule On("oom") says fail' in (result.job.ending_reason or "")


def test_r16_a_failure_after_the_agreed_step_is_none() -> None:
    """The agreed step begins at 92 s, and the checkpoint is complete at 93 s."""
    t = two_trainers(20, 30)
    result = simulate(t, "node1@70s:preempt=60s/5m", "trainer/0@92.5s:exit=1")
    assert not any(incident.counted for incident in result.job.incidents)


@pytest.mark.parametrize("on_restart", ["reconnect", "restart"])
def test_r5_what_has_an_address_in_its_command_restarts_when_the_service_is_scaled(on_restart: str) -> None:
    t = Topology("baked", nodes=2 * [Node(cpu=4)])
    policy = Restart("replica")
    ps = t.role("ps", "true", kind="service", replicas="1:2", ports=["rpc"], ready_when="tcp:rpc", restart=policy)
    command = f"echo {ps.addresses('rpc')}"
    t.role(
        "trainer", command, depends_on=[ps.ready(on_restart=on_restart)], restart=Restart(), workload=Workload(steps=99)
    )
    result = simulate(t, scale=["ps=1@20s", "ps=2@40s"])
    assert [incident.kind for incident in result.job.incidents] == ["address_changed", "address_changed"]
    assert result.job.replicas[r("trainer/0")].attempt == 3


def test_what_is_scaled_down_waits() -> None:
    t = Topology("fewer", nodes=[Node(cpu=4)])
    ps = t.role("ps", "true", kind="service", replicas="1:2", restart=Restart("replica"))
    t.role("trainer", "true", depends_on=[ps.started()], workload=Workload(steps=100, startup="1s"))
    spent = simulate(t, scale="ps=1@51s").spent["ps"]
    assert spent["waiting"] >= 49 * SECOND and spent["detection"] < SECOND


@pytest.mark.parametrize("controller", ["60s", "60.2s"])
@pytest.mark.parametrize(("kind", "incident"), [("preempt=30s/60s", "preempted"), ("leave", "node_lost")])
def test_what_a_node_says_while_no_controller_runs_is_not_lost(controller: str, kind: str, incident: str) -> None:
    """It says that it will be taken away, or that it leaves, 0.1 ms before or 0.1 s after the death of one."""
    t = Topology("away", nodes=3 * [Node(cpu=1)])
    policy = Restart("role", max_restarts=1)
    t.role("tr", "true", replicas=2, drain="30s", restart=policy, workload=Workload(steps=200))
    result = simulate(t, f"controller@{controller}", f"node1@60.1999s:{kind}")
    (one,) = result.job.incidents
    assert one.kind == incident and one.opened_ns < 64 * SECOND and not one.counted
