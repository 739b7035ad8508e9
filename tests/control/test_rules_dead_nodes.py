"""R8 where a node dies at once: its peers see that, and fail, some milliseconds before the proof of it arrives."""

from __future__ import annotations

import msgspec
import pytest

from flowdist.control.membership.waiting import waiting_for
from flowdist.control.protocol import events as ev
from flowdist.graph import MS, SECOND, Domain, FailureKind, Gate, JointWorld, RestartPolicy, Rule
from flowdist.graph.policies import Action
from tests.control.harness import Talk, graph, joined, r, restart, role

BUDGET = restart()
RULE = restart("role", 3, rules=(Rule("fail", exit=1),))


def gang(policy: RestartPolicy | None, nodes: int = 2, **options: int) -> Talk:
    """One trainer a node, all running for 100 s."""
    trainers = role("trainer", min_replicas=1, max_replicas=nodes, restart=policy)
    talk = joined(trainers, nodes=nodes, cpu=1, **options)
    talk.now, talk.auto = 100 * SECOND, False
    return talk


def charges(talk: Talk) -> list[tuple[int, int]]:
    return list(talk.job.roles["trainer"].charges)


def stopped(talk: Talk, *names: str) -> None:
    for name in names:
        talk.report(ev.ReplicaStopped, name)


@pytest.mark.parametrize("policy", [None, BUDGET, RULE, restart("role", 0), restart("role", 0, then="ignore")])
@pytest.mark.parametrize("proof", [ev.NodeGone("node1"), ev.NodeLeft("node1")])
def test_r8_a_node_that_dies_at_once_is_charged_to_none_of_its_peers(policy: RestartPolicy | None, proof: ev.Event):
    talk = gang(policy)
    talk.fail("trainer/0")
    assert talk.job.ending is None and talk.world("trainer").phase == "stopping"
    talk.now += 30 * MS
    talk.tell(proof)
    assert "incident 1 was caused by the loss of node1: not counted" in talk.texts()
    assert talk.charges_in_the_end("trainer") == []
    assert talk.replica("trainer/0").failures == talk.job.nodes["node0"].failures == []
    talk.auto = True
    talk.tell(ev.StoreOpened("trainer", 2, 1))
    assert talk.up() == ["trainer/0"] and talk.job.incidents[-1].kind == "node_lost" and not talk.job.open


def test_r10_a_failure_that_a_lost_node_has_caused_makes_no_later_restart_wait():
    talk = gang(BUDGET, nodes=3)
    talk.fail("trainer/0")
    talk.gone("node1")
    talk.answer()
    talk.fail("trainer/0")
    assert talk.up() == ["trainer/0", "trainer/2"], "it is the first that counts"
    talk.fail("trainer/0")
    assert talk.up() == []


@pytest.mark.parametrize(("policy", "ends"), [(None, True), (RULE, True), (BUDGET, False)])
def test_r7_who_fails_by_itself_is_judged_as_soon_as_the_others_have_done_as_told(
    policy: RestartPolicy | None, ends: bool
) -> None:
    talk = gang(policy, nodes=3)
    talk.fail("trainer/0")
    stopped(talk, "trainer/2")
    assert talk.job.ending is None
    stopped(talk, "trainer/1")
    assert (talk.job.ending == "failed") == ends
    assert not ends or talk.job.ending_reason.startswith("trainer/0 failed on node0: exit code 1; ")


def test_r8_all_peers_may_fail_before_the_node_is_known_to_be_dead():
    talk = gang(None, nodes=4)
    for name in ("trainer/0", "trainer/3", "trainer/1"):
        talk.fail(name)
        talk.now += 5 * MS
        assert talk.job.ending is None
    talk.gone("node2")
    assert talk.job.ending is None and talk.world("trainer").phase == "opening"


@pytest.mark.parametrize("why", [ev.NodeGone("node2"), ev.ScaleRequested("trainer", 2)])
def test_r16_who_fails_before_it_hears_that_it_is_to_stop_has_been_stopped(why: ev.Event):
    talk = gang(None, nodes=3)
    talk.tell(why)
    assert talk.replica("trainer/0").phase == "stopping"
    talk.fail("trainer/0")  # its peers were faster
    assert talk.job.ending is None
    stopped(talk, "trainer/1", *(["trainer/2"] if talk.replica("trainer/2").is_live else []))
    assert talk.world("trainer").phase == "opening" and charges(talk) == []


@pytest.mark.parametrize("why", [ev.StoreLost("trainer", 1), ev.ScaleRequested("trainer", 2)])
def test_r9_a_rule_of_its_own_decides_about_who_was_about_to_be_stopped_too(why: ev.Event):
    talk = gang(RULE, nodes=3)
    talk.tell(why)
    talk.fail("trainer/0")
    stopped(talk, "trainer/1", "trainer/2")
    assert talk.job.ending == "failed"


def in_either_order(loss: list[ev.Event], kind: FailureKind, rule: Rule) -> list[Talk]:
    """A node of three is lost, and a peer fails: it is reported before the loss, in the midst of it, or after it."""
    talks = []
    for place in range(len(loss) + 1):
        talk = gang(restart("role", 3, rules=(rule,)), nodes=3)
        failure = ev.ReplicaExited(r("trainer/0"), 1, kind, 1, "KILL" if kind == "signal" else None)
        for event in [*loss[:place], failure, *loss[place:]]:
            if talk.job.ending is None:
                talk.tell(event)
                talk.now += 30 * MS
        if talk.job.ending is None:
            stopped(talk, "trainer/1")
        talks.append(talk)
    return talks


PROVEN = [ev.NodeGone("node2")]
SILENT = [ev.NodeSuspected("node2"), ev.NodeSilent("node2")]


@pytest.mark.parametrize("loss", [PROVEN, SILENT])
@pytest.mark.parametrize("kind", ["exit", "signal"])
@pytest.mark.parametrize("do", ["fail", "ignore"])
def test_r8_no_rule_decides_about_a_peer_of_a_lost_node_in_whatever_order(
    loss: list[ev.Event], kind: FailureKind, do: Action
):
    """What peers make of a death is `exit` or `signal`: a rule about these would fail the job at each loss (R8)."""
    for talk in in_either_order(loss, kind, Rule(do, kind)):
        assert talk.job.ending is None and talk.job.roles["trainer"].outcome is None
        assert talk.world("trainer").phase == "opening" and charges(talk) == []
        assert [incident.kind for incident in talk.job.open_incidents()] == ["node_lost"]


@pytest.mark.parametrize("loss", [PROVEN, SILENT])
@pytest.mark.parametrize("kind", ["oom", "start_failed"])
def test_r9_a_rule_about_oom_or_a_failed_start_decides_in_any_order(loss: list[ev.Event], kind: FailureKind):
    for talk in in_either_order(loss, kind, Rule("fail", kind)):
        assert talk.job.ending == "failed" and f'rule On("{kind}") says fail' in talk.job.ending_reason


@pytest.mark.parametrize("loss", [PROVEN, SILENT])
def test_r8_without_a_rule_of_its_own_it_costs_nothing_whichever_is_reported_first(loss: list[ev.Event]):
    for talk in in_either_order(loss, "exit", Rule("fail", "oom")):
        assert talk.job.ending is None and talk.charges_in_the_end("trainer") == []


def test_r8_a_peer_on_the_node_of_an_unkillable_worker_is_excused_as_well():
    """It is of another world, which lost a member with that node."""
    trainers = role("trainer", min_replicas=1, max_replicas=2, restart=RULE)
    talk = joined(role("other"), trainers, nodes=2, cpu=2)
    talk.auto = False
    near, far = sorted(
        ("trainer/0", "trainer/1"), key=lambda name: talk.replica(name).node != talk.replica("other/0").node
    )
    talk.tell(ev.StoreLost("other", 1))
    talk.now += 32 * SECOND
    talk.tell(ev.ReplicaUnkillable(r("other/0"), 1))
    talk.fail(far)
    stopped(talk, near)
    assert talk.job.ending is None and talk.world("trainer").phase == "opening"


def test_r9_a_failure_after_the_restart_of_a_loss_is_judged_by_its_rule():
    talk = gang(RULE, nodes=3)
    talk.auto = True
    talk.gone("node2")
    talk.auto = False
    talk.tell(ev.StoreLost("trainer", 2))
    talk.fail("trainer/0")
    stopped(talk, "trainer/1")
    assert talk.job.ending == "failed"


def test_r7_when_all_have_failed_the_first_of_them_is_the_cause():
    talk = gang(None, nodes=3)
    for name in ("trainer/1", "trainer/0", "trainer/2"):
        talk.fail(name)
    assert talk.job.ending == "failed" and talk.job.ending_reason.startswith("trainer/1 failed on node1: ")


def test_r7_where_nothing_of_its_world_runs_elsewhere_nobody_is_waited_for():
    trainers = role("trainer", min_replicas=2, max_replicas=2)
    talk = Talk(graph(trainers, nodes=2, cpu=2), known=1)
    talk.join("node0", "node1")
    assert [talk.replica(f"trainer/{i}").node for i in (0, 1)] == ["node0", "node0"]
    talk.auto = False
    talk.fail("trainer/0")
    assert talk.job.ending == "failed"


def test_r8_a_node_on_which_others_still_run_has_not_answered():
    trainers = role("trainer", min_replicas=1, max_replicas=4)
    talk = joined(trainers, nodes=2, cpu=2)
    talk.auto = False
    talk.fail("trainer/0")
    stopped(talk, "trainer/1", "trainer/2")
    assert talk.job.ending is None and talk.suspects() == ["node1"]
    stopped(talk, "trainer/3")
    assert talk.job.ending == "failed"


def test_r7_who_does_not_stop_is_waited_for_until_its_node_would_be_overdue():
    talk = gang(None, nodes=3)
    talk.fail("trainer/0")
    stopped(talk, "trainer/1")
    text = "node2 to be heard, or lost: incident 1 may follow from that"
    assert text in waiting_for(talk.job)
    assert talk.controller.deadline() == talk.now + 1750 * MS
    talk.wait(1.75)
    assert talk.job.ending == "failed"


def merged(*, helper_fails: bool = True) -> Talk:
    """Of two gangs of two members each a first one fails, half a second apart; then a third role restarts the job.

    `helper` is ignored when it fails, by a rule, `main` may not fail. The others do not answer. It is 101 s.
    """
    policy = restart("role", 3, rules=(Rule("ignore", exit=1),))
    helper = role("helper", min_replicas=2, max_replicas=2, restart=policy, primary=False)
    main = role("main", min_replicas=2, max_replicas=2)
    talk = joined(helper, main, role("wide", restart=restart("job")), nodes=5, cpu=1)
    talk.now, talk.auto = 100 * SECOND, False
    if helper_fails:
        talk.fail("helper/0")
    talk.wait(0.5)
    talk.fail("main/0")
    talk.wait(0.5)
    talk.fail("wide/0")
    assert len(talk.job.open) == 1 and talk.job.ending is None
    return talk


def test_r7_a_wider_incident_does_not_put_off_the_judgement_of_what_it_takes_in():
    talk = merged(helper_fails=False)
    talk.wait(1.24)
    assert talk.job.ending is None
    talk.wait(0.01)  # since main/0 failed it is 1.75 s
    assert talk.job.ending_reason.startswith("main/0 failed on ")


def test_r8_each_failure_of_an_incident_is_judged_when_its_own_time_has_passed():
    for is_lost in (False, True):
        talk = merged()
        talk.wait(0.74)
        assert talk.job.roles["helper"].outcome is None
        talk.wait(0.01)
        assert talk.job.roles["helper"].outcome == "ignored" and talk.job.ending is None
        node = talk.replica("main/1").node
        if is_lost:
            talk.tell(ev.NodeSuspected(node))
        talk.wait(0.5)
        assert (talk.job.ending == "failed") == (not is_lost)
        if is_lost:
            talk.tell(ev.NodeSilent(node))
            assert talk.job.ending is None and talk.job.incidents[-1].kind == "node_lost"


def test_r7_a_failure_is_judged_when_its_own_peers_have_answered():
    talk = merged()
    stopped(talk, "helper/1")
    assert talk.job.roles["helper"].outcome == "ignored" and talk.job.ending is None
    assert talk.suspects() == [talk.replica("main/1").node]
    stopped(talk, "main/1")
    assert talk.job.ending_reason.startswith("main/0 failed on ")


def test_r7_a_judged_failure_is_charged_though_a_dead_node_caused_another():
    helper = role("helper", min_replicas=2, max_replicas=2, restart=BUDGET)
    main = role("main", min_replicas=2, max_replicas=2, gates=(Gate("helper", "started"),))
    talk = joined(helper, main, nodes=5, cpu=1)
    talk.auto = False
    first, second = (talk.replica(name).node for name in ("helper/1", "main/1"))
    talk.tell(ev.NodeSuspected(first))
    talk.fail("helper/0")
    talk.wait(0.1)
    talk.fail("main/0")
    talk.tell(ev.NodeHeard(first))
    assert any("is heard again: restart 1 of 3" in text for text in talk.texts()) and talk.job.ending is None
    talk.gone(second)
    talk.auto = True
    stopped(talk, "helper/1")
    talk.tell(ev.StoreOpened("main", 2, 1))
    assert len(talk.up()) == 4 and [charge.opened_ns for charge in talk.job.roles["helper"].charges] == [0]


def test_r8_a_node_suspected_at_the_first_of_two_failures_holds_up_both():
    talk = merged()
    talk.tell(ev.NodeSuspected(talk.replica("helper/1").node))
    talk.wait(1.3)
    assert talk.job.roles["helper"].outcome is None and talk.job.ending is None
    assert talk.suspects() == [talk.replica("helper/1").node]
    talk.tell(ev.NodeHeard(talk.replica("helper/1").node))
    assert talk.job.roles["helper"].outcome == "ignored" and talk.job.ending == "failed"


def test_r8_a_node_that_is_overdue_by_then_is_waited_for_until_it_is_lost_or_heard():
    for is_lost in (True, False):
        talk = gang(None, nodes=3)
        talk.fail("trainer/0")
        stopped(talk, "trainer/2")
        talk.wait(1.7)
        talk.tell(ev.NodeSuspected("node1"))
        stopped(talk, "trainer/1")  # it can speak, or could long ago
        talk.wait(1)
        assert talk.job.ending is None and talk.world("trainer").phase == "stopping"
        talk.tell(ev.NodeSilent("node1") if is_lost else ev.NodeHeard("node1"))
        assert talk.job.ending == (None if is_lost else "failed")


@pytest.mark.parametrize("is_lost", [True, False])
def test_r8_a_failure_is_not_charged_before_a_node_that_says_nothing_is_lost_or_heard(is_lost: bool):
    talk = gang(BUDGET, nodes=3)
    talk.fail("trainer/0")
    stopped(talk, "trainer/2")
    talk.wait(1.7)
    talk.tell(ev.NodeSuspected("node1"))
    talk.wait(3.2)
    assert talk.job.roles["trainer"].spent == {}
    talk.tell(ev.NodeSilent("node1") if is_lost else ev.NodeHeard("node1"))
    assert talk.job.roles["trainer"].spent == ({} if is_lost else {0: [100 * SECOND]})
    assert talk.job.incidents[-1].kind == ("node_lost" if is_lost else "exit")


def test_r7_a_node_that_is_lost_long_after_a_failure_was_not_its_cause():
    for policy, after_s in ((BUDGET, 2.1), (None, 1.8)):
        talk = gang(policy, nodes=3)
        talk.fail("trainer/0")
        stopped(talk, "trainer/2")
        talk.wait(after_s)  # trainer/1 takes its time to end
        talk.gone("node1")
        assert policy is None or talk.charges_in_the_end("trainer") == [100]
        assert (talk.job.ending == "failed") == (policy is None)


def test_r7_a_node_that_is_lost_long_after_its_peers_restarted_was_not_the_cause():
    talk = gang(BUDGET)
    talk.auto = True
    talk.fail("trainer/0")
    talk.now += SECOND
    talk.gone("node1")
    assert [incident.charged_to for incident in talk.job.incidents] == ["trainer", None]


def test_r12_a_role_that_is_below_its_minimum_with_the_node_waits_for_another():
    trainers = role("trainer", min_replicas=2, max_replicas=2)
    talk = Talk(graph(trainers, nodes=3, cpu=1))
    talk.join("node0", "node1")
    talk.auto = False
    talk.fail("trainer/0")
    talk.gone("node1")
    assert talk.job.ending is None and talk.job.outcome is None
    talk.auto = True
    talk.join("node2")
    assert talk.up() == ["trainer/0", "trainer/1"] and talk.replica("trainer/1").node == "node2"


@pytest.mark.parametrize("is_lost", [True, False])
def test_r8_a_failure_that_a_wider_scope_would_pay_for_is_dropped(is_lost: bool):
    policy = restart("role", 1, wider=restart("role", 2))
    talk = gang(policy)
    talk.auto = True
    talk.fail("trainer/0")
    talk.auto = False
    talk.fail("trainer/0")
    assert talk.job.roles["trainer"].spent == {0: [100 * SECOND]}
    if is_lost:
        talk.gone("node1")
    else:
        stopped(talk, "trainer/1")
    assert talk.job.roles["trainer"].spent == {0: [100 * SECOND]} | ({} if is_lost else {1: [100 * SECOND]})


def test_r15_a_hang_is_nobody_elses_doing():
    talk = gang(None)
    talk.tell(ev.ReplicaExited(r("trainer/0"), 1, "hang"))
    assert talk.job.ending == "failed"


def test_r9_an_auxiliary_gang_is_not_ignored_when_a_lost_node_made_it_fail():
    policy = restart("role", 0, then="ignore")
    helper = role("helper", min_replicas=1, max_replicas=2, restart=policy, primary=False)
    talk = joined(role("main"), helper, nodes=3, cpu=1)
    talk.auto = False
    seats = {talk.replica(f"helper/{i}").node: f"helper/{i}" for i in (0, 1)}
    dead, alive = sorted(seats)
    talk.fail(seats[alive])
    assert talk.job.roles["helper"].outcome is None
    talk.gone(dead)
    assert talk.job.roles["helper"].outcome is None and talk.world("helper").phase == "opening"


@pytest.mark.parametrize("scope", ["role", "job"])
def test_r9_an_auxiliary_gang_whose_peers_are_well_is_ignored_alone(scope: str):
    policy = restart(scope, 0, then="ignore")
    helper = role("helper", min_replicas=1, max_replicas=2, restart=policy, primary=False)
    talk = joined(role("main"), helper, nodes=3, cpu=1)
    talk.fail("helper/0")
    assert talk.job.roles["helper"].outcome == "ignored" and talk.up() == ["main/0"]
    assert talk.attempts()["main/0"] == 1


@pytest.mark.parametrize("is_lost", [False, True])
def test_r9_a_peer_of_an_unjudged_failure_does_not_restart_more_than_that(is_lost: bool):
    """Its policy says the whole job; but what it follows from is ignored, or was the loss of a node."""
    policy = restart("job", 0, then="ignore")
    helper = role("helper", min_replicas=1, max_replicas=3, restart=policy, primary=False)
    talk = joined(role("main"), helper, nodes=4, cpu=1)
    talk.auto = False
    first, second, third = (f"helper/{i}" for i in range(3))
    talk.fail(first)
    talk.fail(second)
    assert talk.stops() == {second: False, third: False}
    if is_lost:
        talk.gone(talk.replica(third).node)
        assert talk.job.roles["helper"].outcome is None and talk.world("helper").phase == "opening"
    else:
        stopped(talk, third)
        assert talk.job.roles["helper"].outcome == "ignored"
    assert talk.replica("main/0").is_up and talk.attempts()["main/0"] == 1


def dependent(is_spare: bool = False) -> Talk:
    """An auxiliary gang of two that may not restart, with a primary role that restarts when it does; `ps` before it."""
    ps = role("ps", kind="service", restart=restart("replica"))
    policy = restart("role", 0, then="ignore")
    helper = role(
        "helper", min_replicas=2, max_replicas=2, restart=policy, primary=False, gates=(Gate("ps", "started"),)
    )
    main = role("main", gates=(Gate("helper", "started", "restart"),))
    talk = joined(ps, helper, main, nodes=4 + is_spare, cpu=1)
    talk.auto = False
    return talk


def test_r9_who_depends_on_what_is_ignored_in_the_end_was_not_stopped_meanwhile():
    talk = dependent()
    talk.fail("helper/0")
    assert talk.stops() == {"helper/1": False}
    stopped(talk, "helper/1")
    talk.wait(3)  # ps might have been the cause
    assert talk.job.roles["helper"].outcome == "ignored" and talk.job.ending is None
    assert talk.up() == ["ps/0", "main/0"] and talk.attempts()["main/0"] == 1


@pytest.mark.parametrize("cause", ["helper/1", "ps/0"])
def test_r5_who_depends_on_what_restarts_after_all_restarts_with_it(cause: str):
    talk = dependent(is_spare=True)
    talk.fail("helper/0")
    assert talk.replica("main/0").is_up
    if cause == "ps/0":
        talk.fail("ps/0")
    else:
        talk.gone(talk.replica("helper/1").node)
    assert not talk.replica("main/0").is_up
    talk.auto = True
    stopped(talk, *(str(name) for name, replica in talk.job.replicas.items() if replica.phase == "stopping"))
    if cause == "ps/0":
        talk.tell(ev.StoreOpened("ps/0", 2, 1))
    attempts = {"ps/0": 1, "helper/0": 2, "helper/1": 2, "main/0": 2} | ({"ps/0": 2} if cause == "ps/0" else {})
    assert talk.attempts() == attempts and len(talk.up()) == 4


def test_r7_who_falls_over_a_failure_in_doubt_is_still_judged_when_that_is_known():
    """The reader is ignored, for its node was slow, not lost: the trainer restarts, by its own wider scope (R7)."""
    data = role("data", kind="service", restart=restart("replica"))
    policy = restart("replica", 0, then="ignore")
    readers = role("reader", min_replicas=1, max_replicas=2, restart=policy, gates=(Gate("data", "started"),))
    trainer = role("trainer", restart=restart("job"), gates=(Gate("reader", "started"),))
    talk = joined(data, readers, trainer, role("other"), nodes=5, cpu=1)
    talk.auto = False
    talk.tell(ev.NodeSuspected(talk.replica("data/0").node))
    talk.fail("reader/0")
    talk.fail("trainer/0")
    assert talk.up() == ["data/0", "reader/1", "other/0"]
    talk.tell(ev.NodeHeard(talk.replica("data/0").node))
    assert talk.world("reader/0").phase == "ended" and talk.up() == []
    talk.auto = True
    stopped(talk, "data/0", "reader/1", "other/0")
    assert talk.up() == ["data/0", "reader/1", "trainer/0", "other/0"] and charges(talk) == []


def test_r7_an_upstream_that_fails_meanwhile_takes_the_blame():
    ps = role("ps", kind="service", restart=restart("replica"))
    trainers = role(
        "trainer", min_replicas=2, max_replicas=2, restart=restart("role", 0), gates=(Gate("ps", "started"),)
    )
    for fails in (True, False):
        talk = joined(ps, trainers, nodes=3, cpu=1)
        talk.now, talk.auto = 100 * SECOND, False
        talk.fail("trainer/0")
        stopped(talk, "trainer/1")
        assert talk.job.ending is None, "its budget is used up, but its upstream may have failed"
        if fails:
            talk.fail("ps/0")
        talk.wait(3)
        assert talk.job.ending == (None if fails else "failed")


@pytest.mark.parametrize("is_lost", [True, False])
def test_r4_members_of_another_role_are_peers_too(is_lost: bool):
    a, b = role("a", restart=BUDGET), role("b", restart=BUDGET)
    drawn = graph(a, b, domains=(Domain("core", ("a", "b")),), nodes=2, cpu=1)
    talk = Talk(msgspec.structs.replace(drawn, worlds=(JointWorld("core", ("a", "b")),)))
    talk.join("node0", "node1")
    talk.auto = False
    talk.fail("a/0")
    assert talk.job.roles["a"].spent == {}
    if is_lost:
        talk.gone(talk.replica("b/0").node or "")
    else:
        stopped(talk, "b/0")
    assert talk.job.roles["a"].spent == ({} if is_lost else {0: [0]})


@pytest.mark.parametrize("options", [{}, {"heartbeat_ns": 4 * SECOND, "lease_ns": 3 * SECOND}])
def test_r19_a_node_is_overdue_before_it_is_lost(options: dict[str, int]):
    talk = gang(None, **options)
    job = talk.graph.options
    assert job.suspect_after_ns <= job.silent_after_ns == job.lease_ns + SECOND


def test_r7_an_upstream_that_fails_by_itself_pays_though_its_dependent_lost_a_node():
    ps = role("ps", kind="service", restart=restart("replica"))
    gates = (Gate("ps", "started", "restart"),)
    trainers = role("trainer", min_replicas=1, max_replicas=2, restart=BUDGET, gates=gates)
    talk = joined(ps, trainers, nodes=3, cpu=1)
    talk.now, talk.auto = 100 * SECOND, False
    talk.fail("ps/0")
    talk.fail("trainer/0")
    talk.gone(talk.replica("trainer/1").node)
    assert talk.charges_in_the_end("ps") == [100] and talk.charges_in_the_end("trainer") == []


@pytest.mark.parametrize("policy", [BUDGET, restart("role", 0), restart("role", 3, rules=(Rule("fail", exit=2),))])
def test_r7_what_an_upstream_has_excused_is_not_excused_again(policy: RestartPolicy):
    ps = role("ps", kind="service", restart=restart("replica"))
    trainers = role("trainer", min_replicas=1, max_replicas=3, restart=policy, gates=(Gate("ps", "started"),))
    talk = joined(ps, trainers, nodes=4, cpu=1)
    talk.now, talk.auto = 100 * SECOND, False
    talk.fail("trainer/0")
    talk.fail("ps/0")
    if policy.rules:
        talk.fail("trainer/2", code=2)  # this one is held
    talk.gone(talk.replica("trainer/1").node)
    assert talk.job.ending is None and talk.charges_in_the_end("trainer") == []
    assert sum("was caused by ps/0" in text for text in talk.texts()) == 1


def test_r8_no_charge_is_made_where_a_wider_incident_has_taken_in_what_a_lost_node_has_caused():
    a = role("a", min_replicas=1, max_replicas=3, restart=BUDGET)
    b = role("b", min_replicas=1, max_replicas=3, restart=restart("job"))
    talk = joined(a, b, nodes=2, cpu=3)
    talk.auto = False
    assert [talk.replica(name).node for name in ("a/0", "b/1", "a/2", "b/0")] == ["node0", "node0", "node1", "node1"]
    talk.fail("a/0")
    talk.fail("b/1")
    assert talk.job.incidents[0].result == "became part of incident 2"
    talk.gone("node1")
    assert talk.charges_in_the_end("a") == talk.charges_in_the_end("b") == []


@pytest.mark.parametrize("is_lost", [True, False])
def test_r22_a_node_is_not_cordoned_for_what_the_loss_of_another_has_caused(is_lost: bool):
    trainers = role("trainer", min_replicas=1, max_replicas=2, restart=BUDGET)
    talk = joined(trainers, nodes=4, cpu=1, cordon_after=1)
    talk.auto = False
    talk.fail("trainer/0")
    assert not talk.job.nodes["node0"].cordoned
    if is_lost:
        talk.gone("node1")
    else:
        stopped(talk, "trainer/1")
    assert bool(talk.job.nodes["node0"].cordoned) == (not is_lost)
    assert is_lost or (talk.world("trainer").members[0] == r("trainer/0") and talk.replica("trainer/0").node != "node0")


@pytest.mark.parametrize("is_drained", [True, False])
def test_r22_a_node_that_was_cordoned_for_what_an_upstream_has_caused_is_used_again(is_drained: bool):
    """The trainer runs again, elsewhere, when the failure of its server is reported: only then is it excused (R7)."""
    ps = role("ps", kind="service", restart=restart("replica"))
    trainer = role("trainer", restart=BUDGET, gates=(Gate("ps", "started"),))
    talk = joined(ps, trainer, nodes=4, cpu=1, cordon_after=1)
    seat = talk.replica("trainer/0").node
    talk.fail("trainer/0")
    assert talk.job.nodes[seat].cordoned and talk.up() == ["ps/0", "trainer/0"]
    assert [charge.level for charge in talk.job.roles["trainer"].charges] == [0]
    if is_drained:
        talk.tell(ev.DrainRequested(seat))
    talk.now += 500 * MS
    talk.fail("ps/0")
    assert bool(talk.job.nodes[seat].cordoned) == is_drained
    assert is_drained or f"{seat} is used again: trainer/0 did not fail by itself" in talk.texts()
    trainer = talk.job.roles["trainer"]
    assert (trainer.charges, trainer.spent, trainer.backoff_step) == ([], {0: []}, 0)


def test_r18_of_two_worlds_that_fail_the_job_the_first_to_fail_is_named():
    for overdue in (False, True):
        roles = [role("a", min_replicas=2, max_replicas=2), role("b", min_replicas=2, max_replicas=2), role("c")]
        talk = joined(*roles, nodes=5, cpu=1)
        talk.auto = False
        if overdue:
            talk.tell(ev.NodeSuspected(talk.replica("a/1").node))  # it may well be lost: then a/0 is no cause at all
        talk.fail("a/0")
        talk.fail("b/0")
        if overdue:
            stopped(talk, "b/1")
        else:
            talk.fail("c/0")
        assert talk.job.ending == "failed"
        assert talk.job.ending_reason.startswith("b/0 failed on" if overdue else "a/0 failed on")
        outcomes = [role.outcome for role in talk.job.roles.values()]
        assert outcomes == ([None, "failed", None] if overdue else ["failed", None, None])


def test_r18_a_failure_before_that_ends_nothing_is_not_named():
    ps = role("ps", kind="service", restart=restart("replica"))
    a = role("a", min_replicas=2, max_replicas=2, restart=restart("role", 0), gates=(Gate("ps", "started"),))
    talk = joined(ps, a, role("c"), nodes=5, cpu=1)
    talk.auto = False
    talk.fail("a/0")  # ps may yet take the blame
    talk.fail("c/0")
    assert talk.job.ending_reason.startswith("c/0 failed on")


def test_r6_who_leaves_in_place_on_a_node_that_was_given_up_meanwhile_ends():
    talk = joined(role("trainer", min_replicas=1, max_replicas=4), nodes=2, cpu=2)
    talk.elastic("trainer/0", "trainer/3")
    talk.auto = False
    talk.tell(ev.StoreLost("trainer", 1))
    talk.tell(ev.ReplicaUnkillable(r("trainer/1"), 1))
    first = talk.tell(ev.ReplicaStopped(r("trainer/3"), 1, suspended=True))
    assert talk.stops(first) == {"trainer/3": False} and talk.suspended() == []
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1, suspended=True))
    assert talk.suspended() == ["trainer/0"]


def test_r8_when_a_large_world_fails_at_once_the_nodes_are_asked_for_once():
    talk = joined(role("trainer", min_replicas=1, max_replicas=4, restart=RULE), nodes=2, cpu=2)
    talk.auto = False
    assert [talk.replica(f"trainer/{i}").node for i in range(4)] == ["node0", "node1", "node0", "node1"]
    talk.fail("trainer/1")
    assert talk.suspects() == ["node0"]
    talk.fail("trainer/0")
    assert talk.suspects() == ["node0", "node1"], "the first may have been killed with it"
    talk.fail("trainer/2")
    assert talk.suspects() == ["node1"]
    talk.gone("node1")
    assert talk.job.ending is None
