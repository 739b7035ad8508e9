"""Recovery ends with the first step of each world, where steps are reported, and never claims one that is not known."""

from __future__ import annotations

from flowdist.control.protocol import events as ev
from flowdist.graph import SECOND
from tests.control.harness import Talk, joined, r, restart, role


def trainers(count: int = 2, scope: str = "role", **fields: object) -> Talk:
    spec = role("trainer", max_replicas=count, restart=restart(scope, times=9, backoff_ns=0), **fields)
    return joined(spec, free_incidents_max=2)


def said(talk: Talk) -> list[str]:
    """Return what was said about incidents that have closed."""
    return [text for text in talk.texts() if ": re-formed " in text or ": recovered" in text]


def fail(talk: Talk, name: str, takes: float = 0.05) -> None:
    """Let a replica fail; its restart set runs again after `takes` seconds."""
    talk.auto = False
    talk.fail(name)
    talk.wait(takes)
    talk.auto = True
    world = talk.world(talk.replica(name).world)
    for member in world.members:
        if talk.job.replicas[member].phase == "stopping":
            talk.tell(ev.ReplicaStopped(member, talk.job.replicas[member].attempt))
    if world.phase == "opening":
        talk.tell(ev.StoreOpened(world.name, world.generation, 29500))


def test_an_incident_has_re_formed_when_all_run_and_recovered_with_the_first_step():
    talk = trainers()
    talk.report(ev.ReplicaStepped, "trainer/0", 1)
    fail(talk, "trainer/1")
    (incident,) = talk.job.incidents
    assert said(talk) == ["incident 1: re-formed after 50ms, charged to trainer"] and incident.result == "re-formed"
    talk.wait(0.24)
    talk.report(ev.ReplicaStepped, "trainer/1", 1)
    assert said(talk)[1:] == ["incident 1: recovered: re-formed after 50ms, first step after 290ms"]
    assert incident.result == "recovered" and incident.first_step_ns == round(0.29 * SECOND)
    talk.wait(1)
    talk.report(ev.ReplicaStepped, "trainer/0", 5)
    assert len(said(talk)) == 2, "the first step of the other member is not another recovery"


def test_steps_that_the_script_reports_say_the_same_but_zero_steps_are_none():
    talk = trainers()
    fail(talk, "trainer/1")
    talk.wait(0.1)
    talk.report(ev.ReplicaProgressed, "trainer/0", 0)
    assert len(said(talk)) == 1
    talk.wait(0.1)
    talk.report(ev.ReplicaProgressed, "trainer/0", 1)
    assert said(talk)[1:] == ["incident 1: recovered: re-formed after 50ms, first step after 250ms"]


def test_a_world_that_reports_no_steps_has_re_formed_and_no_more_is_said():
    talk = trainers()
    fail(talk, "trainer/1")
    talk.wait(60)
    talk.finish("trainer/0", "trainer/1")
    assert said(talk) == ["incident 1: re-formed after 50ms, charged to trainer"]
    assert talk.job.incidents[0].result == "re-formed" and talk.job.outcome == "succeeded"


def test_worlds_that_stop_again_before_their_first_step_have_not_recovered():
    talk = trainers()
    fail(talk, "trainer/1")
    fail(talk, "trainer/0")
    talk.report(ev.ReplicaStepped, "trainer/0", 1)
    assert [text.partition(" after")[0] for text in said(talk)] == [
        "incident 1: re-formed",
        "incident 2: re-formed",
        "incident 2: recovered: re-formed",
    ]
    assert [incident.result for incident in talk.job.incidents] == ["re-formed", "recovered"]


def test_several_worlds_have_recovered_when_the_last_of_them_steps():
    talk = trainers(scope="role", gang=False)
    talk.fail("trainer/0")
    talk.report(ev.ReplicaStepped, "trainer/0", 1)
    assert said(talk)[1:] == [], "the role steps, so its other world is waited for"
    talk.wait(3)
    talk.report(ev.ReplicaStepped, "trainer/1", 1)
    assert said(talk)[1:] == ["incident 1: recovered: re-formed after 0s, first step after 3s"]


def test_a_world_may_step_before_the_last_of_its_incident_runs():
    talk = trainers(scope="role", gang=False)
    talk.auto = False
    talk.fail("trainer/0")
    talk.tell(ev.ReplicaStopped(r("trainer/1"), 1))
    talk.wait(1)
    for name in ("trainer/0", "trainer/1"):
        talk.tell(ev.StoreOpened(name, 2, 29500))
    talk.tell(ev.ReplicaStarted(r("trainer/0"), 2))
    talk.report(ev.ReplicaStepped, "trainer/0", 1)
    talk.wait(1)
    talk.tell(ev.ReplicaStarted(r("trainer/1"), 2))
    assert said(talk) == ["incident 1: re-formed after 2s, charged to trainer"]
    talk.report(ev.ReplicaStepped, "trainer/1", 1)
    assert said(talk)[1:] == ["incident 1: recovered: re-formed after 2s, first step after 2s"]


def test_a_role_that_never_steps_keeps_no_other_role_waiting():
    load = role("loader", restart=restart("job", times=9, backoff_ns=0))
    talk = joined(load, role("trainer", restart=restart("job", times=9, backoff_ns=0)))
    talk.fail("loader/0")
    talk.report(ev.ReplicaStepped, "trainer/0", 1)
    assert [text.partition(" after")[0] for text in said(talk)] == [
        "incident 1: re-formed",
        "incident 1: recovered: re-formed",
    ]


def test_an_incident_of_which_a_world_has_stopped_again_never_recovers_though_that_world_takes_no_steps():
    load = role("loader", restart=restart("role", times=9, backoff_ns=0))
    talk = joined(load, role("trainer", restart=restart("job", times=9, backoff_ns=0)))
    talk.fail("trainer/0")
    talk.fail("loader/0")
    talk.report(ev.ReplicaStepped, "trainer/0", 1)
    assert [text.partition(" after")[0] for text in said(talk)] == ["incident 1: re-formed", "incident 2: re-formed"]


def test_services_take_no_steps_and_have_recovered_when_they_serve():
    ps = role("ps", kind="service", restart=restart("replica", times=9, backoff_ns=0))
    talk = joined(ps, role("trainer"))
    talk.fail("ps/0")
    assert said(talk) == ["incident 1: recovered after 0s, charged to ps"]
    assert talk.job.incidents[0].result == "recovered"


def test_r8_counted_steps_are_progress_only_if_no_attempt_has_come_so_far():
    """After a restart the true step is unknown: the job may do the same steps again and again."""
    talk = trainers()
    world = talk.world("trainer")
    talk.report(ev.ReplicaStepped, "trainer/0", 1)
    assert not world.progressed, "it may re-form again and again after its first step"
    talk.report(ev.ReplicaStepped, "trainer/0", 9)
    assert world.progressed and world.step == -1
    fail(talk, "trainer/0")
    talk.report(ev.ReplicaStepped, "trainer/0", 9)
    assert not world.progressed
    talk.report(ev.ReplicaStepped, "trainer/0", 10)
    assert world.progressed and talk.replica("trainer/0").step == -1
