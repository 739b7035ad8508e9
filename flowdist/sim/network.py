"""The link between a node and the controller: what is said on it arrives, in order, unless something is wrong with it.

Wrong things are kept by their cause, so that two faults at the same time can end in any order. Over a stream a lost
packet is not a lost message: it is sent again after a while, and what was said after it waits.
"""

from __future__ import annotations

from typing import Literal

from flowdist.graph import MS
from flowdist.sim.streams import draw

Direction = Literal["up", "down"]  # to the controller, from it
LATENCY_NS = 500_000  # one way
RESEND_NS = 200 * MS  # until a lost packet is sent again, and again
RESENDS_MAX = 20


class Link:
    """One node's. `seed` and the node's name make the packets that get lost, whatever else happens in the job.

    Two messages are there `apart_ns` after one another at least: where things of one moment happen in another order
    than they were planned in, the order of a stream must not be a matter of that.

    `is_quiet`: nothing is wrong with it, heartbeats need not be played one by one.
    """

    def __init__(self, name: str, seed: int, apart_ns: int = 0) -> None:
        self._name, self._seed, self._apart_ns = name, seed, apart_ns
        self.is_quiet = True
        self._cuts: dict[str, tuple[Direction, ...]] = {}
        self._delays: dict[str, int] = {}
        self._losses: dict[str, float] = {}
        self._sent: dict[Direction, int] = {"up": 0, "down": 0}
        self._last: dict[Direction, int] = {"up": 0, "down": 0}

    def is_cut(self, direction: Direction) -> bool:
        return not self.is_quiet and any(direction in directions for directions in self._cuts.values())

    @property
    def is_dead(self) -> bool:
        return self.is_cut("up") and self.is_cut("down")

    def cut(self, why: str, *directions: Direction) -> None:
        """Nothing gets through in these directions."""
        self._cuts[why] = directions
        self.is_quiet = False

    def delay(self, why: str, ns: int) -> None:
        """Everything takes longer."""
        self._delays[why] = ns
        self.is_quiet = False

    def lose(self, why: str, probability: float) -> None:
        """So many packets have to be sent again."""
        self._losses[why] = probability
        self.is_quiet = False

    def heal(self, why: str) -> None:
        self._cuts.pop(why, None)
        self._delays.pop(why, None)
        self._losses.pop(why, None)
        self.is_quiet = not (self._cuts or self._delays or self._losses)

    def arrival(self, direction: Direction, now: int) -> int:
        """When what is said now is there; nothing overtakes what was said before."""
        at = now + LATENCY_NS if self.is_quiet else self._disturbed(direction, now)
        last = self._last[direction] + self._apart_ns
        self._last[direction] = at = at if at > last else last
        return at

    def _disturbed(self, direction: Direction, now: int) -> int:
        at = now + LATENCY_NS + sum(self._delays.values())
        loss = max(self._losses.values(), default=0.0)
        for _ in range(RESENDS_MAX if loss else 0):
            self._sent[direction] += 1
            if draw(self._seed, self._name, direction, self._sent[direction]) >= loss:
                break
            at += RESEND_NS
        return at
