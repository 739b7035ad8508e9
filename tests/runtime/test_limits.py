"""Limits of what other hosts can make a controller keep, as arithmetic: fair to each address, whatever the order."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from flowdist.runtime.controller.limits import (
    BURST,
    CONNECTIONS_MAX,
    FRAME_MAX,
    NEWCOMERS_MAX,
    PACED_MAX,
    RATE,
    UNFINISHED_MAX,
    ByteBudget,
    Connections,
    Pace,
)
from tests.choosing import examples

LIMIT = 1000
HOSTILE = st.lists(st.tuples(st.integers(0, 9), st.integers(0, LIMIT // 2)), max_size=60)


@settings(max_examples=examples(60, 500), deadline=None)
@given(HOSTILE, st.randoms(use_true_random=False))
def test_unfinished_frames_stay_within_the_budget_and_an_honest_address_is_not_cut(
    hostile: list[tuple[int, int]], draw: random.Random
) -> None:
    """The honest address has up to LIMIT / 3 bytes in two connections; the hostile one has ten, in any order."""
    budget: ByteBudget[str] = ByteBudget(LIMIT)
    honest = [("honest 0", LIMIT // 6), ("honest 1", LIMIT // 6), ("honest 0", 0), ("honest 1", LIMIT // 8)]
    steps = [(f"hostile {number}", size) for number, size in hostile]
    for each in honest:
        steps.insert(draw.randrange(len(steps) + 1), each)
    open_sizes: dict[str, int] = {}
    for name, size in steps:
        closed = budget.note(name, name.split()[0], size)
        open_sizes[name] = size
        for each in closed:
            assert each.startswith("hostile"), f"{each} was closed"
            its = open_sizes.pop(each)
            assert its >= max((size for name, size in open_sizes.items() if name.startswith("hostile")), default=0)
        assert budget.total == sum(open_sizes.values()) <= LIMIT
    for name in list(open_sizes):
        budget.note(name, name.split()[0], 0)
    assert budget.total == 0


def test_one_address_may_send_as_many_frames_at_once_as_fit_and_the_largest_is_closed_first() -> None:
    budget: ByteBudget[int] = ByteBudget()
    fit = UNFINISHED_MAX // FRAME_MAX
    assert [budget.note(number, "10.0.0.1", FRAME_MAX) for number in range(fit)] == [[]] * fit
    assert budget.note(99, "10.0.0.2", FRAME_MAX // 2) == [0]
    assert budget.note(99, "10.0.0.2", FRAME_MAX) == []


def test_addresses_that_are_alike_share_the_budget() -> None:
    budget: ByteBudget[tuple[int, int]] = ByteBudget(LIMIT)
    closed = [each for number in range(40) for each in budget.note((number % 4, number), str(number % 4), LIMIT // 20)]
    assert len(closed) == 20 and max(Counter(address for address, _ in closed).values()) <= 6


def test_a_host_finds_room_beside_one_that_opens_connections_without_end() -> None:
    connections: Connections[str] = Connections()
    for number in range(500):
        victim = connections.opened(f"hostile {number}", "10.0.0.1")
        assert victim == (f"hostile {number - NEWCOMERS_MAX}" if number >= NEWCOMERS_MAX else None)
    victims = [connections.opened(f"honest {number}", f"10.0.1.{number}") for number in range(8)]
    assert all(victim is not None and victim.startswith("hostile") for victim in victims)
    for number in range(500):
        victim = connections.opened(f"hostile again {number}", "10.0.0.1")
        assert victim is not None and victim.startswith("hostile")
    assert all(connections.joined(f"honest {number}") for number in range(8))


def test_of_many_hosts_that_come_at_once_the_first_finish_and_the_others_wait_for_their_turn() -> None:
    """Each was refused and came again, several times: that cost the controller more than to let it in."""
    connections: Connections[int] = Connections(waiting_max=3)
    for number in range(NEWCOMERS_MAX):
        assert connections.opened(number, f"host{number}") is None and connections.next_turns() == [number]
    for number in (1000, 1001, 1002):
        assert connections.opened(number, f"host{number}") is None and connections.next_turns() == []
    assert connections.opened(1003, "host1003") == 1003  # refused; none that has begun or waits is closed for it
    assert connections.joined(0) and connections.next_turns() == [1000]
    connections.closed(1)
    connections.closed(1001)
    assert connections.next_turns() == [1002]
    assert connections.opened(1004, "host5") == 5, "of the address that has two, the oldest is closed"
    assert connections.next_turns() == [1004]


@settings(max_examples=examples(60, 500), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["open", "join", "close"]), st.integers(0, 30), st.integers(0, 9)), max_size=80)
)
def test_newcomers_are_bounded_and_each_gets_its_turn_in_the_order_in_which_it_came(
    steps: list[tuple[str, int, int]],
) -> None:
    connections: Connections[int] = Connections(4, waiting_max=5)
    served: dict[int, None] = {}
    waiting: dict[int, None] = {}
    for what, number, address in steps:
        if what == "open" and number not in served | waiting:
            connections.closed(number)
            waiting[number] = None
            if (victim := connections.opened(number, str(address))) is not None:
                served.pop(victim, None)
                waiting.pop(victim, None)
        elif what == "join" and number in served:
            if connections.joined(number):
                del served[number]
        elif what == "close":
            connections.closed(number)
            served.pop(number, None)
            waiting.pop(number, None)
        for each in connections.next_turns():
            assert each == next(iter(waiting)), "the one that has waited longest"
            del waiting[each]
            served[each] = None
        assert len(served) <= 4 and len(waiting) <= 5
        assert not waiting or len(served) == 4, "nobody waits while there is room"


def test_connections_with_a_node_are_limited_by_address() -> None:
    connections: Connections[int] = Connections()
    for number in range(CONNECTIONS_MAX):
        connections.opened(number, "10.0.0.1")
        assert connections.joined(number) and connections.joined(number)
    connections.opened(100, "10.0.0.1")
    assert not connections.joined(100)
    connections.opened(101, "10.0.0.2")
    assert connections.joined(101)
    connections.closed(100)
    connections.closed(0)
    connections.opened(102, "10.0.0.1")
    assert connections.joined(102)


def test_an_address_may_send_a_burst_and_then_waits_for_its_rate() -> None:
    pace = Pace()
    for _ in range(BURST):
        assert pace.wait_s("a", now_s=5.0) == 0
        pace.charge("a", 0, now_s=5.0)
    pace.charge("a", 0, now_s=5.0)
    assert 0 < pace.wait_s("a", now_s=5.0) <= 1 / RATE and pace.wait_s("b", now_s=5.0) == 0
    for _ in range(RATE - 1):
        pace.charge("a", 0, now_s=5.0)
    assert pace.wait_s("a", now_s=5.0) == 1.0 and pace.wait_s("a", now_s=6.0) == 0
    pace.charge("a", FRAME_MAX, now_s=6.0)
    assert pace.wait_s("a", now_s=6.0) > 0.1  # a long frame costs more


def test_a_burst_is_not_renewed_by_other_addresses_that_come_and_go() -> None:
    pace = Pace()
    for _ in range(BURST + RATE):
        pace.charge("a", 0, now_s=0.0)
    for number in range(3 * PACED_MAX):
        pace.charge(f"b{number}", 0, now_s=number / 1000)
    assert pace.wait_s("a", now_s=0.5) == 0.5
    assert len(pace._owed) <= PACED_MAX + 1
