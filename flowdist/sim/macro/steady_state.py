"""Fast path of macro mode for the steady cases, which are nearly all of a long run.

Three things happen again and again: a node dies, and a spare node takes its place, the gang continues with fewer, or it
waits below its minimum; a node comes back, and the gang grows; a replica fails, and all restart where they were. For
these the way from one generation to the next is known in advance, so `SteadyState` adds up what `gang` would do step by
step:

    fault       known    stopped   start                  formed    begins                        next fault
      |           |         |        |                      |         |                               |
      +-detection-+---re-formation---+-----------start-up-------------+--productive, checkpoints, lost-+
      |<------ death_to_start ------>|<--------- startup_ns --------->|

A case is handled here only if nothing else happens between its fault and the start of the next generation. Every other
case is left to `gang` before any of it is done. The results are the same to the nanosecond: tests run both and compare.
`benchmarks/macro.py --paths` prints the gain: a failure takes a third to a quarter of the computing time.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from flowdist.control.incidents.health import exceeds_row, growth_wait_ns, is_healthy, next_free_row
from flowdist.faults.grammar import Fault, Rate
from flowdist.faults.streams import numbers, stream
from flowdist.graph import MS
from flowdist.record.accounts import Bucket
from flowdist.sim.macro.books import ANSWER_NS
from flowdist.sim.macro.gang import begin, plan_begin
from flowdist.sim.macro.generation.waiting import plan_wait
from flowdist.sim.macro.job import OTHER, Job, target_of
from flowdist.sim.macro.result import FAILED, NEVER


@dataclass(slots=True)
class SteadyState:
    """Computation of steady cases of a job, created once for the job. Times are ns.

    `run` copies the numbers that it needs from the job, advances them, and writes them back: a slot is read faster than
    a chain of attributes. Numbers from `waits` on belong to one call of `run`. Sums in ns are over all members.
    """

    job: Job
    death_to_start: int = 0  # from the death of a node to the order to start again
    incident_to_start: int = 0  # from the opening of an incident to that order
    proof: int = 0  # from the death of a node to the proof of it
    started: int = 0  # from the order to start to the report that all run
    startup_fixed: int = 0  # from the order to start to the first step, without restore and spread
    restore: int = 0  # of one start-up
    work: int = 0  # time of work between two checkpoints
    cycle: int = 0  # that work, and a checkpoint
    step: int = 0  # time of a step
    least: int = 0  # the fewest members of a generation
    most: int = 0  # the most members of a generation
    slowest: Callable[[int], float] | None = None  # draws for the start-up of a generation; None: it is nominal
    targets: list[int] = field(default_factory=list)  # what each entity of `Arrivals` hits: see OTHER
    notes_connections: bool = False  # a node may be cut off, so the time of its last connection matters
    vacant: list[int] = field(default_factory=list)  # `Seats.vacant` itself, no copy
    waits: bool = False  # the gang is below its minimum
    due: int = 0  # when the work is done, or when the gang has waited for too long
    since: int = 0  # when the start-up or the waiting began
    restoring: int = 0  # the part of this start-up that reads a checkpoint
    begins: int = 0  # when this generation begins to step
    formed: int = 0  # when all members of this generation run; 0 while the gang waits
    active: int = 0  # members of this generation
    durable: int = 0  # the step from which a restart resumes
    remaining: int = 0  # time of the work and the checkpoints after that step
    size_max: int = 0  # as `Job.size_max`
    free_row: int = 0  # as `Policy.free_row`
    free: int = 0  # seats without a replica
    generation: int = 0
    is_healthy: bool = False  # what `_growth_time` has found for the growth that follows
    lost_nodes: int = 0  # lost nodes on which a replica had its seat
    incidents: int = 0  # incidents by lost nodes
    growths: int = 0
    failed: Counter[str] = field(default_factory=Counter)  # failures of replicas, by kind
    lost_steps: int = 0  # of one member
    sum_startup: int = 0  # restore included
    sum_restore: int = 0
    sum_productive: int = 0
    sum_worked: int = 0  # productive or lost
    sum_stepped: int = 0  # worked, or spent on checkpoints
    sum_detection: int = 0
    sum_reformation: int = 0
    sum_backoff: int = 0

    def __post_init__(self) -> None:
        job = self.job
        role, times, load = job.role, job.times, job.role.workload
        self.incident_to_start = times.stop + times.open
        self.death_to_start = times.proof + self.incident_to_start
        self.proof, self.started, self.restore = times.proof, times.started, load.restore_ns
        self.startup_fixed = times.up + load.startup_ns
        self.work, self.step = load.checkpoint_every_ns, load.step_ns
        self.cycle = self.work + load.checkpoint_ns
        self.least, self.most, self.vacant = role.min_replicas, role.max_replicas, job.seats.vacant
        if job.seed:
            self.slowest = numbers(stream(job.seed, role.name, "slowest"))
        self.targets = [target_of(entity.rate, entity.target, job) for entity in job.arrivals.entities]
        faults: list[Fault | Rate] = [*job.plan.faults, *job.plan.rates]
        self.notes_connections = any(fault.kind == "lost" for fault in faults)

    def run(self, end: int) -> tuple[str, Rate, int] | None:
        """Advance the job from one steady case to the next, until a case is not steady, or to the time `end`.

        Returns:
            Target, rate and time of the next fault if it is no steady case. It is removed from the arrivals, so the
            caller has to apply it. None if something else stopped the advance, which the caller finds in the job.
        """
        self._enter()
        left = self._advance(end)
        self._leave()
        job = self.job
        if left is not None and job.phase == "running" and job.books.begun is None and job.due < left[2]:
            begin(job, job.due)
        return left

    def _advance(self, end: int) -> tuple[str, Rate, int] | None:
        """Take faults of rates and entries of `Job.later` in the order of time. Return as `run` does."""
        later, drawn, bits = self.job.later, self.job.arrivals.heap, self.job.arrivals.bits
        while True:
            planned_at, fault_at = later[0][0] if later else NEVER, (drawn[0] >> bits) * MS
            if fault_at < planned_at:
                if fault_at > end or fault_at >= self.due:
                    return None
                left = self._take_fault(fault_at, planned_at, end)
                if left is not None:
                    return left
            elif planned_at > end or planned_at >= self.due or not self._take_planned(planned_at, fault_at, end):
                return None

    def _take_fault(self, now: int, planned_at: int, end: int) -> tuple[str, Rate, int] | None:
        """Remove the next fault of the rates and apply it. If it is no steady case, return it, not applied.

        Args:
            now: The time of the fault.
            planned_at: The time of the next entry of `Job.later`.
            end: The end of the run.
        """
        job, arrivals = self.job, self.job.arrivals
        index = arrivals.heap[0] & arrivals.mask
        entity, node = arrivals.entities[index], self.targets[index]
        arrivals.advance()
        quiet_until = (arrivals.heap[0] >> arrivals.bits) * MS
        if planned_at < quiet_until:
            quiet_until = planned_at
        if end < quiet_until:
            quiet_until = end + 1
        if node < 0:
            if node == OTHER or not self._fail_replica(-2 - node, entity.rate, now, quiet_until):
                return entity.target, entity.rate, now
            return None
        if not job.alive[node]:
            return None
        is_alone = now + self.death_to_start < quiet_until and now >= self.formed
        if not is_alone or not job.seats.on[node] or not self._lose_node(node, now):
            return entity.target, entity.rate, now
        job.alive[node] = False
        job.result.by_rate[entity.rate.name] += 1
        if entity.rate.duration_ns is not None:
            job.serial += 1
            back = now + entity.rate.duration_ns
            if self.notes_connections:
                job.connected_at[node] = back
            heappush(job.later, (back + job.times.message, job.serial, None, node))
        return None

    def _take_planned(self, now: int, fault_at: int, end: int) -> bool:
        """Carry out the next entry of `Job.later`, and return True, if it is the join of a node or a growth.

        If it is an action, or no steady case, nothing is done, and False is returned.

        Args:
            now: The time of the entry.
            fault_at: The time of the next fault of the rates.
            end: The end of the run.
        """
        job, later, seats = self.job, self.job.later, self.job.seats
        node = later[0][3]
        if node == -1 or (node >= 0 and (node in seats.flapping or not seats.room[node])):
            return False
        entry = heappop(later)
        grows_at = 0
        if self.vacant and (node >= 0 or (self.free and node == -2 - self.generation)):
            quiet_until = fault_at if fault_at <= end else end + 1
            if later and later[0][0] < quiet_until:
                quiet_until = later[0][0]
            grows_at = self._growth_time(now, quiet_until)
            if not grows_at:
                heappush(later, entry)
                return False
        if node >= 0:
            job.alive[node] = seats.usable[node] = True
            self.free += 1
            heappush(seats.candidates, (seats.sign, node))
        if grows_at > now:
            job.serial += 1
            heappush(later, (grows_at, job.serial, None, -2 - self.generation))
        elif grows_at:
            self._grow(now)
        return True

    # The three steady cases. A method that finds a case not steady returns before it changes anything.

    def _lose_node(self, node: int, now: int) -> bool:
        """Handle the death of a member's node: form again with a spare node or fewer members, or wait. Return True.

        Return False, with nothing done, if the only member dies, the answer to a checkpoint is on its way, or the
        change would be one too many in a row (R8).
        """
        seats, active, vacant, known = self.job.seats, self.active, self.vacant, now + self.proof
        if not self.waits:
            if active == 1 or self._awaits_answer(now) or not self._note_incident(now, known):
                return False
            self._end_generation(now, known)
            seats.note_loss(node, known)
        self.lost_nodes += 1
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
            stop = self.job.times.stop
            self.waits, self.formed, self.active, self.since = True, 0, 0, known + stop
            self.sum_reformation += active * stop
            self.due = self.since + self.job.role.pending_timeout_ns
        else:
            self.sum_reformation += active * self.incident_to_start
            self._start(members, now + self.death_to_start)
        return True

    def _awaits_answer(self, now: int) -> bool:
        """Return whether a checkpoint is complete, and its answer has not arrived: whether it counts is still open."""
        worked = now - self.begins
        return worked >= self.cycle and worked % self.cycle <= ANSWER_NS

    def _note_incident(self, now: int, known: int) -> bool:
        """Count the incident of a lost node as a membership change, and return True.

        Return False, with nothing done, if it would be one too many in a row (R8).

        Args:
            now: When the node dies.
            known: When the controller learns of it.
        """
        options = self.job.options
        progressed = now - self.begins >= self.cycle + ANSWER_NS
        healthy = is_healthy(progressed, self.formed, known, options.min_uptime_ns)
        free_row = next_free_row(self.free_row, healthy)
        if exceeds_row(free_row, "node_lost", options):
            return False
        self.free_row = free_row
        self.incidents += 1
        return True

    def _fail_replica(self, replica: int, rate: Rate, now: int, quiet_until: int) -> bool:
        """Handle the failure of a replica, after which all members restart, and return True.

        A fault on a replica that does not run hits nothing, which is True as well. Return False, with nothing done, if
        the case is not steady: it is not charged to a budget, the answer to a checkpoint is on its way, something else
        happens before the restart (from `quiet_until` on), or the failure may cordon a node or move a replica.
        """
        job, active, known = self.job, self.active, now + self.job.times.message
        if self.waits or now < self.formed or job.seats.node_of[replica] is None:
            return True  # the replica does not run, so the fault hits nothing
        kind, signal = FAILED[rate.kind]
        verdict = job.policy.judge(kind, known, int(rate.arg) if rate.kind == "exit" else 0, signal)
        if active == 1 or not verdict.counted or self._awaits_answer(now):
            return False
        wait = job.policy.backoff_ns(verdict.level, known)
        starts = known + max(job.times.stop, wait) + job.times.open
        if starts >= quiet_until or not job.seats.note_failure(replica, kind, known):
            return False
        job.policy.charge(verdict.level, known)
        self.failed[kind] += 1
        job.result.by_rate[rate.name] += 1
        self._end_generation(now, known)
        self.sum_reformation += active * (starts - known - wait)
        self.sum_backoff += active * wait
        self._fill()
        self._start(self.most - len(self.vacant), starts)
        job.policy.last_counted_ns = self.formed
        return True

    def _growth_time(self, now: int, quiet_until: int) -> int:
        """Return when the gang, for which a node is free at `now`, grows: `now`, or at the end of its cool-down (R13).

        Return 0 if that is no steady case, because something else happens before the larger generation starts (from
        `quiet_until` on).
        """
        job, times = self.job, self.job.times
        if self.waits:
            missing = self.least - self.most + len(self.vacant)
            return now if missing > 1 or now + times.open < quiet_until else 0
        late, options = now if now > self.formed else self.formed, job.options
        progressed = late - self.begins >= self.cycle + times.message
        self.is_healthy = is_healthy(progressed, self.formed, late, options.min_uptime_ns)
        cooldown, is_first = job.role.cooldown_ns, self.generation == 1
        wait = growth_wait_ns(cooldown, self.free_row, options, healthy=self.is_healthy, is_first=is_first)
        if now < self.formed + wait:
            return self.formed + wait
        starts = now + self.incident_to_start
        return now if starts < quiet_until and starts < self.due else 0

    def _grow(self, now: int) -> None:
        """Give free nodes to replicas without a seat, and start the larger generation.

        A gang that waits starts only if its minimum is reached; one that runs is stopped first, as an incident.
        """
        self._fill()
        active, members, times = self.active, self.most - len(self.vacant), self.job.times
        if self.waits:
            if members >= self.least:
                self.sum_reformation += self.size_max * times.open
                self._start(members, now + times.open)
            return
        self.free_row = next_free_row(self.free_row, self.is_healthy)
        starts = now + self.incident_to_start
        if now > self.begins:
            halts = now + times.stop - times.message  # the members step until they are stopped
            self._halt(halts)
            self.sum_reformation += active * (starts - halts)
        else:
            self.sum_startup += active * (now - self.since)
            self.sum_reformation += active * (starts - now)
        self.growths += 1
        self._start(members, starts)

    # Seats.

    def _fill(self) -> None:
        """Give seats to replicas without one, lowest replica first, as long as there are free ones."""
        while self.vacant and self.free:
            self._seat(self.vacant.pop(0))

    def _seat(self, replica: int) -> None:
        """Give the replica, which is not in `vacant`, a seat: the node that `Seats.fill` would choose.

        That choice is simple here, since each node has room for one replica and no node is to be avoided.
        """
        seats = self.job.seats
        on, usable, candidates, cordoned = seats.on, seats.usable, seats.candidates, seats.cordoned
        node = heappop(candidates)[1]
        while not usable[node] or on[node] or node in cordoned:
            node = heappop(candidates)[1]
        on[node].append(replica)
        seats.node_of[replica] = node
        self.free -= 1

    # Generations.

    def _start(self, members: int, at: int) -> None:
        """Start a generation of so many members. `at` is the time of the order to start."""
        self.waits, self.active, self.since, self.formed = False, members, at, at + self.started
        self.generation += 1
        if members > self.size_max:
            self.size_max = members
        self.restoring = self.restore if self.durable else 0
        self.begins = at + self.startup_fixed + self.restoring
        if self.slowest is not None:
            self.begins += self.job.extra_startup_ns(self.slowest(self.generation), members)
        self.due = self.begins + self.remaining

    def _end_generation(self, now: int, known: int) -> None:
        """End the present generation, and book its time up to when the controller knows of the failure.

        Args:
            now: When a member fails or its node dies, in the start-up or in the work.
            known: When the controller learns of it.
        """
        if now > self.begins:
            self._halt(now)
            self.sum_detection += self.active * (known - now)
        else:
            self.sum_startup += self.active * (known - self.since)

    def _halt(self, at: int) -> None:
        """End the stepping of the generation at a time, and add up its work: what is not saved is lost."""
        work, active = self.work, self.active
        cycles, rest = divmod(at - self.begins, self.cycle)
        worked = cycles * work + (rest if rest < work else work)
        self.lost_steps += worked // self.step
        if cycles > 0:
            saved = cycles * work // self.step
            self.durable += saved
            self.remaining = self._remaining()
            self.lost_steps -= saved
            self.sum_productive += active * saved * self.step
        self.sum_startup += active * (self.begins - self.since)
        self.sum_restore += active * self.restoring
        self.sum_worked += active * worked
        self.sum_stepped += active * (at - self.begins)

    def _remaining(self) -> int:
        """Return how long, in ns, the work after the step `durable` takes, with its checkpoints."""
        load = self.job.role.workload
        work = (load.steps - self.durable) * self.step
        return work + (work - 1) // self.work * load.checkpoint_ns

    # From and to the state of the job.

    def _enter(self) -> None:
        """Begin to compute failures in a loop: copy the state of the job into fields, and reset the sums of times to 0.

        The loop works on the copy; afterwards the state of the job and its books are written back in one go.
        """
        job, books = self.job, self.job.books
        self.waits, self.active, self.durable = job.phase == "waiting", books.active, books.durable
        self.size_max, self.generation = job.size_max, job.result.generations
        self.free_row, self.free = job.policy.free_row, job.seats.free
        self.since, self.formed = books.since, 0 if self.waits else job.formed
        self.lost_nodes = self.incidents = self.growths = self.lost_steps = 0
        self.sum_startup = self.sum_restore = self.sum_productive = self.sum_worked = self.sum_stepped = 0
        self.sum_detection = self.sum_reformation = self.sum_backoff = 0
        self.failed.clear()
        self.remaining = self._remaining()
        if self.waits:
            self.due = job.due
        elif books.begun is not None:  # the generation steps, so its start-up is booked already
            self.begins, self.restoring, self.due = books.begun, 0, job.due
        else:
            self.begins, self.restoring = job.due, self.restore if self.durable else 0
            self.due = books.end(self.begins)

    def _leave(self) -> None:
        """Write sums and state back into the job.

        If a generation began or ended since `_enter`, the job starts up the last one or waits for nodes. Otherwise only
        faults and seats have changed.
        """
        job, seats, result = self.job, self.job.seats, self.job.result
        seats.free, seats.taken = self.free, self.most - len(self.vacant)
        result.faults += self.lost_nodes + self.failed.total()
        if self.generation == result.generations and not self.incidents:
            return
        self._book()
        result.generations, job.size_max, job.backoff_ns = self.generation, self.size_max, 0
        job.policy.free_row = self.free_row
        for kind, count in (("node_lost", self.incidents), ("joined", self.growths), *self.failed.items()):
            if count:
                result.causes[kind] += count
        if self.waits:
            plan_wait(job, self.due)
        else:
            job.late.started = {}
            plan_begin(job, self.begins, self.formed, ordered=self.formed - self.started)

    def _book(self) -> None:
        """Add the sums to the buckets of the job; all other time of its replicas is waiting."""
        books = self.job.books
        sums: dict[Bucket, int] = {
            "start-up": self.sum_startup - self.sum_restore,
            "restore": self.sum_restore,
            "productive": self.sum_productive,
            "lost work": self.sum_worked - self.sum_productive,
            "checkpoint": self.sum_stepped - self.sum_worked,
            "detection": self.sum_detection,
            "re-formation": self.sum_reformation,
            "back-off": self.sum_backoff,
        }
        sums["waiting"] = self.most * (self.since - books.since) - sum(sums.values())
        for bucket, ns in sums.items():
            books.spent[bucket] += ns
        books.bucket, books.active, books.since = "waiting" if self.waits else "start-up", self.active, self.since
        books.begun, books.progressed, books.durable = None, False, self.durable
        books.lost_steps += self.lost_steps
        books.lost_ns += self.lost_steps * self.step
