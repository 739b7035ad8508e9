"""State of one job in macro mode, and the questions about it that more than one part asks.

The parts are functions over this state: `gang` decides, `fault_effects` breaks things, `steady_state` computes many
failures at once, `auxiliary_roles` plays the roles beside the gang. `macro` puts them together.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple, Protocol

from flowdist.control.incidents.health import is_healthy
from flowdist.faults.grammar import Plan
from flowdist.faults.rates import Arrivals
from flowdist.sim.macro.books import Books
from flowdist.sim.macro.policy import Policy
from flowdist.sim.macro.result import NEVER, Later, MacroResult, Phase
from flowdist.sim.macro.scope import Scope
from flowdist.sim.macro.seats import Seats

Tell = Callable[[int, str, str, str], None]  # time, what, name, words: see `Macro`


class Companions(Protocol):
    """The roles beside the gang, as the gang sees them. `auxiliary_roles.AuxiliaryRoles` implements it."""

    def let_gang_form(self, now: int) -> bool: ...
    def settle(self, now: int) -> None: ...
    def start(self, now: int) -> None: ...
    def stop(self, now: int) -> int: ...
    def end_workers(self, node: int, at: int) -> None: ...
    def lose_node(self, node: int, reason: str, now: int) -> None: ...
    def add_node(self, node: int, now: int) -> None: ...
    def end_in_order(self, now: int) -> int: ...
    def end_at_once(self, now: int) -> int: ...
    def close(self, now: int) -> None: ...


class DeferredFailure(NamedTuple):
    """A failure that ends the job, unless it turns out to follow from the loss of a peer's node (R8)."""

    reason: str
    replica: int
    node: int


class Job:
    """One gang, its nodes, and what is planned. Nodes and replicas are numbers, times are ns.

    Each phase of the gang ends by itself at `due`, when `on_due` is called. Everything else that has a time stands in
    `later`.

    Attributes:
        alive: By node: it is powered and connected.
        dead_since: When a node died or was cut off for good.
        death_known_at: Dead nodes that the controller does not know to be dead yet: when it will.
        cut_off_since: Nodes that are cut off and still run.
        connected_at: When the agent of a node connected last: the times of its heartbeats count from there.
        workers_end_at: When the workers of a dead node end or ended. A node that is cut off fences them late.
        formed: When all members of the present generation ran, as the controller knows; NEVER: they do not.
        size_max: The largest generation so far: so many replicas have run.
        give_up_at: While the gang is below its minimum: when it fails for that (R12).
        backoff_until: When the back-off of the open incident ends; `backoff_ns` is how long it is.
        is_counted: A budget pays for the open incident.
        is_incomplete: A member's node died while the generation started.
        exited: Members of the present generation whose processes ended by themselves.
        newcomers: Replicas that start with the next generation.
        incident_kind, opened: Of the last incident.
        away: Replicas of services that the gang waits for in its work, by name.
        stopped_at: When the members that were told to stop have done so.
        halt_at: When the members stop stepping that were told to stop; None: they have no steps to do, or are dead.
        ran_from: While the gang stops: when the generation had formed.
        reported: Checkpoints of the generation that the controller knew of as the last incident opened.
    """

    companions: Companions

    def __init__(self, scope: Scope, plan: Plan, *, seed: int, fault_seed: int, tell: Tell | None) -> None:
        graph, role = scope.graph, scope.role
        known = len(graph.cluster.nodes)
        self.scope, self.plan, self.role, self.options = scope, plan, role, graph.options
        self.seed, self.tell, self.times = seed, tell, scope.times
        self.names = {name: i for i, name in enumerate(scope.nodes)}
        self.arrivals = Arrivals(plan.rates, graph, scope.nodes, fault_seed)
        self.later, self.serial = list[Later](), 0
        self.until = 0  # where `run` stops

        self.alive = [node < known for node in range(len(scope.nodes))]
        self.dead_since: dict[int, int] = {}
        self.death_known_at: dict[int, int] = {}
        self.cut_off_since: dict[int, int] = {}
        self.connected_at: dict[int, int] = {}
        self.workers_end_at: dict[int, int] = {}

        self.seats = Seats(role, graph.options, scope.seats, known)
        self.books = Books(role.workload, role.max_replicas)
        self.policy = Policy(role, graph.options)
        self.result = MacroResult(self.books.spent)

        self.phase: Phase = "opening"
        self.due = NEVER
        self.on_due: Callable[[Job, int], None]
        self.formed = NEVER
        self.size_max = 0
        self.give_up_at: int | None = None
        self.is_incomplete = False
        self.exited: dict[int, None] = {}
        self.newcomers: set[int] = set()
        self.away: dict[str, None] = {}

        self.incident_kind, self.opened = "", 0
        self.deferred: DeferredFailure | None = None
        self.is_counted = False
        self.backoff_ns = self.backoff_until = 0
        self.stopped_at = 0
        self.halt_at: int | None = None
        self.ran_from = NEVER
        self.reported = 0

    def at(self, time: int, action: Callable[[int], None] | None, node: int = -1) -> None:
        """Plan something for later.

        Args:
            time: When, in ns.
            action: What is called then. None: the node joins.
            node: Without an action: the node that joins; or `-2 - generation`, for a generation that then looks
                whether it can grow.
        """
        self.serial += 1
        heapq.heappush(self.later, (time, self.serial, action, node))

    def quiet_until(self) -> int:
        """Return the time of the next event from outside. What is due before can be done at once.

        With auxiliary roles it is 0: they may see each step of the gang.
        """
        if self.scope.beside:
            return 0
        return min(self.later[0][0] if self.later else NEVER, self.arrivals.next_ns() or NEVER, self.until + 1)

    def say(self, now: int, what: str, name: str, words: str) -> None:
        if self.tell is not None:
            self.tell(now, what, name, words)

    def note_incident(self, kind: str, reason: str, now: int) -> None:
        self.result.causes[kind] += 1
        self.say(now, "incident", kind, reason)

    def is_started(self, now: int) -> bool:
        """Return whether all members run, as far as the controller knows."""
        return self.phase == "running" and self.formed <= now and not self.is_incomplete

    def is_healthy(self, now: int) -> bool:
        """Return whether the generation that runs, or is being stopped, has progressed or run for long enough (R8)."""
        formed = self.ran_from if self.phase == "stopping" else self.formed
        return is_healthy(self.books.has_progressed(now), formed, now, self.options.min_uptime_ns)

    def members_on(self, node: int) -> int:
        """Return how many members run or ran on the node, without those that start with the next generation."""
        return sum(replica not in self.newcomers for replica in self.seats.on[node])

    def first_node(self) -> int | None:
        """Return the node of the lowest member. Its agent opens the store and offers the checkpoints."""
        return next((node for node in self.seats.node_of if node is not None), None)

    def halt(self, now: int) -> None:
        """End the stepping of the generation. A checkpoint does not count that a node offered while it was cut off."""
        first = self.first_node() if self.cut_off_since else None
        answered = self.cut_off_since.get(first, now) if first is not None else now
        is_known = self.phase == "stopping" and self.books.begun is not None
        reported = self.books.reported(now)
        self.books.halt(now, answered_until=answered, is_known=is_known)
        if is_known:  # what was reported before the incident opened was counted with it
            self.books.progressed = reported > self.reported

    def extra_startup_ns(self, slowest: float, members: int) -> int:
        """Return how much longer than nominal the slowest of so many members starts up.

        The start-up of each is spread evenly by up to a fifth in both directions. `slowest` is a number drawn from
        [0, 1); its root of order `members` is distributed as the largest of so many draws.
        """
        return int(self.role.workload.startup_ns * (0.4 * slowest ** (1 / members) - 0.2))
