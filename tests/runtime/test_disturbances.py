"""What a plan of faults does to the frames of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from flowdist.runtime.injection.link_faults import Direction, Disturb, Disturbances, Heal


class Link:
    """As much of a connection as is asked for."""

    def __init__(self) -> None:
        self.is_closed = False

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


class Talk:
    """Says numbers on the connection of node1; `heard` are those that arrive."""

    def __init__(self, disturbances: Disturbances) -> None:
        self.link, self.heard, self._disturbances = Link(), [], disturbances  # type: ignore[var-annotated]
        self.done = asyncio.Event()

    def say(self, *numbers: int, direction: Direction = "up", node: str = "node1") -> None:
        for number in numbers:
            self._disturbances.carry(node, direction, self.link, self._hear(number))  # type: ignore[arg-type]

    def _hear(self, number: int) -> Callable[[], None]:
        def hear() -> None:
            self.heard.append(number)
            if number == 99:
                self.done.set()

        return hear


def test_what_nobody_disturbs_arrives_at_once() -> None:
    talk = Talk(Disturbances((Disturb("node2", "why", cut=("up",)),)))
    talk.say(1, 2)  # there is no loop: nothing waits
    assert talk.heard == [1, 2]


def test_a_cut_loses_messages_of_its_direction_and_ends_by_closing_the_connection() -> None:
    async def story() -> None:
        disturbances = Disturbances((Disturb("node1", "a", cut=("up", "down")), Disturb("node1", "b", cut=("up",))))
        talk = Talk(disturbances)
        talk.say(1)
        talk.say(2, direction="down")
        disturbances.heal(Heal("node1", "a"))
        talk.say(3)
        talk.say(4, direction="down")
        assert talk.heard == [4] and not talk.link.is_closed
        disturbances.heal(Heal("node1", "b"))
        assert talk.link.is_closed  # the agent makes another
        talk.link = Link()
        talk.say(5)
        assert talk.heard == [4, 5]
        disturbances.heal(Heal("node1", "b"))
        assert not talk.link.is_closed

    asyncio.run(story())


@pytest.mark.parametrize("wrong", [Disturb("node1", "x", delay_ns=20_000_000), Disturb("node1", "x", loss=0.3)])
def test_what_is_delayed_or_dropped_arrives_later_and_in_order(wrong: Disturb) -> None:
    async def story() -> None:
        disturbances = Disturbances()
        disturbances.disturb(wrong)
        talk = Talk(disturbances)
        talk.say(*range(8))
        assert talk.heard != list(range(8))
        disturbances.heal(Heal("node1", "x"))
        talk.say(8, 99)  # overtakes nobody
        await talk.done.wait()
        assert talk.heard == [*range(9), 99]

    asyncio.run(story())


def test_what_is_late_on_a_connection_that_is_closed_by_then_never_arrives() -> None:
    async def story() -> None:
        talk = Talk(Disturbances((Disturb("node1", "x", delay_ns=10_000_000),)))
        talk.say(1)
        talk.link.close()
        talk.link = Link()
        talk.say(99)
        await talk.done.wait()
        assert talk.heard == [99]

    asyncio.run(story())
