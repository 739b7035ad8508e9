"""Who runs where: spread or packed, near, apart and by label; who makes room for whom; and why there is no room."""

from __future__ import annotations

import msgspec
import pytest

from flowdist.control.membership.waiting import waiting_for
from flowdist.control.placement.chooser import Chooser
from flowdist.control.placement.placement import explain
from flowdist.control.protocol import events as ev
from flowdist.graph import Cluster, Domain, Gate, NodeSpec, Placement, Resources, RoleSpec
from flowdist.graph.capacity import offered
from tests.control.harness import TCP, Talk, graph, restart, role

LOOSE = restart("replica", 9, backoff_ns=0)


def on(*nodes: NodeSpec, roles: tuple[RoleSpec, ...], join: bool = True, known: int | None = None) -> Talk:
    drawn = msgspec.structs.replace(graph(*roles), cluster=Cluster(nodes))
    talk = Talk(drawn, known=known)
    if join:
        talk.join(*(node.name for node in nodes))
    return talk


def nodes(count: int, cpu: float) -> list[NodeSpec]:
    return [NodeSpec(f"node{i}", cpu=cpu) for i in range(count)]


def actors(count: int, name: str = "actor", low: int | None = None, **fields: object) -> RoleSpec:
    fields.setdefault("restart", LOOSE)
    return role(name, min_replicas=count if low is None else low, max_replicas=count, **fields)


def seats(talk: Talk, name: str = "actor") -> list[str | None]:
    return [replica.node for replica in talk.job.replicas_of(talk.job.roles[name])]


def test_replicas_are_spread_over_the_nodes_with_most_room():
    talk = on(*nodes(3, 2), roles=(actors(4),))
    assert seats(talk) == ["node0", "node1", "node2", "node0"]
    talk = on(NodeSpec("small", cpu=2), NodeSpec("large", cpu=4), roles=(actors(4),))
    assert seats(talk) == ["large", "large", "small", "large"]


def test_packed_they_fill_the_node_with_least_room_first():
    pack = Placement("pack")
    talk = on(NodeSpec("large", cpu=4), NodeSpec("small", cpu=2), roles=(actors(4, placement=pack),))
    assert seats(talk) == ["small", "small", "large", "large"]


def test_ties_go_to_the_node_that_is_listed_first_whoever_came_first():
    talk = on(*nodes(3, 2), roles=(actors(2),), join=False)
    talk.join("node2", "node1", "node0")
    assert seats(talk) == ["node0", "node1"]


def test_apart_from_itself_it_has_one_replica_a_node_and_waits_for_one_more():
    apart = Placement(apart=("actor",))
    talk = on(*nodes(2, 8), roles=(actors(3, placement=apart),))
    assert seats(talk) == [None] * 3
    assert explain(talk.job, talk.job.roles["actor"]) == (
        "actor lacks 3 replicas to its minimum, each needs 1 cpu; node0 has 8 of 8 cpu free, node1 has 8 of 8 cpu free"
    )
    talk.join("node2")
    assert seats(talk) == ["node0", "node1", "node2"]
    talk.gone("node1")
    assert explain(talk.job, talk.job.roles["actor"]) == (
        "actor/1 needs 1 cpu; node0 has a actor already, node2 has a actor already"
    )


def test_a_role_apart_from_another_avoids_its_nodes_though_placed_together():
    ps = role("ps", kind="service")
    talk = on(*nodes(2, 8), roles=(ps, role("trainer", placement=Placement(apart=("ps",)))))
    assert seats(talk, "ps") == ["node0"] and seats(talk, "trainer") == ["node1"]


def test_near_another_role_it_goes_where_that_is_even_when_both_are_placed_together():
    ps = role("ps", kind="service", min_replicas=2, max_replicas=2)
    cache = actors(2, "cache", placement=Placement(near=("ps",)))
    talk = on(NodeSpec("node0", cpu=2), *nodes(3, 9)[1:], roles=(ps, cache))
    assert sorted(set(seats(talk, "ps"))) == ["node1", "node2"] == sorted(set(seats(talk, "cache")))


def test_near_a_role_that_has_moved_it_moves_after_it():
    ps = role("ps", kind="service", restart=LOOSE)
    gates = (Gate("ps", "started", "restart"),)
    cache = role("cache", gates=gates, placement=Placement(near=("ps",)), restart=restart())
    talk = on(*nodes(2, 8), roles=(ps, cache))
    talk.gone("node0")
    assert seats(talk, "ps") == ["node1"] == seats(talk, "cache") and talk.up() == ["ps/0", "cache/0"]


def test_only_nodes_with_the_labels_are_taken():
    zone = (("zone", "b"),)
    specs = [NodeSpec("node0", labels=(("zone", "a"),)), NodeSpec("node1", labels=zone), NodeSpec("node2")]
    talk = on(*specs, roles=(actors(2, placement=Placement(where=zone)),))
    assert seats(talk) == ["node1", "node1"]
    talk.gone("node1")
    assert explain(talk.job, talk.job.roles["actor"]) == (
        "actor lacks 2 replicas to its minimum, each needs 1 cpu; node0 is not zone=b, node2 is not zone=b"
    )


def test_without_its_neighbour_it_is_said_who_is_missed():
    ps = role("ps", kind="service", restart=LOOSE)
    cache = actors(1, "cache", placement=Placement(near=("ps",)))
    talk = on(NodeSpec("node0", cpu=2), NodeSpec("node1", cpu=2), roles=(ps, cache, role("main")))
    assert seats(talk, "ps") == seats(talk, "cache") == ["node0"] and seats(talk, "main") == ["node1"]
    talk.gone("node0")
    talk.join("node2")
    assert waiting_for(talk.job) == [
        "room for cache/0: cache/0 needs 1 cpu; node1 has 0 of 2 cpu free, node2 has no ps",
        "main/0 to finish",
    ]


def test_a_replica_comes_back_to_the_node_that_has_its_ports():
    ps = role("ps", kind="service", min_replicas=1, max_replicas=3, ports=("rpc",), ready=TCP, restart=LOOSE)
    talk = on(*nodes(3, 1), roles=(ps, idle()))
    assert seats(talk, "ps") == ["node0", "node1", "node2"]
    talk.tell(ev.ScaleRequested("ps", 1))
    talk.join("node3", cpu=64)
    talk.tell(ev.ScaleRequested("ps", 3))
    assert seats(talk, "ps") == ["node0", "node1", "node2"]


def idle() -> RoleSpec:
    """A task that needs no room."""
    return msgspec.structs.replace(role("idle"), resources=Resources(cpu=0))


def test_a_node_that_one_role_prefers_is_not_offered_to_others_with_its_old_room():
    job = on(NodeSpec("node0", cpu=2), NodeSpec("node1", cpu=3), roles=(idle(), actors(1)), join=True).job
    chooser = Chooser(job, job.roles["actor"], {name: offered(node.spec) for name, node in job.nodes.items()})
    assert chooser.take(prefer="node1") == "node1"
    assert [chooser.take() for _ in range(5)] == ["node0", "node1", "node0", "node1", None]
    chooser = Chooser(job, job.roles["actor"], {name: offered(node.spec) for name, node in job.nodes.items()})
    assert [chooser.take(prefer="node1") for _ in range(3)] == ["node1"] * 3
    assert chooser.take(avoid=["node0"]) is None, "nothing is left but what it avoids"
    assert [chooser.take(prefer="node1") for _ in range(3)] == ["node0", "node0", None]


def test_r2_growth_does_not_take_the_seat_that_a_role_below_its_minimum_waits_for():
    trainer = role("trainer", min_replicas=1, max_replicas=4)
    reader = role("reader", restart=restart())
    talk = on(*nodes(2, 1), roles=(trainer, reader))
    assert seats(talk, "trainer")[0] == "node0" and seats(talk, "reader") == ["node1"]
    talk.wait(600)
    talk.gone("node1")
    talk.join("node1")
    assert talk.up() == ["trainer/0", "reader/0"]


def test_r2_growth_counts_the_minima_of_all_roles_that_wait_together():
    trainer = role("trainer", min_replicas=1, max_replicas=4, placement=Placement("pack"))
    talk = on(NodeSpec("node0", cpu=1), NodeSpec("node1", cpu=2), roles=(trainer, role("reader"), role("writer")))
    assert seats(talk, "trainer")[0] == "node0" and seats(talk, "reader") == seats(talk, "writer") == ["node1"]
    talk.gone("node1")
    talk.wait(60)
    talk.join("node2", cpu=3)
    assert talk.up() == ["trainer/0", "trainer/1", "reader/0", "writer/0"]


def test_r6_who_is_gone_gets_no_seat_before_all_of_its_set_is_gone():
    actor, reader = actors(3, low=1), role("reader")
    drawn = msgspec.structs.replace(graph(actor, reader), cluster=Cluster(tuple(nodes(3, 1))))
    talk = Talk(msgspec.structs.replace(drawn, domains=(Domain("core", ("actor", "reader")),)))
    talk.join("node0", "node1", "node2")
    assert seats(talk) == ["node0", "node2", None]
    talk.auto = False
    talk.gone("node0")
    talk.join("node3", cpu=1)
    assert seats(talk) == [None, "node2", "node3"] and talk.replica("actor/0").phase == "gone"


def test_r2_a_role_that_waits_for_success_gets_only_the_room_of_succeeded_roles():
    first = role("first", min_replicas=1, max_replicas=3)
    other = role("other", kind="service")
    after = role("after", min_replicas=2, max_replicas=2, gates=(Gate("first", "succeeded"),))
    talk = on(*nodes(1, 3), roles=(other, first, after))
    assert [name for name in talk.up() if name.startswith("first")] == ["first/0", "first/1"]
    talk.tell(ev.CordonRequested("node0"))
    talk.join("node1")
    talk.wait(60)
    assert len(talk.up()) == 4, "the new node has room for what comes after, and for one more"
    talk.finish("first/0", "first/1", "first/2")
    assert talk.up() == ["other/0", "after/0", "after/1"]


@pytest.mark.parametrize(
    ("resources", "text"),
    [
        (Resources(cpu=4), "big/0 needs 4 cpu; node0 has 1.5 of 2 cpu free"),
        (Resources(cpu=0, gpu=2), "big/0 needs 2 gpu; node0 has 1 of 1 gpu free"),
        (Resources(cpu=1, memory=64 << 30), "big/0 needs 1 cpu, 64GiB memory; node0 has 32GiB of 32GiB memory free"),
        (Resources(cpu=9, gpu=9), "big/0 needs 9 cpu, 9 gpu; node0 has 1.5 of 2 cpu, 1 of 1 gpu free"),
        (Resources(cpu=0), "big/0 needs nothing; node0 has room free"),
    ],
)
def test_what_lacks_is_named_and_nothing_else(resources: Resources, text: str):
    big = msgspec.structs.replace(role("big"), resources=resources)
    small = msgspec.structs.replace(role("small"), resources=Resources(cpu=0.5))
    talk = on(NodeSpec("node0", cpu=2, gpu=1), roles=(small,))
    job = on(NodeSpec("node0", cpu=2, gpu=1), roles=(big,), join=False).job
    job.nodes, job.free, job.usable = talk.job.nodes, talk.job.free, talk.job.usable
    assert explain(job, job.roles["big"]) == text


def test_of_many_nodes_only_some_are_named():
    talk = on(*nodes(7, 0.5), roles=(role("trainer"),))
    named = ", ".join(f"node{i} has 0.5 of 0.5 cpu free" for i in range(4))
    assert explain(talk.job, talk.job.roles["trainer"]) == (
        f"trainer/0 needs 1 cpu; {named}, and 3 more nodes have too little"
    )


def test_without_a_node_there_is_no_room_at_all():
    talk = on(*nodes(1, 8), roles=(actors(2),))
    talk.gone("node0")
    assert explain(talk.job, talk.job.roles["actor"]) == (
        "actor lacks 2 replicas to its minimum, each needs 1 cpu; no node is up"
    )


def test_a_role_all_of_whose_replicas_have_a_seat_is_called_by_its_name():
    talk = on(*nodes(1, 8), roles=(actors(2),))
    talk.tell(ev.CordonRequested("node0"))
    assert explain(talk.job, talk.job.roles["actor"]) == "actor needs 1 cpu; node0 is cordoned (by the operator)"


def test_a_node_that_stands_still_is_named_once_with_the_process_that_is_stopped():
    talk = on(*nodes(1, 8), roles=(actors(2),))
    talk.tell(ev.NodeStandsStill("node0", "its spawner (pid 7)"))
    assert explain(talk.job, talk.job.roles["actor"]) == (
        "actor needs 1 cpu; node0 stands still (its spawner (pid 7) is stopped)"
    )


def test_r22_who_avoids_every_node_takes_one_all_the_same():
    talk = on(*nodes(2, 1), roles=(actors(1),))
    for _ in range(4):
        talk.fail("actor/0")
    assert [start.node for start in talk.starts] == ["node0", "node0", "node1", "node1", "node1"]
    talk.gone("node1")
    assert talk.up() == ["actor/0"] and seats(talk) == ["node0"]


def on_gpus(count: int, share: float, name: str = "actor", **fields: object) -> RoleSpec:
    """Replicas that need that much of GPUs and nothing else: a share of one, or so many."""
    gpu, thousandths = (1, round(1000 * share)) if share < 1 else (int(share), 1000)
    need = Resources(cpu=0, gpu=gpu, gpu_share=thousandths)
    return msgspec.structs.replace(actors(count, name, **fields), resources=need)


def gpus(talk: Talk, name: str = "actor") -> list[tuple[int, ...]]:
    return [replica.gpus for replica in talk.job.replicas_of(talk.job.roles[name])]


def test_replicas_with_a_share_fill_a_gpu_before_they_take_the_next():
    talk = on(NodeSpec("node0", gpu=2), roles=(on_gpus(5, 0.4, low=1),))
    assert gpus(talk) == [(0,), (0,), (1,), (1,), ()]
    assert talk.job.nodes["node0"].free.devices == (200, 200)
    assert explain(talk.job, talk.job.roles["actor"]) == "actor/4 needs 0.4 gpu; node0 has at most 0.2 of one gpu free"


def test_three_shares_of_six_tenths_do_not_fit_on_two_gpus():
    talk = on(NodeSpec("node0", gpu=2), roles=(on_gpus(3, 0.6),))
    assert gpus(talk) == [()] * 3 and "has at most 1 of one gpu free" in explain(talk.job, talk.job.roles["actor"])
    assert waiting_for(talk.job)


def test_whole_gpus_are_never_shared():
    talk = on(NodeSpec("node0", gpu=3), roles=(on_gpus(1, 0.1), on_gpus(2, 1, "trainer"), on_gpus(1, 1, "late", low=0)))
    assert (gpus(talk), gpus(talk, "trainer"), gpus(talk, "late")) == ([(0,)], [(1,), (2,)], [()])


def test_mixed_shares_go_where_they_leave_least():
    roles = (on_gpus(2, 0.5, "a"), on_gpus(1, 0.7, "b"), on_gpus(1, 0.3, "c"), on_gpus(1, 2, "d"))
    talk = on(NodeSpec("node0", gpu=4), roles=roles)
    assert [gpus(talk, name) for name in "abcd"] == [[(0,), (0,)], [(1,)], [(1,)], [(2, 3)]]


def test_a_share_that_was_given_back_is_free_on_that_gpu_alone():
    talk = on(NodeSpec("node0", gpu=2), roles=(on_gpus(4, 0.5), idle()))
    talk.finish("actor/1", "actor/2")
    assert talk.job.nodes["node0"].free.devices == (500, 500)
    talk.finish("actor/3")
    assert talk.job.nodes["node0"].free.devices == (500, 1000)


def test_room_that_a_role_gives_back_in_shares_is_counted_by_gpu():
    """`late` needs a whole GPU when the shares have succeeded: growth of the shares need not leave one for it."""
    shares = on_gpus(4, 0.5, "shares", low=2)
    late = on_gpus(2, 1, "late", gates=(Gate("shares", "succeeded"),))
    talk = on(NodeSpec("node0", gpu=2), roles=(shares, late))
    assert gpus(talk, "shares") == [(0,), (0,), (1,), (1,)]
    talk.finish("shares/0", "shares/1", "shares/2", "shares/3")
    assert gpus(talk, "late") == [(0,), (1,)]


def test_growth_in_shares_leaves_a_whole_gpu_to_a_role_that_needs_it():
    talk = on(NodeSpec("node0", gpu=2), roles=(on_gpus(4, 0.5, "shares", low=1), on_gpus(1, 1, "whole")))
    assert (gpus(talk, "shares"), gpus(talk, "whole")) == ([(0,), (0,), (), ()], [(1,)])


# Who finds no room, and whom that holds up.


def zoned(*zones: str, cpu: float = 1) -> list[NodeSpec]:
    return [NodeSpec(f"node{i}", cpu=cpu, labels=(("zone", zone),)) for i, zone in enumerate(zones)]


def in_zone(zone: str) -> Placement:
    return Placement(where=(("zone", zone),))


def test_r2_who_waits_for_nodes_of_its_own_holds_nobody_up_on_others():
    """The actors want two nodes of zone a, of which one is lost; the others grow in zone b meanwhile."""
    other = role("other", max_replicas=3, placement=in_zone("b"))
    roles = (actors(2, placement=in_zone("a")), other)
    talk = on(*zoned("a", "a", "b", "b"), roles=roles, join=False, known=3)
    talk.join("node0", "node1", "node2")
    talk.gone("node1")
    assert seats(talk) == ["node0", None]
    talk.join("node3")
    assert seats(talk, "other") == ["node2", "node3", None]


def test_r2_who_can_never_have_room_on_a_node_holds_nobody_up_there():
    gpus = msgspec.structs.replace(actors(2), resources=Resources(cpu=1, gpu=1))
    other = role("other", max_replicas=3)
    machines = [NodeSpec("node0", cpu=1, gpu=1), NodeSpec("node1", cpu=1, gpu=1), *nodes(5, 1)[2:]]
    talk = on(*machines, roles=(gpus, other), join=False, known=3)
    talk.join("node0", "node1", "node2")
    talk.gone("node1")
    talk.join("node3")
    assert seats(talk, "other") == ["node2", "node3", None]


def test_r2_a_node_that_it_could_use_is_kept_for_who_waits_for_nodes():
    """It needs two more, of which one is there; who can grow takes it no more than before."""
    talk = on(*zoned("a", "a", "b", "a"), roles=(actors(3, placement=in_zone("a")), role("other", max_replicas=4)))
    assert seats(talk, "other") == ["node2", None, None, None]
    talk.gone("node0")
    talk.gone("node1")
    talk.wait(60)
    talk.join("node0")
    assert seats(talk, "other") == ["node2", None, None, None], "one of its nodes is missing yet"


def test_r2_growth_takes_no_node_that_pushes_a_waiting_role_onto_anothers_nodes():
    """`late` can go anywhere: with less on node1 it would take node2, which `own` needs."""
    gates = (Gate("helper", "succeeded"),)
    late = msgspec.structs.replace(role("late", gates=gates), resources=Resources(cpu=2))
    own = role("own", gates=gates, placement=in_zone("a"))
    own = msgspec.structs.replace(own, resources=Resources(cpu=2))
    other = role("other", max_replicas=3, placement=Placement("pack", where=(("zone", "b"),)))
    machines = [
        NodeSpec(f"node{i}", cpu=cpu, labels=(("zone", zone),))
        for i, (cpu, zone) in enumerate(zip([1, 2, 2, 1], "cbab", strict=True))
    ]
    talk = on(*machines, roles=(role("helper", placement=in_zone("c")), late, own, other))
    assert seats(talk, "other") == ["node3", None, None]
    talk.finish("helper/0")
    assert (seats(talk, "late"), seats(talk, "own")) == (["node1"], ["node2"])
