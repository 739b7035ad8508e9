"""A drain that is accepted never leaves a role without room, in whatever order the roles leave the node (R14)."""

from __future__ import annotations

from random import Random
from typing import Literal

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import Decided
from flowdist.graph import Cluster, Gate, NodeSpec, Placement, Resources, RoleGraph, RoleSpec
from tests.choosing import examples
from tests.control.harness import Talk, graph, joined, restart, role
from tests.proofs.conversation import Player

IN_A = Placement(where=(("zone", "a"),))


def node(name: str, cpu: float, zone: str = "") -> NodeSpec:
    return NodeSpec(name, cpu=cpu, labels=(("zone", zone),) if zone else ())


def cluster(*nodes: NodeSpec, roles: tuple[RoleSpec, ...]) -> RoleGraph:
    return msgspec.structs.replace(graph(*roles), cluster=Cluster(nodes))


def seats(talk: Talk) -> dict[str, str | None]:
    return {str(replica.id): replica.node for replica in talk.job.replicas.values()}


def moved(talk: Talk, name: str) -> None:
    """A world of one asked replica leaves: there is no step to agree on, so that it stops at once."""
    talk.report(ev.StepTold, name, None)


def test_r14_an_elastic_gang_leaves_the_only_room_to_a_role_that_moves_after_it():
    trainer, slow = role("trainer", min_replicas=1, max_replicas=5), role("slow", placement=IN_A)
    talk = Talk(cluster(node("node0", 2, "a"), node("node1", 4), node("node2", 1, "a"), roles=(trainer, slow)))
    talk.join("node0", "node1", "node2")
    assert sorted(name for name, where in seats(talk).items() if where == "node0") == ["slow/0", "trainer/3"]
    talk.tell(ev.DrainRequested("node0"))
    for index in range(5):
        moved(talk, f"trainer/{index}")
    assert talk.world("trainer").generation == 2 and "node2" not in [
        where for name, where in seats(talk).items() if name.startswith("trainer")
    ]
    moved(talk, "slow/0")
    assert talk.replica("slow/0").node == "node2" and talk.replica("slow/0").is_up


def test_r14_who_can_go_anywhere_does_not_take_the_only_room_of_who_cannot():
    bound, free = role("bound", placement=IN_A), role("free")
    talk = Talk(cluster(node("node0", 2, "a"), node("node1", 1, "a"), node("node2", 1), roles=(bound, free)))
    talk.join("node0", "node1", "node2")
    assert set(seats(talk).values()) == {"node0"}
    talk.tell(ev.DrainRequested("node0"))
    moved(talk, "free/0")
    moved(talk, "bound/0")
    assert seats(talk) == {"bound/0": "node1", "free/0": "node2"}


def test_r14_who_moves_leaves_the_only_room_to_another_though_it_would_choose_first():
    """With `other` on node2, the best node for `first` is node1: then `bound` would have none."""
    roles = (role("first"), role("bound", placement=IN_A), role("other"))
    talk = Talk(cluster(node("node0", 3, "a"), node("node1", 1, "a"), node("node2", 2), roles=roles), known=1)
    talk.join("node0", "node1", "node2")
    assert set(seats(talk).values()) == {"node0"}
    talk.tell(ev.DrainRequested("node0"))
    for name in ("other/0", "first/0", "bound/0"):
        moved(talk, name)
    assert seats(talk) == {"first/0": "node2", "bound/0": "node1", "other/0": "node2"}


def test_r14_room_that_a_finished_role_leaves_counts_though_others_keep_apart_from_it():
    """When `late` starts, `first` is over: that `late` keeps apart from it does not take node3 from `late`."""
    late = role("late", placement=Placement(apart=("first",)), gates=(Gate("first", "succeeded"),))
    roles = (role("bound", placement=IN_A), role("first", placement=Placement(apart=("bound",))), late)
    nodes = (node("node0", 1, "a"), node("node1", 3, "a"), node("node2", 3, "a"), node("node3", 1))
    talk = Talk(cluster(*nodes, roles=roles))
    talk.join("node0", "node1", "node2", "node3")
    assert seats(talk) == {"bound/0": "node1", "first/0": "node2", "late/0": None}
    talk.tell(ev.DrainRequested("node1"))
    talk.tell(ev.DrainRequested("node2"))
    assert len(talk.job.leaving) == 2
    moved(talk, "first/0")
    moved(talk, "bound/0")
    assert seats(talk) == {"bound/0": "node0", "first/0": "node3", "late/0": None}


def test_r14_who_starts_after_success_has_room_in_what_is_free_by_then():
    """All of node0 and node1 is taken: `after` needs what `first` leaves, so that node2 may go."""
    first, after = role("first"), role("after", gates=(Gate("first", "succeeded"),))
    talk = joined(first, after, nodes=2, cpu=1)
    talk.tell(ev.DrainRequested("node1"))
    assert talk.job.nodes["node1"].is_leaving
    talk.finish("first/0")
    assert seats(talk)["after/0"] == "node0"


@st.composite
def crowded(draw: st.DrawFn) -> RoleGraph:
    """Draw two to four roles, some elastic, some bound to a zone or apart from another, on uneven nodes."""
    roles: list[RoleSpec] = []
    for name in ("a", "b", "c", "d")[: draw(st.integers(2, 4))]:
        others = [spec.name for spec in roles]
        gates = [
            Gate(other, draw(st.sampled_from(["started", "started", "succeeded"])), draw(EDGES))
            for other in others
            if not draw(st.integers(0, 4))
        ]
        places = [
            Placement(),
            Placement(),
            Placement("pack"),
            IN_A,
            IN_A,
            *(Placement(apart=(each,)) for each in others),
        ]
        low = draw(st.sampled_from([1, 1, 2]))
        spec = role(
            name,
            min_replicas=low,
            max_replicas=low + draw(st.sampled_from([0, 0, 1, 4])),
            restart=draw(st.sampled_from([restart(times=9), restart("replica", 9)])),
            placement=draw(st.sampled_from(places)),
            gates=tuple(gates),
        )
        roles.append(msgspec.structs.replace(spec, resources=Resources(cpu=draw(st.sampled_from([1.0, 1.0, 2.0])))))
    sizes = draw(st.lists(st.integers(1, 5), min_size=3, max_size=5))
    zones = st.sampled_from(["a", "a", "b"])
    return cluster(*(node(f"node{i}", cpu, draw(zones)) for i, cpu in enumerate(sizes)), roles=tuple(roles))


EDGES: st.SearchStrategy[Literal["restart", "reconnect"]] = st.sampled_from(["restart", "reconnect"])
DRAINS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0, 0, 5, 30])), min_size=1, max_size=3)


@given(crowded(), DRAINS, st.randoms(use_true_random=False))
@settings(max_examples=examples(150, 1500), deadline=None)
def test_r14_whoever_may_leave_a_node_finds_room_elsewhere(
    drawn: RoleGraph, drains: list[tuple[int, int]], dice: Random
) -> None:
    """Drains, and between them some of the orders that follow, in any order; then all the rest of the orders."""
    names = tuple(spec.name for spec in drawn.cluster.nodes)
    player = Player(drawn, names)
    for name in names:
        player.join(name)
    player.calm()
    job = player.controller.state
    if not job.admitted:
        return
    for index, orders in [*drains, (None, 300)]:
        if index is not None:
            player.send(ev.DrainRequested(names[index % len(names)]))
        for _ in range(orders):
            if player.orders:
                player.obey(player.orders.pop(dice.randrange(len(player.orders))))
    said = [effect.text for line in player.records() for effect in line.effects if isinstance(effect, Decided)]
    assert not player.orders and job.ending is None and not any(role.warning_sent for role in job.roles.values()), said
    assert not any(job.nodes[name].replicas for name in job.leaving), said
