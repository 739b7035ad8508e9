"""Explanations compared with what happens to a job that the test drives event by event, with all invariants checked."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import StopReplica
from flowdist.graph import Cluster, Domain, Gate, JointWorld, NodeSpec, RestartPolicy, RoleGraph, RoleSpec, Rule
from flowdist.graph.policies import Then
from flowdist.report.static.explain import Explainer
from flowdist.report.static.failing import Failing, parse_failing
from flowdist.report.static.plan import plan_of
from tests.choosing import examples
from tests.control.harness import Talk, graph, r, role
from tests.proofs.restart_table import restart_set, start_waves

NODES = ("node0", "node1", "node2")


@st.composite
def policies(draw: st.DrawFn, *, gang: bool, in_domain: bool, may_ignore: bool) -> RestartPolicy | None:
    if draw(st.integers(0, 5)) == 0:
        return None
    scopes = ([] if gang else ["replica"]) + ["role"] + (["domain"] if in_domain else []) + ["job"]
    actions = ["restart", "fail"] + (["ignore"] if may_ignore else [])
    matches = [{"kind": "oom"}, {"exit": 2}, {"kind": "node_lost"}, {"signal": "SEGV"}, {}]
    rules = draw(st.lists(st.tuples(st.sampled_from(matches), st.sampled_from(actions), st.booleans()), max_size=2))
    levels = sorted(draw(st.lists(st.sampled_from(scopes), min_size=1, max_size=3, unique=True)), key=scopes.index)
    then: Then = draw(st.sampled_from(["fail", "ignore"] if may_ignore else ["fail"]))
    wider = None
    for scope in levels[:0:-1]:  # from the widest
        wider = RestartPolicy(scope, draw(st.integers(1, 2)), then="widen" if wider else then, wider=wider)
    return RestartPolicy(
        levels[0],
        max_restarts=draw(st.integers(0, 2 if wider else 4)),
        then="widen" if wider else then,
        rules=tuple(Rule(do, counted=counted, **match) for match, do, counted in rules),  # type: ignore[arg-type]
        wider=wider,
    )


@st.composite
def topologies(draw: st.DrawFn) -> RoleGraph:
    """Return topologies in which the job needs the first role, and all roles have room on any one of three nodes."""
    names = ["a", "b", "c", "d", "e"][: draw(st.integers(2, 5))]
    domains = (Domain("x", tuple(draw(st.permutations(names))[:2])),) if draw(st.booleans()) else ()
    conditions = draw(st.sampled_from([["started"], ["started", "started", "succeeded"]]))
    roles = []
    for i, name in enumerate(names):
        gates = tuple(
            Gate(other, draw(st.sampled_from(conditions)), draw(st.sampled_from(["restart", "reconnect"])))
            for other in names[:i]
            if draw(st.booleans())
        )
        gang, primary = draw(st.booleans()), i == 0 or draw(st.booleans())
        in_domain = any(name in domain.roles for domain in domains)
        policy = draw(policies(gang=gang, in_domain=in_domain, may_ignore=not (gang and primary)))
        low, more = draw(st.integers(1, 2)), draw(st.integers(0, 1))
        sizes = {"min_replicas": low, "max_replicas": low + more}
        roles.append(role(name, gang=gang, primary=primary, gates=gates, restart=policy, **sizes))
    cluster = Cluster(
        tuple(NodeSpec(name, cpu=20, labels=(("zone", zone),)) for name, zone in zip(NODES, "aba", strict=True))
    )
    return msgspec.structs.replace(graph(*roles, domains=domains), cluster=cluster, worlds=draw(worlds_of(roles)))


@st.composite
def worlds_of(draw: st.DrawFn, roles: list[RoleSpec]) -> tuple[JointWorld, ...]:
    """Return a joint world of two gangs that are both primary or both not, and do not wait for each other."""
    upstreams: dict[str, set[str]] = {}
    for spec in roles:
        upstreams[spec.name] = {gate.role for gate in spec.gates}.union(*(upstreams[gate.role] for gate in spec.gates))
    gangs = [spec for spec in roles if spec.gang]
    pairs = [
        (a.name, b.name)
        for a, b in itertools.combinations(gangs, 2)
        if a.primary == b.primary and a.name not in upstreams[b.name]
    ]
    return (JointWorld("joint", draw(st.sampled_from(pairs))),) if pairs and draw(st.booleans()) else ()


def needed_before(topology: RoleGraph, name: str) -> set[str]:
    """Return the roles that have to succeed before this one starts."""
    gates = [gate for mate in world_mates(topology, name) for gate in topology.role(mate).gates]
    found = {mate for gate in gates if gate.condition == "succeeded" for mate in world_mates(topology, gate.role)}
    return found.union(*(needed_before(topology, gate.role) for gate in gates))


def world_mates(topology: RoleGraph, name: str) -> tuple[str, ...]:
    world = topology.world_of(name)
    return world.roles if world is not None else (name,)


def too_few_at_once(told: dict[str, Any]) -> bool:
    """Return whether several replicas of a role are lost together, and a rule ignores their failures."""
    ignored = [verdict["role"] for verdict in told["verdicts"] if verdict["action"] == "ignore"]
    return any(sum(hit.partition("/")[0] == name for hit in told["hits"]) > 1 for name in ignored)


def happen(talk: Talk, failing: Failing, hits: list[str]) -> list[StopReplica]:
    """Let the replicas fail at one moment, then answer all orders; return the stops of that moment."""
    talk.auto, start = False, len(talk.effects)
    for node in failing.nodes:
        talk.tell(ev.NodeGone(node))
    attempts = talk.attempts()
    for name in hits if not failing.nodes else []:
        talk.tell(ev.ReplicaExited(r(name), attempts[name], failing.kind, failing.exit, failing.signal))
    effects = talk.effects[start:]
    talk.auto = True
    for effect in effects:
        for answer in talk._answers(effect):
            talk.tell(answer)
    talk.wait(60)
    return [effect for effect in effects if isinstance(effect, StopReplica)]


def replicas_of(talk: Talk, entries: list[dict[str, Any]]) -> set[str]:
    """Return the names of the replicas: `trainer` stands for all of its replicas, `ps/0, ps/1` for themselves."""
    named = {name for entry in entries for name in entry["who"].split(", ")}
    return {name for name in talk.attempts() if name in named or name.partition("/")[0] in named}


@given(topologies(), st.data())
@settings(deadline=None, max_examples=examples(40, 300))
def test_control_does_what_the_explanation_says(topology: RoleGraph, data: st.DataObject) -> None:
    talk = Talk(topology)
    talk.join(*NODES)
    failing_role = data.draw(st.sampled_from(topology.roles))
    needed = needed_before(topology, failing_role.name)
    for name in [name for wave in start_waves(topology) for name in wave if name in needed]:
        talk.finish(*(str(replica.id) for replica in talk.job.replicas.values() if replica.id.role == name))
    assume(talk.job.ending is None)
    by_node = data.draw(st.booleans()) and not needed
    failing = _drawn_failing(talk, failing_role, by_node, data)
    told = Explainer(topology).explain(failing)
    assume(not (by_node and too_few_at_once(told)))
    assume(not any("one after the other" in note for note in told["notes"]))  # it depends on the time
    assume(not any("still waits for" in note for note in told["notes"]))  # the graph alone does not say whether it does
    before, live = talk.attempts(), set(talk.up())
    stops = happen(talk, failing, told["hits"])

    assert (told["outcome"] == "fail") == (talk.job.ending == "failed"), talk.texts()
    if told["outcome"] == "fail":
        return
    _check_restarts(talk, told, before, live)
    if told["stuck"]:
        return  # the incident does not close
    _check_charge(talk, told)
    if not by_node and not told["ended"]:
        _check_restart_set(topology, failing_role.name, told)
    _check_order(talk, told, stops, before)


def _drawn_failing(talk: Talk, failing_role: RoleSpec, by_node: bool, data: st.DataObject) -> Failing:
    replica = f"{failing_role.name}/{data.draw(st.integers(0, failing_role.max_replicas - 1))}"
    node = data.draw(st.sampled_from([talk.replica(replica).node or "", "zone=a"]))
    kind = data.draw(st.sampled_from(["exit=1", "exit=2", "oom", "signal=SEGV"]))
    target = replica if data.draw(st.booleans()) else failing_role.name
    return parse_failing(node if by_node else f"{target}:{kind}", talk.graph)


def _check_restarts(talk: Talk, told: dict[str, Any], before: dict[str, int], live: set[str]) -> None:
    restarted = {name for name, attempt in talk.attempts().items() if 0 < before[name] < attempt}
    expected = replicas_of(talk, told["restarts"]) - replicas_of(talk, told["ended"])
    certain = replicas_of(talk, [entry for entry in told["restarts"] if entry["if"] is None])
    assert expected & certain & live <= restarted <= expected & live
    if all(gate.condition == "started" for spec in talk.graph.roles for gate in spec.gates):
        assert expected <= certain


def _check_charge(talk: Talk, told: dict[str, Any]) -> None:
    charges = {name: len(state.charges) for name, state in talk.job.roles.items() if state.charges}
    assert charges == ({told["charged"]["role"]: told["charged"]["times"]} if told["charged"] else {})


def _check_restart_set(topology: RoleGraph, failed: str, told: dict[str, Any]) -> None:
    everyone = {entry["role"] for key in ("restarts", "spared", "stuck") for entry in told[key]}
    scope = told["charged"]["scope"] if told["charged"] else None
    assert everyone == set(restart_set(topology, failed, "failure", scope))


def _check_order(talk: Talk, told: dict[str, Any], stops: list[StopReplica], before: dict[str, int]) -> None:
    layer_of = {entry["role"]: number for number, layer in enumerate(told["stops"]) for entry in layer}
    if not told["ended"] and len(told["hits"]) == 1:
        layers = [layer_of[stop.replica.role] for stop in stops]
        assert layers == sorted(layers)
    starts = [start for start in talk.starts if start.attempt > before[str(start.replica)] > 0]
    order = [start.replica.role for start in starts]
    for wave in told["starts"]:
        for entry in wave:
            for gate in entry["after"]:
                upstream = gate.partition(" ")[0]
                if upstream in order and entry["role"] in order and len(told["hits"]) == 1:
                    last = len(order) - 1 - order[::-1].index(upstream)
                    assert last < order.index(entry["role"]), (gate, order)


def test_a_node_takes_nothing_from_a_world_that_waits_for_a_role_to_succeed():
    """Found by hypothesis: a seat was kept for d, which starts with b, so that a seemed to have succeeded (R1, R2)."""
    waits = role("b", gates=(Gate("a", "succeeded", "restart"),), primary=False)
    topology = graph(role("a", gang=False), waits, role("d", primary=False), nodes=2)
    topology = msgspec.structs.replace(topology, worlds=(JointWorld("joint", ("b", "d")),))
    assert plan_of(topology)["placement"] == {"a/0": "node0"}
    failing = parse_failing("node0", topology)
    told = Explainer(topology).explain(failing)
    assert [entry["who"] for entry in told["restarts"]] == ["a/0"] and told["hits"] == ["a/0"]

    talk = Talk(topology)
    talk.join("node0", "node1")
    happen(talk, failing, told["hits"])
    assert talk.attempts() == {"a/0": 2, "b/0": 0, "d/0": 0}


def test_a_replica_that_loses_its_node_starts_again_before_a_role_that_waits_for_it():
    """Found by hypothesis: a/1 would be enough for the gate of b, but a/0 is to start again before b does (R1, R6)."""
    after = role("b", gates=(Gate("a", "started", "restart"),), primary=False, restart=RestartPolicy("role"))
    topology = graph(role("a", gang=False, max_replicas=2), after, nodes=3)
    failing = parse_failing("node0", topology)
    told = Explainer(topology).explain(failing)
    assert [[entry["who"] for entry in wave] for wave in told["starts"]] == [["a/0"], ["b"]]

    talk = Talk(topology)
    talk.join(*NODES)
    before = talk.attempts()
    stops = happen(talk, failing, told["hits"])
    assert [str(start.replica) for start in talk.starts if start.attempt > 1] == ["a/0", "b/0"]
    _check_order(talk, told, stops, before)


def test_a_gang_that_is_ignored_restarts_nothing_however_many_of_it_fail():
    """Found by hypothesis: the last failing peer restarted the job, and its dependents could not continue (R5, R9)."""
    policy = RestartPolicy("job", max_restarts=0, then="ignore")
    ignored = role("b", min_replicas=2, max_replicas=2, primary=False, restart=policy)
    follows = role("c", gates=(Gate("b", "started", "restart"),), restart=RestartPolicy("role"))
    topology = graph(role("a"), ignored, follows, nodes=3)
    for target in ("b/0", "b"):
        failing = parse_failing(f"{target}:exit=1", topology)
        told = Explainer(topology).explain(failing)
        assert (told["outcome"], told["restarts"]) == ("ignore", [])
        talk = Talk(topology)
        talk.join(*NODES)
        happen(talk, failing, told["hits"])
        assert set(talk.attempts().values()) == {1} and talk.up() == ["a/0", "c/0"]


def test_a_role_that_waits_for_a_stuck_role_is_stuck():
    """Found by hypothesis: d waits for c to start, and c for b to succeed; the job needs c (R1, R9)."""
    ignored = role("b", primary=False, restart=RestartPolicy("replica", max_restarts=0, then="ignore"))
    waits = role("c", gang=False, primary=False, gates=(Gate("b", "succeeded"),))
    topology = graph(role("a"), ignored, waits, role("d", gang=False, gates=(Gate("c", "started"),)), nodes=3)
    failing = parse_failing("b/0:exit=1", topology)
    told = Explainer(topology).explain(failing)
    assert told["outcome"] == "fail" and told["notes"] == [
        "the job fails: d waits for c, which was ignored and does not run again"
    ]
    talk = Talk(topology)
    talk.join(*NODES)
    happen(talk, failing, told["hits"])
    assert talk.job.ending_reason == "d waits for c, which was ignored and does not run again"
