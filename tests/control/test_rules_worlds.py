"""R3, R4: several roles in one RANK space form, restart, grow and end as one."""

from __future__ import annotations

import msgspec

from flowdist.control.membership.waiting import waiting_for
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import OpenStore, StartReplica, StopReplica
from flowdist.graph import SECOND, Gate, JointWorld, RoleSpec
from tests.control.harness import TCP, Talk, graph, r, restart, role, trainers


def joint(*roles: RoleSpec, auto: bool = True, world: tuple[str, ...] = ("ps", "trainer"), **fields: object) -> Talk:
    """Some of the roles, `ps` and `trainer`, are one world called `core`."""
    drawn = graph(*roles, **fields)  # type: ignore[arg-type]
    drawn = msgspec.structs.replace(drawn, worlds=(JointWorld("core", world),))
    talk = Talk(drawn, auto=auto)
    talk.join(*(spec.name for spec in drawn.cluster.nodes))
    return talk


def ps(count: int = 1, **fields: object) -> RoleSpec:
    return role("ps", min_replicas=count, max_replicas=count, **fields)


def ranks(starts: list[StartReplica]) -> dict[str, tuple[int, int]]:
    return {str(start.replica): (start.rank, start.world_size) for start in starts}


def test_r3_rank_counts_through_the_world_and_role_rank_through_the_role():
    talk = joint(ps(2, procs=2), trainers(procs=3))
    assert ranks(talk.starts) == {"ps/0": (0, 10), "ps/1": (2, 10), "trainer/0": (4, 10), "trainer/1": (7, 10)}
    assert {str(s.replica): (s.role_rank, s.role_world_size) for s in talk.starts} == {
        "ps/0": (0, 4),
        "ps/1": (2, 4),
        "trainer/0": (0, 6),
        "trainer/1": (3, 6),
    }
    assert [(s.group_rank, s.group_world_size) for s in talk.starts] == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_r3_there_is_one_store_and_one_generation_for_all_of_them():
    talk = joint(ps(), trainers())
    stores = [effect for effect in talk.effects if isinstance(effect, OpenStore)]
    assert [(store.world, store.generation) for store in stores] == [("core", 1)]
    assert {(start.world, start.generation, start.master_port) for start in talk.starts} == {("core", 1, 29500)}


def test_r3_ranks_are_in_the_order_of_the_roles_wherever_the_others_stand():
    reader = role("reader", min_replicas=2, max_replicas=2)
    talk = joint(ps(), reader, trainers(1, 1))
    assert ranks(talk.starts) == {"ps/0": (0, 2), "trainer/0": (1, 2), "reader/0": (0, 2), "reader/1": (1, 2)}


def test_r3_the_source_of_state_may_be_of_the_other_role():
    talk = joint(ps(), trainers(1, 1), nodes=3, cpu=1)
    assert talk.replica("ps/0").node == "node0"
    talk.gone("node0")
    assert [start.source_rank for start in talk.starts[-2:]] == [1, 1], "ps/0 is new, rank 1 has lived on"
    assert ranks(talk.starts[-2:]) == {"ps/0": (0, 2), "trainer/0": (1, 2)}


def test_r5_a_failure_of_one_role_restarts_the_world_and_is_charged_to_that_role():
    talk = joint(ps(restart=restart("role", 1)), trainers(restart=restart("role", 2)))
    talk.fail("trainer/1")
    assert talk.attempts() == {"ps/0": 2, "trainer/0": 2, "trainer/1": 2}
    assert {name: len(talk.job.roles[name].charges) for name in ("ps", "trainer")} == {"ps": 0, "trainer": 1}
    talk.fail("ps/0")
    assert {name: len(talk.job.roles[name].charges) for name in ("ps", "trainer")} == {"ps": 1, "trainer": 1}
    talk.fail("ps/0")
    assert talk.outcome()[0] == "failed"


def test_r5_what_follows_one_of_the_roles_restarts_with_the_world():
    reader = role("reader", gates=(Gate("ps", "started", "restart"),))
    talk = joint(ps(), trainers(restart=restart()), reader)
    talk.fail("trainer/0")
    assert talk.attempts()["reader/0"] == 2


def test_r2_the_world_forms_when_every_role_has_its_minimum():
    talk = joint(ps(), trainers(2, 3), nodes=2, cpu=2)
    assert talk.up() == ["ps/0", "trainer/0", "trainer/1", "trainer/2"]
    talk.gone("node1")
    assert talk.up() == [] and talk.world("core").phase == "waiting"
    talk.join("node1")
    assert len(talk.up()) == 4 and {start.world_size for start in talk.starts[-4:]} == {4}


def test_r6_the_world_is_ready_again_when_those_are_that_have_a_check():
    talk = joint(ps(ready=TCP), trainers(restart=restart()))
    talk.auto = False
    talk.fail("trainer/0")
    for name in ("ps/0", "trainer/1"):
        talk.tell(ev.ReplicaStopped(r(name), 1))
    talk.tell(ev.StoreOpened("core", 2, 29400))
    for name in ("ps/0", "trainer/0", "trainer/1"):
        talk.tell(ev.ReplicaStarted(r(name), 2))
    (incident,) = talk.job.incidents
    assert incident.is_open and talk.job.roles["trainer"].charges == []
    talk.tell(ev.ReplicaReady(r("ps/0"), 2))
    assert incident.result == "re-formed" and incident.charged_to == "trainer"


def test_r13_arrivals_of_several_roles_are_one_re_formation():
    talk = joint(role("ps", max_replicas=2), trainers(1, 2), cpu=2)
    assert talk.up() == ["ps/0", "trainer/0"]
    talk.join("node1", cpu=2)
    talk.wait(30)
    assert talk.up() == ["ps/0", "ps/1", "trainer/0", "trainer/1"] and talk.world("core").generation == 2
    assert [incident.reason for incident in talk.job.incidents] == ["room for ps/1, trainer/1"]


def test_r14_the_question_for_the_step_goes_to_all_roles_of_the_world():
    talk = joint(ps(), trainers(1, 1), nodes=3, cpu=1)
    talk.tell(ev.DrainRequested("node0"))
    talk.tell(ev.StepTold(r("ps/0"), 1, 3))
    assert talk.world("core").notice.stop_at is None
    talk.tell(ev.StepTold(r("trainer/0"), 1, 5))
    assert talk.world("core").notice.stop_at == 6
    for name in ("ps/0", "trainer/0"):
        talk.tell(ev.ReplicaLeftStep(r(name), 1))
    assert talk.replica("ps/0").node == "node2" and talk.attempts() == {"ps/0": 2, "trainer/0": 2}


def test_r17_a_world_closes_with_its_first_role_and_succeeds_with_its_last():
    talk = joint(ps(), trainers())
    talk.finish("ps/0", "trainer/1")
    assert talk.outcome()[0] is None and talk.job.roles["ps"].outcome is None
    talk.finish("trainer/0")
    assert talk.outcome()[0] == "succeeded"
    assert {talk.job.roles[name].outcome for name in ("ps", "trainer")} == {"succeeded"}


def test_r9_a_gang_that_needs_an_ignored_member_ends_with_all_roles_of_its_world():
    policy = restart("role", 0, then="ignore")
    talk = joint(role("main"), ps(primary=False, restart=policy), trainers(primary=False, restart=policy))
    talk.fail("trainer/0")
    assert {name: talk.job.roles[name].outcome for name in ("ps", "trainer")} == {"ps": "ignored", "trainer": "ignored"}
    assert talk.up() == ["main/0"]


def test_r1_a_world_waits_for_the_gates_of_all_its_roles():
    data = role("data", kind="service", ready=TCP)
    talk = joint(data, ps(), trainers(1, 1, gates=(Gate("data", "ready"),)), auto=False)
    assert talk.world("core").phase == "waiting"
    talk.tell(ev.StoreOpened("data/0", 1, 29400))
    talk.tell(ev.ReplicaStarted(r("data/0"), 1))
    assert talk.world("core").phase == "waiting"
    talk.tell(ev.ReplicaReady(r("data/0"), 1))
    assert talk.world("core").phase == "opening"


def test_r2_no_seat_is_kept_for_a_world_while_one_of_its_roles_waits_for_success():
    """Nor for who waits for that world, to start or to succeed: none of them is alive at the same time as `prepare`."""
    waits = trainers(1, 1, gates=(Gate("prepare", "succeeded"),))
    late = role("late", gates=(Gate("ps", "started"),))
    last = role("last", min_replicas=3, max_replicas=3, gates=(Gate("ps", "succeeded"),))
    talk = joint(role("prepare", min_replicas=3, max_replicas=3), ps(), waits, late, last, cpu=3)
    assert talk.up() == ["prepare/0", "prepare/1", "prepare/2"] and talk.replica("ps/0").node is None
    talk.finish("prepare/0", "prepare/1", "prepare/2")
    assert talk.up() == ["ps/0", "trainer/0", "late/0"]
    talk.finish("ps/0", "trainer/0", "late/0")
    assert talk.up() == ["last/0", "last/1", "last/2"]


def test_r2_growth_leaves_room_for_a_whole_world_that_waits_for_success():
    gates = (Gate("prepare", "succeeded"),)
    grower = role("grower", min_replicas=1, max_replicas=4)
    talk = joint(role("prepare"), ps(), trainers(2, 2, gates=gates), grower, cpu=4)
    assert talk.up() == ["prepare/0", "grower/0"], "one seat is that of prepare, two more are for the world"
    talk.finish("prepare/0")
    assert talk.up() == ["ps/0", "trainer/0", "trainer/1", "grower/0"]


def test_r18_the_roles_of_a_world_stop_together_as_deep_as_the_deepest_of_them():
    data = role("data", kind="service")
    late = role("late", gates=(Gate("ps", "started"),))
    talk = joint(data, ps(), trainers(1, 1, gates=(Gate("data", "started"),)), late)
    talk.auto = False
    stops: list[list[str]] = []
    effects = talk.tell(ev.CancelRequested())
    while names := [str(effect.replica) for effect in effects if isinstance(effect, StopReplica)]:
        stops.append(names)
        effects = []
        for name in names:
            effects += talk.tell(ev.ReplicaStopped(r(name), 1))
    assert stops == [["late/0"], ["ps/0", "trainer/0"], ["data/0"]]
    assert talk.outcome()[0] == "cancelled"


def test_r1_a_world_lifts_what_was_deep_enough_without_it():
    a, b = role("a"), role("b", gates=(Gate("a", "started"),))
    c, d = role("c"), role("d", gates=(Gate("c", "started"),))
    talk = joint(a, b, c, d, world=("b", "c"))
    depths = {name: talk.job.roles[name].depth for name in "abcd"}
    assert depths == {"a": 0, "b": 1, "c": 1, "d": 2}


def test_scaling_one_role_of_a_world_re_forms_all_of_it():
    talk = joint(ps(), trainers(1, 3))
    talk.tell(ev.ScaleRequested("trainer", 1))
    assert talk.up() == ["ps/0", "trainer/0"] and ranks(talk.starts[-2:]) == {"ps/0": (0, 2), "trainer/0": (1, 2)}
    talk.tell(ev.ScaleRequested("trainer", 2))
    assert talk.up() == ["ps/0", "trainer/0", "trainer/1"] and talk.now == 0


def test_r17_a_world_of_several_roles_has_the_longest_of_their_times_to_finish():
    slow, quick = 600 * SECOND, 60 * SECOND
    talk = joint(ps(finish_timeout_ns=slow), trainers(finish_timeout_ns=quick, restart=restart()))
    talk.finish("trainer/0", "trainer/1")
    talk.wait(599)
    assert talk.attempts()["ps/0"] == 1
    talk.wait(1)
    assert talk.outcome()[0] == "failed", "ps has no restart policy"


def test_r1_a_gate_inside_a_world_which_the_dsl_refuses_hangs_nobody():
    talk = joint(ps(), trainers(1, 1, gates=(Gate("ps", "started"),)))
    assert talk.up() == [] and "core waits for ps to be started" in waiting_for(talk.job)


def test_r4_a_gang_is_one_world_and_without_a_gang_every_replica_is():
    talk = joint(ps(), trainers(), role("actor", gang=False, max_replicas=3))
    job = talk.job
    worlds = {name: [world.name for world in job.worlds_of(spec)] for name, spec in job.roles.items()}
    assert worlds == {"ps": ["core"], "trainer": ["core"], "actor": ["actor/0", "actor/1", "actor/2"]}
