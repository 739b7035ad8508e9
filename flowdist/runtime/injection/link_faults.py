"""Faults of the connections between the controller and its agents, applied to each frame.

A cut loses frames without closing the connection, so that only missed heartbeats show it. When it heals, the connection
is closed, as by a partition, and the agent connects again. A dropped packet delays its message and all that follow.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from flowdist.runtime.wire.frames import Direction, HealLink, LinkFault

RESEND_S = 0.2  # seconds until a dropped packet is sent again
RESENDS_MAX = 20  # how often a packet is dropped at most


class LinkFaults:
    """The faults that are in force on the controller's connections; it passes every frame through `carry`."""

    def __init__(self, faults: tuple[LinkFault, ...] = ()) -> None:
        self._links: dict[str, _FaultyLink] = {}
        for fault in faults:
            self.add(fault)

    def add(self, fault: LinkFault) -> None:
        """Begin a fault. It replaces one of the same node and `why`."""
        self._links.setdefault(fault.node, _FaultyLink(fault.node)).faults[fault.why] = fault

    def heal(self, healed: HealLink) -> None:
        """End a node's fault `why`, if any; without a cut left, close its connections that have lost frames."""
        if healed.node in self._links:
            self._links[healed.node].heal(healed.why)

    def carry(self, node: str, direction: Direction, link: asyncio.StreamWriter, deliver: Callable[[], None]) -> None:
        """Pass a frame from ("up") or to ("down") an agent on by `deliver`, at once, later or never, as faults demand.

        A frame that is delayed is lost if the connection closes meanwhile.
        """
        faulty = self._links.get(node)
        if faulty is None:
            deliver()
        else:
            faulty.carry(direction, link, deliver)


class _FaultyLink:
    """The faults of one node's connections. A node has several connections if its agent connects again."""

    def __init__(self, node: str) -> None:
        self.faults: dict[str, LinkFault] = {}
        self._random = random.Random(node)  # drops the same packets in each run that sends the same packets
        self._last_arrival_s: dict[Direction, float] = {"up": 0.0, "down": 0.0}
        self._lost_on: dict[asyncio.StreamWriter, None] = {}  # connections on which frames were lost

    def carry(self, direction: Direction, link: asyncio.StreamWriter, deliver: Callable[[], None]) -> None:
        if any(direction in fault.cut for fault in self.faults.values()):
            self._lost_on[link] = None
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        at = now + sum(fault.delay_ns for fault in self.faults.values()) / 1e9
        loss = max((fault.loss for fault in self.faults.values()), default=0.0)
        for _ in range(RESENDS_MAX):
            if self._random.random() >= loss:
                break
            at += RESEND_S
        if at <= now and self._last_arrival_s[direction] <= now:
            deliver()
            return
        self._last_arrival_s[direction] = at = max(at, self._last_arrival_s[direction] + 1e-6)  # frames stay in order
        loop.call_at(at, lambda: None if link.is_closing() else deliver())

    def heal(self, why: str) -> None:
        """End the fault with this `why`. If no cut is left, close the connections that have lost frames."""
        self.faults.pop(why, None)
        if not any(fault.cut for fault in self.faults.values()):
            for link in self._lost_on:
                link.close()
            self._lost_on.clear()
