"""Macro mode with roles beside the gang: beside protocol mode, its short cut beside itself, and what it refuses."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowdist.dsl.load import load_topology
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import FaultError, Plan
from flowdist.graph import HOUR, MINUTE, SECOND, Domain, Gate, JointWorld, RestartPolicy, RoleGraph, Rule
from flowdist.graph.units import DAY
from flowdist.sim.cross_check import Comparison, compare
from flowdist.sim.faults.injector import check_faults
from flowdist.sim.macro.macro import Macro
from flowdist.sim.macro.result import MacroResult
from flowdist.sim.macro.scope import MacroRefused, scope_of

POOLS = Path(__file__).parents[2] / "scenarios/topologies/pools.py"


def pools(**params: object) -> RoleGraph:
    arguments = {key: str(value) for key, value in params.items()}
    return load_topology(str(POOLS), arguments, (), None).graph


def with_role(graph: RoleGraph, name: str, **fields: Any) -> RoleGraph:
    roles = [msgspec.structs.replace(role, **fields) if role.name == name else role for role in graph.roles]
    return msgspec.structs.replace(graph, roles=tuple(roles))


def with_options(graph: RoleGraph, **fields: Any) -> RoleGraph:
    return msgspec.structs.replace(graph, options=msgspec.structs.replace(graph.options, **fields))


def run(graph: RoleGraph, plan: Plan, until: int | None = None, **more: Any) -> MacroResult:
    check_faults(plan, graph)
    return Macro(scope_of(graph, plan), plan, **more).run(until)


BACK = {"readers": "1", "on_restart": "restart"}
GOES_ON = {"readers": "1", "on_restart": "reconnect"}

# Trainers are on node0 to node3, the evaluator and then readers on those that come next.
STORIES: dict[str, tuple[RoleGraph, list[str]]] = {
    "nothing": (pools(), []),
    "the evaluator waits for its node": (pools(), ["node4@3m/1m"]),
    "it has a spare": (pools(evaluator_nodes=2), ["node4@3m/1m"]),
    "it comes back while the gang starts": (pools(), ["node4@3m/1m", "node1@4m/1m"]),
    "it waits in vain, and the job fails": (pools(pending_timeout="1m"), ["node4@3m"]),
    "a reader starts on a node that is cut off for a moment": (
        pools(**BACK),
        ["node6@30s:lost/2300ms", "node5@30.005s/1m"],
    ),
    "it is silent": (pools(evaluator_nodes=2), ["node4@3m:lost/1m"]),
    "it has done its work": (pools(steps=1200), ["node4@10m/1m"]),
    "it dies again and again": (
        pools(replicas=4, evaluator_nodes=2),
        [f"node{4 + i % 2}@{60 + 4 * i}s/3s" for i in range(9)],
    ),
    "while it is short the gang takes a spare all the same": (pools(replicas="1:3"), ["node4@3m/2m", "node1@4m/5m"]),
    "while the gang is short others take what is theirs": (
        pools(replicas=4, evaluators="1:2", evaluator_nodes=2),
        ["node1@3m/4m", "node5@4m/1m"],
    ),
    "both at once": (pools(), ["node1@3m/1m", "node4@3m/1m"]),
    "a worker of the gang falls over": (pools(), ["trainer/1@3m", "trainer/2@5m:exit=3"]),
    "its budget is used up": (pools(max_restarts=1), ["trainer/1@3m", "trainer/2@5m"]),
    "readers that nobody waits for": (pools(readers="2", reader_nodes=2), ["node5@3m/1m", "node6@4m/1m"]),
    "the gang restarts with its reader": (pools(**BACK), ["node5@3m/1m"]),
    "the reader waits for its node": (pools(**BACK, reader_nodes=1), ["node5@3m/1m"]),
    "the reader waits in vain": (pools(**BACK, reader_nodes=1, pending_timeout="1m"), ["node5@3m"]),
    "the reader is silent": (pools(**BACK), ["node5@3m:lost/1m"]),
    "it dies as it gets ready": (pools(**BACK, reader_nodes=3), ["node5@3m/1m", "node6@3m1s/1m"]),
    "two readers, one after the other": (
        pools(**{**BACK, "readers": "2"}, reader_nodes=4),
        ["node5@3m/1m", "node6@3m1.5s/1m"],
    ),
    "a trainer's node dies meanwhile": (pools(**BACK), ["node5@3m/1m", "node1@3m1s/1m"]),
    "a trainer's node dies as it starts": (pools(**BACK), ["node5@3m/1m", "node1@3m2.12s/1m"]),
    "reader and trainer, while the others stop": (pools(**BACK), ["node1@3m/1m", "node5@3m0.05s/1m"]),
    "fewer readers are enough": (pools(**{**BACK, "readers": "1:2"}, reader_nodes=2), ["node5@3m/5m", "node1@4m/1m"]),
    "too many changes in a row": (
        pools(**BACK, reader_nodes=2),
        [f"node{5 + i % 2}@{60 + 4 * i}s/3s" for i in range(9)],
    ),
    "the gang waits in its work for its reader": (pools(**GOES_ON), ["node5@3m/1m"]),
    "and longer, as there is no spare": (pools(**{**GOES_ON, "readers": "2"}), ["node5@3m/1m", "node6@3m20s/2m"]),
    "a reader is silent, and its node comes back": (pools(**GOES_ON, reader_nodes=1), ["node5@3m:lost/4s"]),
    "it goes on without a reader that has no seat": (pools(**{**GOES_ON, "readers": "1:2"}), ["node5@3m/1m"]),
    "a trainer's node dies while it waits": (pools(**GOES_ON), ["node5@3m/1m", "node1@3m1s/1m"]),
    "it begins to step while the reader is away": (pools(**GOES_ON), ["node1@3m/1m", "node5@3m3s/1m"]),
    "a reader is away as a checkpoint is complete": (pools(**GOES_ON), ["node5@1m6.1s/1m", "node1@1m8.2s/1m"]),
    "the evaluator is a gang": (
        with_role(pools(evaluators=2, evaluator_nodes=3), "evaluator", gang=True),
        ["node4@3m/1m", "node1@4m/1m", "node5@5m/1m"],
    ),
    "reader, trainer and evaluator": (pools(**BACK), ["node5@3m/1m", "node1@3m/1m", "node4@3m/1m"]),
}


@pytest.mark.parametrize("story", STORIES)
def test_both_modes_agree_to_the_nanosecond(story: str) -> None:
    graph, faults = STORIES[story]
    (one,) = compare(graph, parse_plan(faults), [0], 2 * HOUR)
    assert one.macro == one.protocol


def odd_pools(seed: int) -> tuple[RoleGraph, Plan]:
    """Any numbers of trainers, evaluators and readers, with and without spares."""
    rnd = random.Random(seed)
    nodes, evaluators, readers = rnd.choice([2, 4, 6, 8]), rnd.choice([1, 2, 3]), rnd.choice([0, 1, 2, 3])
    least = rnd.randint(1, nodes)
    takes_along = rnd.choice(["", "restart", "reconnect"]) if readers else ""
    graph = pools(
        replicas=f"{least}:{rnd.randint(least, nodes)}",
        nodes=nodes,
        evaluators=f"1:{evaluators}",
        evaluator_nodes=evaluators,
        readers=f"1:{readers}" if readers else "0",
        reader_nodes=max(readers, 1),
        on_restart=takes_along,
        steps=20_000,
        max_restarts=99,
        pending_timeout="1h",
    )
    rates = ["node-kill=40/node-day/2m", *rnd.choice([[], ["node-lost=15/node-day/1m"]])]
    rates += rnd.choice([[], ["trainer-kill=10/replica-day"]]) if not takes_along else []
    return graph, parse_plan(rates=rates)


@pytest.mark.slow
def test_they_agree_over_seeds_of_failures() -> None:
    """Hours with dozens of failures in any of the roles, many inside a recovery."""
    found: list[Comparison] = []
    reached: Counter[str] = Counter()
    for seed in range(60):
        graph, plan = odd_pools(seed)
        found += compare(graph, plan, [seed], 2 * HOUR)
        gang = graph.role("trainer")
        reached["along"] += bool(gang.gates)
        reached["stalled"] += found[-1].macro.spent["stalled"] > 0
        reached["waits"] += found[-1].macro.spent["waiting"] > MINUTE
        reached["beside"] += max(generation for generation, _ in found[-1].macro.beside.values()) > 3
    assert [one.seed for one in found if not one.is_alike] == []
    assert sum(one.is_equal for one in found) >= 0.8 * len(found)
    assert max(one.worst for one in found) < 0.001 and sum(one.faults for one in found) > 1500
    assert min(reached.values()) > 10, reached


def test_the_first_start_by_the_short_cut_is_seen_by_who_waits_for_it() -> None:
    """A node is lost while the gang waits for its reader: it starts only when that node is back."""
    graph = pools(**GOES_ON, replicas=4)
    slow = msgspec.structs.replace(graph.role("reader").workload, startup_ns=MINUTE)
    graph = with_role(graph, "reader", workload=slow)
    plan = parse_plan(["node1@20s/2m"], rates=["node-kill=1e-6/node-day/1m"])
    (one,) = compare(graph, plan, [0], HOUR)
    assert one.is_equal and one.macro.beside["evaluator/0"][0] == 1


def test_a_difference_beside_the_gang_is_seen() -> None:
    """As if macro mode had evaluators that do not wait for the gang."""
    graph, plan = pools(replicas=4), parse_plan(["node1@3m/2m", "node4@3m1s/10s"])
    load = msgspec.structs.replace(graph.role("evaluator").workload, steps=10_000)
    graph = with_role(graph, "evaluator", workload=load)
    (one,) = compare(graph, plan, [0], 2 * HOUR)
    (other,) = compare(with_role(graph, "evaluator", gates=()), plan, [0], 2 * HOUR)
    assert one.is_equal and other.is_equal
    assert not one._replace(macro=other.macro).is_equal


@pytest.mark.parametrize("seed", range(60))
def test_the_short_cut_changes_nothing(seed: int) -> None:
    rnd = random.Random(seed)
    graph, plan = odd_pools(seed)
    graph = with_options(
        graph,
        free_incidents_max=rnd.choice([2, 5, 10**6]),
        cordon_after=rnd.choice([1, 3, 99]),
        min_uptime_ns=rnd.choice([5, 60, 600]) * SECOND,
    )
    short, long = (run(graph, plan, 12 * HOUR, seed=seed % 3, step_by_step=steps) for steps in (False, True))
    assert short == long


class Stepping(Macro):
    """Counts what it does step by step."""

    hits = 0

    def hit(self, target: str, what: Any, now: int) -> None:
        self.hits += 1
        super().hit(target, what, now)


def test_the_short_cut_is_taken_while_all_is_well_beside_the_gang() -> None:
    graph = pools(
        replicas="150:200",
        nodes=210,
        evaluators="1:2",
        evaluator_nodes=3,
        readers="2",
        reader_nodes=4,
        on_restart="restart",
    )
    graph = with_role(
        graph, "evaluator", workload=msgspec.structs.replace(graph.role("evaluator").workload, steps=10**7)
    )
    load = msgspec.structs.replace(graph.role("trainer").workload, steps=10**7)
    graph, plan = with_role(graph, "trainer", workload=load), parse_plan(rates=["node-kill=0.02/node-day/4h"])
    job = Stepping(scope_of(graph, plan), plan)
    result = job.run(30 * DAY)
    assert result.outcome is None and result.faults > 100 and job.hits < 0.2 * result.faults
    assert sum(result.spent.values()) == 200 * 30 * DAY


def rule_for_nodes() -> RestartPolicy:
    return RestartPolicy("replica", max_restarts=1, then="ignore", rules=(Rule("restart", kind="node_lost"),))


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (with_role(pools(readers=1), "reader", gang=True), "role reader: gang=True: macro mode has no services whose"),
        (with_role(pools(), "evaluator", primary=True), "role evaluator: primary=True: macro mode ends the job with"),
        (
            with_role(pools(), "evaluator", gates=(Gate("trainer", "started", "restart"),)),
            "role evaluator: depends_on=[trainer.started(on_restart='restart')]: beside trainer macro mode",
        ),
        (
            with_role(pools(), "evaluator", address_edges=("trainer",)),
            "role evaluator: command='sleep': it has addresses of trainer in its command",
        ),
        (
            with_role(pools(), "evaluator", restart=rule_for_nodes()),
            "role evaluator: restart.rules=[On('node_lost', do='restart')]: macro mode knows no rule",
        ),
        (
            with_role(pools(), "evaluator", drain_ns=SECOND // 100),
            "role evaluator: drain='10ms': its workers, which take 100ms to stop, would be killed",
        ),
        (
            with_role(pools(), "evaluator", simulate="model:Worker"),
            "role evaluator: simulate='model:Worker': macro mode runs no user code",
        ),
        (
            with_role(pools(readers=1), "reader", ready_timeout_ns=3 * SECOND),
            "role reader: ready_timeout='3s': it may not get ready in time",
        ),
        (
            with_role(pools(), "evaluator", min_replicas=2, max_replicas=2),
            "role evaluator: replicas='2:2': its minimum has no room on nodes of its own",
        ),
        (
            with_role(pools(**GOES_ON), "trainer", address_edges=("reader",)),
            "role trainer: command='sleep': it has addresses of reader in its command",
        ),
        (
            with_role(with_role(pools(), "evaluator", gates=()), "trainer", gates=(Gate("evaluator", "started"),)),
            "role trainer: depends_on=[evaluator.started()]: evaluator is no service",
        ),
        (
            with_role(pools(**BACK), "trainer", restart=rule_for_nodes()),
            "role trainer: restart.then='ignore': macro mode ends with its gang",
        ),
        (
            with_role(pools(), "trainer", restart=RestartPolicy("job", max_restarts=1)),
            "role trainer: restart.scope='job': macro mode restarts the gang without the roles beside it",
        ),
        (
            msgspec.structs.replace(pools(), domains=(Domain("core", ("trainer", "evaluator")),)),
            "the topology: restart_together core=(trainer, evaluator): macro mode plays roles that restart",
        ),
        (
            msgspec.structs.replace(pools(readers=1), worlds=(JointWorld("core", ("trainer", "evaluator")),)),
            "the topology: world core=(trainer, evaluator): macro mode plays a joint world alone",
        ),
    ],
)
def test_what_it_cannot_play_truly_is_refused_with_the_role_and_what_to_do(graph: RoleGraph, words: str) -> None:
    with pytest.raises(MacroRefused) as caught:
        scope_of(graph, parse_plan())
    text = str(caught.value)
    assert text.startswith(f"macro mode cannot play this job:\n  {words}") and text.count("\n") == 1
    assert caught.value.help.endswith("; or leave --macro out")


def test_roles_that_share_nodes_are_refused() -> None:
    graph = pools()
    graph = with_role(
        graph, "evaluator", placement=msgspec.structs.replace(graph.role("evaluator").placement, where=())
    )
    with pytest.raises(
        MacroRefused,
        match=r"role evaluator: where=\{\}: node0 has room for trainer, too, and macro mode plays roles on",
    ):
        scope_of(graph, parse_plan())
    nodes = tuple(msgspec.structs.replace(node, cpu=2.0) for node in pools().cluster.nodes)
    graph = pools(evaluators=2, evaluator_nodes=2)
    graph = msgspec.structs.replace(graph, cluster=msgspec.structs.replace(graph.cluster, nodes=(*nodes, nodes[-1])))
    with pytest.raises(
        MacroRefused, match="role evaluator: apart=False: macro mode has at most one replica of evaluator on a node"
    ):
        scope_of(graph, parse_plan())


@pytest.mark.parametrize(
    ("params", "faults", "rates", "words"),
    [
        ({}, ["evaluator/0@1m"], [], "has roles beside trainer fail with their nodes alone"),
        ({}, ["all@1m"], [], "has roles beside trainer fail with their nodes alone"),
        ({}, [], ["replica-kill=1/day"], "has roles beside trainer fail with their nodes alone"),
        (BACK, ["trainer/0@1m"], [], "has trainer fail with its nodes alone, as it depends on reader"),
        (BACK, [], ["trainer-oom=1/day"], "has trainer fail with its nodes alone, as it depends on reader"),
    ],
)
def test_so_are_failures_of_replicas(
    params: dict[str, object], faults: list[str], rates: list[str], words: str
) -> None:
    with pytest.raises(FaultError) as caught:
        scope_of(pools(**params), parse_plan(faults, rates=rates))
    assert words in str(caught.value) and "^" in str(caught.value) and caught.value.help
