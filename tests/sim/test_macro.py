"""Macro mode beside protocol mode, and what it refuses."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowdist.control.protocol.events import NodeGone, NodeJoined
from flowdist.dsl.load import load_topology
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import FaultError, Plan
from flowdist.graph import HOUR, MINUTE, SECOND, JointWorld, Readiness, RestartPolicy, RoleGraph, Rule
from flowdist.graph.units import DAY
from flowdist.record.journal import FaultLine, Header, Record, decode_line, encode_line
from flowdist.report.goodput import daly_ns
from flowdist.sim.experiment.compare import Comparison
from flowdist.sim.faults.injector import check_faults
from flowdist.sim.macro.books import MacroResult
from flowdist.sim.macro.macro import Macro, MacroTrace
from flowdist.sim.macro.scope import MacroRefused, scope_of
from tests.choosing import slow
from tests.sim.cross import crossed, faults_of, spent_of

TOPOLOGIES = Path(__file__).parents[2] / "scenarios/topologies"


def topology(name: str = "gang.py", **params: object) -> RoleGraph:
    arguments = {key: str(value) for key, value in params.items()}
    return load_topology(str(TOPOLOGIES / name), arguments, (), None).graph


def with_role(graph: RoleGraph, **fields: Any) -> RoleGraph:
    return msgspec.structs.replace(graph, roles=(msgspec.structs.replace(graph.roles[0], **fields),))


def with_seats(graph: RoleGraph, seats: int) -> RoleGraph:
    nodes = tuple(msgspec.structs.replace(node, cpu=float(seats)) for node in graph.cluster.nodes)
    return msgspec.structs.replace(graph, cluster=msgspec.structs.replace(graph.cluster, nodes=nodes))


def with_place(**fields: Any) -> RoleGraph:
    return with_role(topology(), placement=msgspec.structs.replace(topology().roles[0].placement, **fields))


def with_load(**fields: Any) -> RoleGraph:
    return with_role(topology(), workload=msgspec.structs.replace(topology().roles[0].workload, **fields))


def run(graph: RoleGraph, plan: Plan, until: int | None = None, **more: Any) -> MacroResult:
    check_faults(plan, graph)
    return Macro(scope_of(graph, plan), plan, **more).run(until)


# Every story that macro mode knows, with what it is about: each equals protocol mode to the nanosecond.
STORIES = {
    "nothing": (topology(), []),
    "a spare takes over": (topology(replicas=2, nodes=3), ["node1@3m5.3s/2m"]),
    "it shrinks, and grows": (topology(replicas="1:2", nodes=2), ["node1@3m5.3s/2m"]),
    "it waits for its node": (topology(replicas=2, nodes=2), ["node1@3m5.3s/2m"]),
    "it waits in vain": (topology(replicas=2, nodes=2, pending_timeout="20s"), ["node1@3m5.3s/2m"]),
    "a spare dies": (topology(replicas=2, nodes=3), ["node2@1m", "node1@2m/1m"]),
    "two at once": (topology(), ["node1@3m/1m", "node2@3m/1m"]),
    "one while the others stop": (topology(), ["node1@3m/1m", "node2@3m0.06s/1m"]),
    "one while they start": (topology(), ["node1@3m/1m", "node2@3m2s/1m"]),
    "all die": (topology(replicas="2:4"), [f"node{i}@3m/{i + 1}m" for i in range(4)]),
    "a node is silent": (topology(), ["node1@3m:lost/1m"]),
    "for longer than its lease": (topology(), ["node1@3m:lost/4s"]),
    "a worker falls over": (topology(), ["trainer/1@2m", "trainer/1@4m:exit=3", "trainer/2@4m30s:oom"]),
    "its node is bad": (topology(replicas=3, nodes=4), ["trainer/1@2m:exit=3", "trainer/1@4m:exit=3"]),
    "the budget is used up": (topology(max_restarts=1), ["trainer/1@2m", "trainer/1@4m"]),
    "a peer's node dies with it": (topology(), ["trainer/1@2m", "trainer/1@4m", "node2@4m0.02s/1m"]),
    "a peer's node dies while the end of the job is held": (
        topology(max_restarts=1),
        ["trainer/1@2m", "trainer/1@4m", "node2@4m0.02s/1m", "trainer/0@6m"],
    ),
    "its own node dies while it is held": (
        topology(max_restarts=1),
        ["trainer/1@2m", "trainer/1@4m", "node1@4m0.02s/1m"],
    ),
    "a peer's node is silent as it is held": (
        topology(max_restarts=1),
        ["trainer/1@2m", "node2@3m58s:lost/1m", "trainer/1@4m"],
    ),
    "a peer's node dies as it falls over, with no policy": (
        topology(max_restarts=0),
        ["node2@2m/1m", "trainer/1@2m0.005s"],
    ),
    "no policy": (topology(max_restarts=0), ["trainer/1@2m"]),
    "a node flaps": (topology(replicas="2:4"), ["node1@1m/10s", "node1@3m/10s", "node1@5m/10s"]),
    "too many changes in a row": (topology(replicas="1:4"), [f"node{i % 4}@{60 + 2 * i}s/1s" for i in range(12)]),
    "several on a node": (with_seats(topology(replicas="2:6", nodes=3), 2), ["node1@2m/1m", "node0@4m"]),
    "packed": (
        with_role(
            with_seats(topology(replicas="2:5", nodes=4), 2),
            placement=msgspec.structs.replace(topology().roles[0].placement, strategy="pack"),
        ),
        ["node1@2m/1m", "node0@4m/1m"],
    ),
    "a rule counts lost nodes": (
        with_role(topology(), restart=RestartPolicy(max_restarts=1, rules=(Rule("restart", kind="node_lost"),))),
        ["node1@2m/10s", "node2@4m/10s"],
    ),
    "a rule counts lost nodes, and there are spares": (
        with_role(
            topology(replicas=2, nodes=4),
            restart=RestartPolicy(max_restarts=9, rules=(Rule("restart", kind="node_lost"),)),
        ),
        ["node1@2m/10s", "node0@3m/10s", "node2@4m"],
    ),
    "a rule fails for one": (
        with_role(topology(), restart=RestartPolicy(max_restarts=1, rules=(Rule("fail", exit=3),))),
        ["trainer/1@2m", "trainer/1@4m:exit=3"],
    ),
    "then wider": (
        with_role(
            topology(), restart=RestartPolicy(max_restarts=1, then="widen", wider=RestartPolicy("job", max_restarts=1))
        ),
        ["trainer/1@2m", "trainer/0@4m", "trainer/2@6m"],
    ),
    "the whole gang": (topology(), ["trainer@2m", "all@4m:exit=2"]),
    "one node more": (topology(replicas="2:4", nodes=3), ["node9@3m:add", "node9@6m/10s"]),
    "it reads its checkpoint": (
        with_role(topology(), workload=msgspec.structs.replace(topology().roles[0].workload, restore_ns=7 * SECOND)),
        ["node1@30s/10s", "node1@3m/10s", "node2@3m8s/10s"],
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_both_modes_agree_to_the_nanosecond(story: str) -> None:
    graph, faults = STORIES[story]
    (one,) = crossed(graph, parse_plan(faults), [0], 2 * HOUR)
    assert one.is_equal
    assert sum(spent_of(one).values()) == graph.roles[0].max_replicas * one.a.lasted_ns


RATES = ("node-kill=40/node-day/2m", "node-lost=15/node-day/1m", "trainer-kill=20/replica-day", "trainer-oom=5/day")


def over_hours(rates: tuple[str, ...], seeds: int, max_restarts: int = 99, **params: Any) -> list[Comparison]:
    load = msgspec.structs.replace(topology().roles[0].workload, steps=10_000)
    graph = with_role(topology(**params, max_restarts=max_restarts), workload=load)
    return list(crossed(graph, parse_plan(rates=rates), range(1, seeds + 1), 2 * HOUR))


@pytest.mark.parametrize(
    "params", [{"replicas": "2:4"}, *slow([{"replicas": 4, "nodes": 6}, {"replicas": "3:4", "nodes": 5}])]
)
def test_they_agree_over_seeds_of_failures_of_all_kinds(params: dict[str, Any]) -> None:
    """Hours with dozens of failures, many inside a recovery. Where they are not equal, less than a thousandth is."""
    found = over_hours(RATES, 12, **params)
    assert sum(faults_of(one) for one in found) > 250
    assert sum(one.is_equal for one in found) >= 0.75 * len(found)
    assert all(one.is_alike for one in found)
    assert max(one.worst for one in found) < 0.001


@pytest.mark.parametrize(
    ("params", "cause"),
    [
        ({"replicas": "2:4"}, "joined"),  # it shrinks and grows
        *slow(
            [
                ({"replicas": 4}, "waiting"),  # each failure is below its minimum
                ({"replicas": "1:8", "nodes": 8}, "joined"),
                ({"replicas": "6:8", "nodes": 8}, "waiting"),
            ]
        ),
        ({"replicas": "3:4", "pending_timeout": "40s"}, "failed"),  # it waits in vain
    ],
)
def test_they_agree_without_spares_to_the_nanosecond(params: dict[str, Any], cause: str) -> None:
    found = over_hours(RATES[:1], 20, **params)
    assert [number for number, one in enumerate(found) if not one.is_equal] == []
    reached = {
        "joined": sum(one.a.causes.get("joined", 0) for one in found) > 20,
        "waiting": sum(spent_of(one)["waiting"] for one in found) > HOUR,
        "failed": sum(one.a.outcome == "failed" for one in found) > 5,
    }
    assert reached[cause]


def test_they_agree_on_back_off_and_on_the_end_of_a_budget_without_spares() -> None:
    """Replicas fall over at a rate, between the deaths of nodes."""
    found = over_hours(
        ("node-kill=40/node-day/2m", "trainer-exit=60/replica-day:3"), 20, max_restarts=6, replicas="2:4"
    )
    assert all(one.is_alike for one in found) and sum(one.is_equal for one in found) >= 0.75 * len(found)
    assert sum(one.a.outcome == "failed" for one in found) > 10
    assert sum(spent_of(one)["back-off"] for one in found) > MINUTE


@pytest.mark.slow
def test_they_agree_where_replicas_fall_over_all_the_time() -> None:
    """Nodes that are avoided and cordoned, back-offs in which other nodes die, and budgets that run out."""
    found: list[Comparison] = []
    for seed in range(60):
        rnd = random.Random(seed)
        nodes = rnd.choice([3, 4, 8])
        least = rnd.randint(1, nodes)
        rates = (
            "node-kill=100/node-day/2m",
            "trainer-kill=300/replica-day",
            rnd.choice(["trainer-oom=20/day", RATES[1]]),
        )
        graph = topology(
            replicas=f"{least}:{rnd.randint(least, nodes)}", nodes=nodes, max_restarts=rnd.choice([2, 5, 99])
        )
        load = msgspec.structs.replace(graph.roles[0].workload, steps=20_000)
        found += crossed(with_role(graph, workload=load), parse_plan(rates=rates), [seed], HOUR)
    assert [number for number, one in enumerate(found) if not one.is_alike] == []
    assert sum(one.is_equal for one in found) >= 0.8 * len(found)


def test_a_difference_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a proof of death that takes ten times as long in one of the modes."""
    monkeypatch.setattr("flowdist.sim.macro.scope.PROOF_NS", 100_000_000)
    (one,) = crossed(topology(), parse_plan(["node1@3m5.3s/2m"]), [0], 2 * HOUR)
    assert not one.is_equal and one.worst > 0


def test_no_goodput_is_known_of_no_time() -> None:
    (one,) = crossed(topology(), Plan(), [0], 0)
    assert one.a.goodput is None and one.b.goodput is None


def test_a_comparison_tells_how_far_it_is() -> None:
    told: list[int] = []
    often = parse_plan(rates=["node-kill=200/day/1m"])
    list(crossed(topology(), often, [0, 1], 2 * HOUR, lambda now, events: told.append(now)))
    assert told and told != sorted(told), "of each seed"


def big(**params: object) -> RoleGraph:
    return topology("hundred_thousand.py", **params)


def test_another_seed_draws_other_faults_and_the_same_seed_the_same() -> None:
    graph, plan = big(nodes=50, spares=5, least=40), parse_plan(rates=["node-kill=0.5/node-day/4h"])
    first, again, other = (run(graph, plan, 10 * DAY, seed=seed) for seed in (1, 1, 2))
    assert first == again and first.faults != other.faults


def test_the_best_interval_is_near_dalys() -> None:
    """Measured over a sweep, with the same faults in each."""
    plan = parse_plan(rates=["node-kill=0.05/node-day/4h"])  # a restart every 17 minutes
    best, goodput, between = 0, 0.0, 0.0
    for seconds in (60, 120, 180, 240, 360, 600, 1200):
        graph = big(nodes=1600, spares=100, least=1600, days=60, checkpoint_every=f"{seconds}s")
        result = run(graph, plan, 20 * DAY, seed=3)
        if (result.goodput or 0) > goodput:
            best, goodput, between = seconds, result.goodput or 0, result.now / result.generations
    assert 0.6 * daly_ns(20 * SECOND, between) < best * SECOND < 1.7 * daly_ns(20 * SECOND, between)


def test_the_trace_has_the_records_lines() -> None:
    graph, plan = topology(), parse_plan(["node1@3m/1m"], rates=["node-kill=1/node-day"])
    scope = scope_of(graph, plan)
    trace = MacroTrace(scope, plan, 0)
    plain = Macro(scope, plan).run(10 * MINUTE)
    assert Macro(scope, plan, tell=trace.hear).run(10 * MINUTE) == plain  # to listen changes nothing
    lines = [decode_line(encode_line(line)) for line in trace.lines]
    assert lines == trace.lines
    assert isinstance(lines[0], Header) and lines[0].options == {
        "fidelity": "macro",
        "rates": "node-kill=1/node-day",
    }
    assert FaultLine(3 * MINUTE, "node1@3m/1m", "node1") in lines
    events = [line.event for line in lines if isinstance(line, Record)]
    assert any(isinstance(event, NodeGone) for event in events)
    assert any(isinstance(event, NodeJoined) for event in events)
    texts = [line.reason for line in lines if isinstance(line, Record)]
    assert "trainer: generation 2 forms with 3 of at most 4" in texts


def rule(do: Any) -> RestartPolicy:
    return RestartPolicy(max_restarts=1, rules=(Rule(do, exit=3),))


@pytest.mark.parametrize(
    ("graph", "field"),
    [
        (topology("ps.py"), "the topology: roles=(ps, trainer, evaluator)"),
        (topology("pools.py"), "the topology: roles=(trainer, evaluator)"),
        (with_role(topology(), gang=False), "role trainer: gang=False"),
        (with_role(topology(), kind="service"), "role trainer: kind='service'"),
        (with_role(topology(), primary=False), "role trainer: primary=False"),
        (with_place(near=("ps",)), "role trainer: near=('ps',)"),
        (with_place(apart=("ps",)), "role trainer: apart=('ps',)"),
        (with_role(topology(), restart=RestartPolicy(1, then="ignore")), "role trainer: restart.then='ignore'"),
        (with_role(topology(), restart=rule("ignore")), "role trainer: restart.rules=(Rule("),
        (with_role(topology(), ready=Readiness("call")), "role trainer: ready_when=Readiness("),
        (with_role(topology(), ready_timeout_ns=90 * SECOND), "role trainer: ready_timeout='1m30s'"),
        (with_role(topology(), simulate="model:Worker"), "role trainer: simulate='model:Worker'"),
        (with_role(topology("mesh.py"), ports=("rpc",)), "role trainer: ports=('rpc',)"),
        (with_load(import_ns=SECOND), "role trainer: workload.import_time='1s'"),
        (with_load(rejoin_ns=SECOND), "role trainer: workload.rejoin_time='1s'"),
        (with_load(collective_timeout_ns=SECOND), "role trainer: workload.collective_timeout='1s'"),
        (with_load(stop_ns=2 * SECOND), "role trainer: stop_grace='2s'"),
        (with_load(stop_ns=10 * SECOND), "role trainer: grace='10s'"),
        (with_role(topology(), hang_after_ns=5 * SECOND), "role trainer: hang_after='5s'"),
        (with_role(topology(), start_timeout_ns=5 * SECOND), "role trainer: start_timeout='5s'"),
        (
            msgspec.structs.replace(topology(), worlds=(JointWorld("core", ("trainer",)),)),
            "the topology: worlds=(JointWorld(",
        ),
    ],
)
def test_a_job_that_it_does_not_play_is_refused_with_the_field(graph: RoleGraph, field: str) -> None:
    with pytest.raises(MacroRefused) as caught:
        scope_of(graph, parse_plan())
    refusal, text = caught.value.refusal, str(caught.value)
    assert refusal is not None and text == f"macro mode does not play this job:\n  {refusal.text}"
    assert refusal.text.startswith(field) and caught.value.help and "\n" not in refusal.text


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("node1@3m:pause/1m", "macro mode does not play 'pause' of node1, but kill, lost, add"),
        ("node1@3m:drain", "macro mode does not play 'drain' of node1"),
        ("node1@3m:preempt=30s/1m", "macro mode does not play 'preempt' of node1"),
        ("trainer@3m:scale=2", "macro mode does not play 'scale' of trainer, but kill, exit, oom, slow"),
        ("controller@3m", "macro mode does not play 'kill' of controller"),
        ("trainer/0@3m:hang", "macro mode does not play 'hang' of trainer/0"),
        ("node1@step=trainer,60", "macro mode plays faults at a time, and rates"),
        ("node1@every=1m/10s", "macro mode plays faults at a time, and rates"),
        ("trainer/0@3m:slow=2x", "macro mode slows trainer down only without hang_after"),
        ("node1@3m/200ms", "macro mode has such a node back after 1s at the earliest"),
        ("node1@3m:lost/2s", "macro mode has such a node back after 4s at the earliest"),
    ],
)
def test_faults_that_it_does_not_play_are_refused_and_underlined(fault: str, words: str) -> None:
    with pytest.raises(FaultError) as caught:
        scope_of(with_role(topology(), hang_after_ns=MINUTE), parse_plan([fault]))
    assert words in str(caught.value) and "^" in str(caught.value) and caught.value.help


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        ("node-pause=1/day", "macro mode does not play node-pause"),
        ("node-preempt=1/day:30s/1m", "macro mode does not play node-preempt"),
        ("controller-kill=1/day", "macro mode does not play controller-kill"),
        ("trainer-lost=1/day", "macro mode does not play trainer-lost"),
        ("node-kill=1/day/10ms", "back after 1s at the earliest"),
        ("node-kill=1/day/10ms..2m", "back after 1s at the earliest"),
        ("node-lost=1/day/2s", "back after 4s at the earliest"),
    ],
)
def test_so_are_rates(rate: str, words: str) -> None:
    with pytest.raises(FaultError, match=words):
        scope_of(topology(), parse_plan(rates=[rate]))


def test_so_are_orders_of_the_operator() -> None:
    with pytest.raises(MacroRefused, match="macro mode does not play --scale trainer=2"):
        scope_of(topology(), parse_plan(scales=["trainer=2@3m"]))
    with pytest.raises(MacroRefused, match="macro mode does not play --drain node1"):
        scope_of(topology(), parse_plan(drains=["node1@3m"]))


def test_zones_are_lost_as_one() -> None:
    graph = topology(replicas="2:4")
    nodes = tuple(
        msgspec.structs.replace(node, labels=(("zone", "ab"[i // 2]),)) for i, node in enumerate(graph.cluster.nodes)
    )
    graph = msgspec.structs.replace(graph, cluster=msgspec.structs.replace(graph.cluster, nodes=nodes))
    (one,) = crossed(graph, parse_plan(["zone=a@3m/1m"]), [0], 2 * HOUR)
    assert one.is_equal and one.a.causes == {"joined": 1, "node_lost": 1}
    (one,) = crossed(graph, parse_plan(rates=["zone-kill=20/zone-day/1m"]), [4], 10 * MINUTE)
    assert one.is_equal


def test_only_what_is_listed_is_played() -> None:
    """A new field of the graph must not be dropped in silence."""
    graph = msgspec.structs.replace(topology(), on_incident=("true",))
    scope_of(graph, parse_plan())  # this one it knows: it changes nothing
    hooked = with_role(topology(), ready_timeout_ns=90 * SECOND)
    load = msgspec.structs.replace(topology().roles[0].workload, import_ns=5 * SECOND, peer_restore_ns=SECOND)
    with pytest.raises(MacroRefused) as caught:
        scope_of(with_role(hooked, workload=load), parse_plan())
    assert caught.value.refusal is not None
    assert caught.value.refusal.field == "ready_timeout", "one field, the first of three"
