"""Chains: points that are played in one run, one after the other, because a run of its own for each costs more.

After a kill a right script goes on as if nothing had been, so that it can be killed again in the same run. A chain says
something about its points only if it shows nothing, and if each attempt made the calls of the run without a fault. Else
each point is played alone, and what it shows there counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import accumulate
from math import inf

from flowdist.prove.history import Attempt, Run, Worker
from flowdist.prove.points import Point, joined
from flowdist.prove.watched import Watched

LONGEST = 8  # kills of one run


class Queue:
    """The points that are left, as the next run takes them: the more of them, the longer nothing was found.

    Args:
        watched: What the runs without a fault have shown.
        points: The points, in the order in which they begin.
        longest: How many points one run may have.
    """

    def __init__(self, watched: Watched, points: Iterable[Point], longest: int = LONGEST) -> None:
        self.left = deque(points)
        self._places = {point.name: place for place, point in enumerate(self.left)}
        self._watched, self._bound, self._length = watched, longest, 1
        self._suspects: list[tuple[list[Point], set[str]]] = []  # chains that have shown something, and of which kinds
        self._known = set[str]()  # kinds of what single points have shown

    def place(self, point: Point) -> int:
        """Return the place of a point in the order that was given; one that is joined from a chain comes last."""
        return self._places.get(point.name, len(self._places))

    def take(self) -> list[Point]:
        """Return the points of the next run, in the order in which they come there; none if all are played.

        After all others come chains that have shown what no kill shows alone.
        """
        if self.left:
            return self._next_chain()
        while self._suspects:
            chain, kinds = self._suspects.pop()
            if kinds - self._known:
                return [joined(chain)]
        return []

    def _next_chain(self) -> list[Point]:
        """Take the first point that is left, and others that can come in the same run."""
        watched, first = self._watched, self.left.popleft()
        if self._length == 1 or _moment(watched, first) is None:
            return [first]
        rest = [point for point in self.left if _moment(watched, point) is not None][: self._length - 1]
        for point in rest:
            self.left.remove(point)
        return sorted([first, *rest], key=lambda point: _moment(watched, point) or ())

    def note(self, chain: list[Point], played: int, shown: set[str]) -> None:
        """Note that the first so many points of a chain were played, and of which kinds is what its run has shown."""
        self.left.extendleft(reversed(chain[played:]))
        if len(chain) == 1:
            self._known |= shown
        elif shown and joined(chain).name not in self._places:
            self._suspects.append((chain, shown))
        if not played:
            self._bound = max(1, self._bound // 2)
        self._length = min(2 * self._length, self._bound) if played == len(chain) and not shown else 1


def came(chain: list[Point], kills: int) -> list[Point]:
    """Return the points of a chain all of whose kills came, if so many kills came."""
    until = accumulate(len(point.kills) for point in chain)
    return [point for point, count in zip(chain, until, strict=True) if count <= kills]


def _moment(watched: Watched, point: Point) -> tuple[float, ...] | None:
    """Return when a point comes in the run without a fault: after which step and which call; None: it is played alone.

    A chain has points of a job that takes steps, and after which the machine has its power and the world its
    size. What two kills in one save leave behind is counted in a run of its own.
    """
    kill, *more = point.kills
    if kill.power or kill.size or (more and point.save) or not watched.steps:
        return None
    if kill.on == "step":
        return kill.nth, -1
    if kill.on == "end":
        return inf, -1
    calls = watched.first(kill.worker).calls
    found = [at for at, call in enumerate(calls) if (call.kind, call.path) == (kill.kind, kill.path)][: kill.nth]
    return (calls[found[-1]].steps, found[-1]) if len(found) == kill.nth else None


def is_as_planned(watched: Watched, run: Run) -> bool:
    """Return whether each kill of a chain has come as it comes in a run of its own.

    Each kill is one more attempt of each worker, and up to the kill each attempt has made the calls of its saves as the
    run without a fault makes them. One that was resumed may do otherwise by what it has in memory: it does not remove
    an old checkpoint that it has not written itself, for example. Which rank makes a folder is chance.
    """
    return all(
        len(attempts) == run.kills + 1 and all(_follows(watched, worker, each) for each in attempts[:-1])
        for worker, attempts in run.attempts.items()
        if worker in watched.clean.attempts
    )


def _follows(watched: Watched, worker: Worker, attempt: Attempt) -> bool:
    calls, clean = (
        [(call.kind, call.path) for call in each.calls if watched.changes_save(call) and call.kind != "mkdir"]
        for each in (attempt, watched.first(worker))
    )
    return calls == clean[: len(calls)]
