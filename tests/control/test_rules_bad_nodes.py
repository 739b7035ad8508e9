"""R22: who fails again and again on a node runs elsewhere; a node on which that happens to anybody takes no more."""

from __future__ import annotations

from flowdist.control.protocol import events as ev
from flowdist.graph import HOUR, SECOND, Gate, RestartPolicy
from tests.control.harness import Talk, graph, joined, r, role

OFTEN = RestartPolicy("replica", max_restarts=99, backoff_ns=0)
TOGETHER = RestartPolicy("role", max_restarts=99, backoff_ns=0)


def actors(count: int, nodes: int, cpu: float = 2, **options: int) -> Talk:
    """Actors that restart one by one, on more nodes than they need."""
    actor = role("actor", min_replicas=count, max_replicas=count, restart=OFTEN)
    return joined(actor, nodes=nodes, cpu=cpu, **options)


def segfault(talk: Talk, name: str) -> None:
    talk.report(ev.ReplicaExited, name, "signal", 139, "SEGV")


def seats(talk: Talk, name: str) -> list[str]:
    """Where its attempts have run, in order."""
    return [start.node for start in talk.starts if start.replica == r(name)]


def test_r22_a_replica_moves_to_another_node_after_two_failures_of_a_kind():
    talk = actors(1, nodes=2)
    talk.fail("actor/0")
    talk.fail("actor/0")
    assert seats(talk, "actor/0") == ["node0", "node0", "node1"]


def test_r22_failures_of_two_kinds_are_no_habit_of_the_node():
    talk = actors(1, nodes=2)
    talk.fail("actor/0")
    segfault(talk, "actor/0")
    assert seats(talk, "actor/0") == ["node0"] * 3
    segfault(talk, "actor/0")
    assert seats(talk, "actor/0")[-1] == "node1"


def test_r22_a_failure_that_is_an_hour_old_is_forgotten():
    talk = actors(1, nodes=2)
    talk.fail("actor/0")
    talk.wait(3600)
    talk.fail("actor/0")
    assert seats(talk, "actor/0") == ["node0"] * 3
    talk.wait(3599)
    talk.fail("actor/0")
    assert seats(talk, "actor/0")[-1] == "node1"


def test_r22_without_room_elsewhere_it_stays():
    talk = actors(2, nodes=2, cpu=1)
    for _ in range(2):
        talk.fail("actor/0")
    assert seats(talk, "actor/0") == ["node0"] * 3


def test_r22_of_a_gang_only_the_one_that_fails_moves():
    trainer = role("trainer", min_replicas=2, max_replicas=2, restart=TOGETHER)
    talk = joined(trainer, nodes=3, cpu=1)
    talk.fail("trainer/1")
    talk.fail("trainer/1")
    assert seats(talk, "trainer/0") == ["node0"] * 3 and seats(talk, "trainer/1") == ["node1", "node1", "node2"]


def test_r22_who_fails_everywhere_does_not_end_up_nowhere():
    talk = actors(1, nodes=2, cordon_after=99)
    for _ in range(6):
        talk.fail("actor/0")
    assert seats(talk, "actor/0") == ["node0", "node0", "node1", "node1", "node1", "node1", "node1"]


def test_r22_who_fails_everywhere_leaves_a_node_that_is_cordoned():
    talk = actors(1, nodes=3)
    for _ in range(7):
        talk.fail("actor/0")
    assert seats(talk, "actor/0") == [*("node0", "node0", "node1", "node1", "node2", "node2", "node2"), "node0"]
    assert talk.job.nodes["node2"].cordoned and not talk.job.nodes["node0"].cordoned


def test_r22_after_three_failures_of_any_replicas_the_node_is_cordoned():
    talk = actors(4, nodes=3)
    there = [name for name in talk.attempts() if talk.replica(name).node == "node0"]
    assert len(there) == 2
    for name in (there[0], there[1], there[0]):
        talk.fail(name)
    assert talk.job.nodes["node0"].cordoned == "3 failures of kind exit on it within 1h"
    text = "node0 is cordoned: 3 failures of kind exit on it within 1h; `uncordon` takes it back"
    assert text in talk.texts()
    assert talk.replica(there[0]).node != "node0"


def test_r22_failures_of_several_kinds_cordon_no_node():
    talk = actors(4, nodes=3)
    there = [name for name in talk.attempts() if talk.replica(name).node == "node0"]
    talk.fail(there[0])
    talk.fail(there[1])
    segfault(talk, there[0])
    assert len(talk.job.nodes["node0"].failures) == 3 and talk.job.nodes["node0"].cordoned == ""


def test_r22_who_has_moved_may_come_back_after_an_hour():
    talk = actors(1, nodes=3)
    talk.fail("actor/0")
    talk.fail("actor/0")
    talk.wait(3600)
    talk.gone("node1")
    assert seats(talk, "actor/0") == ["node0", "node0", "node1", "node0"]


def test_r22_what_runs_on_a_cordoned_node_goes_on_and_restarts_elsewhere():
    talk = actors(4, nodes=3)
    talk.tell(ev.CordonRequested("node0"))
    there = [name for name in talk.attempts() if talk.replica(name).node == "node0"]
    assert talk.attempts() == dict.fromkeys(talk.attempts(), 1) and len(there) == 2
    talk.fail(there[0])
    assert talk.replica(there[0]).node != "node0" and talk.replica(there[1]).node == "node0"


def test_r22_a_restart_on_a_cordoned_node_is_better_than_none():
    talk = actors(2, nodes=2, cpu=1)
    talk.tell(ev.CordonRequested("node0"))
    talk.fail("actor/0")
    assert seats(talk, "actor/0") == ["node0", "node0"]


def test_r22_a_node_that_the_job_needs_is_not_cordoned_and_that_is_said_once():
    talk = actors(2, nodes=2, cpu=1)
    for _ in range(5):
        talk.fail("actor/0")
    assert talk.job.nodes["node0"].cordoned == "" and len(talk.up()) == 2
    suspect = [text for text in talk.texts() if "suspect" in text]
    assert suspect == [
        "node0 is suspect: 3 failures of kind exit on it within 1h; "
        "it is not cordoned, as there is no room for the job without it"
    ]


def test_r22_a_failure_with_another_cause_does_not_tell_against_the_node():
    ps = role("ps", kind="service", restart=OFTEN)
    trainer = role("trainer", gates=(Gate("ps", "started"),), restart=TOGETHER)
    talk = joined(ps, trainer, nodes=2, cpu=2)
    for _ in range(4):
        segfault(talk, "ps/0")
        talk.now += SECOND
        talk.fail("trainer/0")
        talk.now += HOUR
    assert all(failure.kind == "signal" for node in talk.job.nodes.values() for failure in node.failures)
    assert talk.replica("trainer/0").failures == []


def test_r22_uncordon_forgets_what_the_node_was_cordoned_for():
    talk = actors(1, nodes=2, cpu=1)
    talk.fail("actor/0")
    talk.fail("actor/0")  # moves to node1
    talk.tell(ev.CordonRequested("node0"))
    talk.fail("actor/0")
    talk.tell(ev.UncordonRequested("node0"))
    assert talk.texts()[-1] == "node0 is used again"
    assert talk.job.nodes["node0"].failures == [] and talk.job.nodes["node0"].cordoned == ""
    talk.fail("actor/0")
    assert talk.replica("actor/0").node == "node0"
    assert [failure.node for failure in talk.replica("actor/0").failures] == ["node1", "node1"]


def test_r22_uncordon_gives_a_role_that_waits_the_room_that_it_waited_for():
    talk = actors(2, nodes=2, cpu=1)
    talk.tell(ev.CordonRequested("node0"))
    talk.gone("node1")
    assert talk.up() == ["actor/0"]
    talk.tell(ev.UncordonRequested("node0"))
    assert talk.up() == ["actor/0"], "it has room for one only"
    talk.join("node1")
    assert talk.up() == ["actor/0", "actor/1"]


def test_r22_a_job_for_which_all_nodes_are_cordoned_waits_and_says_so():
    actor = role("actor", restart=OFTEN)
    talk = Talk(graph(actor, nodes=1), known=0)
    talk.tell(ev.CordonRequested("node0"))
    assert talk.texts()[-1] == "node0 is no node of the job"
    talk.join("node0")
    talk.tell(ev.CordonRequested("node0"))
    talk.gone("node0")
    talk.join("node0")
    assert talk.job.nodes["node0"].cordoned == "by the operator", "that it came back is no reason to trust it"
    assert talk.up() == []
    talk.tell(ev.UncordonRequested("node0"))
    assert talk.up() == ["actor/0"]


def test_r22_a_node_that_was_drained_and_comes_back_anew_is_used_again():
    talk = actors(1, nodes=2, cpu=1)
    talk.tell(ev.DrainRequested("node0"))
    talk.tell(ev.StepTold(r("actor/0"), 1, None))
    talk.gone("node0")
    talk.join("node0")
    assert talk.job.nodes["node0"].cordoned == "" and not talk.job.nodes["node0"].is_leaving
    talk.gone("node1")
    assert talk.replica("actor/0").node == "node0"


def test_r22_a_node_that_is_lost_again_and_again_is_used_no_more():
    talk = joined(role("trainer", max_replicas=2), nodes=2, cpu=1)
    for _ in range(3):
        talk.tell(ev.NodeSilent("node1"))
        talk.join("node1")
        talk.wait(60)
    assert talk.job.nodes["node1"].cordoned == "it was lost 3 times within 1h" and talk.up() == ["trainer/0"]
    talk.tell(ev.UncordonRequested("node1"))
    assert talk.up() == ["trainer/0", "trainer/1"]


def test_r22_a_node_that_the_job_needs_or_that_was_asked_to_go_is_used_again():
    talk = joined(role("trainer", min_replicas=2, max_replicas=2), nodes=2, cpu=1)
    for _ in range(4):
        talk.tell(ev.NodeSilent("node1"))
        talk.join("node1")
        talk.wait(60)
    assert not talk.job.nodes["node1"].cordoned and len(talk.up()) == 2
    talk = joined(role("trainer", max_replicas=2), nodes=2, cpu=1)
    for _ in range(4):
        talk.tell(ev.NodeLeft("node1"))
        talk.join("node1")
        talk.wait(60)
    assert not talk.job.nodes["node1"].cordoned and len(talk.up()) == 2


def test_r22_what_was_said_against_a_node_holds_when_it_comes_back():
    talk = actors(1, nodes=2)
    talk.fail("actor/0")
    talk.gone("node0")
    talk.join("node0")
    assert [failure.kind for failure in talk.job.nodes["node0"].failures] == ["exit", "node_lost"]


def test_r22_a_node_that_is_cordoned_already_keeps_the_reason_that_it_has():
    talk = actors(4, nodes=3, cordon_after=1)
    talk.tell(ev.CordonRequested("node0"))
    assert talk.tell(ev.CordonRequested("node0")) == []
    talk.fail(next(name for name in talk.attempts() if talk.replica(name).node == "node0"))
    assert talk.job.nodes["node0"].cordoned == "by the operator"


def test_r22_a_node_that_was_given_up_is_not_cordoned_on_top_of_that():
    trainer = role("trainer", min_replicas=2, max_replicas=2, restart=TOGETHER)
    actor = role("actor", min_replicas=1, max_replicas=2, restart=OFTEN)
    talk = joined(trainer, actor, cordon_after=2)
    talk.join("node1")
    talk.auto = False
    talk.tell(ev.ScaleRequested("actor", 1))
    talk.fail("trainer/0")
    talk.now += 30 * SECOND
    talk.tell(ev.ReplicaUnkillable(r("trainer/1"), 1))
    talk.fail("actor/1")  # it had failed before it was told to stop
    assert [str(failure.replica) for failure in talk.job.nodes["node0"].failures] == ["trainer/0", "actor/1"]
    assert talk.job.nodes["node0"].cordoned == ""
