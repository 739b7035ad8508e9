"""R6, in place: who leaves its generation without ending, when its workers go on, and what ends them."""

from __future__ import annotations

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import FinishJob, StartReplica, StopReplica
from flowdist.graph import SECOND, Domain
from flowdist.graph.policies import RestartPolicy
from tests.control.harness import Gate, Talk, joined, node, r, restart, role


def gang(size: int = 3, nodes: int = 1, cpu: float = 8.0, least: int = 1, **fields: object) -> Talk:
    """A gang of elastic workers that runs."""
    trainer = role("trainer", min_replicas=least, max_replicas=size, restart=restart(), **fields)
    talk = joined(trainer, nodes=nodes, cpu=cpu)
    talk.elastic(*talk.up())
    return talk


def test_r6_survivors_leave_in_place_and_the_failed_one_is_started_afresh():
    talk = gang()
    talk.auto = False
    assert talk.stops(talk.fail("trainer/1")) == {"trainer/0": True, "trainer/2": True}
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1, suspended=True))
    assert talk.suspended() == ["trainer/0"] and not talk.up()
    opened = talk.tell(ev.ReplicaStopped(r("trainer/2"), 1, suspended=True))
    assert [type(effect).__name__ for effect in opened][:2] == ["CloseStore", "OpenStore"]  # R4: fresh, and first
    started = [e for e in talk.tell(ev.StoreOpened("trainer", 2, 29500)) if isinstance(e, StartReplica)]
    assert [(str(e.replica), e.attempt, e.rank) for e in started] == [
        ("trainer/1", 2, 1),  # first: it has furthest to go
        ("trainer/0", 2, 0),
        ("trainer/2", 2, 2),
    ]
    assert not talk.suspended()


def test_r6_whoever_is_not_in_elastic_code_is_stopped_as_ever():
    talk = gang()
    talk.fail("trainer/1")  # all start anew, and trainer/2 has not come to its elastic code again
    talk.elastic("trainer/0", "trainer/1")
    assert talk.stops(talk.fail("trainer/1")) == {"trainer/0": True, "trainer/2": False}


def test_r6_all_of_the_old_generation_have_left_before_the_new_one_starts():
    talk = gang()
    talk.auto = False
    talk.fail("trainer/1")
    assert talk.tell(ev.ReplicaStopped(r("trainer/0"), 1, suspended=True)) == []


def test_r6_whoever_does_not_leave_in_time_was_killed_by_its_agent_and_that_is_said():
    talk = gang()
    talk.auto = False
    talk.fail("trainer/1")
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1))
    assert "trainer/0 has not left its generation in place: it is restarted" in talk.texts()
    assert talk.suspended() == []


def test_r3_the_oldest_member_is_the_source_though_its_rank_is_another():
    talk = gang(nodes=3, cpu=1)
    talk.gone("node0")
    talk.elastic(*talk.up())
    assert [start.rank for start in talk.starts[-2:]] == [0, 1]  # trainer/1 and trainer/2, where they were
    talk.join("node0")
    talk.wait(31)
    assert {start.source_rank for start in talk.starts[-3:]} == {1}


def test_r12_a_lost_node_costs_the_survivors_nothing_but_a_new_generation():
    talk = gang(nodes=3, cpu=1)
    assert talk.stops(talk.gone("node1")) == {"trainer/0": True, "trainer/2": True}
    assert talk.attempts() == {"trainer/0": 2, "trainer/1": 1, "trainer/2": 2}


def test_r13_a_join_leaves_the_survivors_in_place():
    talk = gang(nodes=2, size=3, cpu=1)
    talk.effects.clear()
    talk.join("node2")
    assert talk.stops() == {"trainer/0": True, "trainer/1": True}
    assert talk.starts[-1].world_size == 3


def test_r14_what_is_on_a_node_that_is_left_ends_and_the_others_stay():
    talk = gang(nodes=2, size=2, cpu=1)
    talk.auto = False
    talk.tell(ev.DrainRequested("node1"))
    talk.tell(ev.StepTold(r("trainer/0"), 1, None))
    assert talk.stops(talk.tell(ev.StepTold(r("trainer/1"), 1, None))) == {"trainer/0": True, "trainer/1": False}


def test_r14_a_failure_under_a_notice_leaves_its_mates_suspended():
    talk = gang(nodes=2, size=2, cpu=1, procs=2)
    talk.auto = False
    talk.tell(ev.NodePreempted("node1", 60 * SECOND))
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1, suspended=True))
    assert talk.suspended() == ["trainer/0"]


def test_r15_a_world_that_hangs_is_stopped_as_ever():
    talk = gang(size=2, hang_after_ns=SECOND)
    talk.tell(ev.ReplicaStalled(r("trainer/0"), 1, "progress", SECOND, 3))
    effects = talk.tell(ev.ReplicaStalled(r("trainer/1"), 1, "progress", SECOND, 4)) + talk.wait(5)
    assert set(talk.stops(effects).values()) == {False}


def test_r5_what_restarts_because_its_upstream_does_begins_afresh():
    server = role("ps", kind="service", restart=restart("replica"))
    trainer = role("trainer", max_replicas=2, restart=restart(), gates=(Gate("ps", on_restart="restart"),))
    talk = joined(server, trainer)
    talk.elastic("trainer/0", "trainer/1")
    assert talk.stops(talk.fail("ps/0")) == {"trainer/0": False, "trainer/1": False}


def test_r5_an_upstream_that_fails_while_survivors_wait_takes_them_along():
    server = role("ps", kind="service", restart=restart("replica"))
    gates = (Gate("ps", on_restart="restart"),)
    trainer = role("trainer", min_replicas=3, max_replicas=3, restart=restart(), gates=gates)
    talk = joined(server, trainer)
    talk.elastic("trainer/0", "trainer/1", "trainer/2")
    talk.auto = False
    talk.fail("trainer/2")
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1, suspended=True))
    effects = talk.fail("ps/0")
    assert [e for e in effects if isinstance(e, StopReplica)] == [
        StopReplica("node0", r("trainer/0"), 1, 0),
        StopReplica("node0", r("trainer/1"), 1, 2 * SECOND),
    ]
    assert talk.suspended() == []


def test_r5_who_has_an_old_address_in_its_command_begins_afresh():
    server = role("ps", kind="service", restart=restart("replica"), ports=("rpc",))
    trainer = role("trainer", max_replicas=2, restart=restart(), gates=(Gate("ps"),), address_edges=("ps",))
    talk = joined(server, trainer)
    talk.elastic("trainer/0", "trainer/1")
    talk.auto = False
    talk.fail("trainer/1")
    talk.tell(ev.ReplicaExited(r("ps/0"), 1, "exit", 1))
    talk.tell(ev.StoreOpened("ps/0", 2, 29500))
    talk.tell(ev.ReplicaStarted(r("ps/0"), 2, (("rpc", 5555),)))  # it was 4000
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1, suspended=True))
    effects = talk.tell(ev.StoreOpened("trainer", 2, 29500))
    orders = [(type(e).__name__, str(e.replica)) for e in effects if isinstance(e, StopReplica | StartReplica)]
    assert orders == [("StopReplica", "trainer/0"), ("StartReplica", "trainer/0"), ("StartReplica", "trainer/1")]


def test_r5_an_address_that_changed_is_no_reason_to_stay():
    server = role("ps", kind="service", restart=restart("replica"), ports=("rpc",))
    trainer = role("trainer", max_replicas=1, restart=restart(), gates=(Gate("ps"),), address_edges=("ps",))
    talk = joined(server, trainer)
    talk.elastic("trainer/0")
    talk.auto = False
    talk.fail("ps/0")
    talk.tell(ev.StoreOpened("ps/0", 2, 29500))
    assert talk.stops(talk.tell(ev.ReplicaStarted(r("ps/0"), 2, (("rpc", 5555),)))) == {"trainer/0": False}


def test_r7_in_a_domain_only_who_can_stays():
    domain = Domain("core", ("actor", "learner"))
    policy = restart("domain")
    talk = joined(role("actor", restart=policy), role("learner", restart=policy), domains=(domain,))
    talk.elastic("learner/0")
    assert talk.stops(talk.fail("actor/0")) == {"learner/0": True}


def test_a_seat_that_is_lost_while_its_workers_wait_ends_them():
    talk = gang(nodes=2, size=2, cpu=2, least=2)
    talk.auto = False
    talk.fail("trainer/1")
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1, suspended=True))
    effects = talk.tell(ev.DrainRequested("node0"))
    assert StopReplica("node0", r("trainer/0"), 1, 0) in effects
    assert talk.suspended() == []
    started = talk.tell(ev.StoreOpened("trainer", talk.world("trainer").generation, 29500))
    assert {e.node for e in started if isinstance(e, StartReplica)} == {"node1"}


def test_r19_a_node_that_is_lost_takes_those_who_wait_there_along():
    talk = gang(nodes=2, size=2, cpu=1, least=2)
    talk.auto = False
    talk.fail("trainer/1")
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1, suspended=True))
    assert talk.stops(talk.gone("node0")) == {}
    assert talk.suspended() == []


def test_r10_they_wait_through_a_back_off():
    talk = gang()
    talk.fail("trainer/1")
    talk.elastic("trainer/0", "trainer/1", "trainer/2")
    talk.fail("trainer/1")
    assert talk.suspended() == ["trainer/0", "trainer/2"]
    talk.wait(2)
    assert talk.suspended() == [] and talk.attempts()["trainer/0"] == 3


def test_r18_the_job_is_not_over_while_somebody_waits_in_place():
    talk = gang()
    talk.auto = False
    talk.fail("trainer/1")
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1, suspended=True))
    assert talk.stops(talk.tell(ev.CancelRequested())) == {"trainer/0": False}
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1))
    late = talk.tell(ev.ReplicaStopped(r("trainer/2"), 1, suspended=True))  # it had been told before
    assert talk.stops(late) == {"trainer/2": False}
    assert isinstance(talk.tell(ev.ReplicaStopped(r("trainer/2"), 1))[-1], FinishJob)


def test_r7_a_failure_that_fails_the_job_ends_the_mates_that_wait():
    talk = joined(role("trainer", procs=4))
    talk.elastic("trainer/0")
    talk.auto = False
    effects = talk.tell(ev.ReplicaExited(r("trainer/0"), 1, "exit", 1, suspended=True))
    assert [e for e in effects if isinstance(e, StopReplica)] == [StopReplica("node0", r("trainer/0"), 1, 0)]
    assert isinstance(talk.tell(ev.ReplicaStopped(r("trainer/0"), 1))[-1], FinishJob)


def test_r9_an_ignored_replica_does_not_leave_workers_behind():
    policy = RestartPolicy(scope="replica", max_restarts=0, then="ignore")
    talk = joined(role("evaluator", procs=2, restart=policy, primary=False), role("main"))
    talk.elastic("evaluator/0")
    talk.auto = False
    effects = talk.tell(ev.ReplicaExited(r("evaluator/0"), 1, "exit", 1, suspended=True))
    assert talk.stops(effects) == {"evaluator/0": False}


def test_the_failed_replica_of_several_workers_goes_on_with_those_that_are_left():
    talk = joined(role("trainer", procs=4, restart=restart()))
    talk.elastic("trainer/0")
    talk.tell(ev.ReplicaExited(r("trainer/0"), 1, "signal", 0, "KILL", suspended=True))
    assert talk.attempts() == {"trainer/0": 2} and talk.suspended() == []
    assert not talk.stops()


def test_r6_an_unkillable_worker_costs_its_node_and_ends_what_is_suspended_there():
    talk = gang()
    talk.auto = False
    talk.fail("trainer/1")
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1, suspended=True))
    effects = talk.tell(ev.ReplicaUnkillable(r("trainer/2"), 1))
    assert StopReplica("node0", r("trainer/0"), 1, 0) in effects
    assert talk.suspended() == []


def test_r20_that_an_earlier_attempt_was_elastic_says_nothing():
    talk = gang()
    talk.fail("trainer/1")
    talk.tell(ev.ReplicaElastic(r("trainer/0"), 1))
    assert not talk.replica("trainer/0").is_elastic


def again(talk: Talk, *items: ev.InventoryItem) -> list[object]:
    """The agent of node0 connects once more, with this inventory."""
    return list(talk.tell(ev.NodeJoined("node0", node("node0"), incarnation=1, inventory=items)))


def test_r21_an_agent_that_connects_again_says_who_waits():
    talk = gang()
    talk.auto = False
    talk.fail("trainer/1")
    waiting, running = (
        ev.InventoryItem(r(f"trainer/{i}"), 1, phase) for i, phase in ((0, "suspended"), (2, "running"))
    )
    effects = again(talk, waiting, running)
    assert talk.suspended() == ["trainer/0"]
    assert StopReplica("node0", r("trainer/2"), 1, 2 * SECOND, in_place=True) in effects  # said again, as it was
    exited = ev.ReplicaExited(r("trainer/2"), 1, "exit", 1, suspended=True)
    again(talk, waiting, ev.InventoryItem(r("trainer/2"), 1, "suspended", exited=exited))
    assert talk.suspended() == ["trainer/0", "trainer/2"]


def test_r21_whoever_waits_for_a_start_that_was_lost_hears_it_again():
    talk = gang()
    talk.auto = False
    talk.fail("trainer/1")
    for name in ("trainer/0", "trainer/2"):
        talk.tell(ev.ReplicaStopped(r(name), 1, suspended=True))
    talk.tell(ev.StoreOpened("trainer", 2, 29500))
    effects = again(talk, ev.InventoryItem(r("trainer/0"), 1, "suspended"))
    assert [e.attempt for e in effects if isinstance(e, StartReplica)] == [2, 2, 2]
    assert not talk.stops(effects)  # type: ignore[arg-type]


def test_r21_workers_whose_replica_starts_on_another_node_end_though_their_dismissal_was_lost():
    talk = gang(nodes=2, size=2, cpu=2, least=2)
    talk.auto = False
    talk.fail("trainer/1")
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1, suspended=True))
    talk.tell(ev.DrainRequested("node0"))  # the seat goes, and with it an order that never reaches the agent
    talk.tell(ev.StoreOpened("trainer", talk.world("trainer").generation, 29500))
    assert (talk.replica("trainer/0").node, talk.replica("trainer/0").phase) == ("node1", "starting")
    effects = again(talk, ev.InventoryItem(r("trainer/0"), 1, "suspended"))
    assert effects == [StopReplica("node0", r("trainer/0"), 1, 0)]


def test_r21_whoever_waits_for_nothing_any_more_ends():
    talk = gang()
    item = ev.InventoryItem(r("trainer/0"), 1, "suspended")
    talk.fail("trainer/1")
    talk.auto = False
    running = [ev.InventoryItem(r(f"trainer/{i}"), 2, "running") for i in range(3)]
    assert again(talk, item, *running) == [StopReplica("node0", r("trainer/0"), 1, 0)]
    stranger = ev.InventoryItem(r("stranger/0"), 1, "suspended")
    assert StopReplica("node0", r("stranger/0"), 1, 0) in again(talk, stranger, *running)
    anew = ev.NodeJoined("node0", node("node0"), incarnation=2, inventory=(item,))
    assert StopReplica("node0", r("trainer/0"), 1, 0) in talk.tell(anew)
