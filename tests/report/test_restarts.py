"""The restart table of `flowdist plan`: that of an oracle, and what control restarts."""

from __future__ import annotations

import msgspec
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flowdist.control.protocol import events as ev
from flowdist.graph import Domain, Gate, RestartPolicy, RoleGraph
from flowdist.report.static.plan import plan_of, plan_text
from flowdist.report.static.restarts import RestartTable
from flowdist.report.static.restarts import start_waves as controllers_waves
from tests.control.harness import Talk, graph, restart, role
from tests.proofs.restart_table import restart_set, start_waves


def ps_train(on_restart: str) -> RoleGraph:
    ps = role("ps", kind="service", min_replicas=2, max_replicas=2, restart=restart("replica"))
    trainer = role("trainer", gates=(Gate("ps", "started", on_restart),), restart=restart("role"))  # type: ignore[arg-type]
    evaluator = role("evaluator", gates=(Gate("trainer", "started", "restart"),), restart=restart("job"))
    return graph(ps, trainer, evaluator, nodes=2)


def test_edges_pass_a_restart_on_or_do_not() -> None:
    assert restart_set(ps_train("restart"), "ps", "failure") == {
        "ps": "replica",
        "trainer": "role",
        "evaluator": "role",
    }
    assert restart_set(ps_train("reconnect"), "ps", "failure") == {"ps": "replica"}
    assert restart_set(ps_train("reconnect"), "trainer", "node_lost") == {"trainer": "role", "evaluator": "role"}


def test_the_scope_for_failures_is_not_that_of_lost_nodes() -> None:
    table = ps_train("reconnect")
    assert list(restart_set(table, "evaluator", "failure")) == ["ps", "trainer", "evaluator"]
    assert restart_set(table, "evaluator", "node_lost") == {"evaluator": "role"}


def test_waves_follow_the_gates() -> None:
    assert start_waves(ps_train("restart")) == [["ps"], ["trainer"], ["evaluator"]]


def test_the_plan_shows_seats_and_words() -> None:
    topology = ps_train("restart")
    plan = plan_of(topology)
    assert plan["placement"] == {"ps/0": "node0", "ps/1": "node1", "trainer/0": "node0", "evaluator/0": "node1"}
    text = plan_text(topology, plan)
    assert "node0: ps/0, trainer/0" in text and "that replica, trainer, evaluator" in text


def test_the_plan_says_which_roles_start_warm_and_why_others_do_not() -> None:
    warm = msgspec.structs.replace(role("a"), command=("python", "a.py"), preload=("json", "csv"))
    topology = graph(warm, msgspec.structs.replace(warm, name="b", warm=False))
    plan = plan_of(topology, "/venv/python", "/venv/python")
    forked = "warm: forked where the script asks for its rank, or acts for the first time"
    assert plan["starts"] == {"a": f"{forked}, with json, csv imported", "b": "cold: warm=False"}
    bare = graph(msgspec.structs.replace(warm, preload=()))
    assert plan_of(bare, "/venv/python", "/venv/python")["starts"] == {"a": forked}
    assert "    starts cold: warm=False\n" in plan_text(topology, plan)
    assert plan_of(topology, "/opt/python", "/venv/python")["starts"]["a"] == "cold: PYTHON_EXEC is /opt/python"


@st.composite
def topologies(draw: st.DrawFn) -> RoleGraph:
    names = ["a", "b", "c", "d", "e"][: draw(st.integers(2, 5))]
    domains = (Domain("x", tuple(draw(st.permutations(names))[:2])),) if draw(st.booleans()) else ()
    roles = []
    for i, name in enumerate(names):
        gates = tuple(
            Gate(other, "started", draw(st.sampled_from(["restart", "reconnect"])))
            for other in names[:i]
            if draw(st.booleans())
        )
        in_domain = any(name in domain.roles for domain in domains)
        gang = draw(st.booleans())
        scopes = ["role", "job"] + (["domain"] if in_domain else []) + ([] if gang else ["replica"])
        policy = RestartPolicy(draw(st.sampled_from(scopes)), max_restarts=9)
        count = draw(st.integers(1, 3))
        roles.append(role(name, gang=gang, min_replicas=count, max_replicas=count, gates=gates, restart=policy))
    return graph(*roles, domains=domains, nodes=3, cpu=20)


@given(topologies(), st.data())
@settings(deadline=None)
def test_what_restarts_is_what_the_table_says(topology: RoleGraph, data: st.DataObject) -> None:
    """Compare the oracle, networkx on the graph, with what control restarts, and with the table of `flowdist plan`."""
    shown = RestartTable(topology)
    for name in (spec.name for spec in topology.roles):
        assert shown.restart_set(name, "failure") == restart_set(topology, name, "failure")
        assert shown.restart_set(name, "node_lost") == restart_set(topology, name, "node_lost")
    assert controllers_waves(topology) == start_waves(topology)
    talk = Talk(topology)
    talk.join("node0", "node1", "node2")
    before = talk.attempts()
    failing = data.draw(st.sampled_from(topology.roles))
    replica = f"{failing.name}/{data.draw(st.integers(0, failing.max_replicas - 1))}"
    if data.draw(st.booleans()):
        talk.fail(replica)
        expected = restart_set(topology, failing.name, "failure")
    else:
        here = talk.replica(replica).node
        assume(all(r.node != here or str(r.id) == replica for r in talk.job.replicas.values()))
        talk.tell(ev.NodeGone(here))
        expected = restart_set(topology, failing.name, "node_lost")
    restarted = {name for name, attempt in talk.attempts().items() if attempt > before[name]}
    wanted = {
        str(r.id)
        for r in talk.job.replicas.values()
        if expected.get(r.id.role) == "role" or (r.id.role in expected and str(r.id) == replica)
    }
    assert restarted == wanted
