"""The link between a node and the controller: messages arrive in order, unless a fault of the link prevents it.

Each fault is kept by its cause (`why`), so that faults that overlap may end in any order. A connection is a stream, on
which a lost packet is no lost message: it is sent again after 200 ms, and later messages wait behind it. On a stream no
message arrives twice or overtakes another; agents and controller have to tolerate that all the same.
"""

from __future__ import annotations

from typing import Literal, get_args

from flowdist.faults.streams import draw
from flowdist.graph import MS
from flowdist.sim.engine.queue import Action, Queue

Direction = Literal["up", "down"]  # to the controller, from the controller
Disturbance = Literal["delay", "drop", "duplicate", "reorder"]
DISTURBANCES: tuple[Disturbance, ...] = get_args(Disturbance)
LATENCY_NS = 500_000  # one way
RESEND_NS = 200 * MS  # from the loss of a packet to its next attempt
RESENDS_MAX = 20
STRAY_NS = 100 * MS  # the most by which a second copy, or a message that is overtaken, is late


class Link:
    """The faults of the link between one node and the controller, and the arrival times that follow from them.

    `is_quiet`: the link has no fault, so heartbeats need not be played one by one. The name of the node and the seed
    determine which packets are lost, whatever else happens in the job. `apart_ns` is the least time between two
    messages of one direction: with a schedule, actions of one time happen in a drawn order, and the order of a stream
    must not depend on that.
    """

    def __init__(self, name: str, seed: int, apart_ns: int = 0) -> None:
        self._name, self._seed, self._apart_ns = name, seed, apart_ns
        self.is_quiet = True
        self._cuts: dict[str, tuple[Direction, ...]] = {}
        self._disturbances: dict[Disturbance, dict[str, float]] = {kind: {} for kind in DISTURBANCES}
        self._sent: dict[Direction, int] = {"up": 0, "down": 0}
        self._last: dict[Direction, int] = {"up": 0, "down": 0}
        self._drawn: dict[tuple[Direction, str], int] = {}

    def is_cut(self, direction: Direction) -> bool:
        """Return whether no message gets through in this direction."""
        return bool(self._cuts) and any(direction in directions for directions in self._cuts.values())

    @property
    def is_dead(self) -> bool:
        """Return whether no message gets through in either direction."""
        return self.is_cut("up") and self.is_cut("down")

    def cut(self, why: str, *directions: Direction) -> None:
        """Let no message through in these directions until `heal(why)`; with none, only end the quiet of the link."""
        self._cuts[why] = directions
        self.is_quiet = False

    def disturb(self, why: str, kind: Disturbance, by: float) -> None:
        """Disturb the messages in both directions until `heal(why)`.

        Delays of several causes add up. Of several probabilities of one kind the highest counts. `by` is the delay in
        ns, or the probability that a packet is lost and sent again, up to 20 times ("drop"), or that a message arrives
        twice ("duplicate") or is overtaken by later ones ("reorder").
        """
        self._disturbances[kind][why] = by
        self.is_quiet = False

    def heal(self, why: str) -> None:
        """End all faults of this cause. The link is quiet once it has no fault left."""
        self._cuts.pop(why, None)
        for causes in self._disturbances.values():
            causes.pop(why, None)
        self.is_quiet = not self._cuts and not any(self._disturbances.values())

    def late_ns(self, now: int) -> int:
        """Return by how many ns a message sent now is late behind earlier ones in the slower direction, if above 0."""
        return max(self._last.values()) - now - LATENCY_NS

    def arrival(self, direction: Direction, now: int) -> int:
        """Return when a message that is sent now arrives, in ns, on a quiet link. Later messages arrive after it."""
        at, next_at = now + LATENCY_NS, self._last[direction] + self._apart_ns
        self._last[direction] = at = at if at > next_at else next_at
        return at

    def send(self, direction: Direction, queue: Queue, receive: Action, message: object, link: int) -> None:
        """Plan `receive(message, link)` at the arrival of a message that is sent now, unless the direction is cut."""
        if self.is_quiet:
            queue.at(self.arrival(direction, queue.now), receive, message, link)
        elif not self.is_cut(direction):
            for at in self.arrivals(direction, queue.now):
                queue.at(at, receive, message, link)

    def arrivals(self, direction: Direction, now: int) -> list[int]:
        """Return when a message that is sent now arrives, in ns: twice if it is duplicated. The link is not cut."""
        if self.is_quiet:
            return [self.arrival(direction, now)]
        at = self._arrival(direction, now)
        copies = self._disturbances["duplicate"]
        if not copies or self._draw(direction, "copy") >= max(copies.values()):
            return [at]
        return [at, at + self._stray(direction)]

    def _draw(self, direction: Direction, purpose: str) -> float:
        """Return the next random number in [0, 1) of the stream of this link, direction and purpose."""
        n = self._drawn[direction, purpose] = self._drawn.get((direction, purpose), 0) + 1
        return draw(self._seed, self._name, f"{direction} {purpose}", n)

    def _stray(self, direction: Direction) -> int:
        return int(self._draw(direction, "stray") * STRAY_NS)

    def _arrival(self, direction: Direction, now: int) -> int:
        """Return when the first copy of a message arrives: after all that were sent before, unless it is overtaken."""
        at = max(self._disturbed(direction, now), self._last[direction] + self._apart_ns)
        overtakes = self._disturbances["reorder"]
        if overtakes and self._draw(direction, "overtaken") < max(overtakes.values()):
            return at + self._stray(direction)
        self._last[direction] = at
        return at

    def _disturbed(self, direction: Direction, now: int) -> int:
        at = now + LATENCY_NS + int(sum(self._disturbances["delay"].values()))
        loss = max(self._disturbances["drop"].values(), default=0.0)
        for _ in range(RESENDS_MAX if loss else 0):
            self._sent[direction] += 1
            if draw(self._seed, self._name, direction, self._sent[direction]) >= loss:
                break
            at += RESEND_NS
        return at
