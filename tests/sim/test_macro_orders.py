"""Macro mode with nodes that are drained or preempted: what happens then, beside protocol mode."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import FaultError, Plan
from flowdist.graph import HOUR, SECOND, RestartPolicy, RoleGraph, Rule
from flowdist.sim.cross_check import compare
from flowdist.sim.macro.macro import Macro
from flowdist.sim.macro.scope import MacroRefused, scope_of
from tests.choosing import slow
from tests.sim.test_macro import with_seats
from tests.sim.test_macro_beside import BACK, pools, with_options
from tests.sim.test_macro_features import gang, odd_load

SLOW_SAVE = {"checkpoint_time": "8s"}
BACKGROUND = {"checkpoint_time": "10s", "checkpoint_blocks": "2s"}
MESH: dict[str, Any] = {"parallel": {"pp": 2, "dp": "elastic"}}


def counted(graph: RoleGraph, do: str = "restart") -> RoleGraph:
    """The gang with a rule for preemptions, each of which waits for a back-off."""
    rule = Rule(do, kind="preempted")  # type: ignore[arg-type]
    policy = RestartPolicy(max_restarts=2, rules=(rule,), backoff_ns=10 * SECOND)
    (role,) = graph.roles
    return msgspec.structs.replace(graph, roles=(msgspec.structs.replace(role, restart=policy),))


DRAINS: dict[str, tuple[RoleGraph, list[str]]] = {
    "a spare takes over": (gang({}, "4", 5), ["node1@3m5.3s:drain"]),
    "the gang shrinks": (gang({}), ["node1@3m5.3s:drain"]),
    "there is no room for its minimum": (gang({}, "4", 4), ["node1@3m5.3s:drain"]),
    "a spare is drained": (gang({}, "3", 4), ["node3@1m:drain", "node1@2m/30s"]),
    "one after the other, until too few are left": (gang({}), [f"node{i}@{i + 1}m:drain" for i in range(4)]),
    "two at once": (gang({}, "2:6", 6), ["node1@3m:drain", "node2@3m:drain"]),
    "a second one before the step": (gang({"step_time": "10s"}), ["node1@3m:drain", "node2@3m2s:drain"]),
    "a second one while it saves": (gang(SLOW_SAVE), ["node1@3m5s:drain", "node2@3m8s:drain"]),
    "a second one while it stops": (gang({"stop_time": "900ms"}), ["node1@3m5s:drain", "node2@3m6.5s:drain"]),
    "the same twice": (gang({}), ["node1@3m:drain", "node1@3m0.2s:drain", "node1@4m:drain"]),
    "while it writes a checkpoint": (gang(SLOW_SAVE), ["node1@2m10s:drain"]),
    "while it saves in the background": (gang(BACKGROUND), ["node1@2m10s:drain", "node2@5m23.3s:drain"]),
    "while the processes are spawned": (gang({}), ["node1@0.003s:drain"]),
    "while it starts up": (gang({}), ["node1@2s:drain"]),
    "while it starts up again": (gang({"restore_time": "5s"}), ["node3@3m/1m", "node1@3m7s:drain"]),
    "while it warms up": (gang({"warmup": "20s"}), ["node1@12s:drain"]),
    "while its store opens": (gang({}), ["node1@0.001s:drain", "node3@3m/1m", "node2@3m0.0112s:drain"]),
    "while it stops": (gang({"stop_time": "1900ms"}), ["node3@3m/1m", "node1@3m1s:drain"]),
    "while it waits": (gang({}, "3", 4), ["node3@1m/2m", "node2@2m/5m", "node0@2m30s:drain"]),
    "before it is known that the node is dead": (gang({}), ["node1@3m/1m", "node1@3m0.004s:drain"]),
    "before it is known that another is dead": (gang({}), ["node1@3m/1m", "node2@3m0.004s:drain"]),
    "and it grows back": (gang({}, "2:4", 5), ["node3@1m/2m", "node1@2m:drain"]),
    "a node joins meanwhile": (gang({"step_time": "20s"}), ["node3@1m/40s", "node1@1m30s:drain"]),
    "a drained node dies and comes back": (gang({}), ["node1@3m:drain", "node1@5m/1m"]),
    "a step is longer than the drain": (gang({"step_time": "20s"}, drain="5s"), ["node1@3m7s:drain"]),
    "a save is longer than the drain": (gang(SLOW_SAVE, drain="5s"), ["node1@3m7s:drain"]),
    "a save ends while it is stopped": (
        gang({"checkpoint_time": "5s", "stop_time": "900ms"}, drain="5s"),
        ["node1@3m7.3s:drain", "node2@5m/1m"],
    ),
    "steps are shorter than an answer": (gang({"step_time": "1ms", "steps": 10**6}), ["node1@3m5.3s:drain"]),
    "a slow member": (gang({}), ["trainer/2@3m:slow=2.3x/1m", "node1@3m20s:drain"]),
    "a member becomes slow": (gang({"step_time": "10s"}), ["node1@3m:drain", "trainer/2@3m1s:slow=2.3x/3s"]),
    "and fast again while it saves": (gang(SLOW_SAVE), ["trainer/2@3m:slow=2.3x/40s", "node1@3m30s:drain"]),
    "in the last step": (gang({}), ["node1@10m13.3s:drain"]),
    "in the last step, and workers take time to exit": (gang({"finish_time": "3s"}), ["node1@10m13.3s:drain"]),
    "while the workers exit": (gang({"finish_time": "3s"}), ["node1@10m16s:drain"]),
    "a node dies before the step": (gang({"step_time": "10s"}), ["node1@3m:drain", "node2@3m1s/1m"]),
    "the drained node dies before the step": (gang({"step_time": "10s"}), ["node1@3m:drain", "node1@3m1s/1m"]),
    "a node dies while it saves": (gang(SLOW_SAVE), ["node1@3m:drain", "node2@3m4s/1m", "node3@4m"]),
    "a node dies just before it has saved": (gang({}), ["node1@3m:drain", "node2@3m1.003s/1m"]),
    "a node dies as it has saved": (gang({}), ["node1@3m:drain", "node2@3m1.0075s/1m"]),
    "a node dies as its workers answer": (gang({}), ["node1@2s:drain", "node2@2.0006s/1m"]),
    "a save ends as the members have stopped": (
        gang({"checkpoint_time": "5093.5ms"}, drain="5s"),
        ["node1@3m0.187s:drain"],
    ),
    "a spare is drained, and a gang that has progressed by then grows": (
        with_options(gang({}, "2:4", 5), free_incidents_max=2, min_uptime_ns=600 * SECOND),
        ["node1@30s/50s", "node2@30s/55s", "node2@3m:drain"],
    ),
    "a spare dies, and a gang that has progressed by then grows": (
        with_options(gang({}, "2:4", 5), free_incidents_max=2, min_uptime_ns=600 * SECOND),
        ["node1@30s/50s", "node2@30s/55s", "node2@3m"],
    ),
    "a cordoned node is drained": (
        with_options(gang({}, "3", 4), cordon_after=1),
        ["trainer/1@2m:oom", "node1@3m:drain", "node1@4m/30s", "node0@5m"],
    ),
    "a member ends while it saves, inside no collective": (
        gang({**SLOW_SAVE, "collective": "fail"}),
        ["node1@3m:drain", "trainer/2@3m4s", "node3@4m/1m"],
    ),
    "several on a node": (with_seats(gang({}, "2:6", 3), 2), ["node1@3m:drain", "node0@5m:drain", "node2@6m:drain"]),
    "several workers a replica": (gang({"collective": "fail"}, "2:4x2"), ["node1@3m:drain", "trainer/2@3m0.5s"]),
    "a member ends before the step": (gang({"step_time": "10s"}), ["node1@3m:drain", "trainer/2@3m1s"]),
    "a member ends while it saves": (gang(SLOW_SAVE), ["node1@3m:drain", "trainer/2@3m4s", "node3@4m/1m"]),
    "a member ends, and its peers fail": (
        gang({"step_time": "10s", "collective": "fail"}),
        ["node1@3m:drain", "trainer/2@3m1s"],
    ),
    "a member ends, and its peers hang": (
        gang({"step_time": "10s", "collective": "hang"}),
        ["node1@3m:drain", "trainer/2@3m1s"],
    ),
    "all members end before the step": (gang({"step_time": "10s"}), ["node1@3m:drain", "trainer@3m1s"]),
    "a member ends as the order is given": (gang({}), ["node1@3m:drain", "trainer/2@3m0.0004s"]),
    "a member has ended before": (gang({}), ["trainer/2@3m", "node1@3m0.0002s:drain"]),
    "many in a row": (
        with_options(gang({"steps": 4000}, "2:8", 8), free_incidents_max=2),
        [f"node{i}@{60 + 8 * i}s:drain" for i in range(5)],
    ),
    "then nodes die in a row": (
        with_options(gang({"steps": 4000}, "2:8", 8), free_incidents_max=2),
        ["node0@60s:drain", "node1@70s:drain", "node2@80s/1m", "node3@90s/1m"],
    ),
    "a mesh": (gang({}, "2:4", 5, **MESH), ["node1@3m:drain", "node2@5m:drain"]),
    "in a back-off": (
        counted(gang({}, "2:4", 5)),
        ["node1@2m:preempt=15s/1m", "node2@2m4s:drain"],
    ),
    "the drain of a whole rack": (
        gang({}, "2:6", 6),
        ["node5@1m:drain", "node4@1m:drain", "node3@1m:drain", "node2@1m:drain", "node1@1m:drain"],
    ),
}
PREEMPTIONS: dict[str, tuple[RoleGraph, list[str]]] = {
    "a spare takes over": (gang({}, "4", 5), ["node1@3m5.3s:preempt=30s"]),
    "the gang shrinks, and grows back": (gang({}), ["node1@3m5.3s:preempt=30s/1m"]),
    "it waits for the node": (gang({}, "4", 4), ["node1@3m5.3s:preempt=30s/1m"]),
    "it waits in vain": (gang({}, "4", 4, pending_timeout="50s"), ["node1@3m5.3s:preempt=30s/2m"]),
    "less notice than it takes to stop": (gang({}), ["node1@3m5.3s:preempt=9s/1m"]),
    "hardly more": (gang({"step_time": "4s"}), ["node1@3m5.3s:preempt=12s/1m"]),
    "the node is taken before it has stopped": (
        gang({"stop_time": "1900ms", "step_time": "20s"}, stop_grace="5s"),
        ["node1@3m5.3s:preempt=1s/1m"],
    ),
    "while it starts up": (gang({}), ["node1@2s:preempt=15s/1m"]),
    "while it starts up for long": (gang({"startup": "40s"}), ["node1@2s:preempt=25s/1m"]),
    "while it starts up, with time to work": (gang({}), ["node1@2s:preempt=2m/1m", "trainer/2@1m"]),
    "it begins to work while it is stopped": (
        gang({"startup": "1s", "stop_time": "1900ms", "restore_time": "300ms"}),
        ["node3@3m/1m", "node1@3m2.2s:preempt=5s/1m"],
    ),
    "a member's node dies after it has ended": (
        gang({}),
        ["node1@2s:preempt=2m/1m", "trainer/2@1m", "node2@70s/1m"],
    ),
    "that of the only member there": (gang({}), ["node1@2s:preempt=2m/1m", "trainer/1@1m", "node1@70s/1m"]),
    "the work is done meanwhile, which is progress": (
        with_options(gang({"steps": 30}), free_incidents_max=1, min_uptime_ns=600 * SECOND),
        ["node1@2s:preempt=12s/1m", "node2@6s:preempt=2m/1m"],
    ),
    "a drain does not shorten the notice": (gang({}), ["node1@2s:preempt=3m/1m", "node1@20s:drain"]),
    "a spare is back before": (
        gang({}, "2:3", 4),
        ["node3@3m:preempt=30s/1m", "node3@3m10s/5s", "node1@5m", "node2@6m"],
    ),
    "a node that dies before it is taken is not to blame": (
        with_options(gang({}), cordon_after=1),
        ["node1@2s:preempt=30s/10s", "node1@5s/10s"],
    ),
    "and all members end": (gang({"collective": "fail"}), ["node1@2s:preempt=2m/1m", "trainer/2@1m"]),
    "and the work is done meanwhile": (gang({"steps": 30}), ["node1@2s:preempt=2m/1m"]),
    "two at once": (gang({}, "2:6", 6), ["node1@3m:preempt=30s/1m", "node2@3m:preempt=40s/1m"]),
    "a drain becomes a preemption": (
        gang({"step_time": "20s"}),
        ["node1@3m7s:drain", "node1@3m8s:preempt=12s/1m"],
    ),
    "a preempted node is drained": (
        gang({"step_time": "20s"}),
        ["node1@3m7s:preempt=15s/1m", "node1@3m8s:drain", "node2@3m9s:drain"],
    ),
    "a preempted node dies before": (gang({}), ["node1@3m:preempt=30s/1m", "node1@3m10s/5m"]),
    "and is back before": (gang({}), ["node1@3m:preempt=30s/1m", "node1@3m10s/5s", "node1@4m40s"]),
    "and would be back later": (gang({}), ["node1@3m:preempt=30s", "node1@3m10s/1m"]),
    "twice": (gang({}), ["node1@3m:preempt=30s/20s", "node1@3m10s:preempt=30s/40s", "node1@5m:preempt=30s/40s"]),
    "a rule counts it": (counted(gang({}, "2:4", 5)), [f"node{i}@{i}m:preempt=30s/1m" for i in (1, 2, 3)]),
    "a rule fails for it": (counted(gang({}), "fail"), ["node1@3m:preempt=30s/1m"]),
    "too many in a row": (
        with_options(gang({"steps": 4000}, "2:8", 8), free_incidents_max=2),
        [f"node{i}@{60 + 8 * i}s:preempt=20s/1m" for i in range(5)],
    ),
    "a node that comes back often": (
        with_options(gang({"steps": 4000}, "2:4", 5), cordon_after=2),
        [f"node1@{i}m:preempt=15s/5s" for i in (1, 3, 5)] + ["node1@7m/5s", "node1@9m/5s"],
    ),
}


@pytest.mark.parametrize("story", DRAINS)
def test_a_drain_is_played_to_the_nanosecond(story: str) -> None:
    graph, faults = DRAINS[story]
    (one,) = compare(graph, parse_plan(faults), [0], 2 * HOUR)
    assert one.macro == one.protocol
    assert sum(one.macro.spent.values()) == graph.roles[0].max_replicas * one.macro.lasted


@pytest.mark.parametrize("story", PREEMPTIONS)
def test_a_preemption_is_played_to_the_nanosecond(story: str) -> None:
    graph, faults = PREEMPTIONS[story]
    (one,) = compare(graph, parse_plan(faults), [0], 2 * HOUR)
    assert one.macro == one.protocol
    assert sum(one.macro.spent.values()) == graph.roles[0].max_replicas * one.macro.lasted


def test_drains_and_preemptions_happen_at_all() -> None:
    """The two modes do not agree because both do nothing."""
    (one,) = compare(gang({}), parse_plan(["node1@3m:drain", "node2@5m:preempt=30s/1m"]), [0], HOUR)
    assert one.macro.causes == {"drained": 1, "joined": 1, "preempted": 1}
    (one,) = compare(gang({}, "4", 4), parse_plan(["node1@3m:drain"]), [0], HOUR)
    assert one.macro.causes == {}


@pytest.mark.parametrize("at", ["3m", "2s"])
def test_the_order_and_the_fault_are_the_same(at: str) -> None:
    graph = gang({})
    ordered, fault = parse_plan(drains=[f"node1@{at}"]), parse_plan([f"node1@{at}:drain"])
    (one,) = compare(graph, ordered, [0], HOUR)
    assert one.is_equal and one.macro.causes == {"drained": 1}
    (other,) = compare(graph, fault, [0], HOUR)
    assert other.macro == one.macro


def odd_job(seed: int) -> tuple[RoleGraph, Plan]:
    """A gang with any of the features, whose nodes are drained, preempted and killed, and whose members fail."""
    rnd = random.Random(seed)
    times = {
        "steps": rnd.choice([600, 4000]),
        "step_time": rnd.choice(["1s", "700ms", "9s"]),
        "startup": rnd.choice(["1s", "5s", "20s"]),
        "checkpoint_every": rnd.choice(["20s", "1m"]),
        "checkpoint_time": rnd.choice([0, "1s", "8s"]),
    }
    nodes, block = rnd.choice([3, 4, 6, 8]), rnd.choice([1, 1, 2])
    most = rnd.randint(1, nodes // block)
    more: dict[str, Any] = {"parallel": {"pp": block, "dp": "elastic"}} if block > 1 else {}
    more |= rnd.choice([{}, {}, {"drain": "6s"}])
    replicas = f"{rnd.randint(1, most) * block}:{most * block}"
    load = odd_load(rnd, times) | random.Random(-seed).choice([{}, {"peer_restore": "300ms"}])
    graph = gang(load, replicas, nodes, rnd.choice([3, 99]), pending_timeout=rnd.choice(["10m", "1h"]), **more)
    graph = with_options(
        graph,
        min_uptime_ns=rnd.choice([5, 60, 600]) * SECOND,
        free_incidents_max=rnd.choice([2, 5, 99]),
        cordon_after=rnd.choice([1, 3, 99]),
    )
    rates = rnd.choice([[], ["node-kill=60/node-day/2m"], ["node-kill=60/node-day/2m", "trainer-kill=40/replica-day"]])
    notice, back = rnd.choice(["5s", "15s", "40s", "3m"]), rnd.choice(["2s", "1m", "10m"])
    rates = [*rates, *rnd.choice([[], [f"node-preempt=60/node-day:{notice}/{back}"]])]
    rates += rnd.choice([[], [], ["trainer-slow=60/replica-day:2.3x/40s"]])
    drains = [f"node{rnd.randrange(nodes)}@{rnd.randrange(3_000_000)}ms" for _ in range(rnd.randint(0, nodes))]
    return graph, parse_plan(drains=drains, rates=rates)


@pytest.mark.parametrize("chunk", [0, *slow(range(1, 8))])
def test_random_jobs_are_played_to_the_nanosecond(chunk: int) -> None:
    seeds = range(25 * chunk, 25 * chunk + 25)
    found = [one for seed in seeds for one in compare(*odd_job(seed), [seed], HOUR)]
    assert [one.seed for one in found if not one.is_equal] == []
    happened = [kind for one in found for kind in one.macro.causes]
    assert "drained" in happened and "preempted" in happened


@pytest.mark.parametrize("order", ["drain", "preempt", "scale"])
@pytest.mark.parametrize("seed", range(4))
def test_the_short_cut_changes_nothing(seed: int, order: str) -> None:
    graph = gang({"steps": 10**5}, "2:6", 8)
    orders = {
        "drain": [f"node{i}@{10 * i}m:drain" for i in range(6)],
        "preempt": [f"node{i}@{10 * i}m:preempt=30s/1m" for i in range(6)],
        "scale": [f"trainer@{10 * i}m:scale={2 + 3 * i % 5}" for i in range(6)],
    }
    plan = parse_plan(orders[order], rates=["node-kill=20/node-day/2m"])
    scope = scope_of(graph, plan)
    short, long = (Macro(scope, plan, seed=seed, step_by_step=steps).run(4 * HOUR) for steps in (False, True))
    assert short == long


def test_the_short_cut_knows_to_which_node_a_replica_returns() -> None:
    """After its cool-down the gang grows to the node that its replica has left, though another is free, too."""
    faults = ["node0@30s/3m30s", "node2@2m:drain", "node2@2m10s/20s", "node0@10m/30s"]
    plan = parse_plan(faults, rates=["node-kill=1e-6/node-day/1m"])
    graph = gang({"steps": 1500}, "2:3", 4, cooldown="5m")
    graph = with_options(graph, free_incidents_max=2, min_uptime_ns=600 * SECOND)
    (one,) = compare(graph, plan, [1], HOUR)
    assert one.is_equal and one.macro.causes == {"node_lost": 1, "drained": 1, "joined": 1}


REFUSED: dict[str, tuple[RoleGraph, list[str], str]] = {
    "a role beside the gang": (pools(), ["node1@3m:drain"], "only in jobs of one role, and this one has"),
    "hang_after": (gang({}, hang_after="10m"), ["node1@3m:preempt=30s"], "only without hang_after"),
    "start_timeout": (gang({}, start_timeout="10m"), ["node1@3m:drain"], "only without start_timeout"),
    "a node that is cut off": (gang({}), ["node2@1m:lost/1m", "node1@3m:drain"], "only while none is cut off"),
    "a collective that times out": (
        gang({"collective": "hang"}),
        ["node1@3m:preempt=20m"],
        "only in less time than a collective takes to time out",
    ),
    "an event": (gang({}), ["node1@step=trainer,3:drain"], "knows faults at a time"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_not_be_exact_is_refused(what: str) -> None:
    graph, faults, words = REFUSED[what]
    with pytest.raises(FaultError) as caught:
        scope_of(graph, parse_plan(faults))
    assert words in str(caught.value) and "^" in str(caught.value) and caught.value.help


def test_an_order_that_would_not_be_exact_is_refused() -> None:
    with pytest.raises(MacroRefused, match="--drain node1@3m: macro mode empties nodes only without hang_after"):
        scope_of(gang({}, hang_after="10m"), parse_plan(drains=["node1@3m"]))
    rate = parse_plan(rates=["node-lost=1/day/1m", "node-preempt=1/day:30s/1m"])
    with pytest.raises(FaultError, match="only while none is cut off"):
        scope_of(gang({}), rate)
    assert scope_of(gang({}), parse_plan(rates=["node-preempt=1/day:30s/1m"]))


# Another size for the gang.

SCALES: dict[str, tuple[RoleGraph, list[str]]] = {
    "smaller": (gang({}), ["trainer@3m5.3s:scale=2"]),
    "smaller, and back at once": (gang({}), ["trainer@3m5.3s:scale=2", "trainer@4m:scale=4"]),
    "back within the cool-down": (gang({}, cooldown="5m"), ["trainer@3m5.3s:scale=3", "trainer@3m20s:scale=4"]),
    "to the size that it has": (gang({}), ["trainer@3m:scale=4"]),
    "to a size that it may not have": (gang({}), ["trainer@3m:scale=1", "trainer@4m:scale=5"]),
    "to a part of a mesh": (gang({}, "2:4", 5, **MESH), ["trainer@3m:scale=3", "trainer@4m:scale=2"]),
    "without room to grow": (gang({}, "2:4", 3), ["trainer@1m:scale=2", "trainer@2m:scale=4", "node8@4m:add"]),
    "it grows later without a cool-down": (
        gang({}, "2:4", 3, cooldown="4m"),
        ["node2@1m/10s", "trainer@2m:scale=4", "node8@3m:add"],
    ),
    "a smaller one has spares": (gang({}), ["trainer@2m:scale=3", "node0@3m", "node1@4m"]),
    "the highest go": (gang({}), ["node1@1m/2m", "trainer@2m:scale=2", "trainer@5m:scale=3"]),
    "before it starts": (gang({}), ["trainer@0s:scale=2"]),
    "while its store opens": (gang({}), ["trainer@0.001s:scale=2", "node0@3m/1m", "trainer@3m0.0112s:scale=3"]),
    "while the processes are spawned": (
        gang({}),
        ["trainer@0.003s:scale=2", "node0@3m/1m", "trainer@3m0.014s:scale=4"],
    ),
    "while it starts up": (gang({"stop_time": "1900ms"}), ["trainer@5.5s:scale=2"]),
    "while it stops": (gang({"stop_time": "900ms"}), ["node1@3m/1m", "trainer@3m0.5s:scale=2"]),
    "while it waits": (gang({}, "3:4", 4), ["node3@1m/2m", "node2@2m/5m", "trainer@2m30s:scale=3"]),
    "and drained": (gang({"step_time": "10s"}), ["node1@3m:drain", "trainer@3m2s:scale=2", "node2@5m:drain"]),
    "up while it is drained": (
        gang({"step_time": "10s"}),
        ["trainer@1m:scale=2", "node1@3m:drain", "trainer@3m2s:scale=3"],
    ),
    "peers hang": (gang({"collective": "hang"}), ["trainer/1@3m", "trainer@3m0.0002s:scale=2"]),
    "with a service": (pools(**BACK), ["trainer@2m:scale=4", "node6@3m/1m", "trainer@4m:scale=6", "node1@5m/1m"]),
    "many times in a row": (
        with_options(gang({"steps": 4000}, "2:8", 8), free_incidents_max=2),
        [f"trainer@{60 + 8 * i}s:scale={2 + i}" for i in range(5)],
    ),
}


@pytest.mark.parametrize("story", SCALES)
def test_another_size_is_played_to_the_nanosecond(story: str) -> None:
    graph, faults = SCALES[story]
    (one,) = compare(graph, parse_plan(faults), [0], 2 * HOUR)
    assert one.macro == one.protocol


def test_a_gang_is_scaled_at_all() -> None:
    (one,) = compare(gang({}), parse_plan(scales=["trainer=2@3m", "trainer=4@5m"]), [0], HOUR)
    assert one.is_equal and one.macro.causes == {"scaled": 2}


def scaled_job(seed: int) -> tuple[RoleGraph, Plan]:
    """A job of `odd_job` of which the operator changes the size, too."""
    rnd, (graph, plan) = random.Random(-seed), odd_job(seed)
    role = graph.roles[0]
    sizes = range(role.min_replicas, role.max_replicas + 1)
    scales = [f"trainer={rnd.choice(sizes)}@{rnd.randrange(3_000_000)}ms" for _ in range(6)]
    return graph, plan._replace(scales=parse_plan(scales=scales).scales)


@pytest.mark.parametrize("chunk", [0, *slow(range(1, 8))])
def test_random_sizes_are_played_to_the_nanosecond(chunk: int) -> None:
    seeds = range(25 * chunk, 25 * chunk + 25)
    found = [one for seed in seeds for one in compare(*scaled_job(seed), [seed], HOUR)]
    assert [one.seed for one in found if not one.is_equal] == []
    assert sum(one.macro.causes.get("scaled", 0) for one in found) > 5


def test_only_the_gang_is_scaled() -> None:
    with pytest.raises(MacroRefused, match="--scale evaluator=1@3m: macro mode scales trainer alone"):
        scope_of(pools(), parse_plan(scales=["evaluator=1@3m"]))
    with pytest.raises(FaultError, match="macro mode scales trainer alone"):
        scope_of(pools(), parse_plan(["evaluator@3m:scale=1"]))
