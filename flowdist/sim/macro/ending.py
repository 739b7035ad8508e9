"""The end of a job in macro mode: it is decided once, and over when nothing runs any more (R18)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowdist.sim.macro.result import NEVER

if TYPE_CHECKING:
    from flowdist.sim.macro.macro import Macro


def complete(macro: Macro, now: int) -> None:
    """The work of the gang is done: whatever there is beside it stops, dependents first."""
    macro.books.halt(now, done=True)
    known = now + macro.times.message
    ends = known
    if macro.others.roles:
        macro.books.finish(known)
        ends = macro.others.end_in_order(known)
    _end(macro, "succeeded", f"every primary task has succeeded ({macro.role.name})", ends)


def fail(macro: Macro, reason: str, now: int) -> None:
    """All that still runs is stopped. The first reason counts."""
    if macro.result.outcome is not None:
        return
    books = macro.books
    if books.begun is not None:  # they step until they are stopped, and have nothing more to do
        stops = macro.halt_at or now + macro.times.stop - macro.times.message
        macro.halt(stops)
        books.move("done", books.active, stops)
    elif macro.phase == "waiting" and books.bucket == "waiting":
        books.move("re-formation", macro.ever, now)  # nobody waits for nodes any more
    else:
        books.give_up(now)
    _end(macro, "failed", reason, max(_ends_by(macro, now), macro.others.end_at_once(now)))


def _ends_by(macro: Macro, now: int) -> int:
    """When all of the gang has ended, if it is told to stop now."""
    if macro.phase == "stopping":
        return max(now, macro.due)
    if macro.phase != "running" or not macro.seats.taken:
        return now
    times = macro.times
    dead = {node: told for node, told in macro.doomed.items() if macro.seats.on[node]}
    ends = [now, *dead.values()]
    if len(macro.exited) + sum(len(macro.seats.on[node]) for node in dead) < macro.seats.taken:
        ends.append(now + times.stop)
    if not dead and macro.formed < NEVER:  # who is about to start is stopped then
        ends.append(macro.formed - times.started + times.up + times.stop - 2 * times.message)
    return max(ends)


def _end(macro: Macro, outcome: str, reason: str, now: int) -> None:
    macro.result.outcome, macro.result.reason = outcome, reason
    macro.say(now, "ends", outcome, reason)
    close(macro, now)


def close(macro: Macro, now: int) -> None:
    """Everything is booked up to now."""
    result, others = macro.result, macro.others.roles
    macro.books.close(result, macro.halt_at, now)
    result.charged = macro.policy.charged
    seats = [macro.seats, *(other.seats for other in others)]
    result.cordoned = [macro.scope.nodes[node] for each in seats for node in each.cordoned]
    for other in others:
        other.close(now)
