"""Link faults lose, delay and close as real networks do, and never reorder frames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from flowdist.runtime.injection.link_faults import LinkFaults
from flowdist.runtime.wire.frames import Direction, HealLink, LinkFault


class Link:
    """The part of a StreamWriter that LinkFaults uses."""

    def __init__(self) -> None:
        self.is_closed = False

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


class Talk:
    """Sends numbers on the connection of node1; `received` are those that arrive."""

    def __init__(self, faults: LinkFaults) -> None:
        self.link, self.received, self._faults = Link(), [], faults  # type: ignore[var-annotated]
        self.done = asyncio.Event()

    def send(self, *numbers: int, direction: Direction = "up", node: str = "node1") -> None:
        for number in numbers:
            self._faults.carry(node, direction, self.link, self._receive(number))  # type: ignore[arg-type]

    def _receive(self, number: int) -> Callable[[], None]:
        def receive() -> None:
            self.received.append(number)
            if number == 99:
                self.done.set()

        return receive


def test_frames_of_a_link_without_faults_arrive_at_once() -> None:
    talk = Talk(LinkFaults((LinkFault("node2", "why", cut=("up",)),)))
    talk.send(1, 2)  # there is no loop: nothing waits
    assert talk.received == [1, 2]


def test_a_cut_loses_frames_in_its_direction_and_ends_by_closing_the_connection() -> None:
    async def story() -> None:
        faults = LinkFaults((LinkFault("node1", "a", cut=("up", "down")), LinkFault("node1", "b", cut=("up",))))
        talk = Talk(faults)
        talk.send(1)
        talk.send(2, direction="down")
        faults.heal(HealLink("node1", "a"))
        talk.send(3)
        talk.send(4, direction="down")
        assert talk.received == [4] and not talk.link.is_closed
        faults.heal(HealLink("node1", "b"))
        assert talk.link.is_closed  # the agent makes another
        talk.link = Link()
        talk.send(5)
        assert talk.received == [4, 5]
        faults.heal(HealLink("node1", "b"))
        assert not talk.link.is_closed

    asyncio.run(story())


@pytest.mark.parametrize("fault", [LinkFault("node1", "x", delay_ns=20_000_000), LinkFault("node1", "x", loss=0.3)])
def test_delayed_or_dropped_frames_arrive_later_and_in_order(fault: LinkFault) -> None:
    async def story() -> None:
        faults = LinkFaults()
        faults.add(fault)
        talk = Talk(faults)
        talk.send(*range(8))
        assert talk.received != list(range(8))
        faults.heal(HealLink("node1", "x"))
        talk.send(8, 99)  # overtakes no earlier frame
        await talk.done.wait()
        assert talk.received == [*range(9), 99]

    asyncio.run(story())


def test_a_frame_that_is_late_on_a_closed_connection_never_arrives() -> None:
    async def story() -> None:
        talk = Talk(LinkFaults((LinkFault("node1", "x", delay_ns=10_000_000),)))
        talk.send(1)
        talk.link.close()
        talk.link = Link()
        talk.send(99)
        await talk.done.wait()
        assert talk.received == [99]

    asyncio.run(story())
