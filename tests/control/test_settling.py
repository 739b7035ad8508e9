"""Settling leaves nothing undone: what an event made possible happens at that event, not at the next one.

A replica of a role without gang is not seated before its role is asked for seats: who changes what it may have has to
ask. And nobody starts in the stead, or ahead, of one that comes back.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from flowdist.control.protocol import events as ev
from flowdist.graph import SECOND, Gate, Placement
from tests.choosing import examples
from tests.control.harness import assert_settled, joined, restart, role
from tests.proofs.conversation import Conversation as Drawn
from tests.proofs.conversation import Player, conversations


class Attentive(Player):
    """After every event everything is visited once more, and nothing may come of it."""

    def tell(self, event: ev.Event) -> None:
        super().tell(event)
        assert_settled(self.controller)


@given(conversations())
@settings(max_examples=examples(60, 150), deadline=None)
def test_whatever_happens_nothing_is_left_for_the_next_event(drawn: Drawn) -> None:
    player = Attentive(drawn.graph)
    player.play(drawn.moves, late=drawn.late)
    player.finish()


def test_who_was_scaled_away_takes_the_seat_of_a_mate_that_is_ignored_at_once():
    """The role keeps its minimum all the time, and nobody of it had asked for a seat."""
    helpers = role("helper", gang=False, primary=False, max_replicas=3, restart=restart("replica", 0, then="ignore"))
    talk = joined(role("main"), helpers)
    talk.tell(ev.ScaleRequested("helper", 2))
    assert talk.up() == ["main/0", "helper/0", "helper/1"]

    talk.fail("helper/0")
    assert talk.up() == ["main/0", "helper/1", "helper/2"]


def test_who_found_no_seat_takes_that_of_a_mate_that_has_to_back_off():
    """a/0 has done its work, a/2 waits to start again: with both a has its minimum, and a/1 can do without a seat."""
    twice = restart("replica", 3, backoff_ns=60 * SECOND)
    talk = joined(role("a", gang=False, min_replicas=2, max_replicas=3, restart=twice), nodes=3, cpu=1.0)
    talk.fail("a/1")
    talk.fail("a/2")
    talk.finish("a/0")
    talk.tell(ev.NodeLeft("node1"))
    assert talk.replica("a/1").node is None and talk.replica("a/2").node == "node2"

    talk.tell(ev.NodeGone("node2"))
    assert talk.up() == ["a/1"] and talk.replica("a/1").node == "node0"


def test_r3_who_was_scaled_away_does_not_start_in_the_stead_of_who_comes_back():
    """While b is on its way to stop, nobody of a has to start; then those start again who ran (R3, R6)."""
    loose = role("a", gang=False, max_replicas=3, restart=restart())
    after = role("b", gates=(Gate("a", "started", "restart"),), restart=restart())
    talk = joined(loose, after, nodes=2)
    talk.tell(ev.ScaleRequested("a", 2))
    assert [talk.replica(name).node for name in ("a/0", "a/1", "b/0")] == ["node0", "node0", "node1"]

    talk.auto = False
    stop = talk.gone("node0")
    assert talk.stops(stop) == {"b/0": False}
    assert talk.up() == [] and talk.world("a/2").phase == "waiting"
    talk.auto = True
    talk.tell(ev.ReplicaStopped(talk.replica("b/0").id, 1))
    assert talk.up() == ["a/0", "a/1", "b/0"]


@pytest.mark.parametrize("gang", [True, False])
def test_r1_a_replica_that_lost_its_seat_starts_again_before_its_dependent(gang):
    """Its mate runs, and would be enough for the gate; but a is not started as long as it can be seated (R1, R6)."""
    loose = role("a", gang=False, max_replicas=2)
    after = role("b", gang=gang, gates=(Gate("a", "started", "restart"),), restart=restart())
    talk = joined(loose, after, nodes=3)
    seats = [talk.replica(name).node for name in ("a/0", "a/1", "b/0")]
    assert len(set(seats)) == 3
    before = len(talk.starts)
    talk.gone(seats[0])
    assert [str(start.replica) for start in talk.starts[before:]] == ["a/0", "b/0"]


def test_r1_a_replica_without_a_seat_until_its_own_gate_opens_is_waited_for():
    """z and a/1 lose their node; a/0 runs on, and b restarts after a/1, which restarts after z (R1, R6)."""
    first, again = role("z", restart=restart()), (Gate("a", "started", "restart"),)
    loose = role("a", gang=False, max_replicas=2, gates=(Gate("z"),))
    talk = joined(first, loose, role("b", gates=again, restart=restart()), nodes=3)
    assert talk.replica("z/0").node == talk.replica("a/1").node == "node0"
    before = len(talk.starts)
    talk.gone("node0")
    assert [str(start.replica) for start in talk.starts[before:]] == ["z/0", "a/1", "b/0"]


def test_r1_a_replica_that_finds_no_room_holds_nobody_up():
    """The same, but no node is left for a/1: a has its minimum, and that is enough for b once z has started."""
    first, again = role("z", restart=restart()), (Gate("a", "started", "restart"),)
    alone = Placement(apart=("a", "b"))
    loose = role("a", gang=False, max_replicas=2, gates=(Gate("z"),), placement=alone)
    talk = joined(first, loose, role("b", gates=again, restart=restart()), nodes=3)
    assert talk.replica("z/0").node == talk.replica("a/1").node == "node0"
    before = len(talk.starts)
    talk.gone("node0")
    assert [str(start.replica) for start in talk.starts[before:]] == ["z/0", "b/0"]
    assert talk.replica("a/1").phase == "waiting" and talk.up() == ["z/0", "a/0", "b/0"]
