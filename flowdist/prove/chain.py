"""Chains: points that are played in one run, one after the other, because a run of its own for each costs more.

After a kill a right script goes on as if nothing had been, so that it can be killed again in the same run. A chain says
something about its points only if it shows nothing, and if each attempt made the calls of the run without a fault. Else
each point is played alone, and what it shows there counts.
"""

from __future__ import annotations

from collections import deque
from itertools import accumulate
from math import inf

from flowdist.prove.history import Attempt, Run, Worker
from flowdist.prove.points import Point
from flowdist.prove.watched import Watched

LONGEST = 8  # kills of one run


def next_chain(watched: Watched, left: deque[Point], longest: int) -> list[Point]:
    """Take the points of the next run: the first that is left, and others that can come in the same run, in order.

    Args:
        watched: What the runs without a fault have shown.
        left: The points that are left, the first in front.
        longest: How many points one run may have.
    """
    first = left.popleft()
    if longest == 1 or _moment(watched, first) is None:
        return [first]
    rest = [point for point in left if _moment(watched, point) is not None][: longest - 1]
    for point in rest:
        left.remove(point)
    return sorted([first, *rest], key=lambda point: _moment(watched, point) or ())


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
