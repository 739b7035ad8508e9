"""State of one job in macro mode, and the questions about it that more than one part asks.

The parts are functions over this state: `gang` decides and ends the job, `fault_effects` applies faults. `macro` puts
them together.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from fractions import Fraction

from flowdist.control.job.state import Failure
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.rules import Verdict, is_healthy, judge_failure, next_backoff, step_without_last
from flowdist.faults.rates import Arrivals
from flowdist.graph import FailureKind, RoleSpec
from flowdist.sim.engine.node import KILL_NS
from flowdist.sim.macro.books import NEVER, Books, Phase
from flowdist.sim.macro.scope import Scope
from flowdist.sim.macro.seats import Seats
from flowdist.sim.macro.start_ups import NodeMemory
from flowdist.sim.user_code.workload import EVEN

Tell = Callable[[int, str, str, str], None]  # time, what, name, words: see `Macro`
Action = Callable[[int], None]  # called with the time, in ns


class Job:
    """State of one job: the gang, its nodes, and what is scheduled. Nodes and replicas are numbers, times are ns.

    Each phase of the gang ends by itself at `due`, when `on_due` is called. Everything else that has a time stands in
    `later`, but for the `arrivals` of rates' faults. Phases are those of `gang`. Seed 0 has nominal start-up times.
    `tell` is called at each change, as `Macro` says.
    """

    def __init__(self, scope: Scope, *, seed: int, arrivals: Arrivals, tell: Tell | None) -> None:
        graph, role = scope.graph, scope.role
        known = len(graph.cluster.nodes)
        self.scope, self.role, self.options = scope, role, graph.options
        self.seed, self.tell, self.times = seed, tell, scope.times
        self.names = {name: i for i, name in enumerate(scope.nodes)}  # the number of a node
        self.arrivals = arrivals
        self.later, self._serial = list[tuple[int, int, Action]](), 0
        self.until = 0  # where `run` stops
        self.alive = [node < known for node in range(len(scope.nodes))]  # by node: it is powered and connected
        self.dead_since: dict[int, int] = {}  # by node: when it died or was cut off
        self.death_known_at: dict[
            int, int
        ] = {}  # when the controller learns of dead nodes that it does not know of yet
        self.cut_off: dict[int, int] = {}  # nodes that are cut off and live: when each is lost if it is not back before
        self.connected_at: dict[
            int, int
        ] = {}  # by node: when its agent connected last; its heartbeats count from there
        self.last_beat: dict[int, int] = {}  # by node that died or was cut off: when it sent its last heartbeat before
        self.workers_end_at: dict[int, int] = {}  # by dead node: when its workers ended; on one cut off, are fenced
        self.seats = Seats(role, graph.options, scope.slots, known)
        self.books = Books(role.workload, role.max_replicas, role.procs)
        self.policy = Policy(role)
        self.free_row = 0  # membership changes in a row without progress or health between them (R8, R13)
        self.failed_on: int | None = None  # the node of the member that failed last; None: none has failed
        self.peers_end_at = NEVER  # when the peers of a member that has ended exit by themselves; NEVER: they do not
        self.result = self.books.result
        self.phase: Phase = "opening"
        self.due = NEVER
        self.on_due: Callable[[Job, int], None]
        self.formed = NEVER  # when the controller knows that all members of this generation run; NEVER: it does not
        self.started_at = 0  # when these members were ordered to start
        self.size_max = 0  # the largest number of members of a generation so far
        self.give_up_at: int | None = None  # when the job fails below the minimum of the gang (R12); None: it is not
        self.is_deaf = False  # the members are inside a collective that never ends: only SIGKILL stops them
        self.is_done = False  # they do the last step of the work before they are stopped
        self.slow: dict[int, Fraction] = {}  # members that a fault has made slow, each with its factor
        self.memory = NodeMemory(role.workload)  # what the nodes have in memory for the next start
        self.pace = EVEN  # how many times longer than nominal the slowest worker of this generation takes for a step
        self.exited: dict[int, None] = {}  # members of this generation whose processes a fault ended
        self.unheard: set[int] = set()  # those of them whose agent cannot report it, because it is cut off
        self.newcomers: set[int] = set()  # replicas that have a seat, and start with the next generation
        self.offered_by: int | None = None  # the node that offered the checkpoints of the generation halted last
        self.incident_kind, self.opened = "", 0  # kind and time of the last incident
        # Why the job fails, unless the failure of the open incident turns out to follow from the loss of the node of a
        # peer (R8); empty: it does not fail.
        self.deferred = ""
        self.outsiders: list[int] = []  # no members of the generation that an incident with a back-off restarts
        self.last_lost: list[int] = []  # the replicas that had their seats on the node that was lost last
        # The member whose failure counts against its node (R22), unless it turns out to follow from another node's
        # loss; None: there is none.
        self.unblamed: int | None = None
        self.is_counted = False  # the open incident is charged to a budget
        self.before_start: tuple[bool, int | None] = (False, None)  # that, and the last charge, before this start
        self.backoff_ns = self.backoff_until = 0  # the back-off of the open incident: how long it is, when it ends
        self.stopped_at = 0  # when the members that were ordered to stop have stopped
        self.gone_at = 0  # when the controller knows that all of them have stopped, or that their nodes are lost
        self.halt_at: int | None = None  # when these members do their last step; None: they do no steps any more
        self.ran_from = NEVER  # while the gang stops: what `formed` was before
        self.reported = 0  # checkpoints of the generation that the controller knew of when the last incident opened

    def at(self, time: int, action: Action) -> None:
        """Schedule an action for a time in ns."""
        self._serial += 1
        heapq.heappush(self.later, (time, self._serial, action))

    def quiet_until(self) -> int:
        """Return the time, in ns, of the next entry of `later` or fault of a rate, or of the end of the run."""
        return min(self.later[0][0] if self.later else NEVER, self.arrivals.next_ns() or NEVER, self.until + 1)

    def say(self, now: int, what: str, name: str, words: str) -> None:
        """Pass a change to `tell`, if there is one; its arguments are those that `Macro` describes."""
        if self.tell is not None:
            self.tell(now, what, name, words)

    def note_incident(self, kind: str, reason: str, now: int) -> None:
        """Count an incident of that kind in the result, and pass it to `tell`."""
        self.result.causes[kind] += 1
        self.say(now, "incident", kind, reason)

    # Times of stops and starts.

    def stops_within(self, grace_ns: int) -> int:
        """Return the time from an order to stop, with this grace, to the report that all members have stopped (ns)."""
        return self.times.stop if not self.is_deaf else 2 * self.times.message + grace_ns + KILL_NS

    def spawned(self, now: int) -> int:
        """Return from when on (ns) members can get an order to stop: a start that is in progress is finished first."""
        spawns = self.started_at + self.times.started - 2 * self.times.message
        return max(now, spawns) if self.formed < NEVER else now

    @property
    def answer_due(self) -> int:
        """When the nodes that are heard are no suspects any more, in ns."""
        return self.opened + self.options.suspect_after_ns

    def is_cleared(self, node: int) -> bool:
        """Return whether the node was heard after the failure that opened the incident: it is no suspect later (R8)."""
        return self.last_beat[node] + self.times.message > self.opened

    def is_suspected(self, node: int, at: int) -> bool:
        """Return whether the heartbeats of a node, which is cut off, were overdue at a time: any failure may follow."""
        return self.last_beat[node] + self.times.message + self.options.suspect_after_ns <= at

    def is_healthy(self, now: int) -> bool:
        """Return whether the generation that runs, or is being stopped, has progressed or run for long enough (R8)."""
        formed = self.ran_from if self.phase == "stopping" else self.formed
        return is_healthy(self.books.has_progressed(now), formed, now, self.options.min_uptime_ns)

    # Members and their nodes.

    def members_on(self, node: int) -> int:
        """Return how many members run or ran on the node, without those that start with the next generation."""
        return sum(replica not in self.newcomers for replica in self.seats.on[node])

    def awaited_on(self, node: int) -> int:
        """Return how many members on a node that is dead or cut off have not reported their end."""
        if self.phase == "stopping" and self.dead_since[node] >= self.stopped_at:
            return 0  # they had stopped before
        own = self.seats.on[node]
        heard = (replica in self.exited and replica not in self.unheard for replica in own)
        return sum(not each and replica not in self.newcomers for each, replica in zip(heard, own, strict=True))

    @property
    def silent_nodes(self) -> list[int]:
        """Return the nodes with members that are dead or cut off, of which the controller does not know yet."""
        return [node for node in self.death_known_at if self.members_on(node)]

    @property
    def live_members(self) -> int:
        """Return how many members of the generation that runs have their seats on other nodes than `silent_nodes`."""
        return self.books.active - sum(map(self.members_on, self.silent_nodes))

    @property
    def has_members_left(self) -> bool:
        """Whether a member of the gang has not ended by a fault, and its node is not lost."""
        return any(each not in self.newcomers and each not in self.exited for each, _ in self.seats.seated)

    def await_stop(self) -> None:
        """Set when the gang that stops is gone, since the loss of a node will be known sooner than expected."""
        dead = [at for node, at in self.death_known_at.items() if self.awaited_on(node)]
        ends = self.stopped_at + self.times.message
        self.gone_at = max([ends, *dead])
        self.due = max([min(ends, self.answer_due) if self.deferred else ends, *dead])

    def first_node(self) -> int | None:
        """Return the node of the lowest member, whose agent opens the store; None: no member."""
        return next((node for _, node in self.seats.seated), None)

    # The work of the gang.

    @property
    def slowest(self) -> Fraction:
        """How many times longer than nominal the slowest member takes for a step now."""
        return max([self.pace, *self.slow.values()])

    def begin_work(self, now: int) -> int:
        """Begin the work of a generation whose last member has started up, and return when it is done (ns)."""
        self.memory.begin(self.seats.node_of)
        return self.books.begin(now, self.slowest)

    def begin_late(self, generation: int, now: int) -> None:
        """Begin the work of a whole generation that starts up before the order to stop has ended it."""
        has_all = not self.exited and all(self.workers_end_at[node] > now for node in self.silent_nodes)
        if self.phase == "stopping" and generation == self.result.generations and has_all:
            self.begin_work(now)

    def halt(self, now: int, *, done: bool = False) -> None:
        """End the stepping of the generation in `books`; nothing if it does not step.

        A checkpoint counts if the answer to it has reached the node that offered it before that died or was cut off.
        `done`: all work is done.
        """
        if self.books.begun is None:
            return
        # The agent of the lowest member of the present generation offers checkpoints.
        offerer = next((node for replica, node in self.seats.seated if replica not in self.newcomers), None)
        answered = None
        if offerer is not None and not self.alive[offerer]:
            answered = self.dead_since[offerer]
        self.offered_by = offerer
        never_formed = self.formed == NEVER and bool(self.result.causes)  # so that the incident before is open
        is_known, reported = self.phase == "stopping" or never_formed, self.books.reported(now)
        others = self.live_members > 0
        self.books.halt(now, done=done, answered_until=answered, others_report=others, is_known=is_known)
        if is_known:  # checkpoints reported before the incident opened were counted as progress when it opened
            self.books.progressed = reported > self.reported


class Policy:
    """Restart policy of the gang, with the part of its history that the rules depend on. All times are ns."""

    def __init__(self, role: RoleSpec) -> None:
        self._role = role
        self._charges: dict[int, list[int]] = {}
        self._backoff_step = 0
        self.last_counted_ns: int | None = None  # when the last charged incident closed, set by the caller; or None

    @property
    def charged(self) -> int:
        """Return how many incidents are charged to a budget."""
        return sum(map(len, self._charges.values()))

    def judge(self, kind: FailureKind, now: int, exit_code: int = 0, signal: str | None = None) -> Verdict:
        """Return what a failure of a member means, by `judge_failure` of control. Nothing is charged."""
        failure = Failure(ReplicaId(self._role.name, 0), kind, "", exit_code, signal)  # any name: members are alike
        return judge_failure(self._role, self._charges, failure, now)

    def charge(self, level: int, now: int) -> int:
        """Charge an incident that opens now to the budget of a level (0: the role's own), and return its back-off."""
        self._charges.setdefault(level, []).append(now)
        assert self._role.restart is not None
        policy = self._role.restart.chain()[level]
        wait, self._backoff_step = next_backoff(policy, self._backoff_step, self.last_counted_ns, now)
        return wait

    def excuse(self, opened_ns: int) -> None:
        """Take back the charge, if any, of the incident opened at that time, since it has another cause (R7)."""
        for charges in self._charges.values():
            if opened_ns in charges:
                charges.remove(opened_ns)
                self._backoff_step = step_without_last(self._backoff_step)
