"""The simulated controller: the controller of production behind links, in virtual time.

`SimController` does what the real driver does: it receives messages, records each event, carries out the effects, and
wakes the controller at its deadline. It also checks the invariants, and can be killed: the next controller replays the
record and takes over 300 ms later (R21).

While a node and its link are well, its heartbeats are not played one by one (see `node.py`), so the failure detector is
not up to date for it. The silence of such a node cannot matter. Only nodes that are not well are watched: those that
are dead, paused, suspected, or behind a link with a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from flowdist.control.connection.sessions import Sessions
from flowdist.control.controller import Controller
from flowdist.control.invariants import Checks, InvariantChecker, check_job
from flowdist.control.job.state import JobState
from flowdist.control.protocol.effects import Effect, FinishJob, StartReplica, is_order
from flowdist.control.protocol.events import Event, NodeGone, TimePassed
from flowdist.control.protocol.ids import NodeName
from flowdist.control.protocol.messages import Heartbeat, Report, ToAgent, ToController
from flowdist.faults.targets import added_node
from flowdist.graph import MS, NodeSpec
from flowdist.record.journal import Record, record
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.node import PROOF_NS, SimNode
from flowdist.sim.engine.queue import Action, Violation

TAKE_OVER_NS = 300 * MS  # from the death of the controller to the first event of the next one
MOMENT_NS = 1_000  # events this close are checked together: under a schedule, messages of one time are 1 ns apart


class Observer(Protocol):
    """The part of the simulation that makes nodes, and that `SimController` tells of each decision.

    `decided` is called before the effects are carried out, `before_start` just before the order to start an attempt is
    sent, and `carried_out` when all effects have been sent to the nodes. `job` is the state after the decision.
    """

    def new_node(self, spec: NodeSpec, starts: int) -> SimNode: ...
    def decided(self, job: JobState, line: Record) -> None: ...
    def before_start(self, start: StartReplica) -> None: ...
    def carried_out(self, job: JobState, line: Record) -> None: ...


class SimController:
    """The controller process of one simulation, with its checks and restarts; it fills the shared `nodes`."""

    def __init__(self, ctx: Context, nodes: dict[NodeName, SimNode], observer: Observer, checks: Checks) -> None:
        self._ctx, self._nodes, self._observer, self._queue = ctx, nodes, observer, ctx.queue
        self._checker = InvariantChecker(checks)
        self.sessions = Sessions(ctx.graph.options)
        self._n = 0  # events in the trace
        self._planned: int | None = None  # when the next wake-up is planned
        self._unwell: dict[NodeName, None] = {}  # nodes that may become suspected or silent
        self._unheard: list[Event] = []  # events that came while no controller ran; the next one handles them
        self._past: tuple[Controller | None, int] = (None, 0)  # the one killed last, and the length of its trace

    def add_node(self, spec: NodeSpec) -> None:
        """Start a node with a fresh agent, which connects `Context.arrival_ns` later, in the place of one of its name.

        Nothing has to be watched before a name has joined: the failure detector has no deadline for it yet.
        """
        before = self._nodes.get(spec.name)
        node = self._nodes[spec.name] = self._observer.new_node(spec, before.starts + 1 if before is not None else 0)
        if self._ctx.is_down or self.sessions.detector.is_watched(spec.name):
            self.watch(node)
        self._queue.after(self._ctx.arrival_ns, node.connect)

    def add_like_first(self, name: NodeName) -> None:
        """Start a node with the size and the labels of the first declared node."""
        self.add_node(added_node(name, self._ctx.graph))

    def kill_node(self, node: SimNode) -> None:
        """Kill a node, its agent and its workers. The controller gets the proof (`NodeGone`) 10 ms later."""
        node.die()
        self._queue.after(PROOF_NS, self.handle, NodeGone(node.spec.name, "killed"))

    def hear(self, message: ToController) -> None:
        """Handle a message of an agent that has arrived: send the answers, and handle the events that follow."""
        heard = self.sessions.hear(message, self._queue.now)
        if type(message) is not Report:  # a report changes nothing about whether its node is heard
            self.watch(self._nodes[message.node])
        for answer in heard.answers:
            self._send(self._nodes[message.node], answer)
        for event in heard.events:
            self.handle(event)
        if type(message) is Heartbeat:
            self.plan()

    def note_heard(self, node: NodeName, at: int) -> None:
        """Tell the failure detector of heartbeats that were not played; the last of them arrived at `at` (ns)."""
        self.sessions.detector.heard(node, at, at)

    def watch(self, node: SimNode) -> None:
        """Update `is_heard` of a node, and whether wake-ups depend on its heartbeats, as they do while it is not well.

        Called whenever a node, its link or its session has changed. A node that another one of its name has replaced is
        not watched.
        """
        node.is_heard = self.sessions.detector.is_heard(node.spec.name)
        if self._nodes.get(node.spec.name) is not node:
            return
        if node.is_well:
            self._unwell.pop(node.spec.name, None)
        else:
            self._unwell[node.spec.name] = None

    def handle(self, event: Event) -> None:
        """Let the controller decide about an event, append the decision to the trace, and carry out its effects.

        While no controller runs the event is kept for the next one. After the end of the job it is dropped. Raises
        Violation if an invariant, or a property of the user, does not hold.
        """
        ctx = self._ctx
        job = ctx.controller.state
        if job.outcome is not None:
            return
        if ctx.is_down:
            self._unheard.append(event)
            return
        now, checker = self._queue.now, self._checker
        if checker.by_moment and now > job.now + MOMENT_NS:
            self._check(checker.check)  # all events of the last moment are handled
        self.sessions.note(event)
        if type(event) is NodeGone:
            self._update_heard(event.node)
        effects = ctx.controller.handle(event, now)
        self._n += 1
        line = record(self._n, now, event, effects)
        ctx.trace.append(line)
        checker.note(job, event, line.effects, self._n, now)
        if not checker.by_moment:
            self._check(checker.check)
        self._observer.decided(job, line)
        if job.outcome is not None:
            self._queue.stop()
        for effect in effects:
            self._carry_out(effect)
        self._observer.carried_out(job, line)
        self.plan()

    def check_all(self) -> None:
        """Check every invariant of the job; Violation if one does not hold."""
        self._check(check_job)

    def _check(self, check: Callable[[JobState], None]) -> None:
        try:
            check(self._ctx.job)
        except AssertionError as error:
            raise Violation("invariant", str(error)) from error

    def kill(self) -> None:
        """Kill the controller; the next one takes over 300 ms later, and knows only the record (R21)."""
        self._ctx.is_down = True
        for node in self._nodes.values():
            node.lose_link()
        self._queue.after(TAKE_OVER_NS, self._take_over)

    def _take_over(self) -> None:
        """Start a controller that replays the record to the same state, and let all nodes connect to it."""
        ctx = self._ctx
        fresh = self._replayed()
        if fresh.state != ctx.job:
            raise Violation("replay", "a controller that replays the record is not where the last one was")
        ctx.controller, self.sessions, ctx.is_down = fresh, Sessions(ctx.graph.options), False
        if not self._checker.by_moment:  # one that checks by moment compares values, and those are equal
            self._checker = InvariantChecker(self._checker.checks)
        started = self.sessions.take_over(fresh.state, self._queue.now)
        for name in self._nodes:
            self._update_heard(name)
        self.handle(started)
        unheard, self._unheard = self._unheard, []
        for event in unheard:
            self.handle(event)
        for node in self._nodes.values():
            node.connect()

    def _replayed(self) -> Controller:
        """Return a controller that has handled the record; in a campaign, its lines since the last takeover."""
        trace = self._ctx.trace
        fresh, heard = self._past
        if fresh is None or not self._checker.by_moment:
            graph = self._ctx.graph
            fresh, heard = Controller(graph, tuple(node.name for node in graph.cluster.nodes)), 0
        self._past = (self._ctx.controller, len(trace))
        for line in trace.since(heard):
            if isinstance(line, Record):
                fresh.handle(line.event, line.t_ns)
        return fresh

    def _update_heard(self, node: NodeName) -> None:
        self._nodes[node].is_heard = self.sessions.detector.is_heard(node)

    def _carry_out(self, effect: Effect) -> None:
        if is_order(effect):
            if type(effect) is StartReplica:
                self._observer.before_start(effect)
            self._send(self._nodes[effect.node], self.sessions.order(effect))
        elif type(effect) is FinishJob:
            for node in self._nodes.values():
                self._send(node, self.sessions.dismiss(node.spec.name))

    def _send(self, node: SimNode, message: ToAgent) -> None:
        node.net.send("down", self._queue, node.receive, message, node.link)

    @property
    def awaits_no_silence(self) -> bool:
        """Return whether a controller runs, heartbeats are not played, and no node can become suspected or silent."""
        return not self._ctx.is_down and not self._ctx.plays_heartbeats and self._silent_at() is None

    def plan(self) -> None:
        """Plan the next wake-up, at a deadline or when a node may become silent, unless an earlier one is planned."""
        if self._ctx.is_down:
            return
        due = self._due_at()
        if due is None or (self._planned is not None and self._queue.now < self._planned <= due):
            return
        self._planned = due
        self._queue.at(due, self._wake, due)

    def _due_at(self) -> int | None:
        due, silent = self._ctx.controller.deadline(), self._silent_at()
        return silent if due is None or (silent is not None and silent < due) else due

    def _silent_at(self) -> int | None:
        """Return when the first node becomes suspected or silent if it is not heard before, in ns; None if none can."""
        if self._ctx.plays_heartbeats:
            return self.sessions.detector.deadline()
        return self.sessions.detector.deadline_of(self._unwell) if self._unwell else None

    def _wake(self, planned: int) -> None:
        if self._planned != planned or self._ctx.is_down:
            return
        self._planned = None
        due = self._due_at()
        if due is not None and due <= self._queue.now:  # else the deadline is later now: a node was heard
            self._pass_time()
        self.plan()

    def _pass_time(self) -> None:
        """Handle what is due now: nodes that become suspected or silent, and the deadline of the controller."""
        for node in self._nodes.values():
            node.renew()
        for silent in self.sessions.detector.expire(self._queue.now):
            self._update_heard(silent.node)
            self._nodes[silent.node].replan()  # the next heartbeat is an event now, so it has to be played
            self.handle(silent)
        deadline = self._ctx.controller.deadline()
        if deadline is not None and deadline <= self._queue.now:
            self.handle(TimePassed())


def is_put_off(action: Action, args: tuple[Any, ...]) -> bool:
    """Return whether an action of the queue is a wake-up that does nothing: its owner has planned another one."""
    owner = getattr(action, "__self__", None)
    return isinstance(owner, (SimNode, SimController)) and action == owner._wake and args[0] != owner._planned
