"""What a plan of faults has done to the connections between the controller and its agents, frame by frame.

Nothing, and at no cost, unless a plan asks for it. What is cut off is lost without an end of the stream, so that only
silence tells; when it heals the connection is closed, as one that a partition has outlasted, and the agent makes
another. A dropped packet of a stream is not a lost message: it comes later, and what was said after it waits.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Literal

import msgspec

Direction = Literal["up", "down"]  # to the controller, from it
RESEND_S = 0.2  # until a dropped packet is sent again, and again
RESENDS_MAX = 20


class Disturb(msgspec.Struct, frozen=True, tag=True):
    """From now on this is wrong with the connection of a node. `why` tells it from what else may be."""

    node: str
    why: str
    cut: tuple[Direction, ...] = ()
    delay_ns: int = 0
    loss: float = 0.0


class Heal(msgspec.Struct, frozen=True, tag=True):
    """It is over."""

    node: str
    why: str


class Disturbances:
    """All of them, by node. `carry` is on the way of every frame of an agent."""

    def __init__(self, disturbed: tuple[Disturb, ...] = ()) -> None:
        self._lines: dict[str, _Line] = {}
        for wrong in disturbed:
            self.disturb(wrong)

    def disturb(self, wrong: Disturb) -> None:
        self._lines.setdefault(wrong.node, _Line(wrong.node)).wrong[wrong.why] = wrong

    def heal(self, over: Heal) -> None:
        if over.node in self._lines:
            self._lines[over.node].heal(over.why)

    def carry(self, node: str, direction: Direction, link: asyncio.StreamWriter, arrive: Callable[[], None]) -> None:
        """Call `arrive` now, later or never."""
        line = self._lines.get(node)
        if line is None:
            arrive()
        else:
            line.carry(direction, link, arrive)


class _Line:
    """The connection of one node, and those that it makes while it is cut off."""

    def __init__(self, node: str) -> None:
        self.wrong: dict[str, Disturb] = {}
        self._random = random.Random(node)  # the same packets in each run, as far as the rest is the same
        self._last_s: dict[Direction, float] = {"up": 0.0, "down": 0.0}
        self._lost_on: dict[asyncio.StreamWriter, None] = {}

    def carry(self, direction: Direction, link: asyncio.StreamWriter, arrive: Callable[[], None]) -> None:
        if any(direction in wrong.cut for wrong in self.wrong.values()):
            self._lost_on[link] = None
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        at = now + sum(wrong.delay_ns for wrong in self.wrong.values()) / 1e9
        loss = max((wrong.loss for wrong in self.wrong.values()), default=0.0)
        for _ in range(RESENDS_MAX):
            if self._random.random() >= loss:
                break
            at += RESEND_S
        if at <= now and self._last_s[direction] <= now:
            arrive()
            return
        self._last_s[direction] = at = max(at, self._last_s[direction] + 1e-6)  # nothing overtakes what was said before
        loop.call_at(at, lambda: None if link.is_closing() else arrive())

    def heal(self, why: str) -> None:
        self.wrong.pop(why, None)
        if not any(wrong.cut for wrong in self.wrong.values()):
            for link in self._lost_on:
                link.close()
            self._lost_on.clear()
