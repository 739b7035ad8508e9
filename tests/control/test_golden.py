"""Golden conversations: what was said once is said again, word by word.

python -m tests.control.test_golden        writes them anew; read the difference before you commit it
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import Decided, Effect
from flowdist.graph import Gate, VersionEdge
from tests.control.harness import TCP, Talk, graph, r, restart, role

FOLDER = Path(__file__).parents[1] / "golden"


def a_server_dies_and_takes_its_trainers_along() -> list[str]:
    ps = role(
        "ps", kind="service", min_replicas=2, max_replicas=2, ports=("rpc",), ready=TCP, restart=restart("replica")
    )
    trainer = role(
        "trainer", min_replicas=1, max_replicas=2, gates=(Gate("ps", "ready", "restart"),), restart=restart()
    )
    return conversation(
        Talk(graph(ps, trainer, nodes=2, cpu=2), auto=False),
        [
            (0, "node0"), (0, "node1"), (0, "go"),
            (5, ev.ReplicaExited(r("ps/1"), 1, "signal", 137, "KILL")), (5, "go"),
            (60, ev.NodeGone("node1")), (60, "go"), (95, "node1"), (95, "go"),
            (100, ev.ReplicaExited(r("trainer/0"), 4)), (100, ev.ReplicaExited(r("trainer/1"), 4)), (100, "go"),
        ],
    )  # fmt: skip


def a_budget_is_used_up_by_a_crash_loop() -> list[str]:
    trainer = role("trainer", min_replicas=2, max_replicas=2, restart=restart("role", 1))
    return conversation(
        Talk(graph(trainer), auto=False),
        [
            (0, "node0"), (0, "go"),
            (9, ev.ReplicaExited(r("trainer/1"), 1, "exit", 1, detail="ValueError: x")), (9, "go"),
            (10, ev.ReplicaExited(r("trainer/1"), 1, "exit", 1)), (20, ev.ReplicaExited(r("trainer/0"), 2, "exit", 1)),
            (20, "go"), (21, "node0"),
        ],
    )  # fmt: skip


def a_silent_node_leaves_too_few_and_the_operator_gives_up() -> list[str]:
    trainer = role("trainer", min_replicas=2, max_replicas=2, restart=restart())
    return conversation(
        Talk(graph(trainer, nodes=2, cpu=1), auto=False),
        [
            (0, "node0"), (0, "node1"), (0, "go"), (30, ev.NodeSilent("node1")), (30, "go"),
            (90, ev.CancelRequested()), (90, "go"),
        ],
    )  # fmt: skip


def a_node_falls_silent_and_its_peer_fails_before_it_is_lost() -> list[str]:
    trainer = role("trainer", min_replicas=1, max_replicas=2, restart=None)
    return conversation(
        Talk(graph(trainer, nodes=2, cpu=1), auto=False),
        [
            (0, "node0"), (0, "node1"), (0, "go"), (30, ev.NodeSuspected("node1")),
            (31, ev.ReplicaExited(r("trainer/0"), 1, "exit", 1, detail="Connection reset by peer")),
            (33, ev.NodeSilent("node1")), (33, "go"),
            (60, ev.ReplicaExited(r("trainer/0"), 2)), (60, "go"),
        ],
    )  # fmt: skip


def an_actor_comes_back_with_old_weights_and_then_with_new_ones() -> list[str]:
    learner = role("learner", restart=restart())
    edge = VersionEdge("learner", 1)
    actor = role("actor", primary=False, restart=restart("replica"), versions=edge)
    key = r("actor/0")
    return conversation(
        Talk(graph(learner, actor, cpu=2), auto=False),
        [
            (0, "node0"), (0, "go"),
            (5, ev.ReplicaAcknowledged(key, 1, 3)), (6, ev.ReplicaPublished(r("learner/0"), 1, 3)),
            (10, ev.ReplicaExited(key, 1, "exit", 1)), (10, "go"), (20, ev.ReplicaPublished(r("learner/0"), 1, 9)),
            (21, ev.ReplicaAcknowledged(key, 1, 9)), (22, ev.ReplicaAcknowledged(key, 2, 3)),
            (23, ev.ReplicaAcknowledged(key, 2, 8)), (60, ev.ReplicaExited(r("learner/0"), 1)), (60, "go"),
        ],
    )  # fmt: skip


CONVERSATIONS = [
    an_actor_comes_back_with_old_weights_and_then_with_new_ones,
    a_server_dies_and_takes_its_trainers_along,
    a_budget_is_used_up_by_a_crash_loop,
    a_silent_node_leaves_too_few_and_the_operator_gives_up,
    a_node_falls_silent_and_its_peer_fails_before_it_is_lost,
]


def conversation(talk: Talk, steps: list[tuple[int, object]]) -> list[str]:
    """Every event and effect as a line. A node's name is its joining; `go` carries all orders out, oldest first."""
    lines: list[str] = []
    orders: list[Effect] = []

    def tell(event: ev.Event) -> None:
        lines.append(f"{talk.now // 10**9:>4}s {text(event)}")
        for effect in talk.tell(event):
            lines.append(f"      -> {text(effect)}")
            orders.append(effect)

    for seconds, step in steps:
        talk.now = seconds * 10**9
        if step == "go":
            while orders:
                for answer in talk._answers(orders.pop(0)):
                    tell(answer)
        elif isinstance(step, str):
            talk.incarnations[step] = talk.incarnations.get(step, 0) + 1
            spec = next(node for node in talk.graph.cluster.nodes if node.name == step)
            tell(ev.NodeJoined(step, spec, incarnation=talk.incarnations[step]))
        else:
            tell(step)  # type: ignore[arg-type]
    return lines


def text(item: msgspec.Struct) -> str:
    if isinstance(item, Decided):
        return f'"{item.text}"'
    names = [name for name in item.__struct_fields__ if name not in ("spec", "address", "inventory")]
    values = [(name, getattr(item, name)) for name in names if getattr(item, name) not in ("", None, ())]
    return f"{type(item).__name__}({', '.join(f'{name}={value}' for name, value in values)})"


@pytest.mark.parametrize("tell", CONVERSATIONS, ids=lambda tell: tell.__name__)
def test_conversation(tell) -> None:  # type: ignore[no-untyped-def]
    assert "\n".join(tell()) + "\n" == (FOLDER / f"{tell.__name__}.txt").read_text()


if __name__ == "__main__":
    for tell in CONVERSATIONS:
        (FOLDER / f"{tell.__name__}.txt").write_text("\n".join(tell()) + "\n")
