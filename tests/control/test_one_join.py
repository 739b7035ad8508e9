"""What the inventory of one NodeJoined tells belongs together: no item is judged before all of them are recorded."""

from __future__ import annotations

import pytest

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import StopAtStep, StopReplica
from flowdist.graph import Gate
from tests.control.harness import Talk, joined, r, restart, role
from tests.control.test_rules_gpus import on_gpus, talk_of


def again(talk: Talk, node: str, *items: ev.InventoryItem, bad_gpus: tuple[tuple[int, str], ...] = ()) -> list[object]:
    """Have the agent of a node connect again, and return the effects."""
    spec = talk.graph.cluster.nodes[0]
    event = ev.NodeJoined(node, spec, incarnation=talk.incarnations[node], inventory=items, bad_gpus=bad_gpus)
    return list(talk.tell(event))


def test_workers_that_wait_on_a_gpu_that_is_bad_are_taken_away() -> None:
    talk = talk_of(on_gpus("trainer", 2, restart=restart()), gpus=(3,))
    talk.elastic("trainer/0", "trainer/1")
    talk.auto = False
    talk.fail("trainer/1")
    (gpu,) = talk.replica("trainer/0").gpus
    again(talk, "node0", ev.InventoryItem(r("trainer/0"), 1, "suspended"), bad_gpus=((gpu, "bad"),))
    assert talk.suspended() == []


def test_a_step_is_named_once_all_have_answered_or_ended() -> None:
    talk = joined(role("trainer", min_replicas=1, max_replicas=3, restart=restart()), nodes=2, cpu=8.0)
    talk.auto = False
    assert [talk.replica(f"trainer/{number}").node for number in range(3)] == ["node0", "node1", "node0"]
    talk.tell(ev.DrainRequested("node0"))
    talk.tell(ev.StepTold(r("trainer/0"), 1, 4))
    talk.tell(ev.StepTold(r("trainer/1"), 1, 4))
    ended = ev.ReplicaExited(r("trainer/2"), 1)
    items = [
        ev.InventoryItem(r("trainer/0"), 1, "running"),
        ev.InventoryItem(r("trainer/2"), 1, "exited", exited=ended),
    ]
    effects = again(talk, "node0", *items)
    assert [effect.step for effect in effects if isinstance(effect, StopAtStep)] == [5, 5]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_workers_do_not_wait_in_place_for_an_upstream_that_has_died(is_reversed: bool) -> None:
    gates = (Gate("ps", "started", "restart"),)
    trainer = role("trainer", min_replicas=2, max_replicas=2, restart=restart(), gates=gates)
    talk = joined(role("ps", kind="service", restart=restart("replica")), trainer, nodes=1, cpu=8.0)
    talk.elastic("trainer/0", "trainer/1")
    talk.auto = False
    talk.fail("trainer/1")
    died = ev.ReplicaExited(r("ps/0"), 1, "exit", 1)
    items = [ev.InventoryItem(r("ps/0"), 1, "exited", exited=died), ev.InventoryItem(r("trainer/0"), 1, "suspended")]
    effects = again(talk, "node0", *(reversed(items) if is_reversed else items))
    assert [effect.replica for effect in effects if isinstance(effect, StopReplica)] == [r("trainer/0")]
    assert talk.suspended() == []
