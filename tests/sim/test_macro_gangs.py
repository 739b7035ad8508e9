"""Macro mode with several gangs: beside protocol mode, and what it refuses."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Literal

import msgspec
import pytest

from flowdist import Node, Restart, Topology, Workload
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import FaultError, Plan
from flowdist.graph import HOUR, MINUTE, SECOND, RoleGraph
from flowdist.sim.cross_check import Comparison, compare
from flowdist.sim.macro.macro import Macro
from flowdist.sim.macro.scope import MacroRefused, scope_of
from flowdist.sim.macro.trace import MacroTrace
from flowdist.testing.kit import graph_of
from tests.choosing import slow
from tests.sim.test_macro_beside import with_options
from tests.sim.test_macro_joint import core

TIMES: dict[str, Any] = {"startup": "5s", "checkpoint_every": "1m", "checkpoint_time": "1s"}


def duo(
    blue: str = "2:4",
    red: str = "2:3",
    nodes: tuple[int, int] = (4, 3),
    steps: tuple[int, int] = (600, 900),
    waits: bool = False,
    readers: int = 0,
    on_restart: Literal["restart", "reconnect"] = "reconnect",
    evaluators: int = 0,
    load: dict[str, Any] | None = None,
    red_load: dict[str, Any] | None = None,
    max_restarts: int = 99,
    then: str = "fail",
    spares: int = 1,
    **more: Any,
) -> RoleGraph:
    """Return a job with two gangs: blue on its nodes, then red on those that follow, then readers and evaluators.

    Args:
        blue, red: Their sizes.
        nodes, steps: Numbers of nodes and of steps of each.
        waits: Red is no primary task, and depends on `blue.started()`.
        readers: Replicas of a service that red waits for.
        on_restart: What red does when one of these is lost.
        evaluators: Replicas of a role that depends on `red.started()`.
        load, red_load: More of the workload of both, and of red.
        max_restarts, then: The restart policy of red.
        spares: Nodes without a replica of each of the other roles.
        more: More of both gangs.
    """
    pools = {"blue": nodes[0], "red": nodes[1]}
    pools["read"], pools["eval"] = readers and readers + spares, evaluators and evaluators + spares
    t = Topology("duo", nodes=[Node(cpu=1, labels={"pool": pool}) for pool in pools for _ in range(pools[pool])])
    first, second = {**TIMES, "steps": steps[0], **(load or {})}, {**TIMES, "steps": steps[1], **(load or {})}
    upstream = t.role(
        "blue",
        "sleep inf",
        replicas=blue,
        where={"pool": "blue"},
        restart=Restart("role", max_restarts=99),
        workload=Workload(**first),
        **more,
    )
    gates = [upstream.started()] if waits else []
    if readers:
        reader = t.role(
            "reader",
            "sleep inf",
            kind="service",
            ready_when="call",
            replicas=readers,
            where={"pool": "read"},
            restart=Restart("replica", max_restarts=3),
        )
        gates.append(reader.ready(on_restart=on_restart))
    downstream = t.role(
        "red",
        "sleep inf",
        replicas=red,
        where={"pool": "red"},
        primary=not waits,
        depends_on=gates,
        restart=Restart("role", max_restarts=max_restarts, then=then),
        workload=Workload(**{**second, **(red_load or {})}),
        **more,
    )
    if evaluators:
        t.role(
            "evaluator",
            "sleep inf",
            replicas=evaluators,
            gang=False,
            primary=False,
            where={"pool": "eval"},
            depends_on=[downstream.started()],
            restart=Restart("replica", max_restarts=1, then="ignore"),
            workload=Workload(steps=200, checkpoint_every="30s"),
        )
    return graph_of(t)


# Blue is on node0 to node3, red on node4 to node6.
STORIES: dict[str, tuple[RoleGraph, list[str]]] = {
    "nothing": (duo(), []),
    "each loses a node": (duo(), ["node1@3m5.3s/2m", "node5@5m/1m"]),
    "both at once": (duo(), ["node1@3m/1m", "node5@3m/1m"]),
    "one dies while the other starts": (duo(), ["node1@3m/1m", "node5@3m2s/1m"]),
    "one is silent": (duo(), ["node5@3m:lost/1m", "node1@3m2s/1m"]),
    "workers fall over": (duo(), ["blue/1@3m", "red/0@3m0.01s", "red/1@5m:exit=3", "all@6m", "red@8m:oom"]),
    "one is done while a member's node is cut off for a moment": (duo(), ["node2@613024889us:lost/2300ms"]),
    "one is slow": (duo(), ["red/1@3m:slow=2x/1m", "blue/0@4m:slow=3x/20s"]),
    "one waits for its node": (duo(blue="4"), ["node1@3m/4m", "node5@4m/1m"]),
    "one waits in vain, and the job fails": (duo(blue="4", pending_timeout="1m"), ["node1@3m", "node5@3m50s/1m"]),
    "it fails while the other starts": (duo(blue="4", pending_timeout="1m"), ["node1@3m", "node5@3m58s/1m"]),
    "it fails while the other stops": (duo(blue="4", pending_timeout="1m"), ["node1@3m", "node5@4m0.03s/1m"]),
    "it fails while the other waits": (duo("4", "3", pending_timeout="1m"), ["node1@3m", "node5@3m20s/1m"]),
    "it fails with the other's node dead": (duo(blue="4", pending_timeout="1m"), ["node1@3m", "node5@4m0.1s/1m"]),
    "the budget of one is used up": (duo(max_restarts=1), ["red/1@3m", "blue/1@4m", "red/0@5m"]),
    "too many changes of one in a row": (
        duo("2:4", "1:3"),
        [f"node{4 + i % 3}@{60 + 2 * i}s/1s" for i in range(12)],
    ),
    "one is done, and then its node dies": (duo(), ["node1@12m/1m", "node5@13m/1m"]),
    "one is done, and the other fails": (duo(max_restarts=0), ["red/1@13m"]),
    "the second is done first": (duo(steps=(900, 600)), ["node5@12m/1m", "node1@13m/1m"]),
    "both are done at once": (duo(steps=(600, 600)), []),
    "a node flaps while the other gang lacks room": (
        with_options(duo("2:4", "3"), cordon_after=2),
        ["node5@50s/10m", "node1@1m/10s", "node1@3m/10s"],
    ),
    "a node flaps, and the other gang has room": (
        with_options(duo(), cordon_after=2),
        ["node5@50s/10m", "node1@1m/10s", "node1@3m/10s"],
    ),
    "peers hang, and the other gang fails": (
        duo(blue="4", pending_timeout="1m", load={"collective": "hang"}),
        ["node1@3m", "node5@4m0.1s/1m"],
    ),
    "peers fail": (duo(load={"collective": "fail"}), ["node1@3m/1m", "node5@3m0.003s/1m", "red/0@6m"]),
    "red waits for blue": (duo(waits=True), []),
    "and for its readers": (duo(waits=True, readers=2), ["node8@3m/1m", "node5@4m/1m"]),
    "blue restarts while red runs": (duo(waits=True), ["node1@3m/1m", "blue/0@6m"]),
    "red restarts while blue does not run": (duo(waits=True), ["node1@3m/1m", "node5@3m0.01s/1m"]),
    "red waits for its node, and then for blue": (duo("4", "3", waits=True), ["node5@3m/1m", "node1@3m30s/1m"]),
    "red waits for blue longer than for a node": (
        duo("4", "3", waits=True, pending_timeout="80s"),
        ["node5@3m/3m", "node1@3m30s/70s"],
    ),
    "a worker of blue falls over while red waits": (
        duo("4", "3", waits=True, pending_timeout="1m"),
        ["node5@3m/62s", "blue/1@4m0.05s"],
    ),
    "red is done before blue": (duo(waits=True, steps=(900, 300)), ["node5@8m/1m", "node1@9m/1m"]),
    "blue is done while red restarts": (duo(waits=True), ["node5@10m12s/1m"]),
    "blue is done while red stops": (duo(waits=True, red_load={"stop_time": "1900ms"}), ["node5@10m13s/1m"]),
    "blue is done while red hangs": (duo(waits=True, red_load={"collective": "hang"}), ["node5@10m14s/1m"]),
    "red is done while it is stopped": (duo(waits=True, steps=(600, 600), load={"stop_time": "1900ms"}), []),
    "its reader changes too often": (
        duo(readers=1),
        [f"node{7 + i % 2}@{60 + 4 * i}s/3s" for i in range(9)],
    ),
    "a reader dies after red is done": (duo(readers=1, on_restart="restart", steps=(900, 300)), ["node7@8m/1m"]),
    "red has evaluators": (duo(waits=True, evaluators=2), ["node5@3m/1m", "node8@4m/1m", "node7@10m10s/1m"]),
    "red is ignored in the end": (duo(waits=True, max_restarts=1, then="ignore"), ["node5@3m/1m", "node4@5m/1m"]),
}


@pytest.mark.parametrize("story", STORIES)
def test_both_modes_agree_to_the_nanosecond(story: str) -> None:
    graph, faults = STORIES[story]
    (one,) = compare(graph, parse_plan(faults), [0], HOUR)
    assert one.macro == one.protocol
    for name, gang in one.macro.others.items():
        assert sum(gang.spent.values()) == graph.role(name).max_replicas * one.macro.lasted


def odd_job(seed: int) -> tuple[RoleGraph, Plan]:
    """Return two gangs of any size, with and without roles beside them, under faults of several kinds."""
    rnd = random.Random(seed)
    load = {
        "warmup": rnd.choice(["0s", "0s", "4s"]),
        "stop_time": rnd.choice(["100ms", "1900ms"]),
        "startup": rnd.choice(["1s", "5s", "20s"]),
        "checkpoint_every": rnd.choice(["20s", "1m"]),
    }
    nodes = rnd.choice([2, 3, 4, 6]), rnd.choice([2, 3, 4])
    sizes = [f"{rnd.randint(1, most)}:{most}" for most in (rnd.randint(1, count) for count in nodes)]
    waits, readers = rnd.random() < 0.4, rnd.choice([0, 0, 1, 2])
    graph = duo(
        *sizes,
        nodes,
        (rnd.choice([600, 5000]), rnd.choice([600, 5000])),
        waits,
        readers,
        "reconnect",
        rnd.choice([0, 0, 2]),
        load,
        {"collective": rnd.choice(["wait", "wait", "hang"])},
        rnd.choice([2, 99]),
        pending_timeout=rnd.choice(["90s", "1h"]),
    )
    graph = with_options(
        graph,
        free_incidents_max=rnd.choice([2, 5, 99]),
        cordon_after=rnd.choice([1, 3, 99]),
        move_after=rnd.choice([1, 2, 99]),
        min_uptime_ns=rnd.choice([5, 60, 600]) * SECOND,
    )
    rates = ["node-kill=40/node-day/2m", *rnd.choice([[], ["node-lost=15/node-day/1m"]])]
    rates += rnd.choice([[], ["blue-kill=40/replica-day"], ["blue-slow=60/replica-day:2.3x/40s"]])
    if not waits and not readers:
        rates += rnd.choice([[], ["red-exit=40/replica-day:3"]])
    return graph, parse_plan(rates=rates)


@pytest.mark.parametrize("seeds", [range(4), *slow([range(4, 60), range(60, 120)])])
def test_odd_jobs_agree_with_protocol_mode(seeds: range) -> None:
    found: list[Comparison] = [one for seed in seeds for one in compare(*odd_job(seed), [seed], HOUR)]
    assert [one.seed for one in found if not one.is_equal] == []
    reached: Counter[str] = Counter(str(one.macro.outcome) for one in found)
    assert sum(one.faults for one in found) > 5 * len(found)
    assert len(seeds) < 20 or min(reached["succeeded"], reached["failed"]) > 3


def test_three_gangs_and_the_figures_of_each() -> None:
    t = Topology("trio", nodes=[Node(cpu=1, labels={"pool": pool}) for pool in "abc" for _ in range(3)])
    for i, pool in enumerate("abc"):
        t.role(
            f"gang-{pool}",
            "sleep inf",
            replicas="2:3",
            where={"pool": pool},
            restart=Restart("role", max_restarts=9),
            workload=Workload(steps=300 * (i + 1), startup="5s", checkpoint_every="1m", checkpoint_time="1s"),
        )
    graph, plan = graph_of(t), parse_plan(rates=["node-kill=100/node-day/1m"])
    (one,) = compare(graph, plan, [1], HOUR)
    assert one.macro == one.protocol and list(one.macro.others) == ["gang-b", "gang-c"]
    result = Macro(scope_of(graph, plan), plan, fault_seed=1).run(HOUR)
    assert result.outcome == "succeeded" and result.others["gang-b"].outcome == "succeeded"
    assert result.reason == "every primary task has succeeded (gang-a, gang-b, gang-c)"
    assert {result.step, *(gang.step for gang in result.others.values())} == {300, 600, 900}


def test_a_difference_of_the_second_gang_is_seen() -> None:
    (one,) = compare(duo(), parse_plan(["node5@3m/1m"]), [0], HOUR)
    (other,) = compare(duo(), parse_plan(["node5@3m0.001s/1m"]), [0], HOUR)
    assert one.is_equal and other.is_equal and one.is_alike
    mixed = one._replace(macro=one.macro._replace(others=other.macro.others))
    assert not mixed.is_equal and mixed.worst > 0
    more = {"red": one.macro.others["red"]._replace(generations=7)}
    assert not one._replace(macro=one.macro._replace(others=more)).is_alike


def test_an_added_node_joins_the_gang_that_can_use_it() -> None:
    (one,) = compare(duo("2:5"), parse_plan(["node9@3m:add", "node9@6m/10s"]), [0], HOUR)
    assert one.is_equal and one.macro.causes["joined"] > 0


def test_the_trace_names_each_gang() -> None:
    graph, plan = duo(), parse_plan(["node1@3m/1m", "node5@4m/1m"])
    trace = MacroTrace(scope_of(graph, plan), plan, 0)
    Macro(scope_of(graph, plan), plan, tell=trace.hear).run(10 * MINUTE)
    texts = [line.reason for line in trace.lines if hasattr(line, "reason")]
    assert "blue: generation 2 forms with 3 of at most 4" in texts
    assert "red: generation 2 forms with 2 of at most 3" in texts


@pytest.mark.parametrize("graph", [duo(), core("2", "4", nodes=6)])
def test_orders_and_preemptions_are_refused(graph: RoleGraph) -> None:
    role = graph.roles[0].name
    for plan in (parse_plan(scales=[f"{role}=2@1m"]), parse_plan(drains=["node1@1m"])):
        with pytest.raises(MacroRefused, match=r"macro mode (scales the gang|empties nodes) only in jobs of one"):
            scope_of(graph, plan)
    for fault in (f"{role}@1m:scale=2", "node1@1m:drain", "node1@1m:preempt=30s/1m"):
        with pytest.raises(FaultError, match="only in jobs of one"):
            scope_of(graph, parse_plan([fault]))


def with_role(graph: RoleGraph, name: str, **fields: Any) -> RoleGraph:
    roles = [msgspec.structs.replace(role, **fields) if role.name == name else role for role in graph.roles]
    return msgspec.structs.replace(graph, roles=tuple(roles))


def gated(condition: str, on_restart: str = "reconnect") -> RoleGraph:
    graph = duo(waits=True)
    gate = msgspec.structs.replace(graph.role("red").gates[0], condition=condition, on_restart=on_restart)
    return with_role(graph, "red", gates=(gate,))


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (
            gated("ready"),
            "role red: depends_on=[blue.ready(on_restart='reconnect')]: macro mode plays only depends_on=",
        ),
        (gated("started", "restart"), "role red: depends_on=[blue.started(on_restart='restart')]: macro mode plays"),
        (
            with_role(duo(readers=1), "blue", gates=duo(readers=1).role("red").gates),
            "role red: depends_on=[reader.ready(on_restart='reconnect')]: reader is beside another gang",
        ),
        (with_role(duo(), "red", address_edges=("blue",)), "role red: command='sleep': it has addresses of blue"),
        (
            duo(waits=True, red_load={"collective": "fail"}),
            "role red: workload.collective='fail': macro mode has red fail with its nodes alone, as it depends on blue",
        ),
        (
            with_role(duo(), "red", restart=msgspec.structs.replace(duo().role("red").restart, scope="job")),
            "role red: restart.scope='job': macro mode restarts the gang without the roles beside it",
        ),
        (
            with_role(duo(), "blue", min_replicas=5, max_replicas=5),
            "role blue: replicas='5:5': its minimum has no room on nodes of its own",
        ),
        (
            with_role(duo(), "red", placement=msgspec.structs.replace(duo().role("red").placement, where=())),
            "role red: where={}: node0 has room for blue, too",
        ),
    ],
)
def test_what_it_cannot_play_truly_is_refused_with_the_role_and_what_to_do(graph: RoleGraph, words: str) -> None:
    with pytest.raises(MacroRefused) as caught:
        scope_of(graph, parse_plan())
    text = str(caught.value)
    assert text.startswith(f"macro mode cannot play this job:\n  {words}") and text.count("\n") == 1


@pytest.mark.parametrize(
    ("graph", "fault", "words"),
    [
        (duo(waits=True), "red/0@1m", "has red fail with its nodes alone, as it depends on blue"),
        (duo(waits=True), "all@1m", "has red fail with its nodes alone, as it depends on blue"),
        (duo(evaluators=1), "all@1m", "has roles beside blue and red fail with their nodes alone"),
    ],
)
def test_so_are_failures_of_replicas_that_may_have_another_cause(graph: RoleGraph, fault: str, words: str) -> None:
    with pytest.raises(FaultError) as caught:
        scope_of(graph, parse_plan([fault]))
    assert words in str(caught.value) and "^" in str(caught.value) and caught.value.help
