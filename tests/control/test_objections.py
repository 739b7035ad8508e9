"""Each objection to a message, by the words that the log has for it."""

from __future__ import annotations

import math

import msgspec
import pytest

from flowdist.control.connection.objections import objection, objection_to_proof, objection_to_sender
from flowdist.control.controller import Controller
from flowdist.control.job.state import JobState
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.protocol.messages import Heartbeat, Join, Leave, Preempted, Report, ToController
from tests.control.harness import graph, node, role

A, B = node("a"), node("b")
R, NOSUCH = ReplicaId("trainer", 0), ReplicaId("nosuch", 7)
JOIN = Join("a", 1, A, "10.0.0.1", 0)
RULE = ev.Sampling(dataset_size=100, global_batch=8, micro_batch=2, seed=7)
EXIT = ev.ReplicaExited(R, 1, "exit", 3)
LONG = "x" * 70_000


@pytest.fixture(scope="module")
def job() -> JobState:
    """Return a job whose only replica runs as attempt 1 on node a, which has the store of generation 1."""
    controller = Controller(graph(role("trainer", min_replicas=1, max_replicas=1), nodes=2), ("a", "b"))
    for number, event in enumerate((ev.NodeJoined("a", A), ev.NodeJoined("b", B), ev.StoreOpened("trainer", 1, 29500))):
        controller.handle(event, number)
    return controller.state


def joined(**changes: object) -> Join:
    return msgspec.structs.replace(JOIN, **changes)


def sized(**changes: object) -> Join:
    return joined(spec=msgspec.structs.replace(A, **changes))


def had(**changes: object) -> Join:
    return joined(inventory=(msgspec.structs.replace(ev.InventoryItem(R, 1, "running"), **changes),))


def reported(event: ev.Event, node: str = "a") -> Report:
    return Report(node, 1, event)  # type: ignore[arg-type]


HELD = ev.CopyHeld("trainer", 1, 20, 0, "a", 1, 100, "abc")


def held(**changes: object) -> Report:
    return reported(msgspec.structs.replace(HELD, **changes))


BAD: list[tuple[ToController, str]] = [
    (Leave("b", 1), "a may not speak for 'b'"),
    (Leave("a", -1), "incarnation is -1"),
    (Leave("a", 1 << 60), "incarnation is"),
    (Heartbeat("a", 1, -1), "sent_ns is -1"),
    (Preempted("a", 1, -5), "notice_ns is -5"),
    (joined(sent_ns=-1), "sent_ns is -1"),
    (joined(spec=B), "a brings the capacity of 'b'"),
    (joined(address="10.0.0.1,10.0.0.2"), "is no address"),
    (joined(address="x" * 300), "address has 300 characters, at most 256"),
    (joined(bad_gpus=((-1, "bad"),)), "gpu is -1"),
    (joined(bad_gpus=((0, "bad"),) * 300), "it has 300 bad GPUs, at most 256"),
    (joined(inventory=(ev.InventoryItem(R, 1, "running"),) * 5000), "it has 5000 attempts, at most 4096"),
    (sized(cpu=math.nan), "cpu is nan, not between 0 and 65536"),
    (sized(cpu=math.inf), "cpu is inf"),
    (sized(cpu=1e308), "cpu is 1e+308"),
    (sized(cpu=-1.0), "cpu is -1"),
    (sized(gpu=10**9), "gpu is 1000000000, not between 0 and 256"),
    (sized(gpu=-1), "gpu is -1"),
    (sized(memory=-1), "memory is -1"),
    (sized(labels=(("k", "v"),) * 300), "it has 300 labels, at most 64"),
    (sized(labels=(("k", "x" * 2000),)), "label has 2000 characters"),
    (had(replica=NOSUCH), "the job has no replica 'nosuch/7'"),
    (had(attempt=0), "attempt is 0"),
    (had(phase="odd"), "there is no phase 'odd'"),
    (had(ports=(("rpc", 1 << 17),)), "port rpc is 131072"),
    (had(ports=(("rpc", 1),) * 100), "it has 100 ports, at most 64"),
    (had(ports=((LONG, 1),)), "port has 70000 characters"),
    (had(exited=msgspec.structs.replace(EXIT, attempt=2)), "the end of trainer/0 names another attempt"),
    (had(exited=msgspec.structs.replace(EXIT, exit_code=1 << 40)), "exit_code is"),
    (reported(ev.ReplicaStopped(NOSUCH, 1)), "the job has no replica 'nosuch/7'"),
    (reported(ev.ReplicaStopped(R, 0)), "trainer/0 has had no attempt 0"),
    (reported(ev.ReplicaStopped(R, 2)), "trainer/0 has had no attempt 2"),
    (reported(msgspec.structs.replace(EXIT, signal=LONG)), "signal has 70000 characters"),
    (reported(ev.ReplicaStarted(R, 1, (("rpc", -1),))), "port rpc is -1"),
    (reported(ev.ReplicaProgressed(R, 1, -2)), "step is -2"),
    (reported(ev.ReplicaStepped(R, 1, 0)), "steps is 0"),
    (reported(ev.ReplicaStepped(R, 1, 10**30)), "steps is 10"),
    (reported(ev.ReplicaSpent(R, 1, "saving", 0)), "ns is 0"),
    (reported(ev.ReplicaSpent(R, 1, "restoring", 10**30)), "ns is 10"),
    (reported(ev.ReplicaSampling(R, 1, 0, -1, 0, 2, RULE)), "begin is -1"),
    (reported(ev.ReplicaSampling(R, 1, 0, 0, 2, 2, RULE)), "rank is 2, not between 0 and 1"),
    (reported(ev.ReplicaSampling(R, 1, 0, 0, 0, 10**9, RULE)), "ranks is 1000000000"),
    (reported(ev.ReplicaSampling(R, 1, -1, 0, 0, 2, RULE)), "local_rank is -1"),
    (reported(ev.ReplicaSampling(R, 1, 0, 0, 0, 2, ev.Sampling(0, 8, 2, 7))), "dataset_size is 0"),
    (reported(ev.ReplicaSampling(R, 1, 0, 0, 0, 2, ev.Sampling(9, 8, 2, 10**30))), "seed is 1"),
    (reported(ev.ReplicaPublished(R, 1, 3)), "no role needs versions of 'trainer'"),
    (reported(ev.ReplicaPublished(R, 1, -1)), "version is -1"),
    (reported(ev.ReplicaAcknowledged(R, 1, 3)), "trainer needs no versions of another role"),
    (reported(ev.ReplicaAcknowledged(R, 1, 1 << 63)), "version is 9223372036854775808"),
    (reported(ev.ReplicaAcknowledged(NOSUCH, 1, 3)), "the job has no replica"),
    (reported(ev.StepTold(R, 1, -2)), "step is -2"),
    (reported(ev.ReplicaStalled(R, 1, "output", -1)), "for_ns is -1"),
    (reported(ev.NodeWarm("b")), "a may not speak for 'b'"),
    (reported(ev.NodeStandsStill("b", "its spawner")), "a may not speak for 'b'"),
    (reported(ev.NodeStandsStill("a", "", (R,) * 5000)), "it has 5000 stopped workers, at most 4096"),
    (reported(ev.GpuFailed("b", 0, "bad")), "a may not speak for 'b'"),
    (reported(ev.GpuFailed("a", 1 << 40, "bad")), "gpu is"),
    (reported(ev.GpuFailed("a", 0, "bad", -1)), "xid is -1"),
    (reported(ev.StoreOpened("nosuch", 1, 80)), "the job has no world 'nosuch'"),
    (reported(ev.StoreOpened("trainer", 2, 80)), "trainer has had no generation 2"),
    (reported(ev.StoreOpened("trainer", 1, 0)), "port is 0"),
    (reported(ev.VaultOpened("b", 80)), "a may not speak for 'b'"),
    (reported(ev.VaultOpened("a", 0)), "port is 0"),
    (reported(ev.VaultLost("b")), "a may not speak for 'b'"),
    (reported(ev.CopyBroken("trainer", 1, 20, 0, "b")), "a may not speak for 'b'"),
    (reported(ev.CopyBroken("nosuch", 1, 20, 0, "a")), "the job has no world 'nosuch'"),
    (held(node="b"), "a may not speak for 'b'"),
    (held(world="nosuch"), "the job has no world 'nosuch'"),
    (held(generation=0), "generation is 0"),
    (held(step=-1), "step is -1"),
    (held(rank=-1), "rank is -1"),
    (held(world_size=0), "world_size is 0"),
    (held(bytes=-1), "bytes is -1"),
    (held(digest=LONG), "digest has 70000 characters"),
    (joined(vault_port=1 << 17), "vault_port is 131072"),
    (joined(copies=(HELD,) * 5000), "it has 5000 copies, at most 4096"),
    (joined(copies=(msgspec.structs.replace(HELD, node="b"),)), "a may not speak for 'b'"),
    (reported(ev.CheckpointOffered(R, 1, -1, "p")), "generation is -1"),
    (reported(ev.CheckpointOffered(NOSUCH, 1, 1, "p")), "the job has no replica"),
    (reported(ev.CheckpointOffered(R, 1, 1, LONG)), "path has 70000 characters, at most 4096"),
]


@pytest.mark.parametrize(("message", "text"), BAD, ids=[text for _, text in BAD])
def test_a_message_that_no_honest_agent_sends_is_refused_with_the_reason(
    message: ToController, text: str, job: JobState
) -> None:
    assert text in objection(message, job, "a")


def test_an_attempt_and_a_store_belong_to_one_node(job: JobState) -> None:
    assert job.replicas[R].node == "a"
    said = objection(reported(ev.ReplicaStopped(R, 1), "b"), job, "b")
    assert said == "attempt 1 of trainer/0 runs on a, not on b"
    said = objection(reported(ev.StoreLost("trainer", 1), "b"), job, "b")
    assert said == "the store of trainer is on a, not on b"


def test_what_honest_agents_say_is_not_refused(job: JobState) -> None:
    good = [
        *(joined(address=address) for address in ("10.0.0.1", "fe80::1%eth0", "gpu07.cluster")),
        *(had(phase="exited", exited=EXIT), had(attempt=9), sized(cpu=0.5, gpu=8, labels=(("node-rank", "3"),))),
        *(reported(event) for event in (EXIT, ev.StepTold(R, 1, None), ev.ReplicaReady(R, 1), ev.NodeWarm("a"))),
        *(reported(event) for event in (ev.NodeStandsStill("a", "its spawner"), ev.NodeStandsStill("a", "", (R,)))),
        *(reported(event) for event in (ev.StoreLost("trainer", 1), ev.CheckpointOffered(R, 1, 1, "p", 5))),
        *(held(), held(generation=9), reported(ev.CopyBroken("trainer", 1, 20, 0, "a"))),
        *(reported(ev.VaultOpened("a", 7000)), reported(ev.VaultLost("a")), joined(vault_port=7000, copies=(HELD,))),
        *(Leave("a", 1), Heartbeat("a", 1, 5), Preempted("a", 1, 0)),
        *(reported(msgspec.structs.replace(EXIT, detail=LONG)), reported(ev.ReplicaStartsCold(R, 1, LONG))),
        *(reported(ev.StoreLost("trainer", 1, LONG)), joined(bad_gpus=((0, LONG),))),  # such texts are cut
    ]
    assert [objection(message, job, "a") for message in good] == [""] * len(good)
    assert objection(Leave("b", 1), job) == "", "a process of the controller's host speaks for any node"


def test_a_proof_of_death_is_about_the_node_of_its_sender() -> None:
    assert objection_to_proof("a", 1000, "a") == objection_to_proof("b", 1000) == ""
    assert objection_to_proof("b", 1000, "a") == "a may not speak for 'b'"
    assert "incarnation is -1" in objection_to_proof("a", -1, "a")
    assert objection_to_sender("a", "a") == objection_to_sender("a", None) == ""
    assert objection_to_sender("b", "a") == "a may not speak for 'b'"
