"""A host that has joined and lies: the controller refuses what is not about its node, and its journal replays."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.protocol.messages import Join, Leave, Preempted, Report
from flowdist.graph import NodeSpec, RoleGraph, RoleSpec
from flowdist.record.journal import Header, Record
from flowdist.record.replay import Replay
from flowdist.runtime.wire.endpoint import DeathProof, send_death_proof
from flowdist.runtime.wire.frames import RemoteErrorReport
from flowdist.runtime.wire.framing import receive_frame
from flowdist.runtime.wire.handshake import ConnectionRejected
from tests.runtime.far_host import FarHost, LoneController

GRAPH = RoleGraph("lies", (RoleSpec("trainer", ("true",)),))
R = ReplicaId("trainer", 0)


def lies(liar: FarHost, victim: str) -> list[msgspec.Struct]:
    """Return frames that are well typed, and that no honest host sends."""
    mine, theirs, n = liar.node, victim, liar.incarnation
    spec = NodeSpec(mine, cpu=1)
    return [
        Report(mine, n, ev.ReplicaStopped(ReplicaId("nosuch", 7), 1)),
        Report(mine, n, ev.ReplicaExited(R, 1, "exit", 3)),
        Report(mine, n, ev.ReplicaStarted(ReplicaId("trainer", -1), 1)),
        Report(mine, n, ev.StoreLost("trainer", 1, "it is said")),
        Report(mine, n, ev.StoreOpened("nosuch", 1, 80)),
        Report(mine, n, ev.GpuFailed(theirs, 0, "it is said")),
        Report(theirs, 1, ev.ReplicaExited(R, 1, "exit", 3)),
        Leave(theirs, 1),
        Preempted(theirs, 1, 0),
        DeathProof(theirs, 1 << 40, "it is said"),
        Join(theirs, 1 << 40, NodeSpec(theirs), "127.0.0.1", 0),
        Join(mine, n, NodeSpec(theirs), "127.0.0.1", 0),
        *(Join(mine, n, msgspec.structs.replace(spec, cpu=cpu), "127.0.0.1", 0) for cpu in (math.nan, 1e308, -1.0)),
        *(Join(mine, n, msgspec.structs.replace(spec, gpu=gpu), "127.0.0.1", 0) for gpu in (10**9, -1)),
        *(Join(mine, n, msgspec.structs.replace(spec, memory=memory), "127.0.0.1", 0) for memory in (1 << 62, -1)),
        Join(mine, 1 << 62, spec, "127.0.0.1", 0),
        Join(mine, n, spec, "127.0.0.1,10.0.0.1:5\nX=1", 0),
        Join(mine, n, spec, "127.0.0.1", 0, (ev.InventoryItem(R, 0, "odd"),)),
    ]


@pytest.mark.real
def test_a_host_that_lies_changes_nothing_and_the_journal_replays(tmp_path: Path) -> None:
    with LoneController(tmp_path, GRAPH) as controller:
        victim, liar = controller.host("secret of the first"), controller.host("secret of the second")
        victim.join("victim")
        liar.join("liar")
        liar.wait_until_heard()
        before = controller.journal()
        all_lies = lies(liar, victim.node)
        told = [frame for frame in all_lies if is_valid(frame)]
        liar.send(*told, RemoteErrorReport(victim.node, R, 1, 0, "it is said", ""))
        liar.wait_until_heard()
        for frame in all_lies:
            if not is_valid(frame):  # it ends its connection
                again = controller.host("secret of the second", liar.node)
                again.send(frame)
                assert receive_frame(again.connection) is None
        assert controller.journal() == before
        with pytest.raises(ConnectionRejected, match="'victim' is a node of another host"):
            controller.host("secret of the second", victim.node)
        send_death_proof(controller.endpoint, liar.credentials._replace(secret="guessed"), 1000, "it is said")
        victim.wait_until_heard()
        send_death_proof(controller.endpoint, liar.credentials, 1000, "it is so")
        victim.send(Leave(victim.node, victim.incarnation))
        gone = [ev.NodeJoined, ev.NodeJoined, ev.NodeGone, ev.NodeLeft]
        controller.wait_for("NodeLeft")
    header, *lines = controller.journal()
    assert [type(line.event) for line in lines if isinstance(line, Record) and type(line.event) in gone] == gone
    assert isinstance(header, Header)
    Replay(header, strict=True).follow([header, *lines])
    refused = [line for line in controller.log.splitlines() if "was refused" in line]
    assert len(refused) == 2, controller.log  # one for each source, whatever the number of its frames
    assert "liar from 127.0.0.1 was refused: the job has no replica 'nosuch/7'" in refused[0]
    assert f"{len(all_lies) + 3} connections and messages were refused in all" in controller.log


def is_valid(frame: msgspec.Struct) -> bool:
    """Return whether the controller can decode a frame: numbers of its fields are in their ranges."""
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(frame), type=type(frame))
    except msgspec.ValidationError:
        return False
    return True
