"""The link between a node and the controller: what is said on it arrives, in order, unless something is wrong with it.

Wrong things are kept by their cause, so that two faults at the same time can end in any order. Over a stream a lost
packet is not a lost message: it is sent again after a while, and what was said after it waits. Messages that come
twice, or overtake one another, are no stream's doing: agents and controller bear them all the same.
"""

from __future__ import annotations

from typing import Literal

from flowdist.graph import MS
from flowdist.sim.engine.streams import draw

Direction = Literal["up", "down"]  # to the controller, from it
LATENCY_NS = 500_000  # one way
RESEND_NS = 200 * MS  # until a lost packet is sent again, and again
RESENDS_MAX = 20
STRAY_NS = 100 * MS  # how much later at most a second copy comes, or a message that is overtaken


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
        self._copies: dict[str, float] = {}
        self._overtakes: dict[str, float] = {}
        self._sent: dict[Direction, int] = {"up": 0, "down": 0}
        self._last: dict[Direction, int] = {"up": 0, "down": 0}
        self._drawn: dict[tuple[Direction, str], int] = {}

    def is_cut(self, direction: Direction) -> bool:
        return bool(self._cuts) and any(direction in directions for directions in self._cuts.values())

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

    def duplicate(self, why: str, probability: float) -> None:
        """So many messages arrive twice."""
        self._copies[why] = probability
        self.is_quiet = False

    def reorder(self, why: str, probability: float) -> None:
        """So many messages are overtaken by later ones."""
        self._overtakes[why] = probability
        self.is_quiet = False

    def heal(self, why: str) -> None:
        wrongs = (self._cuts, self._delays, self._losses, self._copies, self._overtakes)
        for wrong in wrongs:
            wrong.pop(why, None)
        self.is_quiet = not any(wrongs)

    def late_ns(self, now: int) -> int:
        """How much longer what is said now takes than usual, because something said before is not there yet."""
        return max(self._last.values()) - now - LATENCY_NS

    def arrival(self, direction: Direction, now: int) -> int:
        """When it is there if nothing is wrong with the link."""
        at, next_at = now + LATENCY_NS, self._last[direction] + self._apart_ns
        self._last[direction] = at = at if at > next_at else next_at
        return at

    def arrivals(self, direction: Direction, now: int) -> list[int]:
        """When what is said now is there; twice, if it is doubled."""
        if self.is_quiet:
            return [self.arrival(direction, now)]
        at = self._arrival(direction, now)
        copies = max(self._copies.values()) if self._copies else 0.0
        if not copies or self._draw(direction, "copy") >= copies:
            return [at]
        return [at, at + self._stray(direction)]

    def _draw(self, direction: Direction, purpose: str) -> float:
        """One more number of the stream of this link, direction and purpose."""
        n = self._drawn[direction, purpose] = self._drawn.get((direction, purpose), 0) + 1
        return draw(self._seed, self._name, f"{direction} {purpose}", n)

    def _stray(self, direction: Direction) -> int:
        return int(self._draw(direction, "stray") * STRAY_NS)

    def _arrival(self, direction: Direction, now: int) -> int:
        """Nothing overtakes what was said before, unless the link is told to reorder."""
        at = max(self._disturbed(direction, now), self._last[direction] + self._apart_ns)
        if self._overtakes and self._draw(direction, "overtaken") < max(self._overtakes.values()):
            return at + self._stray(direction)
        self._last[direction] = at
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
