"""The steady case of macro mode, which is nearly all of it: a node dies, a spare takes its place, nodes come back.

It does what `Macro` does step by step, with its state in local variables: that makes a failure three times as cheap.
Whatever is not steady is left to `Macro` before anything of it is done. A test plays both and compares.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from flowdist.faults import Rate
from flowdist.sim.macro_books import ANSWER_NS
from flowdist.streams import number, stream

if TYPE_CHECKING:
    from flowdist.sim.macro import Macro

NEVER = 1 << 62


class Leg(NamedTuple):
    """What a sprint has come to. Times in ns, those in buckets of one replica."""

    failures: int
    start_up: int
    restore: int
    productive: int
    lost: int
    checkpoint: int
    detection: int
    lost_steps: int
    row: int
    durable: int
    since: int  # of the start-up that is under way
    begins: int
    formed: int
    free: int
    left: tuple[str, Rate, int] | None  # a fault that is left to `Macro`: of whom, what and when


def can_ever_sprint(macro: Macro) -> bool:
    """Every fault of a rate is the end of one node, a replica has one of its own, and its loss is free."""
    of_nodes = all(rate.kind == "kill" and rate.subject in ("node", *macro.scope.nodes) for rate in macro.plan.rates)
    verdict = macro.policy.judge("node_lost", 0)
    return (
        of_nodes and bool(macro.plan.rates) and max(macro.scope.seats) == 1 and not (verdict.fails or verdict.counted)
    )


def may_sprint(macro: Macro) -> bool:
    """All run, none of them is dead or suspect, and nobody wants to know more than the sums."""
    seats = macro.seats
    steady = macro.phase == "running" and macro.formed != NEVER and not macro.doomed and not seats.vacant
    return steady and macro.tell is None and not macro.keep and not (seats.failures or seats.cordoned)


def sprint(macro: Macro, end: int) -> None:
    """From one failure to the next, for as long as no other thing comes between."""
    leg = _run(macro, end)
    books, seats, times = macro.books, macro.seats, macro.times
    seats.free, macro.policy.row = leg.free, leg.row
    if leg.failures:
        everyone = books.active
        for bucket, ns in (
            ("start-up", leg.start_up),
            ("restore", leg.restore),
            ("productive", leg.productive),
            ("lost work", leg.lost),
            ("checkpoint", leg.checkpoint),
            ("detection", leg.detection),
            ("re-formation", leg.failures * (times.stop + times.open)),
        ):
            books.spent[bucket] += everyone * ns  # type: ignore[index]
        books.bucket, books.since, books.begun, books.progressed = "start-up", leg.since, None, False
        books.durable, books.lost_steps = leg.durable, books.lost_steps + leg.lost_steps
        books.lost_ns += leg.lost_steps * macro.role.workload.step_ns
        macro.result.faults += leg.failures
        macro.result.generations += leg.failures
        macro.result.causes["node_lost"] += leg.failures
        macro.formed = leg.formed
        macro.plan_begin(leg.begins)
    if leg.left is not None:
        if macro.due <= leg.left[2]:
            macro.begin(macro.due)
        macro.hit(*leg.left)


def _run(macro: Macro, end: int) -> Leg:
    books, seats, load, times, options = macro.books, macro.seats, macro.role.workload, macro.times, macro.options
    later, arrivals, names, alive = macro.later, macro.arrivals, macro.names, macro.alive
    on, usable, node_of, losses, shelf, flapping = (
        seats.on,
        seats.usable,
        seats.node_of,
        seats.losses,
        seats.shelf,
        seats.flapping,
    )
    every, step, cycle = load.checkpoint_every_ns, load.step_ns, load.checkpoint_every_ns + load.checkpoint_ns
    proof, away, healthy_ns, limit = times.proof, times.stop_and_go, options.min_uptime_ns, options.free_incidents_max
    seed, slowest, generation, count = (
        macro.seed,
        stream(macro.seed, macro.role.name, "slowest"),
        macro.result.generations,
        books.active,
    )
    failures = start_up = restore = productive = lost = checkpoint = detection = lost_steps = 0
    row, durable, formed, free = macro.policy.row, books.durable, macro.formed, seats.free
    message, up, running, startup, restore_ns = times.message, times.up, times.started, load.startup_ns, load.restore_ns
    begins, since, reading = macro.due, books.since, restore_ns if books.durable else 0
    if books.begun is not None:  # its start-up is booked
        begins = since = books.begun
        reading = 0
    done, left, answer = books.end(begins), None, ANSWER_NS
    saving, steps_all, take, drawn = load.checkpoint_ns, load.steps, arrivals.take, arrivals.heap
    while True:
        at, strike = later[0][0] if later else NEVER, drawn[0][0]
        if at <= strike:
            node = later[0][3]
            if at > end or at >= done or node < 0 or node in flapping:
                break
            heappop(later)
            alive[node] = usable[node] = True
            free += 1
            heappush(shelf, (seats.sign, node))
            continue
        if strike > end or strike >= done:
            break
        now, rate, target = take()
        node = names[target]
        if not alive[node]:
            continue
        starts = now + away
        alone = starts < at and starts < drawn[0][0] and starts <= end
        if not (alone and free and on[node]) or now < formed or row >= limit:
            left = target, rate, now
            break
        failures += 1
        alive[node] = usable[node] = False
        if rate.duration_ns is not None:
            macro.serial += 1
            heappush(later, (now + rate.duration_ns + message, macro.serial, None, node))
        row = 1 if now + proof - formed >= healthy_ns else row + 1
        if now >= begins:
            cycles, rest = divmod(now - begins, cycle)
            worked = cycles * every + (rest if rest < every else every)
            steps, kept = worked // step, 0
            if rest < answer:
                cycles -= 1  # the last one does not count: its answer was under way
            if cycles > 0:
                saved = cycles * every // step
                durable, steps, row = durable + saved, steps - saved, 1
                kept = min(worked, saved * step)
            start_up += begins - since - reading
            restore += reading
            productive += kept
            lost += worked - kept
            checkpoint += now - begins - worked
            detection += proof
            lost_steps += steps
        else:
            start_up += now + proof - since
        replica = on[node].pop()
        best = heappop(shelf)[1]
        while not usable[best] or on[best]:
            best = heappop(shelf)[1]
        on[best].append(replica)
        node_of[replica] = best
        free -= 1
        if node in losses:
            seats.note_loss(node, now + proof)
        else:
            losses[node] = [now + proof]
        since, formed, reading = starts, starts + running, restore_ns if durable else 0
        begins = starts + up + reading + startup
        if seed:
            begins += macro.spread(number(slowest, generation + failures), count)
        work = (steps_all - durable) * step
        done = begins + work + (work - 1) // every * saving
    return Leg(
        failures,
        start_up,
        restore,
        productive,
        lost,
        checkpoint,
        detection,
        lost_steps,
        row,
        durable,
        since,
        begins,
        formed,
        free,
        left,
    )
