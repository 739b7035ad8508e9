"""A GPU that is no good leaves the pool: whoever has it is lost through no fault of its own, and runs elsewhere."""

from __future__ import annotations

import msgspec
import pytest

from flowdist.control.agent.agent import Agent
from flowdist.control.connection.sessions import Sessions
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import StartReplica, StopReplica
from flowdist.control.protocol.messages import Join, Ordered, Report
from flowdist.control.protocol.xid import parts_hit, xid_text
from flowdist.graph import SECOND, Cluster, Gate, JobOptions, NodeSpec, Resources, RestartPolicy, RoleSpec, Rule
from flowdist.record.status import RecentDecisions, status_of
from tests.control.harness import Talk, graph, r, restart, role

LOOSE = restart("replica", 9)


def on_gpus(
    name: str, count: int, share: int = 1000, low: int | None = None, gpu: int = 1, **fields: object
) -> RoleSpec:
    size = {"min_replicas": count if low is None else low, "max_replicas": count}
    need = Resources(cpu=0, gpu=gpu, gpu_share=share)
    return msgspec.structs.replace(role(name, **size, **fields), resources=need)


def talk_of(*roles: RoleSpec, gpus: tuple[int, ...] = (2,), auto: bool = True) -> Talk:
    nodes = tuple(NodeSpec(f"node{i}", gpu=count) for i, count in enumerate(gpus))
    talk = Talk(msgspec.structs.replace(graph(*roles), cluster=Cluster(nodes)), auto=auto)
    talk.join(*(node.name for node in nodes))
    return talk


def bad(gpu: int = 0, node: str = "node0", xid: int = 79) -> ev.GpuFailed:
    return ev.GpuFailed(node, gpu, xid_text(xid) if xid else "7 MiB stay taken", xid)


def seat(talk: Talk, name: str) -> tuple[str | None, tuple[int, ...]]:
    replica = talk.replica(name)
    return replica.node, replica.gpus


def test_whoever_has_the_gpu_runs_on_another_and_nobody_is_charged():
    talk = talk_of(on_gpus("actor", 2, restart=LOOSE), gpus=(3,))
    effects = talk.tell(bad(0))
    assert [e.replica for e in effects if isinstance(e, StopReplica)] == [r("actor/0")]
    assert (seat(talk, "actor/0"), talk.replica("actor/0").attempt) == (("node0", (2,)), 2)
    assert (seat(talk, "actor/1"), talk.replica("actor/1").attempt) == (("node0", (1,)), 1)
    (incident,) = talk.job.incidents
    assert (incident.kind, incident.root, incident.counted) == ("gpu_lost", "node0", False)
    assert "GPU 0 of node0 is bad: Xid 79 (fallen off the bus); lost replicas: actor/0" in talk.texts()


def test_a_gang_forms_anew_without_the_gpu_and_without_a_restart_policy():
    talk = talk_of(on_gpus("trainer", 2, low=1, join_window_ns=0), gpus=(1, 1))
    talk.tell(bad(0, "node1"))
    assert talk.world("trainer").generation == 2 and talk.world("trainer").members == (r("trainer/0"),)
    assert talk.replica("trainer/1").node is None


def test_nobody_is_given_a_bad_gpu_again_until_the_node_joins_without_it():
    talk = talk_of(on_gpus("actor", 1, restart=LOOSE), gpus=(1,))
    talk.tell(bad(0))
    assert talk.replica("actor/0").node is None
    (reason,) = [text for text in status_of(talk.job, RecentDecisions()).held_up_by if "actor" in text]
    assert "node0 has 0 of 1 gpu free (gpu 0 bad)" in reason
    talk.wait(60)
    assert talk.replica("actor/0").attempt == 1
    talk.tell(ev.NodeJoined("node0", NodeSpec("node0", gpu=1), incarnation=2, bad_gpus=((0, "Xid 79"),)))
    assert talk.replica("actor/0").attempt == 1 and "node0 joined, without GPU 0: Xid 79" in talk.texts()
    talk.tell(ev.NodeJoined("node0", NodeSpec("node0", gpu=1), incarnation=3))
    assert talk.replica("actor/0").attempt == 2


def test_all_replicas_of_a_lost_gpu_are_one_incident_and_its_rest_is_not_given_away():
    talk = talk_of(on_gpus("actor", 3, share=400, restart=LOOSE), gpus=(3,))
    talk.tell(bad(0))
    assert [seat(talk, f"actor/{i}")[1] for i in range(3)] == [(1,), (2,), (1,)]
    assert talk.job.nodes["node0"].free.devices[0] == 0
    assert len(talk.job.incidents) == 1 and talk.attempts() == {"actor/0": 2, "actor/1": 2, "actor/2": 1}


@pytest.mark.parametrize("xid", [13, 31, 43, 45])
def test_an_error_of_a_program_is_said_and_the_gpu_stays_in_use(xid: int):
    talk = talk_of(on_gpus("actor", 1, restart=LOOSE))
    talk.tell(bad(0, xid=xid))
    assert talk.attempts() == {"actor/0": 1} and not talk.job.nodes["node0"].bad_gpus
    assert talk.texts()[-1].endswith("that is an error of a program, the GPU stays in use")


@pytest.mark.parametrize(
    ("xid", "why"),
    [(63, "the driver has replaced"), (92, "were corrected"), (94, "the error is contained"), (154, "another error")],
)
def test_an_error_that_the_device_outlives_is_said_and_the_gpu_stays_in_use(xid: int, why: str):
    talk = talk_of(on_gpus("actor", 1, restart=LOOSE))
    talk.tell(bad(0, xid=xid))
    assert talk.attempts() == {"actor/0": 1} and not talk.job.nodes["node0"].bad_gpus
    assert why in talk.texts()[-1] and talk.texts()[-1].endswith(", the GPU stays in use")


@pytest.mark.parametrize("xid", [48, 62, 64, 74, 79, 95, 119, 120, 140])
def test_what_asks_for_a_reset_is_the_end_of_the_gpu(xid: int):
    talk = talk_of(on_gpus("actor", 1, restart=LOOSE))
    talk.tell(bad(0, xid=xid))
    assert talk.attempts() == {"actor/0": 2} and list(talk.job.nodes["node0"].bad_gpus) == [0]


def test_a_program_hurts_its_own_part_of_a_device_and_a_reset_takes_all():
    parts = {0: 1, 1: 2, 3: None}
    assert parts_hit(94, 2, parts) == [1, 3] and parts_hit(31, 1, parts) == [0, 3]
    assert parts_hit(94, None, parts) == parts_hit(95, 2, parts) == [0, 1, 3]


def test_what_is_no_news_or_about_no_gpu_of_the_job_changes_nothing():
    talk = talk_of(on_gpus("actor", 1, restart=LOOSE))
    for event in (bad(2), bad(-1), bad(0, "node7")):
        assert talk.tell(event) == []
    talk.tell(bad(0))
    assert talk.tell(bad(0)) == []
    talk.gone("node0")
    assert talk.tell(bad(1)) == []


def test_a_gpu_that_nobody_has_leaves_the_pool_in_silence_for_the_replicas():
    talk = talk_of(on_gpus("actor", 1, restart=LOOSE))
    talk.tell(bad(1))
    assert talk.attempts() == {"actor/0": 1} and not talk.job.incidents
    assert talk.job.nodes["node0"].free.devices == (0, 0)
    node = status_of(talk.job, RecentDecisions()).nodes[0]
    assert (node.gpu, node.gpu_free, node.bad_gpus) == (2, 0, ("GPU 1: Xid 79 (fallen off the bus)",))


def test_memory_that_stays_taken_makes_a_gpu_bad_too():
    talk = talk_of(on_gpus("actor", 1, restart=LOOSE))
    talk.tell(bad(0, xid=0))
    assert seat(talk, "actor/0") == ("node0", (1,))


def test_a_world_that_is_about_to_start_with_the_gpu_chooses_anew():
    talk = talk_of(on_gpus("trainer", 1, restart=restart()), auto=False)
    assert talk.world("trainer").phase == "opening" and seat(talk, "trainer/0") == ("node0", (0,))
    talk.tell(bad(0))
    assert seat(talk, "trainer/0") == ("node0", (1,)) and not talk.job.incidents


def test_a_replica_that_waits_in_its_seat_moves_to_another_gpu():
    talk = talk_of(on_gpus("actor", 1, restart=LOOSE), auto=False)
    talk.auto = True
    talk.tell(ev.StoreOpened("actor/0", 1, 29500))
    talk.auto = False
    talk.fail("actor/0")
    talk.tell(bad(0))
    assert seat(talk, "actor/0") == ("node0", (1,))


def test_a_replica_that_waits_out_its_back_off_moves_to_another_gpu():
    again = RestartPolicy("replica", 9, backoff_ns=SECOND)
    talk = talk_of(on_gpus("actor", 1, restart=again))
    talk.fail("actor/0")
    talk.fail("actor/0")
    assert talk.world("actor/0").phase == "waiting" and seat(talk, "actor/0") == ("node0", (0,))
    talk.tell(bad(0))
    talk.wait(2)
    assert talk.up() == ["actor/0"] and seat(talk, "actor/0") == ("node0", (1,))


def test_one_that_is_being_stopped_loses_its_seat_when_it_is_gone():
    talk = talk_of(on_gpus("trainer", 2, restart=restart()), gpus=(3,))
    talk.auto = False
    talk.fail("trainer/1")
    assert talk.replica("trainer/0").phase == "stopping"
    talk.tell(bad(0))
    assert seat(talk, "trainer/0") == ("node0", (0,)), "what runs still has it"
    talk.auto = True
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1))
    assert [seat(talk, f"trainer/{i}")[1] for i in (0, 1)] in ([(2,), (1,)], [(1,), (2,)])


def test_what_outlives_sigkill_on_a_bad_gpu_takes_no_more_of_it_than_there_is():
    talk = talk_of(on_gpus("actor", 2, restart=LOOSE), gpus=(2, 2))
    node, (gpu,) = seat(talk, "actor/0")
    talk.auto = False
    talk.tell(bad(gpu, node or ""))
    talk.tell(ev.ReplicaUnkillable(r("actor/0"), 1))
    assert talk.job.nodes[node].free.devices[gpu] == 0


def test_workers_that_wait_in_place_with_the_gpu_are_dismissed():
    talk = talk_of(on_gpus("trainer", 2, restart=restart()), gpus=(3,))
    talk.elastic("trainer/0", "trainer/1")
    talk.auto = False
    talk.fail("trainer/1")
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1, suspended=True))
    assert talk.suspended() == ["trainer/0"]
    effects = talk.tell(bad(0))
    assert StopReplica("node0", r("trainer/0"), 1, 0) in effects and not talk.suspended()


def test_r6_whoever_depends_on_the_one_with_the_gpu_is_told_first():
    server = on_gpus("ps", 1, kind="service", restart=LOOSE)
    talk = talk_of(server, role("trainer", gates=(Gate("ps", "started", "restart"),)))
    talk.auto = False
    told = [str(effect.replica) for effect in talk.tell(bad(0)) if isinstance(effect, StopReplica)]
    assert told == ["trainer/0", "ps/0"]


def test_r6_nobody_stays_in_place_with_a_bad_gpu():
    talk = talk_of(on_gpus("trainer", 2, restart=restart()), gpus=(3,))
    talk.elastic("trainer/0", "trainer/1")
    talk.auto = False
    assert talk.stops(talk.tell(bad(0))) == {"trainer/0": False, "trainer/1": True}


def test_a_rule_may_say_otherwise():
    policy = RestartPolicy(scope="replica", max_restarts=3, rules=(Rule("fail", "gpu_lost"),))
    talk = talk_of(on_gpus("actor", 1, restart=policy))
    talk.tell(bad(0))
    assert talk.outcome()[0] == "failed" and 'rule On("gpu_lost") says fail' in talk.outcome()[1]


def test_a_job_that_ends_is_not_held_up_by_a_bad_gpu():
    talk = talk_of(on_gpus("actor", 1, restart=LOOSE))
    talk.auto = False
    talk.tell(ev.CancelRequested())
    talk.tell(bad(0))
    talk.tell(ev.ReplicaStopped(r("actor/0"), 1))
    assert talk.outcome()[0] == "cancelled"


def test_a_node_that_reconnects_says_again_what_is_bad():
    """The report may have been lost with the connection: what was started with the GPU since then is stopped."""
    talk = talk_of(on_gpus("actor", 1, restart=LOOSE))
    item = ev.InventoryItem(r("actor/0"), 1, "running")
    again = ev.NodeJoined("node0", NodeSpec("node0", gpu=2), inventory=(item,), bad_gpus=((0, "Xid 79"),))
    talk.tell(again)
    assert seat(talk, "actor/0") == ("node0", (1,)) and talk.replica("actor/0").attempt == 2


def agent() -> Agent:
    found = Agent(NodeSpec("node0", gpu=2), graph(on_gpus("actor", 1, restart=LOOSE)))
    found.handle(io.Connected(), 0)
    return found


def sent(outputs: list[io.AgentOutput]) -> list[object]:
    return [output.message for output in outputs if isinstance(output, io.Send)]


def test_the_agent_tells_a_fault_once_and_again_whenever_it_joins():
    node = agent()
    (report,) = sent(node.handle(io.GpuFaulted(1, "Xid 79", 79), 1))
    assert report == Report("node0", 1, ev.GpuFailed("node0", 1, "Xid 79", 79))
    assert sent(node.handle(io.GpuFaulted(1, "Xid 62", 62), 2)) == []
    node.handle(io.Disconnected(), 3)
    node.handle(io.GpuFaulted(0, "Xid 48", 48), 4)
    (join,) = sent(node.handle(io.Connected(), 5))
    assert isinstance(join, Join) and join.bad_gpus == ((1, "Xid 79"), (0, "Xid 48"))
    (joined,) = Sessions(JobOptions()).hear(join, 6).events
    assert isinstance(joined, ev.NodeJoined) and joined.bad_gpus == join.bad_gpus


def test_an_error_of_a_program_is_not_held_against_the_gpu():
    node = agent()
    assert len(sent(node.handle(io.GpuFaulted(1, "Xid 13", 13), 1))) == 1
    assert len(sent(node.handle(io.GpuFaulted(1, "Xid 13", 13), 2))) == 1, "each is told"
    assert not node.bad_gpus


def test_a_replica_that_was_stopped_before_its_start_has_stopped_and_not_failed():
    node = agent()
    start = StartReplica("node0", r("actor/0"), 1, "actor/0", 1, 0, 1, 0, 1, 0, 1, 0, "", 0, (0,))
    node.handle(Ordered(1, 1, start), 1)
    node.handle(Ordered(1, 1, StopReplica("node0", r("actor/0"), 1, 2 * SECOND)), 2)
    outputs = node.handle(io.SpawnFailed(r("actor/0"), 1, "its GPU is bad"), 3)
    assert sent(outputs) == [Report("node0", 1, ev.ReplicaStopped(r("actor/0"), 1))]


def test_errors_have_words_where_they_are_known():
    assert (xid_text(79), xid_text(999)) == ("Xid 79 (fallen off the bus)", "Xid 999")
