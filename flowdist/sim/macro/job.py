"""State of one job in macro mode, and the questions about it that more than one part asks.

The parts are functions over this state: `gang` decides, `fault_effects` applies faults, `steady_state` computes many
failures at once, `beside` plays the roles beside the gang. `macro` puts them together.

A job with several gangs has one such state for each of them, with the nodes and the auxiliary roles of its group (see
`beside.groups`). They meet at the end of the job, in the gates of one gang on another, and in the rule that no node is
cordoned while a role lacks room (R22).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple, Protocol

from flowdist.control.incidents.health import is_healthy, stops_with_grace
from flowdist.control.job.initial_state import depths_of
from flowdist.faults.grammar import Fault, Plan, Rate
from flowdist.faults.rates import Arrivals
from flowdist.faults.repairs import is_drawn
from flowdist.sim.engine.node import KILL_NS
from flowdist.sim.macro.books import Books
from flowdist.sim.macro.generation.course import EVEN
from flowdist.sim.macro.generation.late import Late
from flowdist.sim.macro.generation.peer_memory import PeerMemory
from flowdist.sim.macro.generation.start_ups import WarmNodes, extra_startup_ns
from flowdist.sim.macro.joint.minima import Minima
from flowdist.sim.macro.joint.seats import JointSeats
from flowdist.sim.macro.orders.notice import Notice
from flowdist.sim.macro.policy import Policy
from flowdist.sim.macro.result import FAILED, NEVER, Later, MacroResult, Phase
from flowdist.sim.macro.scope import Scope
from flowdist.sim.macro.seats import Seats

# What the faults of an entity of `Arrivals` hit: a node (its number), a replica (-2 - its index), or this, for faults
# that are left to `gang`.
OTHER = -1

Tell = Callable[[int, str, str, str], None]  # time, what, name, words: see `Macro`


class Companions(Protocol):
    """The roles beside the gang, as the gang sees them. `beside.auxiliary_roles.AuxiliaryRoles` implements it.

    All times, also those returned, are ns.
    """

    @property
    def version(self) -> int:
        """Number that grows with each change of the seats and nodes of the roles beside the gang."""

    @property
    def are_short(self) -> bool:
        """Return whether the gang, or a role beside it, is below its minimum and has no room for it."""

    def let_gang_form(self, now: int) -> bool:
        """Return whether all gates of the gang are open."""

    def settle(self, now: int) -> None:
        """Let all roles and the gang start, form or grow where that is possible by now."""

    def start(self, now: int) -> None:
        """Let the replicas that restart with the gang start again."""

    def stop(self, now: int) -> int:
        """Stop the replicas that restart with the gang, and return when the last of them is gone."""

    def end_workers(self, node: int, at: int) -> None:
        """Schedule the end of the workers on a node that has died: they end at the time `at`."""

    def lose_node(self, node: int, reason: str, now: int) -> None:
        """Handle that the controller learns that a node is lost; this may restart the gang."""

    def add_node(self, node: int, now: int) -> None:
        """Handle that a node joined: it offers its seats to the roles."""

    def serve_until(self, now: int) -> int:
        """Return when the first replica that the gang cannot do without ends, if all are ordered to stop now."""

    def end(self, now: int, depth: int | None = None) -> int:
        """Stop the roles of this depth, or all, and return when the last replica of them has ended."""

    def close(self, now: int) -> None:
        """Write cordoned nodes, generations and saved steps of the roles into the result."""


class DeferredFailure(NamedTuple):
    """A failure of a member that fails the job, unless it turns out to follow from the loss of a peer's node (R8).

    `reason` is the reason of the job's end.
    """

    reason: str
    replica: int


class Unblamed(NamedTuple):
    """A failure that counts against the member's node (R22), unless it turns out to follow from another node's loss."""

    replica: int
    kind: str
    at: int


class Job:
    """State of one job: the gang, its nodes, and what is scheduled. Nodes and replicas are numbers, times are ns.

    Each phase of the gang ends by itself at `due`, when `on_due` is called. Everything else that has a time stands in
    `later`. Phases are those of `gang`.

    Args:
        scope: What `scope_of` made of the topology and the plan.
        plan: The faults and rates.
        seed: Draws start-up times; 0 has nominal ones.
        arrivals: The faults of the rates, the same for all gangs.
        tell: Called at each change, as `Macro` says; None: nothing is called.

    Attributes:
        gangs: The states of all gangs of the job, this one included, in the order of `groups.gangs_of`.
        names: By name of a node: its number. Nodes on which only roles of other groups have room are left out.
        depths: By role: its place in the start order, as in `control`.
        parts: The roles of the gang: one, or those of its joint world.
        minima: Which of these lack nodes while the gang waits; None: there is one role.
        policies: The restart policies of `parts`.
        policy: The first of them, which also counts the membership changes of the gang.
        payer: The policy of the role whose failure was judged last.
        failed_on: The node of the member that failed last; None: none has failed.
        peers_end_at: When the peers of a member that has ended exit by themselves; NEVER: they do not.
        alive: By node: it is powered and connected, or cut off for so short a time that nothing changes.
        dead_since: By node: when it died or was cut off.
        death_known_at: Dead nodes of which the controller does not know yet: when it learns that they are lost.
        cut_off_since: Nodes that are cut off, until they connect again or are lost: since when.
        connected_at: By node: when its agent connected last, or, of one that is cut off, when it will. The times of its
            heartbeats count from there.
        workers_end_at: By dead node: when its workers end or ended. On a node that is cut off the agent fences them.
        started_at: When the members of the present generation were ordered to start.
        late: What nodes that were cut off for a moment got or reported late.
        formed: When the controller knows, or will know, that all members of the present generation run; NEVER: it does
            not.
        size_max: The largest number of members of a generation so far.
        give_up_at: When the job fails because the gang is below its minimum (R12); None: it is not.
        backoff_until: When the back-off of the open incident ends; `backoff_ns` is how long it is.
        outsiders: The replicas that were no members of the generation that an incident with a back-off restarts.
        last_lost: The replicas that had their seats on the node that was lost last.
        is_counted: The open incident is charged to a budget.
        is_incomplete: A member's node died while the generation started, so that not all members ever run.
        warm: Nodes on which the gang starts warm.
        pace: How many times longer than nominal the slowest worker of the present generation takes for a step.
        slow: Members that a fault has made slow, each with its factor.
        is_deaf: The members are inside a collective that never ends, so that only SIGKILL stops them.
        exited: Members of the present generation whose processes a fault ended.
        notice: Request to the gang to leave a node in order; None: there is none.
        grows_at_once: The operator wants a larger gang, which waits for no cool-down.
        memory: Nodes that have the checkpoints of the gang in memory.
        offered_by: The node that offered the checkpoints of the generation that was halted last.
        newcomers: Replicas that have a seat, and start with the next generation.
        incident_kind, opened: Kind and time of the last incident.
        away: Names of the replicas of services without which the gang makes no step.
        stopped_at: When the members that were ordered to stop have stopped.
        gone_at: When the controller knows that all of them have stopped, or that their nodes are lost.
        joint_gone_at: When the replicas beside the gang that stop with it have stopped.
        is_done: They do the last step of the work before they are stopped.
        halt_at: When these members do their last step; None: they do no steps any more.
        ran_from: While the gang stops: what `formed` was before.
        reported: Checkpoints of the generation that the controller knew of when the last incident opened.
    """

    companions: Companions

    def __init__(self, scope: Scope, plan: Plan, *, seed: int, arrivals: Arrivals, tell: Tell | None) -> None:
        graph, role = scope.graph, scope.role
        known = len(graph.cluster.nodes)
        self.scope, self.plan, self.role, self.options = scope, plan, role, graph.options
        self.gangs: list[Job] = [self]
        self.seed, self.tell, self.times = seed, tell, scope.times
        self.names = {name: i for i, name in enumerate(scope.nodes)}
        self.depths = depths_of(graph)
        self.arrivals = arrivals
        self.later, self.serial = list[Later](), 0
        self.until = 0  # where `run` stops

        self.alive = [node < known for node in range(len(scope.nodes))]
        self.dead_since: dict[int, int] = {}
        self.death_known_at: dict[int, int] = {}
        self.cut_off_since: dict[int, int] = {}
        self.connected_at: dict[int, int] = {}
        self.late = Late()
        self.workers_end_at: dict[int, int] = {}

        self.parts = scope.parts or (role,)
        self.seats = Seats(role, graph.options, scope.seats, known)
        self.minima: Minima | None = None
        if len(self.parts) > 1:
            self.seats = JointSeats(role, self.parts, graph.options, scope.seats, known)
            self.minima = Minima(self.parts)
        self.books = Books(role.workload, role.max_replicas, role.procs)
        self.policies = [Policy(part, graph.options) for part in self.parts]
        self.policy = self.payer = self.policies[0]
        self.failed_on: int | None = None
        self.peers_end_at = NEVER
        self.result = MacroResult(self.books.spent)

        self.phase: Phase = "opening"
        self.due = NEVER
        self.on_due: Callable[[Job, int], None]
        self.formed, self.started_at = NEVER, 0
        self.size_max = 0
        self.give_up_at: int | None = None
        self.is_incomplete = self.is_deaf = self.is_done = False
        self.slow: dict[int, Fraction] = {}
        self.warm, self.pace = WarmNodes(role.workload), EVEN
        self.exited: dict[int, None] = {}
        self.newcomers: set[int] = set()
        self.away: dict[str, None] = {}
        self.notice: Notice | None = None
        self.memory = PeerMemory()
        self.offered_by: int | None = None
        self.grows_at_once = False

        self.incident_kind, self.opened = "", 0
        self.deferred: DeferredFailure | None = None
        self.outsiders: list[int] = []
        self.last_lost: list[int] = []
        self.unblamed: Unblamed | None = None
        self.is_counted = False
        self.backoff_ns = self.backoff_until = 0
        self.stopped_at = self.gone_at = self.joint_gone_at = 0
        self.halt_at: int | None = None
        self.ran_from, self.reported = NEVER, 0

    def at(self, time: int, action: Callable[[int], None] | None, node: int = -1) -> None:
        """Schedule an action, the join of a node, or the growth of a generation.

        Args:
            time: When, in ns.
            action: Called with the time. None: `node` says what happens.
            node: Without an action: the number of the node that joins; or `-2 - generation`, for a generation that
                grows then if it can.
        """
        self.serial += 1
        heapq.heappush(self.later, (time, self.serial, action, node))

    @property
    def stop_ns(self) -> int:
        """Time from an incident with a failure to the report that all members on living nodes have stopped, in ns."""
        return self.stop_ns_of("")

    def stop_ns_of(self, kind: str) -> int:
        """Return `stop_ns` for an incident of this kind."""
        return self.stops_within(self.grace_ns_of(kind))

    def grace_ns_of(self, kind: str) -> int:
        """Return the grace of the orders to stop in an incident of this kind, in ns."""
        return self.role.grace_ns if stops_with_grace(kind) else self.role.stop_grace_ns

    def stops_within(self, grace_ns: int) -> int:
        """Return the time from an order to stop, with this grace, to the report that all members have stopped (ns)."""
        return self.times.stop if not self.is_deaf else 2 * self.times.message + grace_ns + KILL_NS

    def runs_since(self, node: int) -> int:
        """Return when the controller knows, or will know, that the members on a node run, if nothing hinders them."""
        runs = self.late.started.get(node, self.started_at) + self.times.started
        return self.late.heard.get(node, runs)

    def is_cleared(self, node: int) -> bool:
        """Return whether the node was heard after the failure that opened the incident: it is no suspect later (R8)."""
        return self.late.last_beat[node] + self.times.message > self.opened

    @property
    def answer_due(self) -> int:
        """When the nodes that are heard are no suspects any more, in ns."""
        return self.opened + self.options.suspect_after_ns

    def told(self, node: int, now: int) -> int:
        """Return when an order that is sent to a node now counts as sent: later if the node is cut off for a moment.

        The controller sends its orders again as soon as the agent has connected and joined.
        """
        return self.connected_at[node] + self.times.message if self.is_away(node) else now

    def reported_at(self, node: int, now: int) -> int:
        """Return when the controller knows what an agent, whose node lives, reports now: later if it is cut off."""
        return self.told(node, now) if self.is_away(node) else now + self.times.message

    def is_away(self, node: int) -> bool:
        """Return whether a node is cut off for a moment, and will connect again before its agent fences."""
        return node in self.cut_off_since and self.alive[node]

    def away_members(self) -> list[int]:
        """Return the nodes that are cut off for a moment, with members that have not reported their end."""
        return [node for node in self.cut_off_since if self.alive[node] and self.awaited_on(node)]

    def running_on(self, node: int) -> int:
        """Return how many members run on a living node: not those whose processes a fault ended."""
        own = self.seats.on[node]
        return sum(replica not in self.newcomers and replica not in self.exited for replica in own)

    def offers_again(self, node: int) -> bool:
        """Return whether a member on a node that is away will run when it connects: then it offers checkpoints again.

        The offers whose answers were lost are answered then.
        """
        ordered = self.phase == "stopping" and self.opened + self.times.message < self.cut_off_since[node]
        stops = ordered and self.stopped_at < self.connected_at[node]
        return self.running_on(node) > 0 and not stops

    def ends_on(self, node: int) -> int:
        """Return when the members on a living node, which were ordered to stop, have stopped, in ns."""
        if node not in self.late.stopped:
            return self.stopped_at
        return self.gone_on(node, self.late.stopped[node], self.grace_ns_of(self.incident_kind)) - self.times.message

    def startup_on(self, node: int, told: int) -> int:
        """Return the nominal time that a member takes to start up on a node, if its order was sent at `told` (ns)."""
        load = self.role.workload
        if load.warm_startup_ns is not None and self.warm.is_warm(node, told + self.times.up):
            return load.warm_startup_ns
        return load.startup_ns

    def gone_on(self, node: int, told: int, grace_ns: int) -> int:
        """Return when the controller knows that the members on a living node have stopped, in ns.

        Args:
            node: A node with members that is, or was, cut off for a moment.
            told: When the order to stop counts as sent: see `told`.
            grace_ns: The grace of that order, in ns.
        """
        if not self.running_on(node) or told == self.late.started.get(node):
            return told  # none runs: the agent says so when it joins
        spawned = max(told, self.late.started.get(node, self.started_at) + self.times.started - 2 * self.times.message)
        return spawned + self.stops_within(grace_ns)

    def spawned(self, now: int) -> int:
        """Return from when on (ns) members can get an order to stop: a start that is in progress is finished first."""
        spawns = self.started_at + self.times.started - 2 * self.times.message
        return max(now, spawns) if self.formed < NEVER else now

    def plan_work(self, done: int) -> None:
        """Set `due` of a gang that works to the time at which it leaves, if it is to, or to `done` (ns), its end.

        Nothing changes if it has left already.
        """
        notice = self.notice
        if notice is None or notice.step is None:
            self.due = done
        elif not notice.has_left:
            self.due = max(notice.told, self.books.time_of_step(notice.step))

    def begin_late(self, generation: int, now: int) -> None:
        """Begin the work of a generation whose members start up before the order to stop has ended them.

        Nothing happens if one of them has ended, or the job is over.
        """
        has_all = not self.exited and not any(self.members_on(node) for node in self.death_known_at)
        if self.phase == "stopping" and generation == self.result.generations and has_all:
            self.memory.begin(self.seats.node_of)
            self.books.begin(now, pace=self.slowest)

    @property
    def is_alone(self) -> bool:
        """Whether the gang is the only role of the job."""
        return not self.scope.beside and len(self.gangs) == 1

    @property
    def is_short(self) -> bool:
        """Whether the gang is below its minimum, and its free seats do not suffice; not once its work is done."""
        return self.phase != "over" and self.seats.taken + self.seats.free < self.role.min_replicas

    @property
    def has_succeeded(self) -> bool:
        """Whether the work of the gang is done, and the controller knows it."""
        return self.phase == "over" and self.due == NEVER

    @property
    def slowest(self) -> Fraction:
        """How many times longer than nominal the slowest member takes for a step now."""
        return max([self.pace, *self.slow.values()])

    def quiet_until(self) -> int:
        """Return the time, in ns, of the next entry of `later` or fault of a rate, or of the end of the run.

        A phase that ends before can end at once. The time is 0 with other roles, since each phase of the gang may
        make a difference to them.
        """
        if not self.is_alone:
            return 0
        return min(self.later[0][0] if self.later else NEVER, self.arrivals.next_ns() or NEVER, self.until + 1)

    def say(self, now: int, what: str, name: str, words: str) -> None:
        """Pass a change to `tell`, if there is one; its arguments are those that `Macro` describes."""
        if self.tell is not None:
            self.tell(now, what, name, words)

    def note_incident(self, kind: str, reason: str, now: int) -> None:
        """Count an incident of that kind in the result, and pass it to `tell`."""
        self.result.causes[kind] += 1
        self.say(now, "incident", kind, reason)

    def is_started(self, now: int) -> bool:
        """Return whether the controller knows at `now` that all members of the gang run, or have succeeded (R1)."""
        return self.phase == "over" or (self.phase == "running" and self.formed <= now and not self.is_incomplete)

    def is_healthy(self, now: int) -> bool:
        """Return whether the generation that runs, or is being stopped, has progressed or run for long enough (R8)."""
        formed = self.ran_from if self.phase == "stopping" else self.formed
        return is_healthy(self.books.has_progressed(now), formed, now, self.options.min_uptime_ns)

    def members_on(self, node: int) -> int:
        """Return how many members run or ran on the node, without those that start with the next generation."""
        return sum(replica not in self.newcomers for replica in self.seats.on[node])

    def awaited_on(self, node: int) -> int:
        """Return how many members on a node that is dead or cut off have not reported their end."""
        own = self.seats.on[node]
        heard = (replica in self.exited and replica not in self.late.unheard for replica in own)
        return sum(not each and replica not in self.newcomers for each, replica in zip(heard, own, strict=True))

    def first_node(self) -> int | None:
        """Return the node of the lowest member, whose agent opens the store; None: no member."""
        return next((node for node in self.seats.node_of if node is not None), None)

    def offerer(self) -> int | None:
        """Return the node of the lowest member of the present generation, whose agent offers checkpoints; or None."""
        seats = enumerate(self.seats.node_of)
        return next((node for replica, node in seats if node is not None and replica not in self.newcomers), None)

    def replicas_of(self, target: str) -> range:
        """Return the replicas of the gang that the target of a fault names: a replica, a role, or "all"."""
        name, _, index = target.partition("/")
        first = 0
        for part in self.parts:
            if name == part.name:
                own = range(first, first + part.max_replicas)
                return own[int(index) : int(index) + 1] if index else own
            first += part.max_replicas
        return range(first if target == "all" else 0)

    def part_of(self, replica: int) -> tuple[int, int]:
        """Return the number of the role of a replica in `parts`, and the index of the replica in that role."""
        for number, part in enumerate(self.parts):
            if replica < part.max_replicas:
                return number, replica
            replica -= part.max_replicas
        raise IndexError(replica)

    def name_of(self, replica: int) -> str:
        """Return the name of a replica, such as `trainer/1`."""
        number, index = self.part_of(replica)
        return f"{self.parts[number].name}/{index}"

    def halt(self, now: int, *, done: bool = False, is_over: bool = False) -> None:
        """End the stepping of the generation in `books`; nothing if it does not step.

        A checkpoint counts if the answer to it has reached the node that offered it before that died or was cut off.
        `done`: all work is done. `is_over`: the end of the job is decided.
        """
        answered, offerer = None, self.offerer()
        if offerer is not None:
            dead_since = None if self.alive[offerer] else self.dead_since[offerer]
            answered = self.cut_off_since.get(offerer, dead_since)
            if self.is_away(offerer) and self.offers_again(offerer):
                answered = None
        is_known = self.phase == "stopping" and self.books.begun is not None
        reported = self.books.reported(now)
        if self.books.begun is not None:
            self.offered_by = offerer
        self.books.halt(now, done=done, answered_until=answered, is_known=is_known, is_over=is_over)
        if is_known:  # checkpoints reported before the incident opened were counted as progress when it opened
            self.books.progressed = reported > self.reported

    def extra_startup_ns(self, slowest: float, members: int) -> int:
        """Return how much longer than nominal, in ns, the slowest of so many members takes to start up.

        `slowest` is a number drawn from [0, 1): see `start_ups`. The result may be negative.
        """
        load = self.role.workload
        return extra_startup_ns(load, load.startup_ns, slowest, members)


# Questions about the fast path (`steady_state`): whether it may compute the job, and which of its faults.


def may_become_steady(job: Job) -> bool:
    """Return whether `SteadyState` is of use in this job at all.

    A rate has to kill nodes or replicas. No node may be preempted or have room for several replicas, the operator may
    not scale the gang, and the loss of a node may not be charged to a budget. There may be no other gang, nor several
    roles in its world.
    """
    if len(job.gangs) > 1 or len(job.parts) > 1:
        return False
    verdict = job.policy.judge("node_lost", 0)
    is_free = verdict.action == "restart" and not verdict.counted
    known = any(_ends_a_node(rate, job) or _ends_a_replica(rate, job) for rate in job.plan.rates)
    faults: list[Fault | Rate] = [*job.plan.faults, *job.plan.rates]
    is_ordered = bool(job.plan.scales) or any(fault.kind in ("preempt", "scale") for fault in faults)
    return is_free and max(job.scope.seats) == 1 and known and not is_ordered and not _is_left_out(job)


def _is_left_out(job: Job) -> bool:
    """Return whether the job has something of which `SteadyState` does not know.

    That is a mesh, steps that depend on the size of the gang, a workload with more than start-up, steps, blocking
    checkpoints and restores, or nodes whose repairs are drawn.
    """
    role, load = job.role, job.role.workload
    more = load.warmup_ns or load.lag_ns or load.finish_ns or load.step_spread or load.warm_startup_ns is not None
    blocks = load.collective in ("hang", "fail") or load.peer_restore_ns is not None
    return bool(role.step > 1 or load.depends_on_size or more or blocks or any(map(is_drawn, job.plan.rates)))


def _ends_a_node(rate: Rate, job: Job) -> bool:
    return rate.kind == "kill" and (rate.subject == "node" or rate.subject in job.names)


def _ends_a_replica(rate: Rate, job: Job) -> bool:
    return rate.kind in FAILED and rate.subject in ("replica", job.role.name)


def is_steady(job: Job) -> bool:
    """Return whether `SteadyState` may compute the job from here on.

    The gang has to run or wait for nodes. It may not have left one in order, to which it would return. No dead node may
    be unknown to the controller, no node be cut off or avoided, no member be slow, and no back-off be in progress. The
    job may have no `tell`, which needs each change, since changes are only counted.
    """
    if job.notice is not None or job.seats.home or job.books.is_behind:
        return False
    if job.death_known_at or job.cut_off_since or job.slow or job.seats.wary or job.tell is not None:
        return False
    if job.phase == "waiting":
        return job.books.bucket == "waiting" and not job.is_counted
    return job.phase == "running" and job.formed != NEVER and job.due != NEVER


def target_of(rate: Rate, target: str, job: Job) -> int:
    """Return what a fault of the rate on this target hits: a node, -2 - replica, or OTHER."""
    if _ends_a_node(rate, job):
        return job.names[target]
    if _ends_a_replica(rate, job):
        return -2 - int(target.rpartition("/")[2])
    return OTHER
