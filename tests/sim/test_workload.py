"""Workloads as the simulator plays them: warm-up, spread, asynchronous checkpoints, slow disks."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowdist.control.protocol.ids import ReplicaId
from flowdist.dsl import Node, Restart, Topology, Workload
from flowdist.faults.grammar import FaultError, Plan, parse_fault
from flowdist.graph import MS, SECOND, RoleGraph
from flowdist.record.accounts import Spent
from flowdist.record.journal import Record, UnsavedLine
from flowdist.sim.checks.liveness import bound_ns, end_ns, healed_ns
from flowdist.sim.faults.injector import check_faults
from flowdist.sim.faults.nemesis import Nemesis
from flowdist.sim.simulation import SimResult, Simulation
from flowdist.testing.campaign import campaign, horizon
from flowdist.testing.kit import graph_of
from tests.sim.test_fast_forward import differences


def gang(replicas: str = "4", **load: Any) -> RoleGraph:
    t = Topology("gang", nodes=[Node(f"node{i}", cpu=1) for i in range(int(replicas.rpartition(":")[2]))])
    load = {"steps": 600, "startup": "5s", "checkpoint_every": "1m", "checkpoint_time": "10s", **load}
    t.role("trainer", "true", replicas=replicas, restart=Restart(max_restarts=9), workload=Workload(**load))
    return graph_of(t)


def run(graph: RoleGraph, *faults: str, seed: int = 0) -> SimResult:
    return Simulation(graph, Plan(tuple(map(parse_fault, faults))), seed=seed).run()


def spent(result: SimResult, bucket: str) -> float:
    """Return the time of a bucket in seconds for each trainer."""
    return result.spent["trainer"][bucket] / SECOND / len(result.job.replicas)  # type: ignore[index]


def saved_at(result: SimResult) -> list[tuple[float, int]]:
    """Return when checkpoints were accepted, in seconds, with their steps."""
    lines = [line for line in result.lines if isinstance(line, Record)]
    offers = [line for line in lines if type(line.event).__name__ == "CheckpointOffered"]
    return [(round(line.t_ns / SECOND, 2), line.event.step) for line in offers]  # type: ignore[union-attr]


def total(spent: Spent) -> int:
    return sum(ns for buckets in spent.values() for ns in buckets.values())


def test_steps_are_not_lost_if_the_answer_to_their_checkpoint_arrives_after_a_member_has_ended() -> None:
    """The checkpoint of step 60 is complete at 75.0072 s, and its answer arrives 1 ms later."""
    before, after = run(gang(), "trainer/1@75007100us"), run(gang(), "trainer/1@75007500us")
    assert before.models["trainer"].lost_ns == 60 * SECOND and spent(before, "lost work") == 60
    assert after.models["trainer"].lost_ns < MS and spent(after, "lost work") == pytest.approx(0, abs=0.001)


def test_a_checkpoint_blocks_for_all_of_its_time_unless_it_is_asynchronous() -> None:
    whole, part = run(gang()), run(gang(checkpoint_blocks="2s"))
    assert (spent(whole, "checkpoint"), spent(part, "checkpoint")) == (90, 18)
    assert whole.now - part.now == 9 * 8 * SECOND
    assert (
        [step for _, step in saved_at(part)] == [step for _, step in saved_at(whole)] == [60 * n for n in range(1, 10)]
    )


def test_an_asynchronous_checkpoint_is_of_its_first_step_and_counts_at_its_end() -> None:
    blocking = saved_at(run(gang()))[0]
    assert saved_at(run(gang(checkpoint_blocks="2s")))[0] == blocking, "both are whole 70 s after the first step"
    graph, begins = gang(checkpoint_blocks="2s"), blocking[0] - 70
    early, late = (run(graph, f"trainer/1@{round((begins + at) * 1000)}ms") for at in (69, 71))
    assert early.models["trainer"].lost_steps == 67, "from the beginning: the checkpoint of 60 was not whole"
    assert late.models["trainer"].lost_steps == 9, "69 steps were done, and 60 are saved"


def test_an_asynchronous_checkpoint_that_ends_after_the_last_step_is_not_waited_for() -> None:
    result = run(gang(steps=125, checkpoint_blocks="0s"))
    assert [step for _, step in saved_at(result)] == [60]
    assert spent(result, "productive") == 125 and spent(result, "checkpoint") == 0


def test_who_saves_in_the_background_saves_while_it_steps() -> None:
    result = run(gang(checkpoint_blocks="2s"))
    model, begun = result.models["trainer"], result.models["trainer"].begins[0]
    model.begun_ns, model._since_ns, model._base_ns = begun, begun, 0  # as it was while it stepped
    at = [59, 60.5, 65, 69.9, 70.1, 121, 121.9, 122.1, 131.9, 132.1]
    is_saving = [model.is_saving(begun + round(s * SECOND)) for s in at]
    assert is_saving == [False, True, True, True, False, False, False, True, True, False]


def test_warm_up_is_paid_when_all_are_up_by_every_generation_with_a_new_process() -> None:
    cold, warm = run(gang()), run(gang(warmup="20s"))
    assert warm.now - cold.now == 20 * SECOND
    assert spent(warm, "start-up") - spent(cold, "start-up") == 20
    assert warm.models["trainer"].begins[0] - cold.models["trainer"].begins[0] == 20 * SECOND
    again = run(gang(warmup="20s"), "trainer/1@100s")
    assert spent(again, "start-up") == pytest.approx(2 * (5 + 20), abs=0.1)
    stays = run(gang(warmup="20s", rejoin_time="1s"), "trainer/1@100s")
    assert spent(stays, "start-up") == pytest.approx(spent(again, "start-up"), abs=4), "one of them is new"


def test_a_world_that_is_lost_while_it_warms_up_has_not_begun_to_step() -> None:
    graph = gang(warmup="20s")
    result = run(graph, "trainer/1@15s")
    [begun] = result.models["trainer"].begins
    assert begun > 15 * SECOND + 25 * SECOND
    assert result.models["trainer"].lost_steps == 0 and spent(result, "lost work") == 0
    assert ("kill", "starting") in result.hits
    assert spent(result, "start-up") == pytest.approx(15 + 25, abs=0.2)


def test_what_holds_up_a_world_that_warms_up_holds_up_its_first_step() -> None:
    graph = gang(warmup="20s")
    plain, paused = run(graph), run(graph, "trainer/1@10s:pause/3s")
    assert paused.models["trainer"].begins[0] - plain.models["trainer"].begins[0] == 3 * SECOND
    assert spent(paused, "stalled") == 3


def test_a_world_is_as_fast_as_its_slowest_member_and_each_attempt_draws_its_pace() -> None:
    graph = gang(step_spread=0.5, steps=100, checkpoint_every="1h")
    assert run(graph).now == run(gang(steps=100, checkpoint_every="1h")).now, "seed 0 is nominal"
    stalls = [spent(run(graph, seed=seed), "stalled") for seed in range(1, 61)]
    assert min(stalls) > 0 and max(stalls) < 50 and len(set(stalls)) == 60
    assert sum(stalls) / 60 == pytest.approx(100 * 0.5 * 4 / 5, rel=0.1), "the largest of four, drawn evenly"
    many = gang(replicas="16", step_spread=0.5, steps=100, checkpoint_every="1h")
    assert spent(run(many, seed=1), "stalled") > 40
    before, after = (_paces(graph, "trainer/2@60s", until=until) for until in (55, 80))
    assert len({*before.values(), *after.values()}) == 8


def _paces(graph: RoleGraph, fault: str, *, until: int) -> dict[ReplicaId, Fraction]:
    """Return the paces that the members have drawn which step at a time, in seconds."""
    sim = Simulation(graph, Plan((parse_fault(fault),)), seed=3)
    sim.run(until * SECOND)
    return dict(sim.work.models["trainer"].own)


def test_a_slow_member_is_slower_than_it_was_drawn() -> None:
    graph = gang(step_spread=0.5, steps=100, checkpoint_every="1h")
    assert run(graph, "trainer/1@20s:slow=2x/40s", seed=2).now > run(graph, seed=2).now + 10 * SECOND


def test_what_is_saved_at_an_agreed_step_is_durable_only_when_it_is_whole() -> None:
    graph = gang(replicas="3:4", steps=300)
    drained = run(graph, "node3@105s:drain")
    assert drained.models["trainer"].lost_steps == 0
    assert spent(drained, "checkpoint") == (4 * 2 * 10 + 3 * 3 * 10) / 4, "the first, that of the drain; three by three"
    told = next(line.t_ns for line in drained.lines if isinstance(line, Record) and "StopAtStep" in repr(line.effects))
    killed = run(graph, "node3@105s:drain", f"node2@{(told + 3 * SECOND) // MS}ms/1m")
    assert killed.models["trainer"].lost_steps == 30, "it was not whole"


def test_a_disk_that_is_full_saves_nothing_at_an_agreed_step_either() -> None:
    graph = gang(replicas="3:4", steps=300)
    result = run(graph, "trainer@100s:disk-full/1m", "node3@105s:drain")
    assert result.models["trainer"].lost_steps == 30 and result.job.outcome == "succeeded"
    [line] = [line for line in result.lines if isinstance(line, UnsavedLine)]
    assert (line.world, line.step, line.reason) == ("trainer", 90, "the disk of trainer is full")


def test_a_slow_disk_slows_a_checkpoint_at_an_agreed_step_like_any_other() -> None:
    graph, slow = gang(replicas="3:4", steps=300), "trainer@100s:slow-checkpoint=3x/30s"
    quick, late = run(graph, "node3@105s:drain"), run(graph, slow, "node3@105s:drain")
    assert (quick.models["trainer"].lost_steps, late.models["trainer"].lost_steps) == (0, 0)
    assert spent(late, "checkpoint") - spent(quick, "checkpoint") == 20
    assert late.now - quick.now == pytest.approx(20 * SECOND, abs=SECOND // 10)
    killed = run(graph, slow, "node3@105s:drain", "node2@130s/1m")
    assert killed.models["trainer"].lost_steps == 30, "25 s after it has begun it is not whole"


def test_on_a_slow_disk_a_notice_may_be_too_short_to_save() -> None:
    graph, notice = gang(replicas="3:4", steps=300), "node3@105s:preempt=30s"
    quick, late = run(graph, notice), run(graph, "trainer@100s:slow-checkpoint=4x/1m", notice)
    assert quick.models["trainer"].lost_steps == 0
    assert late.models["trainer"].lost_steps == 30 and late.job.outcome == "succeeded"


def test_a_slow_disk_blocks_who_saves_and_the_time_counts_as_checkpoint() -> None:
    quick, late = run(gang()), run(gang(), "trainer@1m:slow-checkpoint=4x/20s")
    assert late.now - quick.now == 30 * SECOND
    assert (spent(late, "checkpoint"), spent(late, "stalled")) == (spent(quick, "checkpoint") + 30, 0)


def test_on_a_slow_disk_who_saves_in_the_background_steps_on_and_is_safe_only_later() -> None:
    graph = gang(checkpoint_blocks="2s")
    quick, late = run(graph), run(graph, "trainer@1m:slow-checkpoint=4x/20s")
    assert late.now == quick.now and spent(late, "checkpoint") == spent(quick, "checkpoint")
    (first, *others), (slow, *rest) = saved_at(quick), saved_at(late)
    assert slow == (first[0] + 30, 60) and rest == others, "whole 40 s after it has begun"
    begins = first[0] - 10
    early, later = (
        run(graph, "trainer@1m:slow-checkpoint=4x/20s", f"trainer/1@{round(1000 * (begins + s))}ms") for s in (39, 41)
    )
    assert (early.models["trainer"].lost_steps, later.models["trainer"].lost_steps) == (97, 39)


def test_a_checkpoint_that_is_due_while_another_is_still_written_waits_for_it() -> None:
    graph, disk = gang(checkpoint_blocks="2s"), "trainer@1m:slow-checkpoint=10x/20s"
    quick, late = run(graph), run(graph, disk)
    waits = 100 - 62  # s: whole 100 s after its beginning, and 62 s after that the next was due
    assert late.now - quick.now == waits * SECOND
    assert spent(late, "checkpoint") - spent(quick, "checkpoint") == waits
    (first, *others), (slow, *rest) = saved_at(quick), saved_at(late)
    assert slow == (first[0] + 90, 60)
    assert rest == [(pytest.approx(at + waits), step) for at, step in others]
    paused = run(graph, disk, "trainer/1@140s:pause/7s")
    assert paused.now - late.now == 7 * SECOND and spent(paused, "stalled") == 7
    again = run(graph, disk, "trainer/1@150s")  # while they wait, at step 120
    assert again.models["trainer"].lost_steps == 120
    assert total(again.spent) == again.now * 4


def test_while_a_slow_disk_makes_them_wait_they_are_saving() -> None:
    for load in ({}, {"checkpoint_blocks": "2s"}):
        sim = Simulation(gang(**load), Plan((parse_fault("trainer@1m:slow-checkpoint=9x/20s"),)))
        phases = []
        for at in (64, 66, 100, 150, 154, 170):  # it begins to save 65 s after the start
            sim.run(at * SECOND)
            phases.append(sim.work.phase())
        assert phases == ["steady", *4 * ["saving"], "steady"], load


def test_a_checkpoint_that_ends_after_the_work_on_a_slow_disk_is_not_waited_for() -> None:
    graph = gang(steps=100, checkpoint_blocks="0s")
    assert run(graph, "trainer@1m:slow-checkpoint=9x").now == run(graph).now


@pytest.mark.parametrize("blocks", [None, "0s", "2s"])
def test_quiet_stretches_begin_when_what_was_begun_on_a_slow_disk_is_written(blocks: str | None) -> None:
    """The fault is over by then, and costs its own duration once."""
    plan = Plan((parse_fault("trainer@3m:slow-checkpoint=15x/1m"),))
    wrong, saved = differences(gang(steps=900, checkpoint_blocks=blocks), plan, 0, None)
    assert not wrong and saved > 10


@pytest.mark.parametrize("fault", ["trainer@1m:slow-checkpoint=0x/1m", "trainer/0@1m:slow=0.5x"])
def test_a_factor_that_makes_nobody_slower_is_refused(fault: str) -> None:
    with pytest.raises(FaultError, match="would be no slower"):
        check_faults(Plan((parse_fault(fault),)), gang())


def test_a_job_has_healed_when_what_was_begun_on_a_slow_disk_is_written() -> None:
    plan = Plan((parse_fault("trainer@1m:slow-checkpoint=9x/20s"),))
    assert healed_ns(Simulation(gang(), plan).run(), plan) == (60 + 20 + 9 * 10) * SECOND


def test_what_is_being_written_when_the_disk_gets_slow_takes_no_longer() -> None:
    for load in ({}, {"checkpoint_blocks": "2s"}):
        graph = gang(**load)
        [first, *_] = saved_at(run(graph))
        slow = run(graph, f"trainer@{round(1000 * (first[0] - 1))}ms:slow-checkpoint=9x/5s")
        assert slow.now == run(graph).now and saved_at(slow)[0] == first


def test_who_warms_up_has_shown_no_progress() -> None:
    t = Topology("late", nodes=[Node("node0"), Node("node1")])
    load = Workload(steps=100, startup="5s", warmup="1m")
    t.role("trainer", "true", replicas=2, start_timeout="90s", restart=Restart(max_restarts=1), workload=load)
    graph = graph_of(t)
    late = msgspec.structs.replace(graph.roles[0], start_timeout_ns=30 * SECOND)  # which the DSL refuses (FD180)
    result = Simulation(msgspec.structs.replace(graph, roles=(late,))).run()
    assert result.job.outcome == "failed" and not result.models["trainer"].begins


def test_a_service_that_has_to_report_progress_and_never_does_is_stopped() -> None:
    t = Topology("served", nodes=[Node("node0")])
    t.role("ps", "true", kind="service", ready_when="call", start_timeout="30s")
    t.role("trainer", "true", workload=Workload(steps=100))
    result = Simulation(graph_of(t)).run()
    assert result.job.outcome == "failed" and "reported no progress within 30s" in (result.job.ending_reason or "")


def test_what_a_member_has_to_save_who_stands_still_is_not_whole() -> None:
    graph = gang(replicas="3:4", steps=300)
    plain, paused = run(graph, "node3@105s:drain"), run(graph, "node3@105s:drain", "trainer/2@106s:pause/60s")
    assert (plain.models["trainer"].lost_steps, paused.models["trainer"].lost_steps) == (0, 30)


def test_a_world_that_is_held_up_as_it_begins_to_step_begins_once() -> None:
    graph = gang(warmup="20s", steps=100)
    [begun] = run(graph).models["trainer"].begins
    for fault in ("slow=2x/9s", "pause/2s"):
        assert len(run(graph, f"trainer/1@{begun // 1000}us:{fault}").models["trainer"].begins) == 1


def joint(trainer: dict[str, Any], ps: dict[str, Any], **of_all: Any) -> RoleGraph:
    """Two trainers and two servers in one world, each on a node of its own."""
    t = Topology("joint", nodes=[Node(f"node{i}", cpu=1) for i in range(4)])
    usual = {"steps": 300, "startup": "5s", "checkpoint_every": "1m", "checkpoint_time": "10s", **of_all}
    loads = {"trainer": {**usual, **trainer}, "ps": {**usual, **ps}}
    roles = [
        t.role(name, "true", replicas=2, cpu=1, restart=Restart(max_restarts=9), workload=Workload(**load))
        for name, load in loads.items()
    ]
    t.world("core", *roles)
    return graph_of(t)


def begun(result: SimResult) -> list[float]:
    """Return when their world began to step, in seconds."""
    return [round(at / SECOND, 1) for at in result.models["core"].begins]


def test_in_a_joint_world_each_warms_up_in_its_own_time_and_all_wait_for_the_last() -> None:
    quick = begun(run(joint({}, {})))
    for trainer, ps in (("5s", "40s"), ("40s", "5s"), ("40s", "40s")):
        graph = joint({"warmup": trainer}, {"warmup": ps, "steps": 100})
        assert begun(run(graph)) == [pytest.approx(quick[0] + 40)]
    graph = joint({"warmup": "40s"}, {"warmup": "10s"})
    at = f"{round(quick[0] * 1000) + 1}ms"
    assert begun(run(graph, f"ps/0@{at}:slow=3x/2m")) == begun(run(graph)), "it is warm after 30 s"
    assert begun(run(graph, f"ps/0@{at}:slow=6x/2m")) == [pytest.approx(quick[0] + 60, abs=0.2)]
    assert begun(run(graph, f"ps/0@{at}:slow=6x/30s")) == [pytest.approx(quick[0] + 30 + 20, abs=0.2)], "half is left"


def test_in_a_joint_world_who_stays_in_place_stays_warm() -> None:
    graph = joint({"warmup": "40s"}, {"warmup": "10s"}, rejoin_time="1s")
    of_server, of_trainer = (begun(run(graph, f"{name}/1@100s")) for name in ("ps", "trainer"))
    assert of_server[1] == pytest.approx(100 + 5 + 10, abs=0.2)
    assert of_trainer[1] == pytest.approx(100 + 5 + 40, abs=0.2)


def test_in_a_joint_world_who_has_less_to_do_holds_nobody_up_until_it_is_as_slow() -> None:
    for server in ({"steps": 150}, {"step_time": "500ms"}):
        graph = joint({}, server)
        whole = run(graph).now
        assert run(graph, "ps/0@30s:slow=2x").now == whole, "it waited for half of each step"
        assert run(graph, "ps/0@30s:slow=4x").now == run(joint({}, {}), "ps/0@30s:slow=2x").now > whole
        assert run(graph, "trainer/0@30s:slow=2x").now > whole
    spread = joint({}, {"step_spread": 0.9, "step_time": "500ms"})
    result = run(spread, seed=3)
    assert result.models["core"].own and result.spent["trainer"]["stalled"] == 0


def test_the_time_to_a_new_step_allows_for_the_slowest_of_a_joint_world() -> None:
    even, uneven = (bound_ns(joint({}, ps), Plan()) for ps in ({}, {"step_spread": 0.5}))
    assert uneven - even == 0.5 * 70 * SECOND


def test_in_a_joint_world_each_reads_in_its_own_time() -> None:
    result = run(joint({"restore_time": "2s"}, {"restore_time": "20s"}), "trainer/1@100s")
    assert [result.spent[name]["restore"] / SECOND for name in ("trainer", "ps")] == [2 * 2, 2 * 20]
    assert total(result.spent) == result.now * 4


def test_in_a_joint_world_the_disk_of_each_is_that_of_all() -> None:
    graph = joint({}, {"steps": 100})
    whole = run(graph)
    for role in ("trainer", "ps"):
        late = run(graph, f"{role}@1m:slow-checkpoint=3x/20s")
        assert late.now - whole.now == 20 * SECOND
        full = run(graph, f"{role}@1m:disk-full/1m", "trainer/1@130s")
        [line] = [line for line in full.lines if isinstance(line, UnsavedLine)]
        assert (line.world, line.step, line.reason) == ("core", 60, f"the disk of {role} is full")
        assert full.models["core"].lost_steps > 100


@settings(max_examples=10, deadline=None)
@given(
    trainer=st.sampled_from([{}, {"warmup": "20s"}, {"step_spread": 0.4, "restore_time": "3s"}]),
    ps=st.sampled_from([{}, {"warmup": "9s", "step_spread": 0.8}, {"step_time": "700ms", "step_spread": 1.0}]),
    seed=st.integers(1, 300),
)
def test_the_buckets_of_a_joint_world_close_and_quiet_stretches_change_nothing(
    trainer: dict[str, Any], ps: dict[str, Any], seed: int
) -> None:
    graph = joint(trainer, ps, steps=900)
    usual = horizon(graph)
    plan = Nemesis(graph, usual).plan(seed)
    wrong, _ = differences(graph, plan, seed, end_ns(graph, plan, usual))
    assert not wrong
    result = Simulation(graph, plan, seed=seed, schedule=seed).run(end_ns(graph, plan, usual))
    assert result.violation is None
    assert total(result.spent) == result.now * len(result.job.replicas)


class Saver:
    """A model that commits under the name of the step that it wrote."""

    steps: ClassVar[list[tuple[str, int]]] = []

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx

    def restore(self) -> int:
        return 0

    def step(self, step: int) -> None:
        return None

    def checkpoint(self, step: int) -> None:
        Saver.steps.append(("checkpoint", step))
        self.ctx.store.write(f"step-{step}", b"x")

    def publish(self, step: int) -> None:
        Saver.steps.append(("publish", step))


def test_a_model_publishes_the_step_that_it_has_saved_however_far_it_is_by_then() -> None:
    t = Topology("saver", nodes=[Node("node0")])
    load = Workload(steps=100, checkpoint_every="40s", checkpoint_time="10s", checkpoint_blocks="1s")
    t.role("trainer", "true", replicas=1, simulate=f"{__name__}:Saver", workload=load)
    Saver.steps.clear()
    result = Simulation(graph_of(t)).run()
    assert result.job.outcome == "succeeded" and not result.played.errors
    assert Saver.steps == [("checkpoint", 40), ("publish", 40), ("checkpoint", 80), ("publish", 80)]


LOADS = st.fixed_dictionaries(
    {
        "warmup": st.sampled_from(["0s", "7s"]),
        "step_spread": st.sampled_from([0.0, 0.3]),
        "checkpoint_blocks": st.sampled_from([None, "0s", "3s", "10s"]),
        "rejoin_time": st.sampled_from([None, "1s"]),
        "restore_time": st.sampled_from(["0s", "4s"]),
    }
)


DISKS = st.sampled_from(["", "trainer@3m:slow-checkpoint=3x/4m", "trainer@3m:slow-checkpoint=15x/5m"])


@settings(max_examples=25, deadline=None)
@given(load=LOADS, seed=st.integers(1, 500), disk=DISKS)
def test_the_buckets_close_and_quiet_stretches_change_nothing_whatever_the_workload(
    load: dict[str, Any], seed: int, disk: str
) -> None:
    graph = gang(replicas="2:4", steps=900, **load)
    usual = horizon(graph)
    plan = Nemesis(graph, usual).plan(seed)
    plan = Plan((*plan.faults, *([parse_fault(disk)] if disk else [])))
    wrong, _ = differences(graph, plan, seed, end_ns(graph, plan, usual))
    assert not wrong
    result = Simulation(graph, plan, seed=seed, schedule=seed).run(end_ns(graph, plan, usual))
    assert result.violation is None
    assert total(result.spent) == result.now * len(result.job.replicas)


def test_a_campaign_survives_with_all_of_it() -> None:
    load = {"warmup": "20s", "step_spread": 0.2, "checkpoint_blocks": "2s", "restore_time": "5s"}
    report = campaign(gang(replicas="2:4", steps=1800, **load), range(1, 60))
    assert not report.failures


def test_who_starts_up_on_a_paused_node_when_a_peer_is_gone_begins_nothing() -> None:
    """trainer/1 was up and dies; later trainer/0 starts up, on a node that is paused and not lost yet."""
    result = run(gang("1:2", startup="10s", steps=60), "node0@8s:pause/1m", "trainer/1@10s", seed=22)
    [lost, *_] = [line.t_ns for line in result.lines if isinstance(line, Record) and "NodeSilent" in repr(line.event)]
    assert len(result.models["trainer"].begins) == 2
    assert min(result.models["trainer"].begins) > lost


@pytest.mark.parametrize("ms", range(103, 110))
def test_workers_that_a_paused_node_was_forking_appear_when_it_goes_on(ms: int) -> None:
    """The node is paused between order and fork, and lost; trainer/2 runs elsewhere when the fork happens."""
    t = Topology("gang", nodes=3 * [Node(cpu=4)])
    load = Workload(steps=60, startup="2s")
    t.role("trainer", "true", replicas=3, restart=Restart(max_restarts=9), workload=load)
    for pause in ("21s", "2s"):
        result = run(graph_of(t), "trainer/0@10s", f"node2@10.{ms}s:pause/{pause}")
        assert result.violation is None
        assert result.job.outcome == "succeeded"
