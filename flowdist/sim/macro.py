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
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from flowdist.fault_rates import Arrivals, fault_of
from flowdist.faults import Fault, Plan, Rate
from flowdist.graph import FailureKind, format_duration
from flowdist.sim.accounts import Bucket
from flowdist.sim.macro_books import Books
from flowdist.sim.macro_policy import Policy
from flowdist.sim.macro_scope import Scope
from flowdist.sim.macro_seats import Seats
from flowdist.sim.streams import draw

Phase = Literal["opening", "running", "stopping", "back-off", "waiting"]
Later = tuple[int, int, Callable[[int], None] | None, int]  # when, serial, what; or the node that joins
NEVER = 1 << 62
FAILED: dict[str, tuple[FailureKind, str | None]] = {
    "kill": ("signal", "KILL"),
    "oom": ("oom", "KILL"),
    "exit": ("exit", None),
}


@dataclass(slots=True)
class MacroResult:
    """How it ended, times in ns. `spent` is by bucket, together wall time x replicas; `causes` counts incidents."""

    outcome: str | None
    reason: str
    now: int
    spent: dict[Bucket, int]
    step: int
    lost_ns: int
    lost_steps: int
    generations: int
    faults: int  # that hit somebody
    causes: Counter[str]
    charged: int
    cordoned: list[str]
    begins: list[int] = field(default_factory=list)  # when stepping began, if they were asked for
    sizes: list[int] = field(default_factory=list)  # of the generations, likewise

    @property
    def goodput(self) -> float:
        total = sum(self.spent.values())
        return self.spent["productive"] / total if total else 0.0


class Macro:
    """One job. `seed` draws the faults of the plan's rates; 0 is nominal in start-up times, others spread them.

    Args:
        scope: What `scope_of` found playable.
        plan: What is to befall the job.
        fault_seed: Other faults of the rates than those of `seed`.
        keep: Keep when each generation began to step, and with how many.
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
        tell: Callable[[int, str, str, str], None] | None = None,
    ) -> None:
        graph, role = scope.graph, scope.role
        self._scope, self._role, self._options, self._seed, self._tell = scope, role, graph.options, seed, tell
        self._times, self._load, self._keep = scope.times, role.workload, keep
        verdict = Policy(role, graph.options).judge("node_lost", 0)
        self._free_losses = max(scope.seats) == 1 and not verdict.fails and not verdict.counted
        self._names = {name: i for i, name in enumerate(scope.nodes)}
        self._seats = Seats(role, graph.options, scope.seats, len(graph.cluster.nodes))
        self._books = Books(role.workload, role.max_replicas)
        self._policy = Policy(role, graph.options)
        self._alive = [node < len(graph.cluster.nodes) for node in range(len(scope.nodes))]
        self._doomed: dict[int, int] = {}  # nodes with a seat that are dead: when control will know
        self._fences: dict[int, int] = {}  # when the workers of a node that is gone ended
        self._until = 0
        self._arrivals = Arrivals(plan.rates, graph, scope.nodes, seed if fault_seed is None else fault_seed)
        self._later: list[Later] = []
        self._serial = 0
        self.result = MacroResult(None, "", 0, self._books.spent, 0, 0, 0, 0, 0, Counter(), 0, [])
        self._phase: Phase = "opening"
        self._due, self._do = NEVER, self._start  # when the phase ends by itself, and what is then
        self._formed = NEVER  # when all of the present generation ran
        self._ever = 0  # replicas that have run: the lowest come first
        self._pending: int | None = None  # until when it may be below its minimum
        self._backoff = 0
        self._backoff_until = 0
        self._counts = False  # the open incident is one that a budget pays for
        self._stopped_ns = 0  # when the members of a gang that is told to stop have done so
        self._halt_at: int | None = None  # when the members of a gang that is told to stop do so
        for add in plan.adds:
            self._at(add.at_ns + self._times.message, None, self._names[add.node])
        for fault in plan.faults:
            assert fault.when.at_ns is not None
            self._at(fault.when.at_ns + fault.offset_ns, self._firing(fault))
        self._form(self._times.message)

    def run(self, until: int | None = None) -> MacroResult:
        """To the end of the job, or to `until`."""
        result, later, arrivals = self.result, self._later, self._arrivals
        end = self._until = NEVER - 1 if until is None else until
        strike = arrivals.next_ns() or NEVER
        while result.outcome is None:
            if self._is_steady():
                strike = self._go_on_steadily(strike, end)
            at = later[0][0] if later else NEVER
            due = self._due
            if due <= at and due <= strike:
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
                self._hit(target, rate, strike)
                strike = arrivals.next_ns() or NEVER
        if result.outcome is None:
            self._close(self._books.since if until is None else until)
        return result

    def _at(self, time: int, action: Callable[[int], None] | None, node: int = -1) -> None:
        """Without an action the node joins then."""
        self._serial += 1
        heapq.heappush(self._later, (time, self._serial, action, node))

    def _happen(self, entry: Later, now: int) -> None:
        if entry[2] is None:
            self._joined(entry[3], now)
        else:
            entry[2](now)

    def _next(self) -> int:
        """When something befalls it, or nobody looks any more: what is due before is done at once."""
        return min(self._later[0][0] if self._later else NEVER, self._arrivals.next_ns() or NEVER, self._until + 1)

    def _say(self, now: int, what: str, name: str, words: str) -> None:
        if self._tell is not None:
            self._tell(now, what, name, words)

    # What befalls it.

    def _firing(self, fault: Fault) -> Callable[[int], None]:
        def fire(now: int) -> None:
            if fault.target in ("all", self._role.name):
                for replica in range(self._role.max_replicas):
                    self._hit(f"{self._role.name}/{replica}", fault, now)
            else:
                self._hit(fault.target, fault, now)

        return fire

    def _hit(self, target: str, what: Fault | Rate, now: int) -> None:
        node = self._names.get(target)
        if node is not None:
            if what.kind == "add":
                self._at(now + self._times.message, None, node)
            elif self._alive[node]:
                self._note_fault(target, what, now)
                self._kill(node, what, now)
        elif "=" in target:
            for spec in self._scope.graph.cluster.nodes:
                if tuple(target.split("=", 1)) in spec.labels:
                    self._hit(spec.name, what, now)
        else:
            self._hit_replica(int(target.rpartition("/")[2]), what, now)

    def _note_fault(self, target: str, what: Fault | Rate, now: int) -> None:
        self.result.faults += 1
        if self._tell is not None:
            spec = what.spec if isinstance(what, Fault) else fault_of(what, target, now).spec
            self._tell(now, "fault", target, spec)

    def _kill(self, node: int, what: Fault | Rate, now: int) -> None:
        """Its power is off, or it is cut off: then its workers go on until its lease is over."""
        back = now + what.duration_ns if what.duration_ns is not None else None
        dies, told, why = now, now + self._times.proof, "it was killed"
        if what.kind == "lost":
            heard = self._last_heard(node, now)
            dies, told, why = heard + self._times.fence, heard + self._times.silent, "not heard"
            if back is not None and back < dies:
                return  # a short silence changes nothing
        self._alive[node] = False
        self._fences[node] = dies
        if back is not None:
            back += self._times.message
            told = min(told, back)
            self._at(told, self._going(node, why))
            self._at(back, None, node)
        else:
            self._at(told, self._going(node, why))
        if self._seats.on[node]:
            self._doomed[node] = told
            if dies > now:
                self._at(dies, self._stop_short)
            else:
                self._stop_short(now)
            if self._phase == "stopping" and now < self._stopped_ns:  # the dead do not say that they have stopped
                self._due = max(self._due, told)

    def _last_heard(self, node: int, now: int) -> int:
        """When the last heartbeat was sent that was answered."""
        period = self._options.heartbeat_ns
        return (now - 2 * self._times.message) // period * period

    def _stop_short(self, now: int) -> None:
        """A member is gone: the others wait for it in vain, or it never gets up."""
        if self._phase == "running":
            if self._books.begun is not None:
                self._books.halt(now)
            self._due = NEVER
        elif self._phase == "stopping" and self._books.begun is not None:
            self._books.halt(min(now, self._halt_at or now))

    def _going(self, node: int, why: str) -> Callable[[int], None]:
        return lambda now: self._gone(node, why, now)

    def _gone(self, node: int, why: str, now: int) -> None:
        """The controller knows."""
        seats = self._seats
        self._doomed.pop(node, None)
        lost = seats.lose(node)
        name = self._scope.nodes[node]
        self._say(now, "gone", name, f"{name} is gone: {why}")
        if not lost:
            return
        if self._phase == "opening":
            self._form(now)  # a seat was lost before anything started
        elif self._phase == "running":
            seats.note_loss(node, now)
            verdict = self._policy.judge("node_lost", now)
            reason = f"{name} is gone: {why}"
            if verdict.fails:
                self._fail(f"{reason}; {verdict.fails}", now)
            else:
                self._incident("node_lost", reason, now, level=verdict.level if verdict.counted else None)

    def _joined(self, node: int, now: int) -> None:
        self._alive[node] = True
        self._seats.join(node, now)
        self._say(now, "joined", self._scope.nodes[node], f"{self._scope.nodes[node]} joined")
        if self._phase == "waiting":
            self._form(now)
        elif self._phase == "running":
            self._grow(self.result.generations, now)

    def _hit_replica(self, replica: int, what: Fault | Rate, now: int) -> None:
        """Its processes end; nobody is hit that does not run."""
        node = self._seats.node_of[replica]
        runs = self._phase == "running" and now >= self._formed
        if node is None or not runs or (not self._alive[node] and now >= self._fences.get(node, 0)):
            return
        self._note_fault(f"{self._role.name}/{replica}", what, now)
        self._stop_short(now)
        if not self._alive[node]:
            return  # it is cut off: nobody hears of it
        generation = self.result.generations
        self._at(now + self._times.message, lambda at: self._failed(replica, generation, what, at))

    def _failed(self, replica: int, generation: int, what: Fault | Rate, now: int) -> None:
        """The controller hears of it, unless the gang restarts for another reason by now."""
        if self._phase != "running" or generation != self.result.generations:
            return
        kind, signal = FAILED[what.kind]
        code = int(what.arg) if what.kind == "exit" else 0
        self._seats.blame(replica, kind, now)
        verdict = self._policy.judge(kind, now, code, signal)
        reason = f"{self._role.name}/{replica} failed: {kind}"
        if verdict.fails:
            self._fail(f"{reason}; {verdict.fails}", now)
        else:
            self._incident(kind, reason, now, level=verdict.level if verdict.counted else None)

    # The steady case, which is nearly all of it: a node dies, a spare takes over or the gang shrinks, nodes return.

    def _is_steady(self) -> bool:
        """The gang runs, none of it is dead, and nobody wants to know more than the sums."""
        steady = self._free_losses and self._phase == "running" and not self._doomed and self._formed != NEVER
        return steady and self._tell is None and not self._keep and not self._seats.has_suspects

    def _go_on_steadily(self, strike: int, end: int) -> int:
        """From one failure to the next, for as long as no other thing comes between. Returns when the next one strikes.

        What is not steady is left to the general case before anything of it is done; a test compares the two.
        """
        later, seats, arrivals, alive, names = self._later, self._seats, self._arrivals, self._alive, self._names
        times, on, policy, least = self._times, self._seats.on, self._policy, self._role.min_replicas
        away, flapping, limit = times.stop_and_go, seats.flapping, self._options.free_incidents_max
        while True:
            at = later[0][0] if later else NEVER
            due = self._due
            if due <= at and due <= strike:
                if due > end or self._books.begun is not None:
                    return strike
                self._begin(due)
                continue
            if at <= strike:
                node = later[0][3]
                if at > end or node < 0 or seats.vacant or node in flapping:
                    return strike
                heapq.heappop(later)
                alive[node] = True
                seats.join(node, at)
                continue
            if strike > end:
                return strike
            now, (_, rate, target) = strike, arrivals.take()
            strike = arrivals.next_ns() or NEVER
            node = names.get(target, -1)
            starts = now + away
            if node >= 0 and not alive[node]:
                continue
            is_lone = rate.kind == "kill" and node >= 0 and starts < strike and starts < at and starts <= end
            if not is_lone or now < self._formed or len(on[node]) != 1 or policy.row >= limit:
                self._hit(target, rate, now)
                return strike
            if seats.taken - (not seats.free) < least:
                self._hit(target, rate, now)
                return strike
            alive[node] = False
            if rate.duration_ns is not None:
                self._at(now + rate.duration_ns + times.message, None, node)
            self._replace(node, now, starts)

    def _replace(self, node: int, now: int, starts: int) -> None:
        """A member dies, the others stop, and a new generation starts: all that `_kill` to `_start` do."""
        books, seats, times, result = self._books, self._seats, self._times, self.result
        result.faults += 1
        result.causes["node_lost"] += 1
        result.generations += 1
        if books.begun is not None:
            books.halt(now)
        told = now + times.proof
        healthy = books.progressed or told - self._formed >= self._options.min_uptime_ns
        self._policy.row = 1 if healthy else self._policy.row + 1
        seats.replace(node, told)
        books.fail_over(told, starts, seats.taken)
        self._formed = starts + times.started
        self._due = starts + times.up + self._startup() + (self._load.restore_ns if books.durable else 0)
        self._do = self._begin

    # What is decided.

    def _is_healthy(self, now: int) -> bool:
        if self._books.has_progressed(now):
            return True
        formed = self._formed
        return now - formed >= self._options.min_uptime_ns

    def _incident(self, kind: str, reason: str, now: int, *, level: int | None = None) -> None:
        """One cause, and the gang restarts: all of it stops first (R6)."""
        books, result = self._books, self.result
        result.causes[kind] += 1
        self._say(now, "incident", kind, reason)
        joined = kind == "joined"
        if books.begun is None:
            books.move("re-formation", books.active, now)
        self._stopped_ns = now + self._times.stop - self._times.message
        self._halt_at = self._stopped_ns if joined else None
        self._backoff = self._policy.charge(level, now) if level is not None else 0
        self._backoff_until, self._counts = now + self._backoff, level is not None
        if level is None:
            too_many = self._policy.note_free(self._is_healthy(now), chosen=joined)
            if too_many:
                self._fail(f"{too_many}; the last: {reason}", now)
                return
        books.progressed = False
        self._phase, self._formed = "stopping", NEVER
        others = self._seats.taken if kind == "node_lost" else books.active - (kind != "joined")
        self._due, self._do = (now + self._times.stop if others else now), self._stopped
        if self._doomed:  # some of its members are dead and do not say that they have stopped
            self._due = max(self._due, *self._doomed.values())
        if self._due < self._next() and not self._backoff:
            self._do(self._due)

    def _stopped(self, now: int) -> None:
        """All of it is gone."""
        if self._books.begun is not None:
            self._books.halt(self._halt_at or now)
        self._halt_at = None
        if self._backoff_until > now:
            self._phase, self._due, self._do = "back-off", self._backoff_until, self._reform
        else:
            self._reform(now)

    def _reform(self, now: int) -> None:
        self._seats.move_away(now)
        self._form(now)

    def _form(self, now: int) -> None:
        """A new generation with whoever has a seat; below the minimum it waits for a node, but not for ever (R12)."""
        seats, books = self._seats, self._books
        if seats.free and seats.vacant:
            seats.fill(now)
        if seats.taken < self._role.min_replicas:
            if self._pending is None:
                self._pending = now + self._role.pending_timeout_ns
                if books.bucket == "re-formation":
                    books.move("waiting", 0, now)
            self._phase, self._due, self._do = "waiting", self._pending, self._give_up
            return
        if self._pending is not None:
            self._pending = None
            books.move("re-formation", self._ever, now)
        self.result.generations += 1
        self._phase, self._due, self._do = "opening", now + self._times.open, self._start
        if self._due < self._next():
            self._start(self._due)

    def _start(self, now: int) -> None:
        """The store is open: all members start."""
        seats, books, times = self._seats, self._books, self._times
        books.start(seats.taken, self._backoff, now)
        self._ever = max(self._ever, seats.taken)
        self._phase = "running"
        if self._keep:
            self.result.sizes.append(seats.taken)
        self._say(now, "forms", str(self.result.generations), f"{seats.taken} of at most {self._role.max_replicas}")
        if self._doomed:  # not all of them get up, and that is not known yet
            self._due = self._formed = NEVER
            return
        self._formed = now + times.started
        if self._counts:
            self._policy.last_counted_ns, self._counts = self._formed, False
        self._due = now + times.up + self._startup() + (self._load.restore_ns if books.durable else 0)
        self._do = self._begin
        if seats.vacant and seats.free:
            self._grow(self.result.generations, self._formed)

    def _startup(self) -> int:
        """Of the slowest of so many, each spread by up to a fifth."""
        if not self._seed:
            return self._load.startup_ns
        slowest = draw(self._seed, self._role.name, "slowest", self.result.generations) ** (1 / self._seats.taken)
        return round(float(self._load.startup_ns * (0.8 + 0.4 * slowest)))

    def _begin(self, now: int) -> None:
        """The last of them is up: they step."""
        self._due, self._do = self._books.begin(now), self._complete
        if self._keep:
            self.result.begins.append(now)

    def _grow(self, generation: int, now: int) -> None:
        """Into seats that are free, after the cool-down since the last re-formation (R13)."""
        seats, formed = self._seats, self._formed
        if self._phase != "running" or generation != self.result.generations or formed == NEVER:
            return
        if not (seats.vacant and seats.free):
            return
        earliest = max(formed, formed + self._policy.grow_after_ns(self._is_healthy(max(now, formed))))
        if now < earliest:
            self._at(earliest, lambda at: self._grow(generation, at))
            return
        seats.fill(now)
        self._incident("joined", f"room for {seats.taken - self._books.active} more", now)

    def _complete(self, now: int) -> None:
        self._books.halt(now, done=True)
        self._end("succeeded", f"every primary task has succeeded ({self._role.name})", now + self._times.message)

    def _give_up(self, now: int) -> None:
        waited = format_duration(self._role.pending_timeout_ns)
        self._end("failed", f"{self._role.name} was below its minimum for {waited}", now)

    def _fail(self, reason: str, now: int) -> None:
        """All that still runs is stopped."""
        self._end("failed", reason, now + (self._times.stop if self._seats.taken else 0))

    def _end(self, outcome: str, reason: str, now: int) -> None:
        self.result.outcome, self.result.reason = outcome, reason
        self._say(now, "ends", outcome, reason)
        self._close(now)

    def _close(self, now: int) -> None:
        """Everything is booked up to now."""
        books, result = self._books, self.result
        if books.begun is not None and self._halt_at is not None:
            books.halt(min(self._halt_at, now))
        result.step = max(books.durable, books.step_at(now))
        books.halt(now)
        books.move("done", 0, now)
        result.now, result.lost_ns, result.lost_steps = now, books.lost_ns, books.lost_steps
        result.charged = self._policy.charged
        result.cordoned = [self._scope.nodes[node] for node in self._seats.cordoned]
