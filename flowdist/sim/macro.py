"""Macro mode: weeks of one gang on a hundred thousand GPUs, from one change of membership to the next.

Nothing is said, started or stopped here: how long that takes is known (`Times`), and between two changes the state of a
gang that steps follows from the time alone. What is decided is what control decides in the same place: who sits where,
when a gang re-forms, waits, grows or gives up, which nodes it leaves alone. `macro_check` plays the same faults in both
modes and shows the difference.

One gang has five phases, each with the time at which it ends by itself:

    opening --> running --> stopping --> [back-off] --> opening        and waiting, while it is below its minimum
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from flowdist.fault_rates import Arrivals, fault_of
from flowdist.faults import Fault, Plan, Rate
from flowdist.graph import format_duration
from flowdist.sim.macro_books import Books
from flowdist.sim.macro_policy import Policy
from flowdist.sim.macro_result import FAILED, Later, MacroResult, Phase
from flowdist.sim.macro_scope import Scope
from flowdist.sim.macro_seats import Seats
from flowdist.sim.macro_sprint import NEVER, can_ever_sprint, may_sprint, sprint
from flowdist.sim.streams import draw


class Macro:
    """One job. `seed` draws the faults of the plan's rates; 0 is nominal in start-up times, others spread them.

    Args:
        scope: What `scope_of` found playable.
        plan: What is to befall the job.
        fault_seed: Other faults of the rates than those of `seed`.
        keep: Keep when each generation began to step, and with how many.
        step_by_step: Without the short cut for the steady case: for the test that shows that it changes nothing.
        tell: Hears of each change: when, what (`fault`, `gone`, `joined`, `incident`, `forms`, `ends`), of whom, and
            in words.
    """

    def __init__(
        self,
        scope: Scope,
        plan: Plan,
        *,
        seed: int = 0,
        fault_seed: int | None = None,
        keep: bool = False,
        step_by_step: bool = False,
        tell: Callable[[int, str, str, str], None] | None = None,
    ) -> None:
        graph, role = scope.graph, scope.role
        self.scope, self.plan, self.role, self.options, self.seed, self.tell = (
            scope,
            plan,
            role,
            graph.options,
            seed,
            tell,
        )
        self.times, self._load, self.keep = scope.times, role.workload, keep
        self.names = {name: i for i, name in enumerate(scope.nodes)}
        self.seats = Seats(role, graph.options, scope.seats, len(graph.cluster.nodes))
        self.books = Books(role.workload, role.max_replicas)
        self.policy = Policy(role, graph.options)
        self.alive = [node < len(graph.cluster.nodes) for node in range(len(scope.nodes))]
        self.doomed: dict[int, int] = {}  # nodes that are dead: when control will know
        self._cuts: dict[int, int] = {}  # since when nodes are cut off that still run
        self._exited: dict[int, None] = {}  # replicas whose processes ended by themselves in this generation
        self._met: dict[int, int] = {}  # when the agent of a node connected last: its heartbeats count from there
        self._fences: dict[int, int] = {}  # when the workers of a node that is gone ended
        self._until = 0
        self.arrivals = Arrivals(plan.rates, graph, scope.nodes, seed if fault_seed is None else fault_seed)
        self.later: list[Later] = []
        self.serial = 0
        self.result = MacroResult(self.books.spent)
        self.phase: Phase = "opening"
        self.due, self._do = NEVER, self._start  # when the phase ends by itself, and what is then
        self.formed = NEVER  # when all of the present generation ran
        self._ever = 0  # replicas that have run: the lowest come first
        self._pending: int | None = None  # until when it may be below its minimum
        self._backoff = 0
        self._backoff_until = 0
        self._counts = False  # the open incident is one that a budget pays for
        self._stopped_ns = 0  # when the members of a gang that is told to stop have done so
        self._halt_at: int | None = None  # when the members of a gang that is told to stop do so
        for add in plan.adds:
            self.at(add.at_ns + self.times.message, None, self.names[add.node])
        for fault in plan.faults:
            assert fault.when.at_ns is not None
            self.at(fault.when.at_ns + fault.offset_ns, self._firing(fault))
        self._sprints = can_ever_sprint(self) and not step_by_step
        self._form(self.times.message)

    def run(self, until: int | None = None) -> MacroResult:
        """To the end of the job, or to `until`."""
        result, later, arrivals = self.result, self.later, self.arrivals
        end = self._until = NEVER - 1 if until is None else until
        strike = arrivals.next_ns() or NEVER
        while result.outcome is None:
            if self._sprints and may_sprint(self):
                sprint(self, end)
                strike = arrivals.next_ns() or NEVER
                if result.outcome is not None:
                    break
            at = later[0][0] if later else NEVER
            due = self.due
            if due < at and due < strike:
                if due > end:
                    break
                self._do(due)
            elif at <= strike:
                if at > end:
                    break
                self._happen(heapq.heappop(later), at)
            elif strike > end:
                break
            else:
                _, rate, target = arrivals.take()
                self.hit(target, rate, strike)
                strike = arrivals.next_ns() or NEVER
        if result.outcome is None:
            self._close(self.books.since if until is None else until)
        return result

    def at(self, time: int, action: Callable[[int], None] | None, node: int = -1) -> None:
        """Without an action the node joins then."""
        self.serial += 1
        heapq.heappush(self.later, (time, self.serial, action, node))

    def _happen(self, entry: Later, now: int) -> None:
        if entry[2] is None:
            self._joined(entry[3], now)
        else:
            entry[2](now)

    def _next(self) -> int:
        """When something befalls it, or nobody looks any more: what is due before is done at once."""
        return min(self.later[0][0] if self.later else NEVER, self.arrivals.next_ns() or NEVER, self._until + 1)

    def _say(self, now: int, what: str, name: str, words: str) -> None:
        if self.tell is not None:
            self.tell(now, what, name, words)

    # What befalls it.

    def _firing(self, fault: Fault) -> Callable[[int], None]:
        def fire(now: int) -> None:
            if fault.target in ("all", self.role.name):
                for replica in range(self.role.max_replicas):
                    self.hit(f"{self.role.name}/{replica}", fault, now)
            else:
                self.hit(fault.target, fault, now)

        return fire

    def hit(self, target: str, what: Fault | Rate, now: int) -> None:
        node = self.names.get(target)
        if node is not None:
            if what.kind == "add":
                self.at(now + self.times.message, None, node)
            elif self.alive[node]:
                self._note_fault(target, what, now)
                self._kill(node, what, now)
        elif "=" in target:
            for spec in self.scope.graph.cluster.nodes:
                if tuple(target.split("=", 1)) in spec.labels:
                    self.hit(spec.name, what, now)
        else:
            self._hit_replica(int(target.rpartition("/")[2]), what, now)

    def _note_fault(self, target: str, what: Fault | Rate, now: int) -> None:
        self.result.faults += 1
        if self.tell is not None:
            spec = what.spec if isinstance(what, Fault) else fault_of(what, target, now).spec
            self.tell(now, "fault", target, spec)

    def _kill(self, node: int, what: Fault | Rate, now: int) -> None:
        """Its power is off, or it is cut off: then its workers go on until its lease is over."""
        back = now + what.duration_ns if what.duration_ns is not None else None
        dies, told, why = now, now + self.times.proof, "it was killed"
        if what.kind == "lost":
            self._cuts[node] = now
            heard = self._last_heard(node, now)
            dies, told, why = heard + self.times.fence, heard + self.times.silent, "not heard"
            if back is not None and back < dies:
                self._met[node] = back
                self.at(back, lambda now: self._heal(node))
                return  # a short silence changes nothing
        self.alive[node] = False
        self._fences[node] = dies
        if back is not None:
            self._met[node] = back
            back += self.times.message
            told = min(told, back)
            self.at(told, self._going(node, why))
            self.at(back, None, node)
        else:
            self.at(told, self._going(node, why))
        self.doomed[node] = told
        if self.seats.on[node]:
            if dies > now:
                self.at(dies, self._stop_short)
            else:
                self._stop_short(now)
            if self.phase == "stopping" and now < self._stopped_ns:  # the dead do not say that they have stopped
                self.due = max(self.due, told)

    def _last_heard(self, node: int, now: int) -> int:
        """When the last heartbeat was sent that was answered."""
        period, met = self.options.heartbeat_ns, self._met.get(node, 0)
        return met + (now - 2 * self.times.message - met) // period * period

    def _heal(self, node: int) -> None:
        self._cuts.pop(node, None)

    def _first(self) -> int | None:
        """The node of the lowest member: its agent opens the store and offers the checkpoints."""
        return next((node for node in self.seats.node_of if node is not None), None)

    def _halt(self, now: int) -> None:
        """They stop stepping. Checkpoints that were offered by a node that is cut off do not count."""
        first = self._first() if self._cuts else None
        answered = self._cuts.get(first, now) if first is not None else now
        self.books.halt(now, heard_until=answered, is_known=self.phase == "stopping")

    def _stop_short(self, now: int) -> None:
        """A member is gone: the others wait for it in vain, or it never gets up."""
        if self.phase == "running":
            self._halt(now)
            self.due = NEVER
        elif self.phase == "stopping":
            self._halt(min(now, self._halt_at or now))

    def _going(self, node: int, why: str) -> Callable[[int], None]:
        return lambda now: self._gone(node, why, now)

    def _gone(self, node: int, why: str, now: int) -> None:
        """The controller knows."""
        seats = self.seats
        self.doomed.pop(node, None)
        self._cuts.pop(node, None)
        lost = seats.lose(node)
        name = self.scope.nodes[node]
        self._say(now, "gone", name, f"{name} is gone: {why}")
        if not lost:
            return
        if self.phase == "opening":
            self._form(now)  # a seat was lost before anything started
        elif self.phase == "running":
            seats.note_loss(node, now)
            verdict = self.policy.judge("node_lost", now)
            reason = f"{name} is gone: {why}"
            if verdict.fails:
                self._fail(f"{reason}; {verdict.fails}", now)
            else:
                self._incident("node_lost", reason, now, level=verdict.level if verdict.counted else None)

    def _joined(self, node: int, now: int) -> None:
        self.alive[node] = True
        self.seats.join(node, now)
        self._say(now, "joined", self.scope.nodes[node], f"{self.scope.nodes[node]} joined")
        if self.phase == "waiting":
            self._form(now)
        elif self.phase == "running":
            self._grow(self.result.generations, now)

    def _hit_replica(self, replica: int, what: Fault | Rate, now: int) -> None:
        """Its processes end; nobody is hit that does not run."""
        node = self.seats.node_of[replica]
        runs = self.phase == "running" and now >= self.formed
        if node is None or not runs or (not self.alive[node] and now >= self._fences.get(node, 0)):
            return
        self._note_fault(f"{self.role.name}/{replica}", what, now)
        self._stop_short(now)
        self._exited[replica] = None
        if not self.alive[node]:
            return  # it is cut off: nobody hears of it
        generation = self.result.generations
        self.at(now + self.times.message, lambda at: self._failed(replica, generation, what, at))

    def _failed(self, replica: int, generation: int, what: Fault | Rate, now: int) -> None:
        """The controller hears of it, unless the gang restarts for another reason by now."""
        if self.phase != "running" or generation != self.result.generations:
            return
        kind, signal = FAILED[what.kind]
        code = int(what.arg) if what.kind == "exit" else 0
        self.seats.blame(replica, kind, now)
        verdict = self.policy.judge(kind, now, code, signal)
        reason = f"{self.role.name}/{replica} failed: {kind}"
        if verdict.fails:
            self._fail(f"{reason}; {verdict.fails}", now)
        else:
            self._incident(kind, reason, now, level=verdict.level if verdict.counted else None)

    # What is decided.

    def _is_healthy(self, now: int) -> bool:
        if self.books.has_progressed(now):
            return True
        formed = self.formed
        return now - formed >= self.options.min_uptime_ns

    def _incident(self, kind: str, reason: str, now: int, *, level: int | None = None) -> None:
        """One cause, and the gang restarts: all of it stops first (R6)."""
        books, result = self.books, self.result
        result.causes[kind] += 1
        self._say(now, "incident", kind, reason)
        joined = kind == "joined"
        if books.begun is None:
            books.move("re-formation", books.active, now)
        self._stopped_ns = now + self.times.stop - self.times.message
        self._halt_at = self._stopped_ns if joined else None
        self._backoff = self.policy.charge(level, now) if level is not None else 0
        self._backoff_until, self._counts = now + self._backoff, level is not None
        if level is None:
            too_many = self.policy.note_free(self._is_healthy(now), chosen=joined)
            if too_many:
                self._fail(f"{too_many}; the last: {reason}", now)
                return
        books.progressed = False
        self.phase, self.formed = "stopping", NEVER
        members = books.active if joined else self.seats.taken
        others = members - len(self._exited) - sum(len(self.seats.on[node]) for node in self.doomed)
        self.due, self._do = (now + self.times.stop if others else now), self._stopped
        # some of its members may be dead, and do not say that they have stopped
        self.due = max([self.due, *(told for node, told in self.doomed.items() if self.seats.on[node])])
        if self.due < self._next() and not self._backoff:
            self._do(self.due)

    def _stopped(self, now: int) -> None:
        """All of it is gone."""
        self._halt(self._halt_at or now)
        self._halt_at = None
        if self._backoff_until > now:
            self.phase, self.due, self._do = "back-off", self._backoff_until, self._reform
        else:
            self._reform(now)

    def _reform(self, now: int) -> None:
        self.seats.move_away(now)
        self._form(now)

    def _form(self, now: int) -> None:
        """A new generation with whoever has a seat; below the minimum it waits for a node, but not for ever (R12)."""
        seats, books = self.seats, self.books
        if seats.free and seats.vacant:
            seats.fill(now)
        if seats.taken < self.role.min_replicas:
            if self._pending is None:
                self._pending = now + self.role.pending_timeout_ns
                if books.bucket == "re-formation":
                    books.move("waiting", 0, now)
            self.phase, self.due, self._do = "waiting", self._pending, self._give_up
            return
        if self._pending is not None:
            self._pending = None
            books.move("re-formation", self._ever, now)
        self.result.generations += 1
        self.phase, self.due, self._do = "opening", now + self.times.open, self._start
        first = self._first() if self.doomed else None
        if first is not None and not self.alive[first]:
            self.due = NEVER  # nobody opens the store, until that is known
        elif self.due < self._next():
            self._start(self.due)

    def _start(self, now: int) -> None:
        """The store is open: all members start."""
        seats, books, times = self.seats, self.books, self.times
        books.start(seats.taken, self._backoff, now)
        self._ever = max(self._ever, seats.taken)
        self._exited.clear()
        self.phase = "running"
        if self.keep:
            self.result.sizes.append(seats.taken)
        self._say(now, "forms", str(self.result.generations), f"{seats.taken} of at most {self.role.max_replicas}")
        if any(seats.on[node] for node in self.doomed):  # not all of them get up, and that is not known yet
            self.due = self.formed = NEVER
            return
        self.formed = now + times.started
        if self._counts:
            self.policy.last_counted_ns, self._counts = self.formed, False
        at = now + times.up + self._load.startup_ns + (self._load.restore_ns if books.durable else 0)
        if self.seed:
            slowest = draw(self.seed, self.role.name, "slowest", self.result.generations)
            at += self.spread(slowest, seats.taken)
        self.plan_begin(at)
        if seats.vacant and seats.free:
            self._grow(self.result.generations, self.formed)

    def spread(self, slowest: float, members: int) -> int:
        """How much longer than nominal the slowest of so many starts up, each spread by up to a fifth."""
        return int(self.role.workload.startup_ns * (0.4 * slowest ** (1 / members) - 0.2))

    def plan_begin(self, at: int) -> None:
        """Then the last of a generation that starts will be up."""
        self.due, self._do = at, self.begin

    def begin(self, now: int) -> None:
        """The last of them is up: they step."""
        self.due, self._do = self.books.begin(now), self._complete
        if self.keep:
            self.result.begins.append(now)

    def _grow(self, generation: int, now: int) -> None:
        """Into seats that are free, after the cool-down since the last re-formation (R13)."""
        seats, formed = self.seats, self.formed
        if self.phase != "running" or generation != self.result.generations or formed == NEVER:
            return
        if not (seats.vacant and seats.free):
            return
        earliest = max(formed, formed + self.policy.grow_after_ns(self._is_healthy(max(now, formed))))
        if now < earliest:
            self.at(earliest, lambda at: self._grow(generation, at))
            return
        seats.fill(now)
        self._incident("joined", f"room for {seats.taken - self.books.active} more", now)

    def _complete(self, now: int) -> None:
        self.books.halt(now, done=True)
        self._end("succeeded", f"every primary task has succeeded ({self.role.name})", now + self.times.message)

    def _give_up(self, now: int) -> None:
        waited = format_duration(self.role.pending_timeout_ns)
        self._end("failed", f"{self.role.name} was below its minimum for {waited}", now)

    def _fail(self, reason: str, now: int) -> None:
        """All that still runs is stopped."""
        self.books.give_up(now)
        self._end("failed", reason, now + (self.times.stop if self.seats.taken else 0))

    def _end(self, outcome: str, reason: str, now: int) -> None:
        self.result.outcome, self.result.reason = outcome, reason
        self._say(now, "ends", outcome, reason)
        self._close(now)

    def _close(self, now: int) -> None:
        """Everything is booked up to now."""
        books, result = self.books, self.result
        if books.begun is not None and self._halt_at is not None:
            books.halt(min(self._halt_at, now))
        result.step = max(books.durable, books.step_at(now))
        result.now, result.lost_ns, result.lost_steps = now, books.lost_ns, books.lost_steps
        books.halt(now)  # what is not saved by now is booked as lost, but nobody has lost it yet
        books.move("done", 0, now)
        result.charged = self.policy.charged
        result.cordoned = [self.scope.nodes[node] for node in self.seats.cordoned]
