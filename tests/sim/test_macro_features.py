"""Macro mode with meshes, times of workers, collectives and slow members: random jobs beside protocol mode."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import msgspec
import pytest

from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import ReplicaId
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import Plan
from flowdist.graph import HOUR, MINUTE, MS, SECOND, RestartPolicy, RoleGraph, Rule
from flowdist.sim.macro.books import Books, Course
from flowdist.sim.macro.macro import Macro
from flowdist.sim.macro.scope import scope_of
from flowdist.sim.user_code.workload import PACES, WorldModel
from tests.choosing import slow
from tests.sim.cross import crossed, faults_of, gang, patient, sized, spent_of, with_options, with_policy

# Each feature alone, with faults in all parts of a recovery: at work, during the start-up, the warm-up and the end.
FEATURES: dict[str, RoleGraph] = {
    "warm-up": gang({"warmup": "4s"}),
    "saves in the background": gang({"checkpoint_time": "10s", "checkpoint_blocks": "2s"}),
    "workers that take time to exit": gang({"finish_time": "3s"}),
    "workers that take time to stop": gang({"stop_time": "1900ms"}),
    "warm starts": gang({"warm_startup": "1s", "restore_time": "2s"}),
    "a restore from the memory of peers": gang({"peer_restore": "300ms", "restore_time": "9s"}),
    "peers wait": gang({"collective": "wait"}),
    "peers hang": gang({"collective": "hang"}),
    "peers fail": gang({"collective": "fail"}),
    "peers of several workers fail": gang({"collective": "fail"}, "2:4x2"),
    "a mesh": gang({}, "2:4", parallel={"pp": 2, "dp": "elastic"}),
    "a mesh with a spare": gang({}, "2:4", 5, parallel={"pp": 2, "dp": "elastic"}),
    "a mesh of several workers": gang({}, "2:4x2", parallel={"tp": 4, "dp": "elastic"}),
}
FAULTS: list[list[str]] = [
    [],
    ["node1@3m5.3s/2m"],
    ["trainer/1@2m"],
    ["node1@4s/20s", "trainer/0@8s"],
    ["node1@8s/20s", "node2@8.05s/40s"],
    ["trainer/1@10m11s", "node3@12m", "node2@12m30s"],
    ["node2@3m:lost/1m", "trainer/0@3m2s"],
    ["trainer/1@2m:slow=2.3x/1m7s", "trainer/2@2m30s:slow=1.7x", "node3@5m/10s"],
    ["trainer/3@6s:slow=9x/20s"],
]


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_is_played_to_the_nanosecond(feature: str) -> None:
    graph = FEATURES[feature]
    for faults in FAULTS:
        (one,) = crossed(graph, parse_plan(faults), [0], 2 * HOUR)
        assert one.is_equal, faults
        assert sum(spent_of(one).values()) == graph.roles[0].max_replicas * one.a.lasted_ns


LOSS = Rule("restart", kind="node_lost")
STORIES: dict[str, tuple[RoleGraph, list[str]]] = {
    "two nodes with the checkpoint in memory are lost": (
        gang({"peer_restore": "300ms", "restore_time": "9s"}, "2:4", 6),
        ["node1@2m/10s", "node2@3m/10s", "node3@3m0.02s/10s", "node1@4m/10s", "node4@4m2s:lost/40s"],
    ),
    "a node with the checkpoint in memory is cut off": (
        gang({"peer_restore": "300ms", "restore_time": "9s"}, "2:4", 6),
        ["node1@2m:lost/40s", "node2@2m2.6s/10s", "trainer/0@3m"],
    ),
    "a member ends after the last step": (
        gang({"finish_time": "30s", "collective": "hang"}),
        ["trainer/1@10m20s", "node2@10m40s/10s"],
    ),
    "and its peers do not fail": (gang({"finish_time": "30s", "collective": "fail"}), ["trainer/1@10m20s"]),
    "a node dies after its members failed with a silent one": (
        gang({"collective": "fail"}, nodes=6),
        ["node2@3m:lost/1m", "node1@3m2.55s/1m"],
    ),
    "a node dies after its members failed with a dead one": (
        gang({"collective": "fail"}, nodes=6, max_restarts=1),
        ["trainer/0@2m", "trainer/1@3m", "node2@3m0.007s/1m"],
    ),
    "only the node that explains a failure flaps": (
        with_options(gang({"collective": "fail"}), cordon_after=1),
        ["node2@3m:lost/1m", "node1@3m2.55s/2m"],
    ),
    "and none that dies when all that was left had failed": (
        with_options(gang({"collective": "fail"}), cordon_after=1),
        ["node2@3m:lost/1m", "trainer/0@3m1s", "node3@3m1.05s/2m"],
    ),
    "the last member that is to stop is lost": (
        gang({"stop_time": "1900ms"}, "2", 2),
        ["node1@3m/1m", "node0@3m1s/2m"],
    ),
    "a loss explains a failure, and the others take longer to stop": (
        gang({"stop_time": "1900ms"}, max_restarts=0),
        ["node2@3m/1m", "trainer/1@3m0.005s"],
    ),
    "too many changes, each noticed by the peers first": (
        with_options(gang({"collective": "fail"}, "1:4", 6), free_incidents_max=2),
        ["node0@30s/2m", "node1@50s/2m", "node2@70s/2m", "node3@90s/2m"],
    ),
    "the end of one slow time is not that of the next": (
        gang({}),
        ["trainer/1@2m:slow=2x/2m", "node3@2m30s/10s", "trainer/1@3m20s:slow=3x/5m"],
    ),
    "a node that died before the order to start arrived is cold": (
        gang({"warm_startup": "1s", "startup": "20s"}),
        ["node1@3m/2m", "node2@3m0.112s/1m"],
    ),
    "a node that was heard after the failure does not explain it later": (
        gang({"collective": "hang"}, "1:3", 4, stop_grace="2s"),
        ["trainer/1@4211ms", "node0@6081ms/1m"],
    ),
    "the work is done while a member's node is silent": (gang({}, "2:4", 6), ["node3@10m13s:lost/1m"]),
    "and the node is back before it is lost": (gang({}, "2:4", 4), ["node3@10m12s:lost/4s"]),
    "and there is no other node": (gang({}, "4", 4), ["node3@10m13s:lost/1m"]),
    "two of them are silent": (gang({}, "2:4", 6), ["node3@10m12s:lost/1m", "node2@10m12.1s:lost/5m"]),
    "a node dies that has done its work": (gang({}, "2:4", 6), ["node3@10m12s:lost/1m", "node1@10m15s/1m"]),
    "the work is done while the gang stops to grow": (
        gang({"collective": "fail", "warm_startup": "1s", "stop_time": "1900ms"}, "2:4", 4),
        ["node1@610019863us/1m"],
    ),
    "a member fails in its start-up, which fails the job": (
        gang({"stop_time": "1900ms"}, "1", 2, max_restarts=1),
        ["trainer/0@120015ms", "trainer/0@121985ms"],
    ),
    "one that fails at once with the job does not wait for a node": (
        gang({}, "2", 2, max_restarts=0),
        ["trainer/1@3s:oom"],
    ),
    "the peers of one that ends the job in its start-up fail before they would stop": (
        with_policy(
            gang({"collective": "fail", "stop_time": "30s"}, "2", 2, grace="60s", stop_grace="60s"),
            rules=(Rule("fail", kind="oom"),),
        ),
        ["trainer/0@5200ms:oom"],
    ),
    "a rule charges the loss that explains a failure": (
        with_policy(gang({"collective": "fail"}, "2:4", 4), rules=(LOSS,), max_restarts=9, backoff_ns=SECOND),
        ["node1@1m/10s", "node2@2m/10s", "node3@3m/10s"],
    ),
    "a node that is silent for long explains any failure": (
        gang({"stop_time": "1900ms"}, "2:4", 6, max_restarts=1),
        ["trainer/0@1m:oom", "node1@2m:lost/1m", "trainer/2@2m3s:oom"],
    ),
    "but not one that a rule fails for": (
        with_policy(gang({}, "2:4", 6), max_restarts=9, rules=(Rule("fail", kind="oom"),)),
        ["node1@2m:lost/1m", "trainer/2@2m3s:oom"],
    ),
    "nor one before its heartbeats are overdue": (
        gang({"stop_time": "1900ms"}, "2:4", 6),
        ["node1@2m:lost/1m", "trainer/2@2m1s:oom"],
    ),
    "a node is silent whose only member has failed": (
        gang({"stop_time": "1900ms"}, "2:4", 6),
        ["trainer/1@2m:oom", "node1@2m1s:lost/1m"],
    ),
    "a node falls silent from which the only member on it was moved away": (
        gang({}, "2", 3),
        ["trainer/0@40s:oom", "trainer/0@70s:oom", "node0@70.05s:lost/45s"],
    ),
    "a member fails while another one's node is silent, which never started": (
        with_policy(gang({}, "2", 3), max_restarts=9, rules=(Rule("fail", kind="oom"),)),
        ["node2@60s:lost/1m", "node1@61s/20s", "trainer/0@63s:oom"],
    ),
    "the job fails, and its peers have failed before they would have stopped": (
        with_policy(
            gang({"startup": "1s", "stop_time": "30s", "collective": "fail"}, "2", grace="60s", stop_grace="60s"),
            max_restarts=9,
            rules=(Rule("fail", kind="oom"),),
        ),
        ["trainer/0@3s:oom"],
    ),
    "members that are apart take the largest nodes first": (
        sized(gang({}, "1:2", 3, apart=True), 1, 3, 2),
        ["node2@60s/10s", "node0@2m/10s"],
    ),
    "a gang grows whose only member is on a silent node": (
        patient(gang({}, "1:2", 2)),
        ["node1@60s/30s", "node0@88s:lost/1m"],
    ),
    "and has done its work": (patient(gang({"steps": 80}, "1:2", 2)), ["node1@3s/95s", "node0@80s:lost/1m"]),
    "and begins its steps": (
        patient(gang({"startup": "9s", "stop_time": "9s"}, "1:2", 2, stop_grace="20s", grace="20s", cooldown="0s")),
        ["node1@60s/10s", "node0@71s:lost/1m"],
    ),
    "a node that is cut off is killed": (gang({}, "2:4", 6), ["node1@2m:lost/1m", "node1@2m1s", "node2@4m/2m"]),
    "and comes back before the cut ends": (gang({}), ["node1@2m:lost/1m", "node1@2m2s/5s"]),
    "and was lost before": (gang({"warm_startup": "1s"}), ["node1@2m:lost/1m", "node1@2m30s", "node2@4m/2m"]),
    "and the cut would have ended first": (gang({}, "4", 4), ["node1@2m:lost/4s", "node1@2m3.999s/2m"]),
    "and its peers fail": (gang({"collective": "fail"}, nodes=6), ["node1@2m:lost/1m", "node1@2m1s"]),
    "and explains a failure, which it is too late for if it was not cut off": (
        gang({"collective": "hang"}, "3", 4),
        ["node1@3m18.76s:lost/2m", "trainer/2@3m19.2s", "node1@3m22.7s/1s"],
    ),
    "and the checkpoint in its memory is out of reach no longer": (
        gang({"peer_restore": "300ms", "restore_time": "9s"}, "2:4", 4),
        ["node1@2m:lost/30m", "node1@2m1s/1s", "node2@5m/5s", "node3@7m/10s"],
    ),
    "a node is cut off while its heartbeat is on its way": (gang({}, "2:4", 6), ["node1@7000483us:lost/10s"]),
    "and before it has joined": (gang({}, "2:4", 6), ["node3@0.3ms:lost/2m"]),
    "two nodes are lost at the same time, the later one by name fell silent first": (
        gang({"collective": "fail"}, "3", 4),
        ["node3@3974758us:lost/10s", "node1@3976636us:lost/10s"],
    ),
    "a node dies that has not opened the store yet": (gang({}, "2:3", 5), ["node0@1069us/10s"]),
    "and is cut off, and opens it no more": (gang({}, "2:4", 6), ["node0@1.1ms:lost/30s"]),
    "and has opened it": (gang({}, "2:4", 6), ["node0@1.3ms:lost/30s"]),
    "a loss explains a failure, and another node of a member is silent": (
        gang({"stop_time": "1900ms"}, "2:3", 4, max_restarts=0),
        ["trainer/0@22718778us", "node1@22723756us:lost", "node2@23423661us:lost"],
    ),
    "two nodes with members do not get the order to start": (
        gang({"warm_startup": "1s"}),
        ["node0@1956us:lost/30s", "node1@1956us:lost/30s"],
    ),
    "a node is cut off before it can report that its member runs": (
        gang({"startup": "1s"}, nodes=5),
        ["trainer/1@29300197us", "node1@29407040us:lost/10s"],
    ),
    "a silent node is not waited for whose member had stopped before": (
        gang({}, "4", 5, max_restarts=0),
        ["trainer/0@57158618us", "node2@57259297us:lost/30s", "node3@57264422us:lost/2m"],
    ),
    "nor one that fell silent while the gang waited for another": (
        gang({}, "2:4", 4),
        ["trainer/0@28730527us", "node1@28731209us:lost/10s", "node3@29999764us:lost/30s"],
    ),
    "members report a step while the node that offers their checkpoints is silent": (
        gang({}, "2:4", 4, max_restarts=0),
        ["node0@124648818us:lost/2m", "trainer/3@145339116us"],
    ),
    "members die while the gang stops to grow": (
        gang({"collective": "fail"}, "1:4", 5),
        ["node1@3m/1m", "node4@3m/70s", "node2@3m30s/2m", "node3@4m0.02s/1m", "node0@4m10.05s/1m"],
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_a_story_is_played_to_the_nanosecond(story: str) -> None:
    graph, faults = STORIES[story]
    (one,) = crossed(graph, parse_plan(faults), [0], HOUR)
    assert one.is_equal


def odd_load(rnd: random.Random, base: dict[str, Any]) -> dict[str, Any]:
    """A workload with any of the features, each in half of the cases."""
    choices: dict[str, list[Any]] = {
        "warmup": ["300ms", "4s", "30s"],
        "finish_time": ["50ms", "3s", "30s"],
        "stop_time": ["10ms", "700ms", "1900ms"],
        "warm_startup": ["100ms", "1s", "8s"],
        "restore_time": ["1s", "9s"],
        "collective": ["wait", "hang", "fail", "fail"],
    }
    if base["checkpoint_time"]:
        choices["checkpoint_blocks"] = [0, "500ms"]
    return base | {name: rnd.choice(values) for name, values in choices.items() if rnd.random() < 0.5}


def odd_job(seed: int) -> tuple[RoleGraph, Plan]:
    """A gang with any of what macro mode plays, with and without a mesh, under faults of several kinds.

    Draws of `more` were added later: they leave those of `rnd` as they were.
    """
    rnd, more = random.Random(seed), random.Random(-1 - seed)
    load = odd_load(
        rnd,
        {
            "steps": rnd.choice([600, 4000]),
            "step_time": rnd.choice(["1s", "700ms"]),
            "startup": rnd.choice(["1s", "5s", "20s"]),
            "checkpoint_every": rnd.choice(["20s", "1m"]),
            "checkpoint_time": rnd.choice([0, "1s", "8s"]),
        },
    )
    nodes, block = rnd.choice([3, 4, 6, 8]), rnd.choice([1, 1, 2, 3])
    most = rnd.randint(1, nodes // block)
    replicas = f"{rnd.randint(1, most) * block}:{most * block}"
    fields: dict[str, Any] = {"parallel": {"pp": block, "dp": "elastic"}} if block > 1 else {}
    if block == 1 and rnd.random() < 0.3:
        replicas += "x2"
    load |= more.choice([{}, {"peer_restore": more.choice(["300ms", "4s"])}])
    load |= more.choice([{}, {}, {"scaling": 0.8}, {"scaling": 1, "batch": "worker"}])
    fields |= more.choice([{}, {}, {"cooldown": more.choice(["0s", "2m"])}])
    graph = gang(load, replicas, nodes, rnd.choice([3, 99]), pending_timeout=rnd.choice(["10m", "1h"]), **fields)
    options = msgspec.structs.replace(
        graph.options,
        min_uptime_ns=rnd.choice([5, 60, 600]) * SECOND,
        free_incidents_max=rnd.choice([2, 5, 99]),
        cordon_after=rnd.choice([1, 3, 99]),
        move_after=rnd.choice([1, 2, 99]),
    )
    rates = ["node-kill=60/node-day/2m", *rnd.choice([[], ["trainer-slow=100/replica-day:2.3x/40s"]])]
    rates += rnd.choice([[], ["trainer-kill=40/replica-day"], ["trainer-exit=40/replica-day:3"]])
    rates += rnd.choice([[], [], ["node-lost=15/node-day/1m"]])
    rates += more.choice([[], ["rack-kill=40/rack-day/1m"], ["rack-kill=20/rack-day/exp(3m)/weibull=0.7"]])
    rates += more.choice([[], ["trainer-oom=20/day"], ["ecc:node-kill=20/node-day/1m..4m/lemon=0.3,20"]])
    faults = more.choice([[], [], ["node99@30m:add", "node99@50m/10s"], ["rack=a@10m:lost/1m"]])
    seats = more.choice([1, 1, 2]) if most * block > 2 else 1
    graph = msgspec.structs.replace(graph, options=options)
    return racked(with_odd_policy(graph, more), seats), parse_plan(faults, rates=rates)


def racked(graph: RoleGraph, seats: int) -> RoleGraph:
    """The graph on nodes in two racks, which fail as one, each with room for so many replicas."""
    nodes = (
        msgspec.structs.replace(node, cpu=float(seats), labels=(("rack", "ab"[place % 2]),))
        for place, node in enumerate(graph.cluster.nodes)
    )
    return msgspec.structs.replace(graph, cluster=msgspec.structs.replace(graph.cluster, nodes=tuple(nodes)))


def with_odd_policy(graph: RoleGraph, rnd: random.Random) -> RoleGraph:
    """The graph, in one of three with a policy of budgets in a window, a wider one, rules and back-offs."""
    if rnd.random() < 2 / 3:
        return graph
    rule = rnd.choice([LOSS, Rule("restart", counted=False, exit=3), Rule("fail", exit=3)])
    fields: dict[str, Any] = {
        "max_restarts": rnd.choice([1, 4]),
        "within_ns": rnd.choice([None, 10 * MINUTE]),
        "rules": rnd.choice([(), (rule,)]),
        "backoff_ns": rnd.choice([0, 1, 10]) * SECOND,
        "backoff_reset_ns": rnd.choice([1, 10]) * MINUTE,
    }
    if rnd.random() < 0.5:
        fields |= {"then": "widen", "wider": RestartPolicy("job", max_restarts=9)}
    return with_policy(graph, **fields)


# The first ones have a replica that moves during its back-off, nodes that are cordoned for what others did, two nodes
# that are lost at once after a failure, a back-off in which a gang waits for nodes, a loss that fails the job, a seat
# that is lost while a mesh waits for nodes, and a charged incident in which the gang does not form.
@pytest.mark.parametrize(
    "seeds", [(35, 192, 212, 76, 90, 213, 580, 887, *range(7)), *slow([range(7, 200), range(200, 400)])]
)
def test_odd_jobs_agree_with_protocol_mode(seeds: Sequence[int]) -> None:
    found = [one for seed in seeds for one in crossed(*odd_job(seed), [seed], HOUR)]
    assert [number for number, one in enumerate(found) if not one.is_equal] == []
    assert sum(faults_of(one) for one in found) > 10 * len(found)


def test_odd_jobs_have_all_that_macro_mode_plays() -> None:
    """Each of them in some of the first hundred; so no feature is left out because its draw is never taken."""
    jobs = [odd_job(seed) for seed in range(100)]
    loads = [graph.roles[0].workload for graph, _ in jobs]
    roles = [graph.roles[0] for graph, _ in jobs]
    has: dict[str, list[Any]] = {
        "a mesh": [role.step > 1 for role in roles],
        "spares": [len(graph.cluster.nodes) > graph.roles[0].max_replicas for graph, _ in jobs],
        "sizes": [role.min_replicas < role.max_replicas for role in roles],
        "background saves": [load.checkpoint_blocks_ns is not None for load in loads],
        "peer restore": [load.peer_restore_ns for load in loads],
        "step tables": [load.depends_on_size for load in loads],
        "collectives": [load.collective == "fail" for load in loads],
        "warm starts": [load.warm_startup_ns is not None for load in loads],
        "rules": [role.restart is not None and role.restart.rules for role in roles],
        "racks": [rate.subject == "rack" for _, plan in jobs for rate in plan.rates],
        "drawn repairs": [rate.repair is not None for _, plan in jobs for rate in plan.rates],
        "silent nodes": [rate.kind == "lost" for _, plan in jobs for rate in plan.rates],
        "failing replicas": [rate.kind in ("kill", "exit", "oom") for _, plan in jobs for rate in plan.rates],
        "slow replicas": [rate.kind == "slow" for _, plan in jobs for rate in plan.rates],
        "added nodes": [fault.kind == "add" for _, plan in jobs for fault in plan.faults],
        "several seats": [graph.cluster.nodes[0].cpu > 1 for graph, _ in jobs],
    }
    assert {name for name, found in has.items() if sum(map(bool, found)) < 5} == set()


@pytest.mark.parametrize("load", [{}, {"collective": "fail"}, {"checkpoint_time": "10s", "checkpoint_blocks": "2s"}])
@pytest.mark.parametrize("target", ["node3", "node0", "trainer/0", "trainer/3"])
def test_a_checkpoint_counts_if_its_answer_arrives(load: dict[str, Any], target: str) -> None:
    """The first checkpoint is complete at `done`; the agent that offered it has the answer 1 ms later."""
    graph = gang(load, "2:4", 6)
    done = 5_007_200_000 + graph.role("trainer").workload.cycle_ns + graph.role("trainer").workload.lag_ns
    for late in (-MS // 10, 0, MS // 10, 3 * MS // 10, MS // 2, 9 * MS // 10, MS, 11 * MS // 10, 2 * MS):
        at = done + late
        first = f"{target}@{at // 1000}us"
        for faults in ([first], [first, f"node0@{(at + MS // 5) // 1000}us"]):
            if faults[-1].startswith("node0") and target.endswith("0") and len(faults) > 1:
                continue
            (one,) = crossed(graph, parse_plan(faults), [0], HOUR)
            assert one.is_equal, faults


# The course of one generation, beside the model of the simulator.


def order_of(member: ReplicaId) -> StartReplica:
    """The order that starts the only member of the first generation of its world."""
    return StartReplica(
        node="node0",
        replica=member,
        attempt=1,
        world=member.role,
        generation=1,
        rank=0,
        world_size=1,
        group_rank=0,
        group_world_size=1,
        role_rank=0,
        role_world_size=1,
        source_rank=0,
        master_addr="127.0.0.1",
        master_port=20_000,
    )


def changes(rnd: random.Random) -> Iterator[tuple[int, Fraction]]:
    """Yield times, and the pace of a generation from then on."""
    now = 0
    for _ in range(rnd.randint(0, 6)):
        now += rnd.randint(1, 90 * SECOND)
        yield now, 1 + Fraction(rnd.randint(0, 3 * PACES), PACES)


@pytest.mark.parametrize("seed", range(50))
def test_a_course_is_that_of_the_simulators_model(seed: int) -> None:
    rnd = random.Random(seed)
    load = {"warmup": rnd.choice(["0s", "7s"]), "checkpoint_blocks": rnd.choice([None, "300ms"])}
    (role,) = gang(load | {"step_time": "333ms", "steps": 2000}).roles
    pace = 1 + Fraction(rnd.randint(0, PACES), PACES)
    model, member = WorldModel(role, {role.name: role}), ReplicaId("trainer", 0)
    model.start(order_of(member), own=pace)
    assert model.is_up(member, 0)
    course = Course(0, role.workload.warmup_ns, pace)
    end = model.steps.end
    for now, factor in changes(rnd):
        for time in (now - 1, now):
            assert role.workload.steps == model.step_at(time) or course.position(time) == model._position(time)
        model.slow_down(member, factor, now)
        course.set_pace(pace * factor, now)
        if model.step_at(now) == role.workload.steps:
            break
        assert course.time_of(end) == model.time_of_step(role.workload.steps)


def test_a_step_spread_slows_all_seeds_but_the_nominal_one() -> None:
    """With N workers a step takes 1 + step_spread * N / (N + 1) times as long on average."""
    graph, plain = gang({"step_spread": 0.5, "checkpoint_time": 0}), gang({"checkpoint_time": 0})
    nothing = parse_plan()
    nominal = Macro(scope_of(plain, nothing), nothing).run()
    assert Macro(scope_of(graph, nothing), nothing).run() == nominal
    times = [Macro(scope_of(graph, nothing), nothing, seed=seed).run().spent for seed in range(1, 200)]
    stalled = sum(spent["stalled"] for spent in times) / len(times)
    assert stalled / nominal.spent["productive"] == pytest.approx(0.5 * 4 / 5, rel=0.05)


def test_a_warm_start_is_cold_again_after_the_death_of_its_node() -> None:
    graph = gang({"warm_startup": "1s", "startup": "20s"}, "2", 2)
    starts = Counter[int]()
    for faults in (["trainer/0@2m"], ["node1@2m/10s"]):
        (one,) = crossed(graph, parse_plan(faults), [0], HOUR)
        starts[spent_of(one)["start-up"] // SECOND] += 1
        assert one.is_equal
    assert starts == {2 * 21: 1, 2 * 40: 1}


def test_books_count_no_checkpoint_that_would_be_complete_after_the_last_step() -> None:
    (role,) = gang({"steps": 121, "checkpoint_time": "5s", "checkpoint_blocks": 0}).roles
    books = Books(role.workload, 1)
    books.start(1, 0, 0)
    assert books.begin(5 * SECOND) == 5 * SECOND + 121 * SECOND
    assert books.reported(2 * MINUTE) == 1  # the second one is complete after 125 s of work
    assert books.reported(3 * MINUTE) == 1
