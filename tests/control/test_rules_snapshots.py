"""R24: snapshots in the memory of nodes. Which copies count, what a generation goes on from, what vaults are told."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import ReleaseCopies, SetBuddies, StartReplica
from flowdist.control.protocol.ids import SnapshotRef
from flowdist.control.snapshots.buddies import buddies
from flowdist.control.snapshots.checks import check_start
from flowdist.graph import NodeSpec, SnapshotSpec
from tests.control.harness import Talk, graph, r, restart, role


def started(nodes: int = 3, copies: int = 2, replicas: int | None = None, **fields: object) -> Talk:
    """A gang with one rank on each node, each with a vault."""
    many = replicas or nodes
    fields = {"restart": restart(times=9, backoff_ns=0), "min_replicas": 1, **fields}
    spec = role("trainer", max_replicas=many, snapshots=SnapshotSpec(copies), **fields)
    talk = Talk(graph(spec, nodes=nodes, cpu=1.0))
    for number, name in enumerate(node.name for node in talk.graph.cluster.nodes):
        join(talk, name, 1, port=7000 + number)
    return talk


def join(talk: Talk, name: str, incarnation: int, *copies: ev.CopyHeld, port: int = 7000) -> None:
    spec = next(node for node in talk.graph.cluster.nodes if node.name == name)
    running = [replica for replica in talk.job.replicas.values() if replica.node == name and replica.is_live]
    known = talk.job.nodes.get(name)
    items = [ev.InventoryItem(each.id, each.attempt, "running") for each in running]
    inventory = tuple(items) if known is not None and known.incarnation == incarnation else ()
    talk.tell(ev.NodeJoined(name, spec, incarnation=incarnation, inventory=inventory, vault_port=port, copies=copies))


def copy(talk: Talk, rank: int, holder: int, step: int) -> ev.CopyHeld:
    world = talk.world("trainer")
    size = sum(talk.job.replicas[each].procs for each in world.members)
    return ev.CopyHeld("trainer", world.generation, step, rank, f"node{holder}", size, 100, f"d{rank}")


def save(talk: Talk, step: int, *, buddies: bool = True) -> None:
    """Every rank saves: the copy on its own node, and if the buddies get it, that on the next node."""
    world = talk.world("trainer")
    nodes = [int(talk.job.replicas[each].node[4:]) for each in world.members]
    for rank, node in enumerate(nodes):
        talk.tell(copy(talk, rank, node, step))
    for rank, node in enumerate(nodes if buddies else []):
        buddy = int(world.buddies[f"node{node}"].buddies[0][0][4:])
        talk.tell(copy(talk, rank, buddy, step))


def chosen(talk: Talk) -> tuple[int, int] | None:
    found: SnapshotRef | None = talk.starts[-1].snapshot
    return None if found is None else (found.generation, found.step)


def released(talk: Talk) -> list[tuple[str, int]]:
    return [(each.node, each.step) for each in talk.effects if isinstance(each, ReleaseCopies)]


def test_r24_buddies_form_groups_of_as_many_nodes_as_there_are_copies_in_other_racks_where_there_are_some() -> None:
    plain = [(name, name) for name in "abcdef"]
    assert buddies(plain, 1) == dict.fromkeys("abcdef", ())
    pairs = {"a": ("b",), "b": ("a",), "c": ("d",), "d": ("c",), "e": ("f",), "f": ("e",)}
    assert buddies(plain, 2) == pairs
    assert buddies(plain, 3)["b"] == ("c", "a") and buddies(plain, 3)["e"] == ("f", "d")
    racked = [("a", "r1"), ("b", "r1"), ("c", "r2"), ("d", "r2")]
    assert buddies(racked, 2) == {"a": ("c",), "c": ("a",), "b": ("d",), "d": ("b",)}
    assert buddies(racked, 3)["a"] == ("c", "b"), "there are only two racks: the third copy is on the next node"
    assert buddies([("a", "a")], 2) == {"a": ()}


def test_r24_nodes_that_are_too_many_for_a_group_form_a_ring_with_the_last_one() -> None:
    plain = [(name, name) for name in "abcde"]
    assert buddies(plain, 2) == {"a": ("b",), "b": ("a",), "c": ("d",), "d": ("e",), "e": ("c",)}
    uneven = [("a", "r1"), ("b", "r1"), ("c", "r1"), ("d", "r2")]
    assert buddies(uneven, 2) == {"a": ("d",), "d": ("b",), "b": ("d",), "c": ("d",)}, "all have a copy in another rack"


def test_r24_groups_stay_as_they_are_when_other_nodes_come_and_go() -> None:
    plain = [(name, name) for name in "abcdef"]
    before = buddies(plain, 2)
    assert buddies(plain[1:], 2, before) == {"c": ("d",), "d": ("c",), "b": ("e",), "e": ("f",), "f": ("b",)}
    came = [*plain[1:], ("g", "g")]
    assert buddies(came, 2, before) == {**{name: before[name] for name in "cdef"}, "b": ("g",), "g": ("b",)}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=17), st.integers(1, 4), st.data())
def test_r24_each_node_has_as_many_buddies_as_it_can_and_holds_as_much_as_others(
    racks: list[int], copies: int, data: st.DataObject
) -> None:
    nodes = [(f"n{number}", f"r{rack}") for number, rack in enumerate(racks)]
    gone = data.draw(st.sets(st.sampled_from(nodes), max_size=3)) if len(nodes) > 3 else set()
    left = [node for node in nodes if node not in gone]
    for given_nodes, before in ((nodes, None), (left, buddies(nodes, copies))):
        places, found = dict(given_nodes), buddies(given_nodes, copies, before)
        assert found.keys() == places.keys()
        for name, others in found.items():
            assert len(set(others) - {name}) == len(others) == min(copies, len(places)) - 1
            if before is None:
                assert len({places[each] for each in (name, *others)}) == min(copies, len(set(places.values())))
        if len(set(places.values())) == len(places):  # each node is a place of its own
            held = Counter(each for others in found.values() for each in others)
            assert set(held.values()) <= {min(copies, len(places)) - 1}


def test_r24_vaults_are_told_their_buddies_when_a_world_forms_and_when_its_nodes_change() -> None:
    talk = started()
    orders = [each for each in talk.effects if isinstance(each, SetBuddies)]
    assert SetBuddies("node2", "trainer", (("node0", "127.0.0.1:7000"),)) in orders and len(orders) == 3
    talk.effects.clear()
    talk.gone("node1")
    orders = [each for each in talk.effects if isinstance(each, SetBuddies)]
    assert orders == [SetBuddies("node0", "trainer", (("node2", "127.0.0.1:7002"),))], "node2 has node0 as before"
    talk.effects.clear()
    talk.tell(ev.VaultOpened("node2", 8000))
    assert [each for each in talk.effects if isinstance(each, SetBuddies)] == [
        SetBuddies("node0", "trainer", (("node2", "127.0.0.1:8000"),)),
        SetBuddies("node2", "trainer", (("node0", "127.0.0.1:7000"),)),  # the new vault knows nothing
    ]


def test_r24_buddies_are_named_again_to_a_vault_whose_agent_connects_again() -> None:
    talk = started()
    talk.effects.clear()
    join(talk, "node1", 1, port=7001)
    assert [each.node for each in talk.effects if isinstance(each, SetBuddies)] == ["node1"]


def test_r24_a_vault_that_is_new_while_its_world_re_forms_is_told_its_buddies() -> None:
    talk = started()
    talk.auto = False
    talk.fail("trainer/0")
    talk.tell(ev.VaultLost("node0"))
    talk.tell(ev.VaultOpened("node0", 9000))
    talk.effects.clear()
    talk.answer()
    orders = [each for each in talk.effects if isinstance(each, SetBuddies)]
    assert SetBuddies("node0", "trainer", (("node1", "127.0.0.1:7001"),)) in orders, "as before, but the process is new"


def test_r24_a_gang_goes_on_from_the_newest_whole_snapshot_and_the_user_is_told() -> None:
    talk = started()
    save(talk, 460)
    save(talk, 480)
    talk.tell(copy(talk, 0, 0, 500))
    talk.fail("trainer/0")
    assert chosen(talk) == (1, 480)
    assert {start.snapshot for start in talk.starts[-3:]} == {talk.starts[-1].snapshot}
    assert "trainer goes on from memory: step 480 of generation 1, 3 shards, 2 copies each" in talk.texts()
    found = talk.starts[-1].snapshot
    assert found is not None and found.world_size == 3
    assert found.holders() == [("node0", "node1"), ("node1", "node2"), ("node2", "node0")]
    assert found.vaults == (("node0", "127.0.0.1:7000"), ("node1", "127.0.0.1:7001"), ("node2", "127.0.0.1:7002"))


def test_r24_after_a_node_has_died_its_shards_are_with_its_buddy_for_a_world_of_another_size() -> None:
    talk = started()
    save(talk, 480)
    talk.gone("node2")
    found = talk.starts[-1].snapshot
    assert found is not None and (found.step, found.world_size) == (480, 3)
    assert talk.starts[-1].world_size == 2
    assert found.holders() == [("node0", "node1"), ("node1",), ("node0",)]
    assert "trainer goes on from memory: step 480 of generation 1, 3 shards, 1 to 2 copies each" in talk.texts()


def test_r24_when_a_node_and_its_buddy_die_the_checkpoint_is_next_and_the_user_is_told() -> None:
    talk = started()
    talk.tell(ev.CheckpointOffered(r("trainer/0"), 1, 1, "step-400", 400))
    save(talk, 480)
    talk.gone("node2")
    talk.effects.clear()
    talk.gone("node0")
    assert chosen(talk) is None
    text = "trainer: of step 480 the shard of rank 2 is lost with node0; the checkpoint of step 400 is next"
    assert text in talk.texts()


@pytest.mark.parametrize(("step", "expected"), [(479, (1, 480)), (480, (1, 480)), (481, None)])
def test_r24_of_memory_and_disk_the_further_one_wins_and_memory_wins_a_tie(
    step: int, expected: tuple[int, int] | None
) -> None:
    talk = started()
    save(talk, 480)
    talk.tell(ev.CheckpointOffered(r("trainer/0"), 1, 1, "a", step))
    talk.fail("trainer/0")
    assert chosen(talk) == expected


def test_r24_a_copy_counts_only_once_it_is_acknowledged_in_its_own_generation() -> None:
    talk = started()
    save(talk, 480)
    for rank in (0, 1):
        talk.tell(copy(talk, rank, rank, 500))
    last = copy(talk, 2, 2, 500)
    talk.fail("trainer/0")
    talk.effects.clear()
    talk.tell(last)
    assert ReleaseCopies("node2", "trainer", 1, 500) in talk.effects, "the vault need not keep it"
    talk.fail("trainer/1")
    assert chosen(talk) == (1, 480)


def test_r24_a_copy_of_an_attempt_that_is_over_does_not_count_although_its_generation_is_not() -> None:
    talk = started()
    save(talk, 480)
    talk.tell(copy(talk, 0, 0, 500))
    talk.tell(copy(talk, 1, 1, 500))
    last = copy(talk, 2, 2, 500)
    talk.auto = False
    talk.fail("trainer/2")
    talk.tell(last)
    talk.answer()
    assert chosen(talk) == (1, 480)


def test_r24_steps_of_two_generations_with_one_number_are_two_snapshots_and_never_mixed() -> None:
    talk = started()
    save(talk, 480, buddies=False)
    talk.fail("trainer/0")
    talk.tell(copy(talk, 0, 0, 480))
    talk.tell(copy(talk, 1, 1, 480))
    assert sorted(talk.world("trainer").snapshots) == [(1, 480), (2, 480)]
    talk.fail("trainer/1")
    assert chosen(talk) == (1, 480)
    save(talk, 480)
    assert sorted(talk.world("trainer").snapshots) == [(3, 480)]


def test_r24_a_copy_that_differs_from_the_others_of_its_shard_is_not_counted() -> None:
    talk = started()
    save(talk, 480, buddies=False)
    talk.tell(replace(copy(talk, 0, 1, 480), digest="other"))
    assert talk.world("trainer").snapshots[1, 480].copies[0] == {"node0": "d0"}


@pytest.mark.parametrize("fields", [{"rank": 3}, {"rank": -1}, {"world_size": 2}, {"step": -1}, {"world": "no"}])
def test_r24_a_copy_of_what_the_generation_does_not_have_is_not_counted(fields: dict[str, object]) -> None:
    talk = started()
    talk.tell(replace(copy(talk, 0, 0, 480), **fields))
    assert not talk.world("trainer").snapshots


def test_r24_when_a_snapshot_is_full_the_older_ones_are_released_once() -> None:
    talk = started()
    save(talk, 460)
    save(talk, 480, buddies=False)
    assert released(talk) == [], "only 460 survives the loss of a node"
    save(talk, 500)
    assert sorted(released(talk)) == sorted((f"node{i}", step) for i in range(3) for step in (460, 480))
    talk.effects.clear()
    talk.tell(copy(talk, 0, 1, 480))
    assert released(talk) == [("node0", 480), ("node1", 480), ("node2", 480)], "it came late: the vault drops it"


def test_r24_while_buddies_get_nothing_a_bounded_number_of_snapshots_is_kept_and_the_newest_whole_one() -> None:
    talk = started()
    save(talk, 20)
    for step in range(40, 400, 20):
        save(talk, step, buddies=False)
    talk.tell(copy(talk, 0, 0, 400))
    talk.tell(copy(talk, 0, 0, 420))
    assert sorted(talk.world("trainer").snapshots) == [(1, 20), (1, 40), (1, 380), (1, 400), (1, 420)]
    talk.fail("trainer/0")
    assert chosen(talk) == (1, 380)


def test_r24_a_broken_copy_is_removed_and_the_other_one_is_read() -> None:
    talk = started()
    save(talk, 480)
    talk.tell(ev.CopyBroken("trainer", 1, 480, 0, "node0", "wrong checksum"))
    talk.fail("trainer/0")
    found = talk.starts[-1].snapshot
    assert found is not None and found.holders()[0] == ("node1",)


def test_r24_when_the_snapshot_that_is_read_is_broken_all_ranks_go_on_from_the_next_one_free_of_charge() -> None:
    talk = started()
    talk.tell(ev.CheckpointOffered(r("trainer/0"), 1, 1, "step-400", 400))
    save(talk, 480)
    talk.fail("trainer/0")
    assert (chosen(talk), talk.world("trainer").generation) == ((1, 480), 2)
    talk.effects.clear()
    talk.tell(ev.CopyBroken("trainer", 1, 480, 0, "node0", "wrong checksum"))
    assert talk.world("trainer").generation == 2, "the copy on node1 is there still"
    talk.tell(ev.CopyBroken("trainer", 1, 480, 0, "node1"))
    assert (chosen(talk), talk.world("trainer").generation) == (None, 3)
    assert len(talk.job.roles["trainer"].charges) == 1, "only the failure was charged"
    text = "trainer: of step 480 the shard of rank 0 is broken on node1; the checkpoint of step 400 is next"
    assert talk.texts().count(text) == 1
    assert any("trainer cannot read the snapshot of step 480 any more" in each for each in talk.texts())


def read_in_vain(talk: Talk, times: int) -> list[tuple[int, int] | None]:
    """Fail so many times in a row without a step in between, and return what each next generation goes on from."""
    found = []
    for _ in range(times):
        talk.fail("trainer/0")
        found.append(chosen(talk))
    return found


def test_r24_what_cannot_be_read_is_given_up_for_the_checkpoint_with_the_last_restart_of_the_budget() -> None:
    talk = started(restart=restart(times=4, backoff_ns=0))
    talk.tell(ev.CheckpointOffered(r("trainer/0"), 1, 1, "step-400", 400))
    save(talk, 480)
    talk.effects.clear()
    assert read_in_vain(talk, 4) == [(1, 480)] * 3 + [None]
    text = (
        "trainer: 3 generations in a row have failed before the first step with the snapshot of step 480; "
        "the checkpoint of step 400 is next"
    )
    assert text in talk.texts() and set(released(talk)) == {(f"node{i}", 480) for i in range(3)}
    save(talk, 500)
    talk.fail("trainer/0")
    assert talk.job.ending is not None, "the budget is used up"


def test_r24_after_five_failures_in_a_row_before_the_first_step_the_checkpoint_is_next_whatever_is_left() -> None:
    talk = started(restart=restart(times=99, backoff_ns=0))
    talk.tell(ev.CheckpointOffered(r("trainer/0"), 1, 1, "step-400", 400))
    save(talk, 480)
    assert read_in_vain(talk, 6) == [(1, 480)] * 5 + [None]
    save(talk, 500)
    assert read_in_vain(talk, 1) == [(7, 500)], "snapshots are taken as before"


def test_r24_of_a_wider_budget_the_last_restart_decides() -> None:
    talk = started(restart=restart(times=1, backoff_ns=0, wider=restart("job", times=2, backoff_ns=0)))
    talk.tell(ev.CheckpointOffered(r("trainer/0"), 1, 1, "step-400", 400))
    save(talk, 480)
    assert read_in_vain(talk, 3) == [(1, 480), (1, 480), None]


@pytest.mark.parametrize("between", ["step", "lost node", "no checkpoint"])
def test_r24_a_snapshot_is_not_given_up_for_what_is_no_failure_to_read_it(between: str) -> None:
    talk = started(nodes=4, copies=3, restart=restart(times=99, backoff_ns=0))
    if between != "no checkpoint":
        talk.tell(ev.CheckpointOffered(r("trainer/0"), 1, 1, "step-400", 400))
    save(talk, 480)
    assert read_in_vain(talk, 5) == [(1, 480)] * 5
    if between == "step":
        talk.report(ev.ReplicaStepped, "trainer/0", 481)
    if between == "lost node":
        talk.gone("node3")
        assert chosen(talk) == (1, 480), "nobody has failed"
    else:
        assert read_in_vain(talk, 3) == [(1, 480)] * 3


def test_r24_a_copy_that_reaches_a_new_buddy_when_its_generation_is_over_counts() -> None:
    talk = started()
    save(talk, 480, buddies=False)
    late = copy(talk, 0, 2, 480)
    talk.gone("node1")
    assert chosen(talk) is None, "the shard of rank 1 is lost"
    talk.tell(late)
    assert talk.world("trainer").snapshots[1, 480].copies[0] == {"node0": "d0", "node2": "d0"}
    assert ReleaseCopies("node2", "trainer", 1, 480) not in talk.effects
    talk.tell(replace(late, node="node2", rank=1, digest="d1"))
    assert not talk.world("trainer").snapshots[1, 480].copies[1], "nobody has acknowledged that shard in time"


def test_r24_a_copy_that_came_after_the_start_does_not_help_members_who_do_not_know_of_it() -> None:
    talk = started()
    save(talk, 480, buddies=False)
    late = copy(talk, 0, 1, 480)
    talk.fail("trainer/0")
    talk.tell(late)
    talk.tell(ev.CopyBroken("trainer", 1, 480, 0, "node0"))
    assert (chosen(talk), talk.world("trainer").generation) == ((1, 480), 3), "the next members know where it is"
    found = talk.starts[-1].snapshot
    assert found is not None and found.holders()[0] == ("node1",)
    assert len(talk.job.roles["trainer"].charges) == 1, "only the failure was charged"


@pytest.mark.parametrize("sign", [ev.ReplicaStepped, ev.ReplicaProgressed, "copy"])
def test_r24_what_a_generation_has_read_may_break(sign: object) -> None:
    talk = started()
    save(talk, 480)
    talk.fail("trainer/0")
    if sign == "copy":
        talk.tell(copy(talk, 0, 0, 500))
    else:
        talk.tell(sign(r("trainer/0"), 2, 481))  # type: ignore[operator]
    for node in ("node0", "node1"):
        talk.tell(ev.CopyBroken("trainer", 1, 480, 0, node))
    assert talk.world("trainer").generation == 2


def test_r24_a_node_that_comes_back_without_its_memory_holds_nothing() -> None:
    talk = started()
    save(talk, 480, buddies=False)
    held = copy(talk, 1, 1, 480)
    talk.effects.clear()
    join(talk, "node1", 2, held, port=7001)
    assert not talk.world("trainer").snapshots[1, 480].copies[1]
    assert ReleaseCopies("node1", "trainer", 1, 480) not in talk.effects, "others hold shards of it"
    assert chosen(talk) is None


def test_r24_a_node_that_only_connects_again_holds_what_it_says() -> None:
    talk = started()
    save(talk, 480)
    world = talk.world("trainer")
    held = [copy(talk, 1, 1, 480), copy(talk, 0, 1, 480)]
    join(talk, "node1", 1, *held, port=7001)
    assert world.snapshots[1, 480].least == 2
    join(talk, "node1", 1, held[0], port=7001)
    assert "node1" not in world.snapshots[1, 480].copies[0] and "node1" in world.snapshots[1, 480].copies[1]
    talk.tell(ev.VaultLost("node1"))
    assert "node1" not in world.snapshots[1, 480].copies[1] and "node1" not in world.buddies
    late = copy(talk, 1, 1, 500)
    join(talk, "node1", 1, late, port=7001)
    assert world.snapshots[1, 500].copies[1] == {"node1": "d1"}, "its acknowledgement was lost with the connection"


def test_r24_the_loss_of_a_node_without_a_member_re_forms_a_generation_that_reads_there() -> None:
    talk = started(nodes=3, copies=2)
    save(talk, 480)
    talk.tell(ev.DrainRequested("node2"))
    talk.answer()
    talk.report(ev.ReplicaStopped, "trainer/2")
    for name in ("trainer/0", "trainer/1"):
        if talk.replica(name).is_live:
            talk.report(ev.ReplicaStopped, name)
    world = talk.world("trainer")
    assert (chosen(talk), len(world.members)) == ((1, 480), 2)
    generation = world.generation
    for rank in (1, 2):
        for node in ("node0", "node1"):
            if node in world.snapshots[1, 480].copies[rank]:
                talk.tell(ev.CopyBroken("trainer", 1, 480, rank, node))
    assert world.generation == generation
    talk.gone("node2")
    assert (chosen(talk), world.generation) == (None, generation + 1)


def test_r24_a_world_that_has_ended_releases_what_it_has() -> None:
    other = role("evaluator", primary=True)
    talk = Talk(
        graph(role("trainer", max_replicas=2, min_replicas=2, snapshots=SnapshotSpec()), other, nodes=2, cpu=2.0)
    )
    for number in range(2):
        join(talk, f"node{number}", 1, port=7000 + number)
    save(talk, 20)
    talk.finish("trainer/0", "trainer/1")
    assert released(talk) == [("node0", 20), ("node1", 20)]


def test_r24_without_memory_nothing_is_recorded_or_said() -> None:
    talk = Talk(graph(role("trainer", max_replicas=2), nodes=2, cpu=1.0))
    for number in range(2):
        join(talk, f"node{number}", 1, port=7000 + number)
    talk.tell(copy(talk, 0, 0, 20))
    assert not talk.world("trainer").snapshots and not [e for e in talk.effects if isinstance(e, SetBuddies)]


def test_r24_a_controller_that_takes_over_knows_the_copies_from_the_events_alone() -> None:
    talk = started()
    save(talk, 480)
    talk.gone("node2")
    again = Talk(talk.graph, auto=False)
    for event, now in talk.record:
        again.now = now
        again.tell(event)
    assert again.world("trainer").snapshots == talk.world("trainer").snapshots
    assert again.starts == talk.starts


def test_r24_the_invariant_of_start_orders_names_a_snapshot_that_is_not_whole() -> None:
    talk = started()
    save(talk, 480)
    talk.fail("trainer/0")
    start: StartReplica = talk.starts[-1]
    assert start.snapshot is not None
    check_start(talk.job, start, start.snapshot)
    talk.world("trainer").snapshots[1, 480].remove(0, "node0")
    talk.world("trainer").snapshots[1, 480].remove(0, "node1")
    with pytest.raises(AssertionError, match="not whole"):
        check_start(talk.job, start, start.snapshot)


def test_r24_racks_are_labels_of_nodes() -> None:
    spec = role("trainer", max_replicas=4, snapshots=SnapshotSpec(2, apart="rack"))
    plan = graph(spec, nodes=4, cpu=1.0)
    racks = tuple(
        NodeSpec(node.name, cpu=1.0, labels=(("rack", f"r{i // 2}"),)) for i, node in enumerate(plan.cluster.nodes)
    )
    talk = Talk(replace(plan, cluster=replace(plan.cluster, nodes=racks)))
    for number in range(4):
        join(talk, f"node{number}", 1, port=7000 + number)
    assert talk.world("trainer").buddies["node0"].buddies == (("node2", "127.0.0.1:7002"),)


def test_r24_the_loss_of_many_shards_is_told_in_one_line_and_without_a_checkpoint_the_beginning_is_next() -> None:
    talk = Talk(graph(role("trainer", max_replicas=2, procs=9, snapshots=SnapshotSpec(1)), nodes=2, cpu=1.0))
    for number in range(2):
        join(talk, f"node{number}", 1, port=7000 + number)
    for step in (20, 40):
        for rank in range(18):
            talk.tell(copy(talk, rank, rank // 9, step))
    talk.tell(ev.CopyBroken("trainer", 1, 40, 3, "node0", "wrong checksum"))
    assert talk.texts()[-1] == (
        "trainer: of step 40 the shard of rank 3 is broken on node0 (wrong checksum); the beginning is next"
    ), "step 20 was released when 40 had all copies"
    save_again = [copy(talk, rank, rank // 9, 60) for rank in range(18)]
    for each in save_again:
        talk.tell(each)
    talk.gone("node1")
    assert "trainer: of step 60 9 of 18 shards are lost with node1; the beginning is next" in talk.texts()


def test_r24_an_earlier_snapshot_is_next_while_the_newer_one_has_too_few_copies() -> None:
    talk = started()
    save(talk, 460)
    save(talk, 480, buddies=False)
    talk.tell(ev.CopyBroken("trainer", 1, 480, 2, "node2"))
    expected = "trainer: of step 480 the shard of rank 2 is broken on node2; the snapshot of step 460 is next"
    assert talk.texts()[-1] == expected


def test_r24_news_of_nodes_and_worlds_that_are_not_there_change_nothing() -> None:
    talk = started()
    save(talk, 480)
    before = talk.world("trainer").snapshots[1, 480].least
    talk.tell(ev.CopyBroken("nosuch", 1, 480, 0, "node0"))
    talk.tell(ev.CopyBroken("trainer", 1, 20, 0, "node0"))
    talk.tell(ev.VaultOpened("nosuch", 7000))
    talk.tell(ev.VaultLost("nosuch"))
    talk.tell(replace(copy(talk, 0, 0, 500), node="nosuch"))
    assert talk.world("trainer").snapshots[1, 480].least == before
    assert sorted(talk.world("trainer").snapshots) == [(1, 480)]


def test_r24_workers_that_stay_in_place_are_not_said_to_go_on_from_memory() -> None:
    talk = started()
    save(talk, 480)
    talk.elastic("trainer/0", "trainer/1", "trainer/2")
    talk.gone("node2")
    assert chosen(talk) == (1, 480) and not [text for text in talk.texts() if "goes on from memory" in text]


def test_r24_a_snapshot_without_any_copy_is_forgotten() -> None:
    talk = started(nodes=2, copies=1)
    talk.tell(copy(talk, 0, 0, 20))
    talk.tell(copy(talk, 1, 1, 40))
    talk.tell(ev.VaultLost("node0"))
    assert sorted(talk.world("trainer").snapshots) == [(1, 40)]


def test_r24_a_start_order_that_an_agent_lacks_is_not_repeated_when_its_snapshot_is_lost() -> None:
    talk = started(nodes=2)
    save(talk, 480)
    talk.auto = False
    talk.fail("trainer/0")
    talk.tell(ev.ReplicaStopped(r("trainer/1"), 1))
    talk.tell(ev.StoreOpened("trainer", 2, 1))
    assert chosen(talk) == (1, 480)
    join_starting(talk, "node1", copy_of(1, 1, 480), copy_of(0, 1, 480))
    assert [start.replica.index for start in talk.starts[-1:]] == [1], "its order may be lost: it comes once more"
    talk.starts.clear()
    talk.tell(ev.VaultLost("node0"))
    join_starting(talk, "node1")
    assert talk.starts == [] and talk.world("trainer").phase == "stopping"


def copy_of(rank: int, holder: int, step: int) -> ev.CopyHeld:
    return ev.CopyHeld("trainer", 1, step, rank, f"node{holder}", 2, 100, f"d{rank}")


def join_starting(talk: Talk, name: str, *copies: ev.CopyHeld) -> None:
    """The agent connects again, and knows no attempt."""
    spec = next(node for node in talk.graph.cluster.nodes if node.name == name)
    talk.tell(ev.NodeJoined(name, spec, vault_port=7001, copies=copies))


def test_r24_a_snapshot_may_be_lost_while_the_job_ends_before_the_first_step_with_it() -> None:
    talk = started(nodes=2, copies=1)
    save(talk, 480, buddies=False)
    talk.fail("trainer/0")
    assert chosen(talk) == (1, 480)
    talk.auto = False
    talk.tell(ev.CancelRequested())
    talk.starts.clear()
    talk.tell(ev.CopyBroken("trainer", 1, 480, 0, "node0"))
    assert talk.starts == [] and talk.job.ending == "cancelled"
