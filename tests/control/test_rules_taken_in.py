"""R7 where a wider incident takes in one whose failure is not judged yet: who exits first of its own is charged."""

from __future__ import annotations

import pytest

from flowdist.control.protocol import events as ev
from flowdist.graph import SECOND, Domain, Gate, RestartPolicy
from tests.control.harness import Talk, joined, restart, role


def taken_in(policy: RestartPolicy, *, by: str = "job", has_failed: bool = False, **fields: object) -> Talk:
    """A helper fails while the node of its peer is overdue; then another role restarts it, of its own. It is 101 s.

    `has_failed`: The helper fails at 90 s as well, and is restarted at once.
    """
    helper = role("helper", min_replicas=2, max_replicas=2, restart=policy, primary=False, **fields)
    ps = role("ps", kind="service", restart=restart("replica"))
    domains = (Domain("core", ("helper", "wide")),) if by == "domain" else ()
    talk = joined(ps, helper, role("wide", restart=restart(by)), domains=domains, nodes=5, cpu=1)
    if has_failed:
        talk.wait(90)
        talk.fail("helper/0")
    talk.now, talk.auto = 100 * SECOND, False
    talk.tell(ev.NodeSuspected(talk.replica("helper/1").node))
    talk.fail("helper/0")
    talk.wait(1)
    talk.fail("wide/0")
    assert [incident.is_open for incident in talk.job.incidents[-2:]] == [False, True]
    return talk


def test_r7_the_first_to_exit_is_charged_though_a_wider_incident_has_taken_it_in():
    talk = taken_in(restart("role", 1))
    talk.tell(ev.NodeHeard(talk.replica("helper/1").node))
    assert [incident.charged_to for incident in talk.job.incidents] == ["helper", None]
    assert [past.kind for past in talk.replica("helper/0").failures] == ["exit"]
    talk.answer()
    assert [incident.charged_to for incident in talk.job.incidents] == ["helper", "wide"]
    assert talk.job.roles["helper"].charges == [(100 * SECOND, 0)]
    assert talk.attempts() == {"ps/0": 2, "helper/0": 2, "helper/1": 2, "wide/0": 2}


def test_r10_a_wider_incident_waits_for_the_longest_back_off_that_it_takes_in():
    talk = taken_in(restart("role", 3, backoff_ns=20 * SECOND), has_failed=True)
    talk.tell(ev.NodeHeard(talk.replica("helper/1").node))
    talk.answer()
    assert talk.up() == []
    talk.wait(20)
    assert len(talk.up()) == 4


@pytest.mark.parametrize("then", ["fail", "ignore"])
def test_r11_a_budget_that_what_was_taken_in_has_used_up_decides(then: str):
    talk = taken_in(restart("role", 0, then=then))
    talk.tell(ev.NodeHeard(talk.replica("helper/1").node))
    assert talk.job.ending == ("failed" if then == "fail" else None)
    assert talk.job.roles["helper"].outcome == ("failed" if then == "fail" else "ignored")


def test_r7_a_used_up_budget_in_a_wider_incident_waits_a_moment_for_the_upstream():
    for fails in (True, False):
        talk = taken_in(restart("role", 0), by="domain", gates=(Gate("ps", "started"),))
        talk.tell(ev.NodeHeard(talk.replica("helper/1").node))
        talk.answer()
        talk.wait(0.9)
        assert talk.job.ending is None
        if fails:
            talk.fail("ps/0")
        talk.wait(0.1)
        assert talk.job.ending == (None if fails else "failed")


def test_r7_an_upstream_takes_the_blame_for_what_a_wider_incident_has_taken_in():
    talk = taken_in(restart("role", 0), by="domain", gates=(Gate("ps", "started"),))
    talk.fail("ps/0")
    assert "incident 1 was caused by ps/0: not counted" in talk.texts()
    talk.tell(ev.NodeHeard(talk.replica("helper/1").node))
    talk.answer()
    assert [incident.charged_to for incident in talk.job.incidents] == [None, "wide", "ps"]
    assert talk.replica("helper/0").failures == [] and len(talk.up()) == 4


def test_r7_what_a_lost_node_has_caused_in_a_wider_incident_is_not_charged():
    talk = taken_in(restart("role", 1))
    talk.tell(ev.NodeSilent(talk.replica("helper/1").node))
    talk.answer()
    assert talk.job.roles["helper"].charges == [] and talk.replica("helper/0").failures == []
    assert talk.job.roles["wide"].charges == [(101 * SECOND, 0)]


def test_r7_an_upstream_takes_the_blame_for_its_own_dependents_alone():
    """The helper may not fail, and depends on the server; nor may the other, which does not."""
    ps = role("ps", kind="service", restart=restart("replica"))
    helper = role("helper", restart=restart("role", 0), gates=(Gate("ps", "started"),))
    other = role("other", min_replicas=2, max_replicas=2)
    roles = (ps, helper, other, role("wide", restart=restart("domain")))
    for failing in (["helper/0", "other/0", "wide/0"], ["helper/0", "wide/0"]):
        talk = joined(*roles, domains=(Domain("core", ("helper", "other", "wide")),), nodes=5, cpu=1)
        talk.now, talk.auto = 100 * SECOND, False
        for name in failing:
            talk.fail(name)
        talk.fail("ps/0")
        talk.answer()
        talk.wait(2)
        if "other/0" in failing:
            assert talk.job.ending_reason.startswith("other/0 failed on ")
        else:
            assert talk.job.ending is None and talk.charges("helper") == [] and talk.charges("ps") == [100]
