"""R1-R4, R12, R13: who starts when, with whom, under which rank."""

from __future__ import annotations

import msgspec
import pytest

from flowdist.control.controller import Controller
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import CloseStore, Decided, OpenStore, StartReplica, StopReplica
from flowdist.control.protocol.ids import NODE_RANK, unnamed_nodes
from flowdist.graph import HOUR, NODE_PROCS, SECOND, Gate, NodeSpec, Readiness
from tests.control.harness import TCP, Talk, graph, joined, node, r, restart, role, trainers


def test_r1_a_role_starts_after_its_gate():
    ps = role("ps", kind="service", ready=TCP, ports=("rpc",))
    talk = joined(ps, trainers(1, 1, gates=(Gate("ps", "ready"),)), auto=False)
    talk.tell(ev.StoreOpened("ps/0", 1, 1))
    talk.tell(ev.ReplicaStarted(r("ps/0"), 1, (("rpc", 4000),)))
    assert talk.up() == ["ps/0"]
    effects = talk.tell(ev.ReplicaReady(r("ps/0"), 1))
    assert OpenStore("node0", "trainer", 1, False) in effects


def test_r1_ready_is_lost_on_restart_so_a_late_starter_waits_again():
    ps = role("ps", kind="service", ready=TCP, restart=restart("replica"))
    late = role("late", gates=(Gate("reader", "succeeded"), Gate("ps", "ready")))
    talk = joined(ps, role("reader"), late, auto=False)
    for world in ("ps/0", "reader"):
        talk.tell(ev.StoreOpened(world, 1, 1))
    for name in ("ps/0", "reader/0"):
        talk.tell(ev.ReplicaStarted(r(name), 1))
    talk.tell(ev.ReplicaReady(r("ps/0"), 1))
    talk.fail("ps/0")
    talk.finish("reader/0")
    assert talk.world("late").phase == "waiting"
    talk.tell(ev.StoreOpened("ps/0", 2, 1))
    talk.tell(ev.ReplicaStarted(r("ps/0"), 2))
    assert talk.world("late").phase == "waiting"
    talk.tell(ev.ReplicaReady(r("ps/0"), 2))
    assert talk.world("late").phase == "opening"


def ignored_helper(**fields: object):  # type: ignore[no-untyped-def]
    return role("helper", primary=False, ready=TCP, restart=restart("role", 0, then="ignore"), **fields)


def test_r1_an_ignored_dependency_is_never_ready_and_a_job_that_needs_it_fails():
    talk = joined(ignored_helper(), role("trainer", gates=(Gate("helper", "ready"),)), auto=False)
    talk.tell(ev.StoreOpened("helper", 1, 1))
    talk.tell(ev.ReplicaStarted(r("helper/0"), 1))
    talk.fail("helper/0")
    assert talk.outcome() == ("failed", "trainer waits for helper, which was ignored and does not run again")
    assert talk.attempts()["trainer/0"] == 0


def test_r1_an_auxiliary_role_that_waits_for_an_ignored_one_is_ended():
    late = role("late", primary=False, min_replicas=2, max_replicas=2, gates=(Gate("helper", "ready"),))
    loose = role("loose", primary=False, max_replicas=2, gang=False, gates=(Gate("helper", "ready"),))
    talk = joined(ignored_helper(), role("trainer"), late, loose, auto=False)
    for world in ("helper", "trainer"):
        talk.tell(ev.StoreOpened(world, 1, 1))
    for name in ("helper/0", "trainer/0"):
        talk.tell(ev.ReplicaStarted(r(name), 1))
    talk.fail("helper/0")
    assert {name: talk.job.roles[name].outcome for name in ("helper", "late", "loose")} == dict.fromkeys(
        ("helper", "late", "loose"), "ignored"
    )
    assert "late waits for helper, which was ignored and does not run again; it is ended, too" in talk.texts()
    assert all(replica.node is None for replica in talk.job.replicas.values() if replica.id.role != "trainer")
    talk.finish("trainer/0")
    assert talk.outcome()[0] == "succeeded"


def test_r1_a_replica_that_would_wait_for_an_ignored_role_ends_and_the_rest_runs_on():
    policy = restart("replica", 5, backoff_ns=60 * SECOND)
    late = role("late", primary=False, max_replicas=3, gates=(Gate("helper", "started"),), restart=policy)
    talk = joined(ignored_helper(), role("trainer"), late)
    for _ in range(2):
        talk.fail("late/0")  # the second time it waits for its back-off
    talk.fail("helper/0")
    assert talk.replica("late/0").phase == "ended" and talk.up() == ["trainer/0", "late/1", "late/2"]
    talk.wait(60)
    talk.fail("late/1")
    assert talk.replica("late/1").phase == "ended" and not talk.job.open
    talk.finish("late/2")
    assert talk.job.roles["late"].outcome == "succeeded" and talk.up() == ["trainer/0"]


def test_r2_nothing_starts_before_the_minimum_of_every_role_has_a_seat():
    talk = Talk(graph(trainers(4, 4), role("reader", min_replicas=3, max_replicas=3), nodes=2, cpu=4))
    talk.join("node0")
    assert talk.up() == []
    talk.join("node1")
    assert len(talk.up()) == 7


def test_r2_growth_leaves_the_minimum_of_a_later_wave_its_room():
    late = role("late", min_replicas=2, max_replicas=2, gates=(Gate("trainer", "started"),))
    talk = joined(trainers(1, 8), late, cpu=4)
    assert talk.up() == ["trainer/0", "trainer/1", "late/0", "late/1"]


def test_r2_a_role_that_waits_for_success_may_use_the_seats_of_those_before_it():
    after = role("after", min_replicas=4, max_replicas=4, gates=(Gate("trainer", "succeeded"),))
    talk = joined(trainers(2, 4), after, cpu=4)
    assert talk.up() == ["trainer/0", "trainer/1", "trainer/2", "trainer/3"]
    talk.finish("trainer/0", "trainer/1", "trainer/2", "trainer/3")
    assert talk.up() == ["after/0", "after/1", "after/2", "after/3"]


def test_r2_who_grows_leaves_room_for_all_who_wait_for_the_same_role_to_succeed():
    """Each of them alone would have room beside one more of `grower`."""
    gates = (Gate("prepare", "succeeded"),)
    later = [role("after", gates=gates), role("other", min_replicas=2, max_replicas=2, gates=gates)]
    talk = joined(role("prepare"), *later, role("grower", max_replicas=4), cpu=4)
    assert talk.up() == ["prepare/0", "grower/0"]
    talk.finish("prepare/0")
    assert talk.up() == ["after/0", "other/0", "other/1", "grower/0"]


@pytest.mark.parametrize("order", [("x", "y"), ("y", "x")])
def test_r2_growth_leaves_room_for_all_that_can_be_alive_together(
    order: tuple[str, str],
):
    """`late` has room without `early`, and `early` without `late`: when both x and y have succeeded both are alive."""
    early = role("early", min_replicas=2, max_replicas=2, gates=(Gate("x", "succeeded"),))
    late = role("late", min_replicas=2, max_replicas=2, gates=(Gate("y", "succeeded"),))
    talk = joined(role("x"), role("y"), early, late, role("grower", max_replicas=4), cpu=6)
    assert talk.up() == ["x/0", "y/0", "grower/0", "grower/1"]
    for name in order:
        talk.finish(f"{name}/0")
    assert talk.up() == ["early/0", "early/1", "late/0", "late/1", "grower/0", "grower/1"]


def test_r2_no_room_is_kept_for_who_waits_for_another_that_is_yet_to_come():
    """`last` starts when `early` is gone."""
    early = role("early", min_replicas=2, max_replicas=2, gates=(Gate("x", "succeeded"),))
    last = role("last", min_replicas=2, max_replicas=2, gates=(Gate("early", "succeeded"),))
    talk = joined(role("x"), early, last, role("grower", max_replicas=4), cpu=4)
    assert talk.up() == ["x/0", "grower/0", "grower/1"]


def test_r2_who_waits_for_success_has_room_beside_a_role_that_has_lost_its_node():
    after = role("after", min_replicas=2, max_replicas=2, gates=(Gate("prepare", "succeeded"),))
    talk = joined(role("prepare"), after, role("grower", max_replicas=2), role("main"), nodes=3, cpu=1)
    talk.gone("node2")
    assert talk.up() == ["prepare/0", "grower/0"]
    talk.wait(40)  # the cool-down of `grower` is over
    talk.join("node3", cpu=2)
    assert talk.up() == ["prepare/0", "grower/0", "main/0"], "the last seat is for `after`"


def test_r2_a_gang_below_its_maximum_waits_for_known_nodes_for_its_window():
    talk = Talk(graph(trainers(1, 2), nodes=2, cpu=1))
    talk.join("node0")
    talk.wait(9.9)
    assert talk.up() == []
    talk.wait(0.1)
    assert talk.up() == ["trainer/0"]


def test_r2_the_window_is_cut_short_when_every_known_node_has_answered():
    talk = joined(trainers(1, 4), nodes=2, cpu=1)
    assert talk.up() == ["trainer/0", "trainer/1"] and talk.now == 0


def test_r2_hosts_that_are_expected_without_a_name_are_taken_for_those_that_come():
    topology = graph(trainers(1, 3), nodes=1, cpu=1)
    talk = Talk(topology)
    talk.controller = Controller(topology, ("node0", *unnamed_nodes(2, 3)))
    talk.join("node0", "gpu07")
    assert talk.up() == [] and list(talk.job.missing) == ["host 3 of 3"]
    talk.join("gpu07")  # the first comes back: it is the same host
    assert list(talk.job.missing) == ["host 3 of 3"]
    talk.join("gpu08")
    assert len(talk.up()) == 3 and talk.now == 0
    talk.join("gpu09")
    assert not talk.job.missing, "one more is welcome, as a spare"


def test_r3_hosts_that_come_in_any_order_have_the_ranks_that_they_were_given():
    topology = graph(trainers(4, 4), nodes=1, cpu=1)
    talk = Talk(topology)
    talk.controller = Controller(topology, ("node0", *unnamed_nodes(2, 4)))
    for name, rank in (("c", "3"), ("a", "2"), ("node0", "0"), ("b", "9")):
        talk.tell(ev.NodeJoined(name, NodeSpec(name, cpu=1, labels=((NODE_RANK, rank),))))
    assert [start.node for start in talk.starts] == ["node0", "b", "a", "c"], "b has the place that is left"
    assert [start.rank for start in talk.starts] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "rank", ["", "0", "1", "3", "4", "9", "-1", "03", " 3", "\N{ARABIC-INDIC DIGIT THREE}", "9" * 5000]
)
def test_r3_a_host_with_the_rank_of_no_place_that_is_free_gets_the_first_one(rank: str):
    topology = graph(trainers(4, 4), nodes=1, cpu=1)
    talk = Talk(topology)
    places = unnamed_nodes(2, 4)
    talk.controller = Controller(topology, ("node0", *places))
    talk.tell(ev.NodeJoined("a", NodeSpec("a", cpu=1, labels=((NODE_RANK, rank),))))
    own = next((place for place in places if str(int(place.split()[1]) - 1) == rank), places[0])
    assert list(talk.job.missing) == ["node0", *(place for place in places if place != own)]


def test_r2_the_window_ends_for_hosts_without_a_name_too():
    topology = graph(trainers(1, 3), nodes=1, cpu=1)
    talk = Talk(topology)
    talk.controller = Controller(topology, ("node0", *unnamed_nodes(2, 3)))
    talk.join("node0")
    talk.wait(10)
    assert talk.up() == ["trainer/0"]
    assert "not waiting any longer for host 2 of 3, host 3 of 3" in talk.texts()


def test_r2_no_room_for_the_minima_ends_the_job_with_the_reason():
    talk = joined(trainers(4, 4), nodes=1, cpu=2)
    talk.wait(600)
    outcome, reason = talk.outcome()
    assert outcome == "failed" and "lacks 4 replicas" in reason and "node0 has 2 of 2 cpu free" in reason


def test_r2_the_job_starts_with_its_least_number_of_nodes_and_not_below_it():
    topology = graph(trainers(1, 2), nodes=3, cpu=1)
    topology = msgspec.structs.replace(topology, cluster=msgspec.structs.replace(topology.cluster, min_nodes=2))
    talk = Talk(topology)
    talk.join("node0")
    talk.wait(100)
    assert talk.up() == []
    talk.join("node1")
    assert talk.up() == ["trainer/0", "trainer/1"]
    talk = Talk(topology)
    talk.join("node0")
    talk.wait(600)
    assert talk.outcome() == ("failed", "the job could not start in time: 1 of at least 2 nodes are up")


def test_r3_ranks_follow_role_replica_and_local_rank_not_arrival():
    talk = Talk(graph(trainers(3, 3, procs=2), nodes=3, cpu=1))
    talk.join("node2", "node0", "node1")
    ranks = {str(start.replica): (start.rank, start.world_size, start.node) for start in talk.starts}
    assert ranks == {"trainer/0": (0, 6, "node0"), "trainer/1": (2, 6, "node1"), "trainer/2": (4, 6, "node2")}


def test_r3_ranks_have_no_hole_where_each_host_says_how_many_workers_it_has():
    talk = Talk(graph(trainers(1, 3, procs=2), nodes=3, cpu=1))
    for name, procs in (("node0", "1"), ("node1", "4"), ("node2", "")):
        talk.tell(ev.NodeJoined(name, NodeSpec(name, cpu=1, labels=((NODE_PROCS, procs),))))
    assert [(s.rank, s.world_size, s.role_rank, s.role_world_size) for s in talk.starts] == [
        (0, 7, 0, 7),
        (1, 7, 1, 7),
        (5, 7, 5, 7),
    ]
    talk.tell(ev.NodeGone("node1", "it broke"))
    assert [(s.node, s.rank, s.world_size) for s in talk.starts[3:]] == [("node0", 0, 3), ("node2", 1, 3)]


def test_r3_a_replica_that_moves_has_the_workers_of_its_new_host():
    talk = Talk(graph(trainers(2, 2), nodes=3, cpu=1))
    for name, procs in (("node0", "1"), ("node1", "4"), ("node2", "3")):
        talk.tell(ev.NodeJoined(name, NodeSpec(name, cpu=1, labels=((NODE_PROCS, procs),))))
    talk.tell(ev.NodeGone("node1", "it broke"))
    assert [(str(s.replica), s.node, s.world_size) for s in talk.starts[2:]] == [
        ("trainer/0", "node0", 4),
        ("trainer/1", "node2", 4),
    ]


def test_r3_what_outlives_sigkill_is_no_survivor_to_take_state_from():
    gang = role("trainer", min_replicas=3, max_replicas=3, restart=restart())
    talk = joined(gang, nodes=4, cpu=1)
    talk.auto = False
    talk.fail("trainer/1")
    talk.tell(ev.ReplicaUnkillable(r("trainer/0"), 1))
    talk.tell(ev.ReplicaStopped(r("trainer/2"), 1))
    talk.tell(ev.StoreOpened("trainer", 2, 1))
    again = [start for start in talk.starts if start.generation == 2]
    assert [start.node for start in again] == ["node3", "node1", "node2"]
    assert {start.source_rank for start in again} == {2}


def test_r3_a_survivor_keeps_its_index_and_growth_takes_the_lowest_free_one():
    talk = joined(trainers(1, 3), nodes=3, cpu=1)
    talk.gone("node1")
    assert [str(m) for m in talk.world("trainer").members] == ["trainer/0", "trainer/2"]
    talk.wait(60)
    talk.join("node3", cpu=1)
    assert [str(m) for m in talk.world("trainer").members] == ["trainer/0", "trainer/1", "trainer/2"]


def test_r3_the_source_of_state_is_the_longest_lived_member_not_rank_0():
    talk = joined(trainers(1, 2), nodes=2, cpu=1)
    talk.gone("node0")
    talk.wait(60)
    talk.join("node0")
    newest = [start for start in talk.starts if start.generation == 3]
    assert [(str(s.replica), s.rank, s.source_rank) for s in newest] == [("trainer/0", 0, 1), ("trainer/1", 1, 1)]


def test_r4_without_a_gang_only_the_replica_that_failed_restarts():
    talk = joined(role("actor", min_replicas=3, max_replicas=3, restart=restart("replica")))
    talk.fail("actor/1")
    assert talk.attempts() == {"actor/0": 1, "actor/1": 2, "actor/2": 1}
    assert [start.world_size for start in talk.starts] == [1, 1, 1, 1]
    assert talk.starts[-1].role_rank == 1 and talk.starts[-1].role_world_size == 3


def test_r4_a_store_never_sees_two_attempts_of_one_worker():
    talk = joined(trainers(2, 2, restart=restart()))
    talk.fail("trainer/0")
    stores = [e for e in talk.effects if isinstance(e, OpenStore | CloseStore | StartReplica | StopReplica)]
    kinds = [type(effect).__name__ for effect in stores]
    assert kinds == [
        "OpenStore",
        *["StartReplica"] * 2,
        "StopReplica",
        "CloseStore",
        "OpenStore",
        *["StartReplica"] * 2,
    ]
    assert [s.generation for s in talk.starts] == [1, 1, 2, 2]


def test_r4_no_replica_starts_before_its_store_is_open():
    talk = joined(trainers(2, 2), auto=False)
    assert talk.starts == []
    talk.tell(ev.StoreOpened("trainer", 0, 1))  # of no generation that is opening
    assert talk.starts == []
    talk.tell(ev.StoreOpened("trainer", 1, 29400))
    assert [start.master_port for start in talk.starts] == [29400, 29400]


def test_it_is_said_once_that_the_workers_of_a_role_are_not_forked():
    talk = joined(role("trainer", min_replicas=2, max_replicas=2))
    why = "its imports have left 1 thread running"
    assert talk.tell(ev.ReplicaStartsCold(r("trainer/0"), 1, why)) == [
        Decided("role_cold", "trainer", f"trainer starts cold on node0: {why}", "warning")
    ]
    assert talk.tell(ev.ReplicaStartsCold(r("trainer/1"), 1, why)) == []


def test_r12_at_or_above_its_minimum_a_gang_goes_on_with_the_survivors_at_once():
    talk = joined(trainers(2, 3), nodes=3, cpu=1)
    talk.gone("node0")
    assert [start.world_size for start in talk.starts[-2:]] == [2, 2] and talk.now == 0


def test_r12_a_spare_node_takes_over_at_once():
    talk = joined(trainers(2, 2), nodes=3, cpu=1)
    talk.gone("node1")
    assert {str(s.replica): s.node for s in talk.starts[-2:]} == {"trainer/0": "node0", "trainer/1": "node2"}


def test_r12_below_its_minimum_the_job_waits_for_a_node_and_then_fails():
    talk = joined(trainers(2, 2), nodes=2, cpu=1)
    talk.gone("node1")
    assert talk.up() == []
    talk.wait(599)
    assert talk.outcome()[0] is None
    talk.wait(1)
    outcome, reason = talk.outcome()
    assert outcome == "failed" and "trainer was below its minimum for 10m" in reason


def test_r12_a_node_that_comes_in_time_saves_the_job():
    talk = joined(trainers(2, 2), nodes=2, cpu=1)
    talk.gone("node1")
    talk.wait(300)
    talk.join("node1")
    assert talk.up() == ["trainer/0", "trainer/1"]
    talk.wait(3600)
    assert talk.outcome()[0] is None


def test_r12_who_waits_for_a_gate_by_then_does_not_fail_for_want_of_a_node():
    ps = role("ps", kind="service", ready=TCP, restart=restart("replica"), ready_timeout_ns=HOUR)
    talk = joined(ps, trainers(1, 1, gates=(Gate("ps", "ready"),)), nodes=2, cpu=1)
    talk.gone("node1")
    talk.wait(300)
    talk.auto = False
    talk.fail("ps/0")
    talk.join("node1")
    talk.wait(400)
    assert talk.outcome()[0] is None
    talk.auto = True
    talk.tell(ev.StoreOpened("ps/0", 2, 1))
    talk.tell(ev.ReplicaReady(r("ps/0"), 2))
    assert talk.up() == ["ps/0", "trainer/0"]
    talk.wait(3600)
    assert talk.outcome()[0] is None


def test_r12_a_silent_node_leads_to_a_decision():
    talk = joined(trainers(1, 2), nodes=2, cpu=1)
    talk.tell(ev.NodeSilent("node1"))
    assert talk.up() == ["trainer/0"] and talk.starts[-1].world_size == 1


def test_r13_growth_waits_for_the_cooldown_and_takes_all_who_came_by_then():
    talk = joined(trainers(1, 4), cpu=1)
    talk.join("node1", cpu=1)
    talk.wait(5)
    talk.join("node2", cpu=1)
    talk.wait(5)
    talk.join("node3", cpu=1)
    assert talk.world("trainer").generation == 2
    talk.wait(20)
    assert talk.world("trainer").generation == 3 and len(talk.world("trainer").members) == 4


def test_r13_a_world_that_has_not_re_formed_yet_grows_at_once():
    talk = joined(trainers(1, 2), cpu=1)
    talk.wait(5)
    talk.join("node1", cpu=1)
    assert talk.world("trainer").generation == 2 and len(talk.world("trainer").members) == 2


def warming(talk: Talk, name: str) -> None:
    talk.incarnations[name] = talk.incarnations.get(name, 0) + 1
    talk.tell(ev.NodeJoined(name, node(name, 1), incarnation=talk.incarnations[name], is_warming=True))


def test_r13_the_survivors_go_on_until_the_newcomer_is_warm():
    talk = joined(trainers(1, 3), cpu=1)
    warming(talk, "node1")
    warming(talk, "node2")
    assert talk.world("trainer").generation == 1 and talk.up() == ["trainer/0"]
    talk.tell(ev.NodeWarm("node1"))
    assert [(str(s.replica), s.node) for s in talk.starts[-2:]] == [("trainer/0", "node0"), ("trainer/1", "node1")]
    talk.tell(ev.NodeWarm("node1"))  # said twice
    talk.wait(30)
    assert talk.world("trainer").generation == 2
    talk.tell(ev.NodeWarm("node2"))
    assert len(talk.world("trainer").members) == 3


def test_r13_a_newcomer_reports_that_it_is_warm_again_when_it_joins_again():
    talk = joined(trainers(1, 2), cpu=1)
    warming(talk, "node1")
    talk.tell(ev.NodeJoined("node1", node("node1", 1)))
    assert len(talk.world("trainer").members) == 2


def test_r13_a_newcomer_that_is_lost_while_it_warms_up_is_forgotten():
    talk = joined(trainers(1, 2), cpu=1)
    warming(talk, "node1")
    talk.gone("node1")
    talk.tell(ev.NodeWarm("node1"))  # late
    assert talk.world("trainer").generation == 1
    talk.join("node1", cpu=1)
    assert len(talk.world("trainer").members) == 2


def test_r2_the_first_formation_takes_nodes_that_still_warm_up():
    talk = Talk(graph(trainers(2, 2), nodes=2, cpu=1))
    warming(talk, "node0")
    warming(talk, "node1")
    assert talk.up() == ["trainer/0", "trainer/1"]


def test_r13_a_role_below_its_minimum_does_not_wait_for_the_cooldown():
    talk = joined(trainers(2, 2), nodes=2, cpu=1)
    talk.wait(1)
    talk.gone("node1")
    talk.join("node1")
    assert talk.up() == ["trainer/0", "trainer/1"]


def test_scaling_down_takes_the_highest_and_scaling_up_needs_no_cooldown():
    talk = joined(trainers(1, 3))
    talk.tell(ev.ScaleRequested("trainer", 1))
    assert talk.up() == ["trainer/0"]
    talk.tell(ev.ScaleRequested("trainer", 2))
    assert talk.up() == ["trainer/0", "trainer/1"] and talk.now == 0


def test_scaling_beyond_what_the_topology_says_is_refused_in_words():
    talk = joined(trainers(1, 3))
    talk.tell(ev.ScaleRequested("trainer", 4))
    assert len(talk.up()) == 3
    assert talk.texts()[-1] == "scale trainer=4 is refused: trainer has replicas=1:3"


MESH = (("pp", 2), ("dp", 0))


def test_r12_a_gang_with_a_mesh_never_forms_with_a_size_that_is_none():
    talk = joined(trainers(2, 6, parallel=MESH), nodes=5, cpu=1)
    talk.wait(11)
    assert len(talk.up()) == 4, "the fifth would be a pipeline without an end"
    talk.gone("node0")
    assert len(talk.up()) == 4, "its node takes the place of the one that was lost"
    talk.gone("node1")
    assert len(talk.up()) == 2 and talk.world("trainer").generation == 3


def test_r13_a_gang_with_a_mesh_grows_by_as_many_as_it_needs():
    talk = joined(trainers(2, 6, parallel=MESH), nodes=2, cpu=1)
    talk.wait(40)
    talk.join("node2", cpu=1)
    talk.wait(60)
    assert talk.world("trainer").generation == 1, "one more forms no mesh"
    talk.join("node3", cpu=1)
    talk.wait(60)
    assert len(talk.up()) == 4 and talk.world("trainer").generation == 2


def test_scaling_to_a_size_that_forms_no_mesh_is_refused_in_words():
    talk = joined(trainers(2, 6, parallel=MESH))
    talk.tell(ev.ScaleRequested("trainer", 3))
    assert len(talk.up()) == 6
    refusal = "scale trainer=3 is refused: its mesh pp=2 x dp=elastic needs multiples of 2"
    assert Decided("scale_refused", "trainer", refusal, "refused") in talk.effects, "the verb ends with 1"
    talk.tell(ev.ScaleRequested("trainer", 4))
    assert len(talk.up()) == 4


def test_services_scale_one_by_one():
    talk = joined(role("ps", kind="service", min_replicas=1, max_replicas=3), role("trainer"))
    talk.tell(ev.ScaleRequested("ps", 1))
    assert talk.up() == ["ps/0", "trainer/0"]
    talk.tell(ev.ScaleRequested("ps", 3))
    assert talk.attempts() == {"ps/0": 1, "ps/1": 2, "ps/2": 2, "trainer/0": 1}


def test_no_gpu_is_in_two_replicas_and_the_lowest_are_taken_first():
    spec = trainers(2, 2)

    spec = msgspec.structs.replace(spec, resources=msgspec.structs.replace(spec.resources, gpu=2))
    talk = Talk(graph(spec))
    talk.incarnations["node0"] = 1
    talk.tell(ev.NodeJoined("node0", node("node0", gpu=4)))
    assert [start.gpus for start in talk.starts] == [(0, 1), (2, 3)]


def test_a_replica_that_is_not_ready_in_time_has_failed():
    ps = role("ps", kind="service", ready=Readiness("call"), restart=restart("replica", 1), ready_timeout_ns=SECOND)
    talk = joined(ps, role("trainer", gates=(Gate("ps", "ready"),)), auto=False)
    talk.tell(ev.StoreOpened("ps/0", 1, 1))
    talk.tell(ev.ReplicaStarted(r("ps/0"), 1))
    talk.wait(1)
    assert talk.job.incidents[0].kind == "unready" and talk.replica("ps/0").phase == "stopping"


def test_an_hour_of_nothing_wakes_nobody():
    talk = joined(trainers(1, 4))
    assert talk.controller.deadline() is None
    talk.now += HOUR
    assert talk.tell(ev.TimePassed()) == []


def test_r18_what_starts_while_the_job_ends_well_need_not_get_ready_in_time():
    service = role("a", kind="service", ready=TCP)
    talk = joined(service, role("main"), auto=False)
    for world in ("a/0", "main"):
        talk.tell(ev.StoreOpened(world, 1, 1))
    talk.tell(ev.ReplicaStarted(r("main/0"), 1))
    talk.finish("main/0")
    talk.tell(ev.ReplicaStarted(r("a/0"), 1))
    assert talk.job.ending == "succeeded" and not list(talk.job.due)


def test_r13_where_nobody_is_up_any_more_nodes_that_warm_up_are_as_good_as_others():
    talk = joined(trainers(2, 3), nodes=3, cpu=1)
    for name in ("node0", "node1", "node2"):
        talk.gone(name)
    warming(talk, "node0")
    talk.incarnations["node1"] += 1
    talk.tell(ev.NodeJoined("node1", node("node1", 2), incarnation=talk.incarnations["node1"], is_warming=True))
    assert len(talk.world("trainer").members) == 3 and len(talk.up()) == 3
