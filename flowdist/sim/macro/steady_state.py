"""The steady cases of macro mode, which are nearly all of it.

A node dies: a spare takes its place, or the gang goes on with fewer, or it waits below its minimum. Nodes come back,
and it grows. A replica falls over, and all restart where they were. It does what `Macro` does step by step, without its
steps: that makes a failure four times as cheap. Only what nothing else comes between is done here; the rest is left to
`Macro` before anything of it is done. A test plays both and compares.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from flowdist.faults.streams import numbers, stream
from flowdist.graph import MS
from flowdist.sim.macro.books import ANSWER_NS
from flowdist.sim.macro.result import FAILED, NEVER

if TYPE_CHECKING:
    from flowdist.faults.grammar import Fault, Rate
    from flowdist.record.accounts import Bucket
    from flowdist.sim.macro.macro import Macro


def can_ever_sprint(macro: Macro) -> bool:
    """Nodes die at a rate, or replicas fall over, a node has room for one replica, and its loss is free."""
    verdict = macro.policy.judge("node_lost", 0)
    free = not (verdict.fails or verdict.counted)
    known = any(_ends_a_node(rate, macro) or _ends_a_replica(rate, macro) for rate in macro.plan.rates)
    return free and max(macro.scope.seats) == 1 and known


def _ends_a_node(rate: Rate, macro: Macro) -> bool:
    return rate.kind == "kill" and rate.subject in ("node", *macro.scope.nodes)


def _ends_a_replica(rate: Rate, macro: Macro) -> bool:
    return rate.kind in FAILED and rate.subject in ("replica", macro.role.name)


def may_sprint(macro: Macro) -> bool:
    """No member is dead, cut off or suspect, no back-off is under way, and nobody wants to know more than the sums."""
    if macro.doomed or macro.cuts or macro.seats.wary or macro.keep or macro.tell is not None:
        return False
    if macro.others.roles and not macro.others.are_settled:
        return False
    if macro.phase == "waiting":
        return macro.books.bucket == "waiting" and not macro.counts
    return macro.phase == "running" and macro.formed != NEVER and macro.due != NEVER


@dataclass(slots=True)
class Sprint:
    """Of one `Macro`, from one failure to the next. Times are in ns; what stands here is there in `run` alone.

    Those that are named for a bucket, and their like, are sums of all members, since the sprint began.
    """

    macro: Macro
    proof: int = 0  # from the death of a node to the proof of it
    away: int = 0  # from the death of a node to the order to start again
    reform: int = 0  # from an incident to that order
    every: int = 0  # of work, and a checkpoint
    cycle: int = 0  # both together
    step: int = 0
    least: int = 0
    most: int = 0
    slowest: Callable[[int], float] | None = None  # what a start-up is drawn from; None: it is nominal
    startup: int = 0
    starts: int = 0  # from the order to the news that all run
    fixed: int = 0  # of a start-up, without the reading of a checkpoint
    reads: int = 0  # of a start-up, the reading of one
    healthy_after: int = 0
    row_max: int = 0
    # The node that a fault of each entity ends; -2 and less: replica 0 and those after it; -1: it is another fault.
    nodes: list[int] = field(default_factory=list)
    hushes: bool = False  # a node may fall silent: when it was heard of first counts then
    vacant: list[int] = field(default_factory=list)  # those of `Seats`
    waits: bool = False  # it is below its minimum
    due: int = 0  # when all is done, or when it has waited for too long
    since: int = 0  # when the start-up began, or the waiting
    reading: int = 0  # of a checkpoint, in this start-up
    begins: int = 0
    formed: int = 0  # 0 while it waits
    active: int = 0
    durable: int = 0
    whole: int = 0  # of the work from there
    ever: int = 0
    row: int = 0
    free: int = 0
    generation: int = 0
    healthy: bool = False  # enough for the next growth
    failures: int = 0
    incidents: int = 0
    grown: int = 0
    lost_steps: int = 0  # of one member
    start_up: int = 0  # with the reading of checkpoints
    restore: int = 0
    productive: int = 0
    worked: int = 0  # productive or lost
    stepped: int = 0  # with checkpoints
    detection: int = 0
    reformation: int = 0
    backoff: int = 0
    fallen: Counter[str] = field(default_factory=Counter)  # replicas, by kind

    def __post_init__(self) -> None:
        role, times, load = self.macro.role, self.macro.times, self.macro.role.workload
        self.away, self.reform, self.fixed = times.stop_and_go, times.stop + times.open, times.up + load.startup_ns
        self.every, self.cycle = load.checkpoint_every_ns, load.checkpoint_every_ns + load.checkpoint_ns
        self.step, self.least, self.most = load.step_ns, role.min_replicas, role.max_replicas
        self.proof, self.starts, self.reads = times.proof, times.started, load.restore_ns
        self.healthy_after, self.row_max = self.macro.options.min_uptime_ns, self.macro.options.free_incidents_max
        self.startup = load.startup_ns
        if self.macro.seed:
            self.slowest = numbers(stream(self.macro.seed, role.name, "slowest"))
        for entity in self.macro.arrivals.entities:
            node = -1
            if _ends_a_node(entity.rate, self.macro):
                node = self.macro.names[entity.target]
            elif _ends_a_replica(entity.rate, self.macro):
                node = -2 - int(entity.target.rpartition("/")[2])
            self.nodes.append(node)
        faults: list[Fault | Rate] = [*self.macro.plan.faults, *self.macro.plan.rates]
        self.hushes = any(fault.kind == "lost" for fault in faults)
        self.vacant = self.macro.seats.vacant

    def run(self, end: int) -> None:
        """As far as it can, and not beyond `end`."""
        self._enter()
        left = self._sprint(end)
        self._leave()
        macro = self.macro
        if left is not None:
            if macro.phase == "running" and macro.books.begun is None and macro.due < left[2]:
                macro.begin(macro.due)
            macro.hit(*left)

    def _sprint(self, end: int) -> tuple[str, Rate, int] | None:
        """Returns a fault that is left to `Macro`: of whom, what and when."""
        macro, seats, vacant = self.macro, self.macro.seats, self.vacant
        later, nodes, alive, met, message = macro.later, self.nodes, macro.alive, macro.met, macro.times.message
        arrivals, drawn, entities = macro.arrivals, macro.arrivals.heap, macro.arrivals.entities
        advance, bits, mask = arrivals.advance, arrivals.bits, arrivals.mask
        on, usable, candidates, room, flapping = seats.on, seats.usable, seats.candidates, seats.room, seats.flapping
        while True:
            at, strike = later[0][0] if later else NEVER, (drawn[0] >> bits) * MS
            if strike < at or not later:
                if strike > end or strike >= self.due:
                    return None
                entity = entities[drawn[0] & mask]
                node = nodes[drawn[0] & mask]
                advance()
                if node < 0:
                    quiet = min(at, (drawn[0] >> bits) * MS, end + 1)
                    if node == -1 or not self._fall_over(-2 - node, entity.rate, strike, quiet):
                        return entity.target, entity.rate, strike
                    continue
                if not alive[node]:
                    continue
                starts = strike + self.away
                alone = starts < at and starts < (drawn[0] >> bits) * MS and starts <= end
                if not (alone and on[node]) or strike < self.formed or not self._lose(node, strike):
                    return entity.target, entity.rate, strike
                alive[node] = False
                if entity.rate.duration_ns is not None:
                    macro.serial += 1
                    back = strike + entity.rate.duration_ns
                    if self.hushes:
                        met[node] = back
                    heappush(later, (back + message, macro.serial, None, node))
                continue
            node = later[0][3]
            if at > end or at >= self.due or node == -1 or (node >= 0 and (node in flapping or not room[node])):
                return None
            entry = heappop(later)
            grows = 0
            if vacant and (node >= 0 or (self.free and node == -2 - self.generation)):
                quiet = strike if strike <= end else end + 1
                grows = self._when(at, later[0][0] if later and later[0][0] < quiet else quiet)
                if not grows:
                    heappush(later, entry)
                    return None
            if node >= 0:
                alive[node] = usable[node] = True
                self.free += 1
                heappush(candidates, (seats.sign, node))
            if grows > at:
                macro.serial += 1
                heappush(later, (grows, macro.serial, None, -2 - self.generation))
            elif grows:
                self._grow(at)

    def _lose(self, node: int, now: int) -> bool:
        """A member dies, and the others stop. False: this is no steady case, and nothing is done."""
        seats, active, vacant, told = self.macro.seats, self.active, self.vacant, now + self.proof
        if not self.waits:
            if active == 1 or not self._note_incident(now, told):
                return False
            if now > self.begins:
                self._halt(now)
                self.detection += active * (told - now)
            else:
                self.start_up += active * (told - self.since)
            seats.note_loss(node, told)
        self.failures += 1
        replica = seats.on[node].pop()
        seats.usable[node] = False
        if self.free and not vacant:
            self._seat(replica)
        else:
            seats.node_of[replica] = None
            insort(vacant, replica)
            if self.waits:
                return True
            if self.free:
                self._fill()
        members = self.most - len(vacant)
        if members < self.least:
            self.waits, self.formed, self.active, self.since = True, 0, 0, told + self.macro.times.stop
            self.reformation += active * self.macro.times.stop
            self.due = self.since + self.macro.role.pending_timeout_ns
        else:
            self.reformation += active * self.reform
            self._start(members, now + self.away)
        return True

    def _fall_over(self, replica: int, rate: Rate, now: int, quiet: int) -> bool:
        """A replica fails by itself, and all restart. False: this is no steady case, and nothing is done."""
        macro, active, told = self.macro, self.active, now + self.macro.times.message
        if self.waits or now < self.formed or macro.seats.node_of[replica] is None:
            return True  # nobody is there to be hit
        kind, signal = FAILED[rate.kind]
        verdict = macro.policy.judge(kind, told, int(rate.arg) if rate.kind == "exit" else 0, signal)
        if active == 1 or verdict.fails or not verdict.counted:
            return False
        wait = macro.policy.backoff_ns(verdict.level, told)
        starts = told + max(macro.times.stop, wait) + macro.times.open
        if starts >= quiet or not macro.seats.note_failure(replica, kind, told):
            return False
        macro.policy.charge(verdict.level, told)
        self.fallen[kind] += 1
        if now > self.begins:
            self._halt(now)
            self.detection += active * (told - now)
        else:
            self.start_up += active * (told - self.since)
        self.reformation += active * (starts - told - wait)
        self.backoff += active * wait
        self._fill()
        self._start(self.most - len(self.vacant), starts)
        macro.policy.last_counted_ns = self.formed
        return True

    def _note_incident(self, now: int, told: int) -> bool:
        """False: it may be one too many in a row."""
        if told - self.formed >= self.healthy_after or now - self.begins >= self.cycle + ANSWER_NS:
            self.row = 1
        elif self.row < self.row_max:
            self.row += 1
        else:
            return False
        self.incidents += 1
        return True

    def _when(self, at: int, quiet: int) -> int:
        """When those without a seat get one, as a node is free. 0: it is not done here, as something comes between."""
        macro, times = self.macro, self.macro.times
        if self.waits:
            short = self.least - self.most + len(self.vacant)
            return at if short > 1 or at + times.open < quiet else 0
        formed = self.formed
        late = at if at > formed else formed
        wait, self.healthy = macro.role.cooldown_ns if self.generation > 1 else 0, True
        if not (late - formed >= self.healthy_after or late - self.begins >= self.cycle + times.message):
            self.healthy = False
            if self.row >= self.row_max - 1 and wait < self.healthy_after:
                wait = self.healthy_after
        if at < formed + wait:
            return formed + wait
        return at if at + self.reform < quiet and at + self.reform < self.due else 0

    def _grow(self, now: int) -> None:
        """Free nodes take those without a seat: a gang that waits starts if they are enough, one that runs restarts."""
        self._fill()
        active, members, times = self.active, self.most - len(self.vacant), self.macro.times
        if self.waits:
            if members >= self.least:
                self.reformation += self.ever * times.open
                self._start(members, now + times.open)
            return
        self.row = 1 if self.healthy else self.row + 1
        starts = now + self.reform
        if now > self.begins:
            halts = now + times.stop - times.message  # they step until they are stopped
            self._halt(halts)
            self.reformation += active * (starts - halts)
        else:
            self.start_up += active * (now - self.since)
            self.reformation += active * (starts - now)
        self.grown += 1
        self._start(members, starts)

    def _fill(self) -> None:
        vacant = self.vacant
        while vacant and self.free:
            self._seat(vacant.pop(0))

    def _seat(self, replica: int) -> None:
        """As `Seats.fill`, where a node has room for one and none is to be avoided."""
        seats = self.macro.seats
        on, usable, candidates, cordoned = seats.on, seats.usable, seats.candidates, seats.cordoned
        node = heappop(candidates)[1]
        while not usable[node] or on[node] or node in cordoned:
            node = heappop(candidates)[1]
        on[node].append(replica)
        seats.node_of[replica] = node
        self.free -= 1

    def _start(self, members: int, at: int) -> None:
        self.waits, self.active, self.since, self.formed = False, members, at, at + self.starts
        self.generation += 1
        if members > self.ever:
            self.ever = members
        self.reading = reading = self.reads if self.durable else 0
        begins = at + self.fixed + reading
        if self.slowest is not None:  # as `Macro.spread`
            begins += int(self.startup * (0.4 * self.slowest(self.generation) ** (1 / members) - 0.2))
        self.begins, self.due = begins, begins + self.whole

    def _halt(self, at: int) -> None:
        """They step no more: what is not saved is lost."""
        begins, every, active = self.begins, self.every, self.active
        cycles, rest = divmod(at - begins, self.cycle)
        worked = cycles * every + (rest if rest < every else every)
        if rest < ANSWER_NS:
            cycles -= 1  # the last one does not count: its answer was under way
        self.lost_steps += worked // self.step
        if cycles > 0:
            saved = cycles * every // self.step
            self.durable += saved
            self.whole = self._to_do()
            self.lost_steps -= saved
            self.productive += active * saved * self.step
        self.start_up += active * (begins - self.since)
        self.restore += active * self.reading
        self.worked += active * worked
        self.stepped += active * (at - begins)

    def _to_do(self) -> int:
        """How long the rest of the work will take, with its checkpoints."""
        load = self.macro.role.workload
        work = (load.steps - self.durable) * self.step
        return work + (work - 1) // self.every * load.checkpoint_ns

    def _enter(self) -> None:
        macro, books = self.macro, self.macro.books
        self.waits, self.active, self.durable, self.ever = (
            macro.phase == "waiting",
            books.active,
            books.durable,
            macro.ever,
        )
        self.row, self.free, self.generation = macro.policy.row, macro.seats.free, macro.result.generations
        self.since, self.formed = books.since, 0 if self.waits else macro.formed
        self.failures = self.incidents = self.grown = self.lost_steps = 0
        self.start_up = self.restore = self.productive = self.worked = self.stepped = 0
        self.detection = self.reformation = self.backoff = 0
        self.fallen.clear()
        self.whole = self._to_do()
        if self.waits:
            self.due = macro.due
        elif books.begun is not None:  # its start-up is booked
            self.begins, self.reading, self.due = books.begun, 0, macro.due
        else:
            self.begins, self.reading = macro.due, macro.role.workload.restore_ns if self.durable else 0
            self.due = books.end(self.begins)

    def _leave(self) -> None:
        """`Macro` goes on from here: in a start-up, or waiting."""
        macro, seats, result = self.macro, self.macro.seats, self.macro.result
        seats.free, seats.taken = self.free, self.most - len(self.vacant)
        result.faults += self.failures + self.fallen.total()
        if self.generation == result.generations and not self.incidents:
            return
        self._book()
        result.generations, macro.policy.row, macro.ever, macro.backoff = self.generation, self.row, self.ever, 0
        for kind, count in (("node_lost", self.incidents), ("joined", self.grown), *self.fallen.items()):
            if count:
                result.causes[kind] += count
        if self.waits:
            macro.plan_wait(self.due)
        else:
            macro.plan_begin(self.begins, self.formed)

    def _book(self) -> None:
        books = self.macro.books
        sums: dict[Bucket, int] = {
            "start-up": self.start_up - self.restore,
            "restore": self.restore,
            "productive": self.productive,
            "lost work": self.worked - self.productive,
            "checkpoint": self.stepped - self.worked,
            "detection": self.detection,
            "re-formation": self.reformation,
            "back-off": self.backoff,
        }
        sums["waiting"] = self.most * (self.since - books.since) - sum(sums.values())
        for bucket, ns in sums.items():
            books.spent[bucket] += ns
        books.bucket, books.active, books.since = "waiting" if self.waits else "start-up", self.active, self.since
        books.begun, books.progressed, books.durable = None, False, self.durable
        books.lost_steps += self.lost_steps
        books.lost_ns += self.lost_steps * self.step
