"""Macro mode with a joint world: beside protocol mode, and what it refuses."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from flowdist import Node, On, Restart, Topology, Workload
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import Plan
from flowdist.graph import HOUR, MINUTE, SECOND, RoleGraph
from flowdist.sim.cross_check import compare
from flowdist.sim.macro.macro import Macro
from flowdist.sim.macro.scope import MacroRefused, scope_of
from flowdist.testing.kit import graph_of
from tests.choosing import slow
from tests.sim.test_macro_beside import with_options, with_role

TIMES: dict[str, Any] = {"steps": 600, "startup": "5s", "checkpoint_every": "1m", "checkpoint_time": "1s"}


def core(
    *sizes: str,
    nodes: int,
    seats: int = 1,
    restarts: tuple[int, ...] = (99, 99, 99),
    waits: tuple[str, ...] = ("10m", "10m", "10m"),
    load: dict[str, Any] | None = None,
    backoff: str = "1s",
) -> RoleGraph:
    """Return a job whose only world has a role of each of these sizes, all on the same nodes.

    Args:
        sizes: The sizes of ps, trainer and judge.
        nodes: Number of nodes.
        seats: How many replicas each of them has room for.
        restarts: The budget of each role.
        waits: `pending_timeout` of each role.
        load: More of the workload of all.
        backoff: Of all roles.
    """
    t = Topology("core", nodes=nodes * [Node(cpu=seats)])
    roles = [
        t.role(
            name,
            "sleep inf",
            replicas=size,
            restart=Restart("role", max_restarts=budget, backoff=backoff),
            pending_timeout=wait,
            workload=Workload(**{**TIMES, **(load or {})}),
        )
        for name, size, budget, wait in zip(("ps", "trainer", "judge"), sizes, restarts, waits, strict=False)
    ]
    t.world("core", *roles)
    return graph_of(t)


STORIES: dict[str, tuple[RoleGraph, list[str]]] = {
    "nothing": (core("2", "4", nodes=6), []),
    "a spare takes over": (core("2", "4", nodes=7), ["node1@3m5.3s/2m", "node4@5m/1m"]),
    "each role waits for a node": (core("2", "4", nodes=6), ["node1@3m/1m", "node4@5m/1m"]),
    "both wait, and then one": (core("2", "4", nodes=6), ["node1@3m/1m", "node4@3m20s/2m"]),
    "the other way round": (core("2", "4", nodes=6), ["node4@3m/1m", "node1@3m20s/2m"]),
    "one waits in vain": (core("2", "4", nodes=6, waits=("1m", "2m")), ["node4@3m/5m", "node1@4m/5m"]),
    "the second waits in vain": (core("2", "4", nodes=6, waits=("2m", "1m")), ["node1@3m/3m", "node4@3m20s/5m"]),
    "it shrinks and grows": (core("1:2", "2:4", nodes=6), ["node1@3m/1m", "node4@5m/1m"]),
    "one role shrinks, the other waits": (core("2", "2:4", nodes=6), ["node4@3m/10m", "node1@5m/1m"]),
    "one grows first": (core("1:3", "1:3", nodes=5), ["node1@3m/1m", "node4@3m10s/1m", "node2@5m/2m"]),
    "workers of both fall over": (core("2", "4", nodes=6), ["ps/1@3m", "trainer/0@3m5s", "trainer/1@5m:exit=3"]),
    "the budget of one is used up": (core("2", "4", nodes=6, restarts=(1, 9)), ["ps/1@3m", "trainer/1@4m", "ps/0@5m"]),
    "each budget pays for its own": (core("2", "4", nodes=6, restarts=(1, 1)), ["ps/1@3m", "trainer/1@4m"]),
    "a node of the other role explains a failure": (
        core("2", "4", nodes=6, restarts=(0, 0)),
        ["ps/1@3m", "node4@3m0.005s/1m"],
    ),
    "the failed worker's own node dies": (
        core("1", "3", nodes=3, seats=2, load={"stop_time": "1900ms"}),
        ["ps/0@3m", "node0@3m1s/1m"],
    ),
    "a node dies during a back-off": (
        core("2", "4", nodes=6, backoff="10s"),
        ["ps/1@3m", "ps/1@4m", "node4@4m5s/1m"],
    ),
    "all of it": (core("2", "4", nodes=6), ["all@3m", "ps@5m", "node0@7m:lost/1m", "trainer@9m:oom"]),
    "two on a node": (core("2", "2:4", nodes=3, seats=2), ["node1@3m/1m", "node0@5m/2m"]),
    "three roles": (core("1", "2:3", "1:2", nodes=6), ["node0@3m/1m", "node1@4m/2m", "node5@5m/1m", "node2@5m10s/1m"]),
    "a node flaps": (
        with_options(core("1:2", "2:4", nodes=6), cordon_after=2),
        ["node1@1m/10s", "node1@3m/10s", "node4@5m/1m"],
    ),
    "a node dies 0.3 ms after a checkpoint is complete": (core("2", "4", nodes=7), ["node3@66007500us/2m"]),
    "one is slow": (core("2", "4", nodes=6), ["trainer/1@3m:slow=2x/1m", "ps/1@3m30s:slow=3x/1m"]),
    "peers hang": (core("2", "4", nodes=6, load={"collective": "hang"}), ["node1@3m/1m", "trainer/1@5m"]),
    "peers fail": (core("2", "4", nodes=6, load={"collective": "fail"}), ["node1@3m/1m", "trainer/1@5m"]),
}


@pytest.mark.parametrize("story", STORIES)
def test_both_modes_agree_to_the_nanosecond(story: str) -> None:
    graph, faults = STORIES[story]
    (one,) = compare(graph, parse_plan(faults), [0], HOUR)
    assert one.macro == one.protocol
    assert sum(one.macro.spent.values()) == sum(role.max_replicas for role in graph.roles) * one.macro.lasted


def odd_job(seed: int) -> tuple[RoleGraph, Plan]:
    """Return a joint world of two or three roles of any size, under faults of several kinds."""
    rnd = random.Random(seed)
    most = [rnd.randint(1, 4) for _ in range(rnd.choice([2, 2, 3]))]
    least = [rnd.randint(1, size) if rnd.random() < 0.7 else size for size in most]
    seats = rnd.choice([1, 1, 2])
    nodes = -(-rnd.randint(sum(least), sum(most) + 2) // seats)
    graph = core(
        *(f"{low}:{high}" for low, high in zip(least, most, strict=True)),
        nodes=nodes,
        seats=seats,
        restarts=(*(rnd.choice([2, 99]) for _ in most), 99),
        waits=tuple(rnd.choice(["90s", "10m", "1h"]) for _ in most),
        load={
            "steps": rnd.choice([600, 5000]),
            "startup": rnd.choice(["1s", "5s", "20s"]),
            "stop_time": rnd.choice(["100ms", "1900ms"]),
            "collective": rnd.choice(["wait", "wait", "hang", "fail"]),
        },
        backoff=rnd.choice(["1s", "10s"]),
    )
    graph = with_options(
        graph,
        free_incidents_max=rnd.choice([2, 5, 99]),
        cordon_after=rnd.choice([1, 3, 99]),
        move_after=rnd.choice([1, 2, 99]),
        min_uptime_ns=rnd.choice([5, 60, 600]) * SECOND,
    )
    rates = ["node-kill=40/node-day/2m"]
    rates += rnd.choice([[], ["ps-kill=40/replica-day"], ["replica-exit=40/replica-day:3"]])
    return graph, parse_plan(rates=rates)


@pytest.mark.parametrize("seeds", [range(4), *slow([range(4, 60), range(60, 120)])])
def test_odd_jobs_agree_with_protocol_mode(seeds: range) -> None:
    found = [one for seed in seeds for one in compare(*odd_job(seed), [seed], HOUR)]
    assert [one.seed for one in found if not one.is_equal] == []
    reached: Counter[str] = Counter(str(one.macro.outcome) for one in found)
    reached["waits"] = sum(one.macro.spent["waiting"] > MINUTE for one in found)
    assert len(seeds) < 20 or min(reached[what] for what in ("succeeded", "failed", "waits")) > 3


def test_the_result_is_that_of_the_world() -> None:
    graph, plan = core("2", "4", nodes=6, restarts=(1, 9)), parse_plan(["ps/1@3m", "trainer/1@4m", "ps/0@5m"])
    result = Macro(scope_of(graph, plan), plan).run()
    assert result.outcome == "failed" and result.charged == 2
    assert result.reason == "ps/0 failed: signal; role ps has used up its budget of 1 restart"
    plan = parse_plan(["node1@3m"])
    result = Macro(scope_of(graph, plan), plan).run()
    assert result.reason == "ps was below its minimum for 10m"
    assert Macro(scope_of(graph, parse_plan()), parse_plan()).run().reason.endswith("succeeded (ps, trainer)")


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (with_role(core("2", "4", nodes=6), "trainer", grace_ns=SECOND), "role trainer: grace='1s': macro mode"),
        (
            with_role(
                core("2", "4", nodes=6),
                "trainer",
                workload=msgspec.structs.replace(core("2", "4", nodes=6).role("ps").workload, steps=7),
            ),
            "role trainer: workload.steps=7: macro mode plays a joint world of roles that differ in size and restart=",
        ),
        (
            with_role(core("2", "4", nodes=6), "ps", max_replicas=9, min_replicas=9),
            "role ps: replicas='9:9': the minima have no room",
        ),
    ],
)
def test_what_it_cannot_play_truly_is_refused(graph: RoleGraph, words: str) -> None:
    with pytest.raises(MacroRefused) as caught:
        scope_of(graph, parse_plan())
    text = str(caught.value)
    assert text.startswith(f"macro mode cannot play this job:\n  {words}") and text.count("\n") == 1


def test_rules_for_lost_nodes_are_refused() -> None:
    t = Topology("core", nodes=3 * [Node(cpu=1)])
    rule = Restart("role", max_restarts=1, rules=[On("node_lost", do="restart")])
    t.world("core", t.role("ps", "sleep inf", restart=rule), t.role("trainer", "sleep inf", replicas=2))
    with pytest.raises(
        MacroRefused, match=r"role ps: restart.rules=.*macro mode knows no rule for lost nodes in a joint"
    ):
        scope_of(graph_of(t), parse_plan())
