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
from functools import partial

from flowdist.faults.grammar import Fault, Plan, Rate
from flowdist.faults.rates import Arrivals
from flowdist.graph import format_duration
from flowdist.sim.engine.streams import draw
from flowdist.sim.macro.auxiliary_roles import Others
from flowdist.sim.macro.books import Books
from flowdist.sim.macro.ending import close, complete, fail
from flowdist.sim.macro.faults import hit
from flowdist.sim.macro.peers import Held, excuse, hold, is_excused
from flowdist.sim.macro.policy import Policy
from flowdist.sim.macro.result import FAILED, NEVER, Later, MacroResult, Phase
from flowdist.sim.macro.scope import Scope
from flowdist.sim.macro.seats import Seats
from flowdist.sim.macro.steady_state import Sprint, can_ever_sprint, may_sprint


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
        self.scope, self.plan, self.role, self.options = scope, plan, role, graph.options
        self.seed, self.tell = seed, tell
        self.times, self._load, self.keep = scope.times, role.workload, keep
        self.names = {name: i for i, name in enumerate(scope.nodes)}
        self.seats = Seats(role, graph.options, scope.seats, len(graph.cluster.nodes))
        self.books = Books(role.workload, role.max_replicas)
        self.policy = Policy(role, graph.options)
        self.alive = [node < len(graph.cluster.nodes) for node in range(len(scope.nodes))]
        self.doomed: dict[int, int] = {}  # nodes that are dead: when control will know
        self.cuts: dict[int, int] = {}  # since when nodes are cut off that still run
        self.exited: dict[int, None] = {}  # replicas whose processes ended by themselves in this generation
        self.met: dict[int, int] = {}  # when the agent of a node connected last: its heartbeats count from there
        self.fences: dict[int, int] = {}  # when the workers of a node that is gone ended
        self._ran_from = NEVER  # when the generation had formed that is being stopped
        self._reported = 0  # checkpoints that control had heard of as the last incident opened
        self._fresh: set[int] = set()  # replicas that are to start with the next generation
        self.died: dict[int, int] = {}  # when a node died, or was cut off
        self.kind, self.opened = "", 0  # of the last incident
        self._until = 0
        self.arrivals = Arrivals(plan.rates, graph, scope.nodes, seed if fault_seed is None else fault_seed)
        self.later, self.serial = list[Later](), 0
        self.result = MacroResult(self.books.spent)
        self.phase: Phase = "opening"
        self.due, self.do = NEVER, self._start  # when the phase ends by itself, and what is then
        self.formed = NEVER  # when all of the present generation ran
        self.ever = 0  # replicas that have run: the lowest come first
        self.pending: int | None = None  # until when it may be below its minimum
        self.backoff = self.backoff_until = 0
        self.is_halfway = False  # not all of it got up: a member's node died while it started
        self.held: Held | None = None  # the open incident may end the job
        self.counts = False  # the open incident is one that a budget pays for
        self.stopped_ns = 0  # when the members of a gang that is told to stop have done so
        self.halt_at: int | None = None  # when the members of a gang that is told to stop do so
        for add in plan.adds:
            self.at(add.at_ns + self.times.message, None, self.names[add.node])
        for fault in plan.faults:
            assert fault.when.at_ns is not None
            self.at(fault.when.at_ns + fault.offset_ns, self._firing(fault))
        self.others = Others(self)
        self._sprint = Sprint(self) if can_ever_sprint(self) and not step_by_step else None
        self._admit(self.times.message)

    def run(self, until: int | None = None) -> MacroResult:
        """To the end of the job, or to `until`."""
        result, later, arrivals = self.result, self.later, self.arrivals
        end = self._until = NEVER - 1 if until is None else until
        strike = arrivals.next_ns() or NEVER
        while result.outcome is None:
            if self._sprint is not None and may_sprint(self):
                self._sprint.run(end)
                strike = arrivals.next_ns() or NEVER
                if result.outcome is not None:
                    break
            at = later[0][0] if later else NEVER
            due = self.due
            if due < at and due < strike:
                if due > end:
                    break
                self.do(due)
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
            close(self, self.books.since if until is None else until)
        return result

    def _admit(self, now: int) -> None:
        """The nodes are there, and the minima of all roles are seated (R2)."""
        if self.others.roles:
            self.seats.fill(now, self.role.min_replicas)
        self.others.admit(now)
        self._form(now)

    def at(self, time: int, action: Callable[[int], None] | None, node: int = -1) -> None:
        """Without an action the node joins then; or generation `-2 - node` looks for room, if that is below -1."""
        self.serial += 1
        heapq.heappush(self.later, (time, self.serial, action, node))

    def _happen(self, entry: Later, now: int) -> None:
        _, _, action, node = entry
        if action is not None:
            action(now)
        elif node >= 0:
            self._joined(node, now)
        else:
            self._grow(-2 - node, now)

    def _next(self) -> int:
        """When something befalls it, or nobody looks any more: what is due before is done at once, if it is alone."""
        if self.others.roles:
            return 0
        return min(self.later[0][0] if self.later else NEVER, self.arrivals.next_ns() or NEVER, self._until + 1)

    def say(self, now: int, what: str, name: str, words: str) -> None:
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
        hit(self, target, what, now)

    def _first(self) -> int | None:
        """The node of the lowest member: its agent opens the store and offers the checkpoints."""
        return next((node for node in self.seats.node_of if node is not None), None)

    def halt(self, now: int) -> None:
        """They stop stepping. Checkpoints that were offered by a node that is cut off do not count."""
        first = self._first() if self.cuts else None
        answered = self.cuts.get(first, now) if first is not None else now
        is_known = self.phase == "stopping" and self.books.begun is not None
        reported = self.books.reported(now)
        self.books.halt(now, heard_until=answered, is_known=is_known)
        if is_known:  # what was reported before the incident was counted with it
            self.books.progressed = reported > self._reported

    def stop_short(self, now: int) -> None:
        """A member is gone: the others wait for it in vain, or it never gets up."""
        if self.phase == "running":
            self.halt(now)
            self.due = NEVER
        elif self.phase == "stopping":
            self.halt(min(now, self.halt_at or now))

    def gone(self, node: int, why: str, now: int) -> None:
        """The controller knows."""
        self.doomed.pop(node, None)
        self.cuts.pop(node, None)
        name = self.scope.nodes[node]
        self.say(now, "gone", name, f"{name} is gone: {why}")
        if self.seats.lose(node):
            self._lost(node, why, now)
        for other in self.others.roles:
            other.gone(node, f"{name} is gone: {why}", now)
        if self.met.get(node, now) + self.times.message != now:  # else it is back at the same time
            self.others.settle(now)
        if self.phase == "stopping" and self.due <= now and not any(self.seats.on[each] for each in self.doomed):
            self.do(now)  # it was the last, and others that die at the same time are not known to

    def _lost(self, node: int, why: str, now: int) -> None:
        """It was a member's."""
        seats, name = self.seats, self.scope.nodes[node]
        if self.phase == "opening":
            self._form(now)  # a seat was lost before anything started
        elif self.phase == "running":
            seats.note_loss(node, now)
            verdict = self.policy.judge("node_lost", now)
            reason = f"{name} is gone: {why}"
            if verdict.fails:
                self.fail(f"{reason}; {verdict.fails}", now)
            else:
                self.open_incident("node_lost", reason, now, level=verdict.level if verdict.counted else None)
        elif self.phase == "stopping" and is_excused(self, node, why, now):
            excuse(self, f"{name} is gone: {why}", now)

    def _joined(self, node: int, now: int) -> None:
        self.alive[node] = True
        self.seats.join(node, now)
        for other in self.others.roles:
            other.seats.join(node, now)
        self.say(now, "joined", self.scope.nodes[node], f"{self.scope.nodes[node]} joined")
        if self.others.roles:
            self.others.settle(now)
        else:
            self.take_room(now)

    def take_room(self, now: int) -> None:
        """There may be room that there was not before, or what it waits for may be there."""
        if self.phase in ("waiting", "gated"):
            self._form(now)
        elif self.phase == "running":
            self._grow(self.result.generations, now)

    def is_started(self, now: int) -> bool:
        """All of its members run, as far as control knows."""
        return self.phase == "running" and self.formed <= now and not self.is_halfway

    def failed(self, replica: int, generation: int, what: Fault | Rate, now: int) -> None:
        """The controller hears of it, unless the gang restarts for another reason by now."""
        if self.phase != "running" or generation != self.result.generations:
            return
        kind, signal = FAILED[what.kind]
        code = int(what.arg) if what.kind == "exit" else 0
        verdict = self.policy.judge(kind, now, code, signal)
        reason = f"{self.role.name}/{replica} failed: {kind}"
        self.held = hold(self, replica, kind, f"{reason}; {verdict.fails}") if verdict.fails else None
        if self.held is not None:
            self.open_incident(kind, reason, now)
            return
        self.seats.blame(replica, kind, now)
        if verdict.fails:
            self.fail(f"{reason}; {verdict.fails}", now)
        else:
            self.open_incident(kind, reason, now, level=verdict.level if verdict.counted else None)

    # What is decided.

    def _is_healthy(self, now: int) -> bool:
        formed = self._ran_from if self.phase == "stopping" else self.formed
        return self.books.has_progressed(now) or now - formed >= self.options.min_uptime_ns

    def note_incident(self, kind: str, reason: str, now: int) -> None:
        self.result.causes[kind] += 1
        self.say(now, "incident", kind, reason)

    def note_change(self, reason: str, now: int, *, chosen: bool) -> None:
        too_many = self.policy.note_free(self._is_healthy(now), chosen=chosen)
        if too_many:
            self.fail(f"{too_many}; the last: {reason}", now)
        self.books.progressed = False

    def open_incident(
        self, kind: str, reason: str, now: int, *, level: int | None = None, goes_on: bool = False
    ) -> None:
        """One cause, and the gang restarts: all of it stops first (R6). `goes_on`: until then it steps."""
        books = self.books
        self.note_incident(kind, reason, now)
        joined, self.kind, self.opened = kind == "joined", kind, now
        if books.begun is None:
            books.move("re-formation", books.active, now)
        self.stopped_ns = now + self.times.stop - self.times.message
        self.halt_at = self.stopped_ns if joined or goes_on else None
        self._reported = books.reported(now - self.times.message)
        self.backoff = self.policy.charge(level, now) if level is not None else 0
        self.backoff_until, self.counts = now + self.backoff, level is not None
        if level is None and self.held is None:
            self.note_change(reason, now, chosen=joined)
            if self.result.outcome is not None:
                return
        was_up = self.phase == "running"
        self._ran_from = self.formed
        self.phase, self.formed = "stopping", NEVER
        members = books.active if joined else self.seats.taken
        dead = [(self.members_on(node), told) for node, told in self.doomed.items()]
        others = members - len(self.exited) - sum(count for count, _ in dead)
        self.due, self.do = (now + self.times.stop if others and was_up else now), self.stopped
        if self.held is not None:
            self.do = self._judge
        # some of its members may be dead, and do not say that they have stopped
        if was_up:
            self.due = max([self.due, *(told for count, told in dead if count)])
        self.due = max(self.due, self.others.stop(now))
        if self.due < self._next() and not self.backoff:
            self.do(self.due)

    def _judge(self, now: int) -> None:
        """All others have answered: what was held does not follow from the loss of their nodes."""
        assert self.held is not None
        if self.seats.node_of[self.held.replica] is not None:
            self.seats.blame(self.held.replica, self.kind, self.opened)
        self.fail(self.held.reason, now)

    def stopped(self, now: int) -> None:
        """All of it is gone."""
        self.halt(self.halt_at or now)
        self.halt_at, self._ran_from = None, NEVER
        self.seats.move_away(now)
        if self.backoff_until > now:
            self.phase, self.due, self.do = "back-off", self.backoff_until, self._reform
        else:
            self._reform(now)

    def _reform(self, now: int) -> None:
        self.phase = "gated"
        self.others.start(now)
        self._form(now)

    def _form(self, now: int) -> None:
        """A new generation with whoever has a seat; below the minimum it waits for a node, but not for ever (R12)."""
        seats, books = self.seats, self.books
        if not self.others.let_it_form(now):
            if self.pending is not None and self.phase == "waiting":
                self.at(self.pending, self.others.outwait)
            self.phase, self.due, self.formed = "gated", NEVER, NEVER
            return
        if seats.free and seats.vacant:
            seats.fill(now)
        if seats.taken < self.role.min_replicas:
            if self.pending is None and books.bucket == "re-formation":
                books.move("waiting", 0, now)
            self.plan_wait(now + self.role.pending_timeout_ns if self.pending is None else self.pending)
            return
        if self.pending is not None:
            self.pending = None
            books.move("re-formation", self.ever, now)
        self.result.generations += 1
        self.phase, self.due, self.do = "opening", now + self.times.open, self._start
        first = self._first() if self.doomed else None
        if first is not None and not self.alive[first]:
            self.due = NEVER  # nobody opens the store, until that is known
        elif self.due < self._next():
            self._start(self.due)

    def _start(self, now: int) -> None:
        """The store is open: all members start."""
        seats, books, times = self.seats, self.books, self.times
        books.start(seats.taken, self.backoff, now)
        self.ever = max(self.ever, seats.taken)
        self.exited.clear()
        self._fresh = set()
        self.phase, self.is_halfway = "running", False
        if self.keep:
            self.result.sizes.append(seats.taken)
        self.say(now, "forms", str(self.result.generations), f"{seats.taken} of at most {self.role.max_replicas}")
        if any(seats.on[node] for node in self.doomed):  # not all of them get up, and that is not known yet
            self.due = self.formed = NEVER
            return
        self.formed = now + times.started
        if self.counts:
            self.policy.last_counted_ns, self.counts = self.formed, False
        at = now + times.up + self._load.startup_ns + (self._load.restore_ns if books.durable else 0)
        if self.seed:
            slowest = draw(self.seed, self.role.name, "slowest", self.result.generations)
            at += self.spread(slowest, seats.taken)
        self.plan_begin(at, self.formed)
        if self.others.roles:
            self.at(self.formed, self.others.settle)
        elif seats.vacant and seats.free:
            self._grow(self.result.generations, self.formed)

    def spread(self, slowest: float, members: int) -> int:
        """How much longer than nominal the slowest of so many starts up, each spread by up to a fifth."""
        return int(self.role.workload.startup_ns * (0.4 * slowest ** (1 / members) - 0.2))

    def plan_begin(self, at: int, formed: int) -> None:
        """When all of a generation that starts will run, and when the last of them will be up."""
        self.phase, self.formed, self.pending, self.is_halfway = "running", formed, None, False
        self.due, self.do = at, self.begin

    def plan_wait(self, until: int) -> None:
        """It is below its minimum, and gives up then."""
        self.phase, self.formed, self.pending = "waiting", NEVER, until
        self.due, self.do = until, self._give_up

    def begin(self, now: int) -> None:
        """The last of them is up: they step."""
        self.due, self.do = self.books.begin(now, is_stalled=bool(self.others.away)), partial(complete, self)
        if self.keep:
            self.result.begins.append(now)

    def _grow(self, generation: int, now: int) -> None:
        """Into seats that are free, after the cool-down since the last re-formation (R13)."""
        seats, formed = self.seats, self.formed
        if self.phase != "running" or generation != self.result.generations or formed == NEVER:
            return
        if not (seats.vacant and seats.free):
            return
        wait = self.policy.grow_after_ns(self._is_healthy(max(now, formed)), is_first=generation == 1)
        earliest = max(formed, formed + wait)
        if now < earliest:
            self.at(earliest, None, -2 - generation)
            return
        before = set(seats.vacant)
        if self.seats.fill(now):
            self._fresh = before.difference(seats.vacant)
            self.open_incident("joined", f"room for {seats.taken - self.books.active} more", now)

    def members_on(self, node: int) -> int:
        """How many there ran, or run: not those who are to start there with the next generation."""
        return sum(replica not in self._fresh for replica in self.seats.on[node])

    def _give_up(self, now: int) -> None:
        self.fail(f"{self.role.name} was below its minimum for {format_duration(self.role.pending_timeout_ns)}", now)

    def fail(self, reason: str, now: int) -> None:
        fail(self, reason, now)
