"""R17: once a member has finished, its world neither grows nor shrinks nor moves."""

from __future__ import annotations

from flowdist.graph import Gate
from tests.control.harness import Talk, graph, joined, restart, role, trainers


def test_r17_a_closing_world_does_not_grow_and_may_lose_its_finished_members():
    talk = joined(trainers(2, 3), nodes=2, cpu=1)
    talk.finish("trainer/0")
    talk.join("node2", cpu=1)
    talk.wait(60)
    assert talk.world("trainer").generation == 1
    talk.gone("node0")
    assert talk.up() == ["trainer/1"] and talk.attempts()["trainer/1"] == 1
    talk.finish("trainer/1")
    assert talk.outcome()[0] == "succeeded"


def test_r17_the_failure_of_an_unfinished_member_restarts_the_finished_ones_too():
    talk = joined(trainers(2, 2, restart=restart()))
    talk.finish("trainer/0")
    talk.fail("trainer/1")
    assert talk.attempts() == {"trainer/0": 2, "trainer/1": 2}


def test_r17_a_finished_member_on_a_lost_node_restarts_with_one_that_fails():
    talk = joined(trainers(2, 2, restart=restart()), nodes=3, cpu=1)
    talk.finish("trainer/0")
    talk.gone("node0")
    assert talk.replica("trainer/0").phase == "succeeded" and talk.replica("trainer/0").node is None
    talk.fail("trainer/1")
    assert talk.attempts() == {"trainer/0": 2, "trainer/1": 2}
    assert talk.replica("trainer/0").node == "node2" and talk.starts[-1].world_size == 2


def test_r17_a_role_that_is_done_does_not_start_those_that_never_found_room():
    talk = joined(role("actor", max_replicas=4, gang=False), role("main"), cpu=3)
    assert talk.up() == ["actor/0", "actor/1", "main/0"]
    talk.finish("actor/0", "actor/1")
    assert talk.job.roles["actor"].outcome == "succeeded"
    talk.join("node1")
    talk.wait(60)
    assert talk.up() == ["main/0"]


def test_r17_a_member_that_does_not_finish_after_the_others_is_held_to_hang():
    talk = joined(trainers(2, 2, restart=restart()))
    talk.finish("trainer/0")
    talk.wait(299)
    assert talk.attempts()["trainer/1"] == 1
    talk.wait(1)
    assert talk.attempts() == {"trainer/0": 2, "trainer/1": 2}
    assert talk.job.incidents[0].kind == "hang"


def test_r17_a_world_that_restarted_has_all_its_time_to_finish_again():
    talk = joined(trainers(2, 2, restart=restart()))
    talk.finish("trainer/0")
    talk.fail("trainer/1")
    talk.wait(3600)
    assert talk.attempts() == {"trainer/0": 2, "trainer/1": 2}


def test_r17_a_finished_replica_does_not_run_again_because_of_others():
    ps = role("ps", kind="service", restart=restart("replica"))
    actor = role("actor", min_replicas=2, max_replicas=2, gang=False, gates=(Gate("ps", "started", "restart"),))
    talk = joined(ps, actor)
    talk.finish("actor/0")
    talk.fail("ps/0")
    assert talk.attempts() == {"ps/0": 2, "actor/0": 1, "actor/1": 2}


def test_r18_the_role_that_fails_the_job_has_failed_and_the_others_were_stopped():
    for policy in (None, restart("replica", 0)):
        evaluator = role("evaluator", kind="service")
        talk = joined(role("ps", kind="service", restart=policy), role("trainer"), evaluator)
        talk.fail("ps/0")
        talk.wait(5)  # something upstream of it might have failed
        assert talk.outcome()[0] == "failed" and "ps/0 failed on node0" in talk.outcome()[1]
        assert [role.outcome for role in talk.job.roles.values()] == ["failed", "stopped", "stopped"]


def test_r18_who_is_cancelled_or_waits_for_nodes_in_vain_has_not_failed():
    talk = Talk(graph(role("trainer")))
    talk.wait(3600)
    assert talk.outcome()[0] == "failed" and talk.job.roles["trainer"].outcome == "stopped"


def test_r18_why_the_job_fails_is_said_once():
    talk = joined(role("trainer"))
    talk.fail("trainer/0")
    assert [text for text in talk.texts() if "trainer/0 failed" in text] == [f"the job fails: {talk.outcome()[1]}"]
