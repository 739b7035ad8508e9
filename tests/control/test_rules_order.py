"""R7, R8, R9: who depends on a role falls over the loss of its node; the same follows in whatever order that is told.

Each order of the same reports, some milliseconds apart, comes to the same decisions in the end.
"""

from __future__ import annotations

from itertools import permutations

import pytest

from flowdist.control.protocol import events as ev
from flowdist.graph import MS, SECOND, Gate, RestartPolicy, Rule
from flowdist.graph.role_graph import OnRestart
from tests.choosing import few
from tests.control.harness import Talk, joined, r, restart, role

POLICIES = {
    "no policy": None,
    "a budget": restart(),
    "no budget left": restart("role", 0),
    "no budget left, ignored": restart("role", 0, then="ignore"),
    "a rule that fails": restart(rules=(Rule("fail", kind="exit"),)),
    "a rule that ignores": restart(rules=(Rule("ignore", kind="exit"),)),
    "a rule that does not count": restart(rules=(Rule("restart", kind="exit", counted=False),)),
    "the whole job": restart("job"),
    "the whole job when none is left": restart("role", 0, then="widen", wider=restart("job")),
}
LOSSES: dict[str, list[ev.Event]] = {
    "proven": [ev.NodeGone("node0")],
    "silent": [ev.NodeSuspected("node0"), ev.NodeSilent("node0")],
}


def served(policy: RestartPolicy | None, edge: OnRestart = "reconnect", **fields: object) -> Talk:
    """A server on node0, a trainer on node1 and on node3, and another role on node2; two nodes are spare."""
    ps = role("ps", kind="service", restart=restart("replica"))
    gates = (Gate("ps", "started", edge),)
    trainers = role("trainer", min_replicas=1, max_replicas=2, restart=policy, gates=gates, **fields)
    talk = joined(ps, trainers, role("other", restart=restart()), nodes=6, cpu=1)
    assert [talk.replica(name).node for name in ("ps/0", "trainer/0", "trainer/1")] == ["node0", "node1", "node3"]
    talk.now, talk.auto = 100 * SECOND, False
    return talk


def exits(name: str) -> ev.ReplicaExited:
    return ev.ReplicaExited(r(name), 1, "exit", 1)


def tell(talk: Talk, *events: ev.Event) -> Talk:
    """One after the other, before anybody answers; then all do, and time passes."""
    for event in events:
        talk.tell(event)
        talk.now += 30 * MS
    for seconds in (0, 2, 60):
        talk.wait(seconds)
        talk.answer()
    return talk


def decisions(talk: Talk) -> dict[str, object]:
    """Return how the job goes on, who pays, what nodes are blamed, who was started how often.

    The last entry says what runs right after one more failure: a back-off keeps a role down.
    """
    blamed = {name: [past.kind for past in node.failures] for name, node in talk.job.nodes.items() if node.failures}
    decided = {
        "ending": (talk.job.ending, talk.job.ending_reason),
        "outcomes": {name: role.outcome for name, role in talk.job.roles.items()},
        "charges": {name: talk.charges(name) for name in talk.job.roles},
        "blamed": (blamed, [replica.id for replica in talk.job.replicas.values() if replica.failures]),
        "attempts": {name: attempt for name, attempt in talk.attempts().items() if name != "other/0"},
    }
    if talk.job.ending is None and talk.replica("trainer/0").is_up:
        talk.fail("trainer/0")
    return {**decided, "up after one more failure": talk.up()}


def in_every_order(loss: list[ev.Event], *others: ev.Event) -> list[tuple[ev.Event, ...]]:
    """A node is quiet before it is silent."""
    orders = permutations([*loss, *others])
    return [order for order in orders if order.index(loss[0]) <= order.index(loss[-1])]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("edge", ["reconnect", "restart"])
@pytest.mark.parametrize("loss", few(LOSSES.values(), 1), ids=LOSSES)
def test_r8_the_loss_of_a_servers_node_costs_its_trainers_nothing_in_whatever_order(
    policy: RestartPolicy | None, edge: OnRestart, loss: list[ev.Event]
):
    for failures in ([exits("trainer/0")], [exits("trainer/0"), exits("trainer/1")]):
        found = [decisions(tell(served(policy, edge), *order)) for order in in_every_order(loss, *failures)]
        assert found[0]["ending"] == (None, "")
        assert found[0]["charges"] == {"ps": [], "trainer": [], "other": []}
        assert found[0]["blamed"] == ({"node0": ["node_lost"]}, [])
        assert found[0]["attempts"] == {"ps/0": 2, "trainer/0": 2, "trainer/1": 2}
        for other in found:
            assert other == found[0]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_r5_nobody_else_restarts_where_neither_the_scope_nor_an_edge_says_so(policy: RestartPolicy | None):
    wide = policy is not None and "job" in (policy.scope, policy.wider and policy.wider.scope)
    for order in in_every_order(LOSSES["proven"], exits("trainer/0")):
        talk = tell(served(policy), *order)
        assert wide or talk.attempts()["other/0"] == 1


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_r4_of_replicas_without_gang_only_the_one_that_fell_over_it_starts_again(loss: list[ev.Event]):
    for order in in_every_order(loss, exits("trainer/0")):
        talk = tell(served(None, gang=False), *order)
        assert talk.job.ending is None and talk.attempts() == {"ps/0": 2, "trainer/0": 2, "trainer/1": 1, "other/0": 1}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_r7_whoever_depends_on_it_over_another_role_is_excused_too(loss: list[ev.Event]):
    for order in in_every_order(loss, exits("reader/0")):
        ps = role("ps", kind="service", restart=restart("replica"))
        cache = role("cache", kind="service", restart=restart("replica"), gates=(Gate("ps", "started"),))
        talk = joined(ps, cache, role("reader", gates=(Gate("cache", "started"),)), nodes=5, cpu=1)
        talk.now, talk.auto = 100 * SECOND, False
        assert talk.replica("ps/0").node == "node0"
        tell(talk, *order)
        assert talk.job.ending is None and talk.attempts() == {"ps/0": 2, "cache/0": 1, "reader/0": 2}


def test_r9_who_fails_long_after_the_loss_of_a_servers_node_is_judged_by_its_rule():
    for seconds, ends in ((1.9, None), (2.1, "failed")):
        talk = served(POLICIES["a rule that fails"])
        talk.gone("node0")
        talk.wait(seconds)
        tell(talk, exits("trainer/0"))
        assert talk.job.ending == ends


def test_r9_who_was_started_after_the_loss_of_a_servers_node_is_judged_by_its_rule():
    talk = served(POLICIES["a rule that fails"], "restart")
    talk.auto = True
    talk.gone("node0")
    tell(talk, ev.ReplicaExited(r("trainer/0"), 1, "exit", 1))
    talk.fail("trainer/0")
    talk.wait(2)
    assert talk.job.ending == "failed"


def test_r18_a_trainer_that_may_not_fail_ends_the_job_once_its_server_is_heard():
    talk = served(None)
    talk.fail("trainer/0")
    assert talk.suspects() == ["node3", "node0"]
    talk.tell(ev.ReplicaStopped(r("trainer/1"), 1))
    talk.wait(1.74)
    assert talk.job.ending is None
    talk.wait(0.01)
    assert talk.job.ending_reason == "trainer/0 failed on node1: exit code 1; role trainer has no restart policy"


@pytest.mark.parametrize("kind", ["oom", "start_failed"])
def test_r9_a_rule_about_oom_or_a_failed_start_decides_for_dependents_in_any_order(kind: str):
    for loss in LOSSES.values():
        failure = ev.ReplicaExited(r("trainer/0"), 1, kind, 1)  # type: ignore[arg-type]
        for order in in_every_order(loss, failure):
            talk = tell(served(restart(rules=(Rule("fail", kind=kind),))), *order)  # type: ignore[arg-type]
            assert talk.job.ending == "failed"
