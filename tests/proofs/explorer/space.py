"""States of a small job and the moves between them.

A state is a tuple of numbers: that of the controller state, that of each node's state, and how many faults are left. A
trigger is what makes the controller act: a message, a deadline, or a request of the operator. The reaction of a
controller state to a trigger is computed once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from flowdist.control.protocol.events import CancelRequested, DrainRequested, NodeGone, TimePassed
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.protocol.messages import Heartbeat, Join, Leave, Preempted, Report
from flowdist.graph import MINUTE, format_duration
from tests.proofs.explorer.common import Allowed, Contact, Numbered
from tests.proofs.explorer.controller_states import ControllerStates, Crash, Decided, Outlook, TakeOver, Trigger
from tests.proofs.explorer.jobs import SmallJob
from tests.proofs.explorer.node_states import Messages, NodeStates, Pace, View
from tests.proofs.explorer.vaults import is_held
from tests.proofs.explorer.words import describe

IDLE_NS = 2 * MINUTE  # how far time passes when no deadline is left
DEATH_PROOF, DEADLINE, CANCEL, CANCEL_NOW, DRAIN, CRASH, TAKE_OVER = range(-1, -8, -1)  # triggers without a message

PRODUCTION = Allowed()

State = tuple[int, ...]


@dataclass(slots=True, frozen=True)
class Turn:
    """The controller's reaction to one trigger, whatever the states of the nodes are.

    `text` describes the trigger. `pushes` are the messages that the controller sends, by number: for each node's index,
    those for its agent.
    """

    decided: Decided
    text: str
    pushes: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(slots=True, frozen=True)
class Move:
    """One possible step of the whole job.

    Args:
        state: The state that it leads to.
        text: What happens, for the path to a violation.
        pace: Its urgency.
        notes: What the controller tells the user meanwhile.
        broken: The property that the move violates, in words; None if it violates none.
    """

    state: State
    text: str
    pace: Pace
    notes: tuple[str, ...] = ()
    broken: str | None = None


class Space:
    """All states that a small job can reach with at most `faults` faults, computed on demand.

    `first` is the state before any message has arrived. `allowed` are the optional steps.
    """

    def __init__(self, job: SmallJob, faults: int, allowed: Allowed = PRODUCTION) -> None:
        self._allowed, nodes = allowed, job.graph.cluster.nodes
        self._names = [node.name for node in nodes]
        self._messages: Messages = Numbered()
        self._controllers = ControllerStates(job.graph)
        does = {"asks": job.asks, "elastic": job.elastic}
        self._nodes = [NodeStates(job.graph, spec, self._messages, allowed, **does) for spec in nodes]
        self._turn = cache(self._new_turn)
        self.first: State = (self._controllers.first, *(nodes.first for nodes in self._nodes), faults)

    def running(self) -> State:
        """Return the state in which the whole job runs: the first state after all that happens soon and is no fault."""
        state = self.first
        while moves := [move for move in self.moves(state) if move.pace in (Pace.PROMPT, Pace.SOON)]:
            state = moves[0].state
        return state

    def moves(self, state: State) -> list[Move]:
        """Return every move that is possible in this state; none once the job is over and no process runs or may start.

        A fault is possible only while the state has faults left and the job is not over.
        """
        outlook, views = self._controllers.outlook(state[0]), self._views(state)
        is_over = outlook.outcome is not None
        if is_over:
            state = (*state[:-1], 0)
            if all(view.is_empty for view in views):
                return []
        left = state[-1]
        moves: list[Move] = []
        for i, view in enumerate(views):
            moves += self._of_node(state, i, view, outlook)
            if not outlook.is_down:
                moves += self._arrivals_at_controller(state, i, view)
        if outlook.is_down:
            moves.append(self._move(state, self._turn(state[0], TAKE_OVER, -1), Pace.SOON, left))
        elif left:
            moves += self._operator_and_crash(state)
        is_due = outlook.deadline_ns == 0 or min(outlook.watch_ns.values(), default=1) <= 0
        if is_due:
            moves.append(self._move(state, self._turn(state[0], DEADLINE, -1), Pace.PROMPT, left))
        is_soon = outlook.is_down or any(view.is_soon for view in views)
        if (left or not is_soon) and not is_due and not any(view.is_prompt for view in views):
            moves += self._passing_time(state, views, is_early=is_soon)
        return moves

    def _of_node(self, state: State, i: int, view: View, outlook: Outlook) -> list[Move]:
        """Return the moves that concern the node of index `i` alone: the steps of its view that are possible now."""
        moves = []
        is_over, left = outlook.outcome is not None, state[-1]
        for step in view.steps:
            is_fault = step.pace is Pace.FAULT
            if (is_fault and not left) or (is_over and step.pace is Pace.FREE) or step.listens is outlook.is_down:
                continue
            moves.append(Move(_with(state, i, step.node, left - is_fault), step.text, step.pace, (), step.broken))
        return moves

    def _operator_and_crash(self, state: State) -> list[Move]:
        """Return the moves in which the operator requests something that has an effect, or the controller dies."""
        controller, allowed, left = state[0], self._allowed, state[-1] - 1
        wanted = [(CANCEL, -1), (CANCEL_NOW, -1), *((DRAIN, i) for i in range(len(self._names)))]
        turns = [self._turn(controller, what, i) for what, i in wanted if allowed.operates]
        moves = [self._move(state, turn, Pace.FAULT, left) for turn in turns if turn.decided.controller != controller]
        if allowed.crashes:
            crash = self._turn(controller, CRASH, -1)
            cut = [nodes.cut(number) for nodes, number in zip(self._nodes, state[1:-1], strict=True)]
            moves.append(self._move((controller, *cut, left), crash, Pace.FAULT, left))
        return moves

    def broken(self, state: State) -> str | None:
        """Return, in words, the property that this state violates, whatever path leads to it; None if it is sound.

        A replica must not run twice, and nothing may run once the job is over. A vault that no message is under way for
        has the buddies that the controller has named (R24).
        """
        views = self._views(state)
        running: dict[ReplicaId, int] = {}
        for i, view in enumerate(views):
            if view.broken is not None:
                return view.broken
            for replica in view.running:
                if replica in running:
                    first, second = self._names[running[replica]], self._names[i]
                    return f"split controller: {replica} runs on {first} and on {second}"
                running[replica] = i
        outlook = self._controllers.outlook(state[0])
        if outlook.outcome is not None and running:
            return f"the job has {outlook.outcome}, but {', '.join(sorted(map(str, running)))} runs"
        for order in outlook.buddies:
            view = views[self._names.index(order.node)]
            wanted, found = tuple(name for name, _ in order.buddies), view.vault.buddies.get(order.world)
            if view.is_known and not view.node.down and found != wanted:
                return f"the vault of {order.node} has the buddies {found}, and was to have {wanted}"
        return None

    def is_over(self, state: State) -> bool:
        """Return whether the job has an outcome."""
        return self._controllers.outlook(state[0]).outcome is not None

    def waiting(self, state: State) -> tuple[str, ...]:
        """Return what the controller says that the job waits for, one line each; empty if it names nothing."""
        return self._controllers.outlook(state[0]).waiting

    def _views(self, state: State) -> list[View]:
        return [nodes.view(number) for nodes, number in zip(self._nodes, state[1:-1], strict=True)]

    def _arrivals_at_controller(self, state: State, i: int, view: View) -> list[Move]:
        """Return the moves in which a message of node `i`, or the proof of its death, arrives at the controller.

        A message may arrive once more later, as a fault.
        """
        moves, nodes, controller = [], self._nodes[i], state[0]
        for at, message in enumerate(view.node.up if self._allowed.reorders else view.node.up[:1]):
            turn = self._turn(controller, message, i)
            for repeats in (False, True) if state[-1] and nodes.may_repeat(message) else (False,):
                node = nodes.delivered(state[1 + i], at, registers=turn.decided.registers, repeats=repeats)
                left = state[-1] - repeats
                pace = Pace.FAULT if repeats else Pace.SOON
                also = " (will arrive twice)" if repeats else ""
                moves.append(self._move(_with(state, i, node, left), turn, pace, left, also))
        if view.node.is_unproven:
            proven = _with(state, i, nodes.proven(state[1 + i]), state[-1])
            moves.append(self._move(proven, self._turn(controller, DEATH_PROOF, i), Pace.SOON, state[-1]))
        return moves

    def _move(self, state: State, turn: Turn, pace: Pace, left: int, also: str = "") -> Move:
        """Return the move in which the controller reacts, and its messages are on their way to the nodes.

        Args:
            state: The state, after all changes of the move except those of the controller's reaction.
            turn: The reaction.
            pace: The urgency of the move.
            left: The number of faults left after it.
            also: Appended to the text of the reaction.
        """
        decided = turn.decided
        nodes = list(state[1:-1])
        for i, messages in turn.pushes:
            nodes[i] = self._nodes[i].pushed(nodes[i], messages)
        broken = decided.broken
        if decided.gone and broken is None:
            broken = self._not_gone(state, decided)
        if decided.reads and broken is None:
            broken = self._not_held(state, decided)
        return Move((decided.controller, *nodes, left), turn.text + also, pace, decided.notes, broken)

    def _not_gone(self, state: State, decided: Decided) -> str | None:
        """Return a violation if an attempt runs that must have ended before the replicas which now start (R6)."""
        last = dict(decided.gone)
        for name, view in zip(self._names, self._views(state), strict=True):
            for replica, attempt in view.processes:
                if attempt <= last.get(replica, 0):
                    return f"gone before start: {replica}#{attempt} runs on {name} while its restart set starts again"
        return None

    def _not_held(self, state: State, decided: Decided) -> str | None:
        """Return a violation if a start order names a copy that its vault has not, which the controller knows (R24)."""
        views = dict(zip(self._names, self._views(state), strict=True))
        for snapshot in decided.reads:
            for rank, names in enumerate(snapshot.holders()):
                for name in names:
                    if views[name].is_known and not is_held(views[name].vault.held, snapshot, rank):
                        shard = f"the shard of rank {rank} of generation {snapshot.generation}"
                        return f"goes on from what is lost: {name} is named for {shard}, and has none"
        return None

    def _new_turn(self, controller: int, what: int, i: int) -> Turn:
        """Compute the reaction of a controller state to a trigger.

        Args:
            controller: The number of the controller state.
            what: The number of a message, or one of the negative constants such as DEADLINE.
            i: The index of the node that the trigger comes from or concerns; -1 if there is none.
        """
        trigger: Trigger
        if what == DEADLINE:
            trigger, text = TimePassed(), "controller: a deadline"
        elif what in (CANCEL, CANCEL_NOW):
            trigger = CancelRequested(now=what == CANCEL_NOW)
            text = f"the operator cancels the job{' at once' * trigger.now}"
        elif what == DRAIN:
            trigger, text = DrainRequested(self._names[i]), f"the operator drains {self._names[i]}"
        elif what == CRASH:
            trigger, text = Crash(), "the controller dies, and all connections close"
        elif what == TAKE_OVER:
            trigger, text = TakeOver(), "a controller takes over"
        elif what == DEATH_PROOF:
            trigger, text = NodeGone(self._names[i], "killed"), f"controller: {self._names[i]} is proven dead"
        else:
            message = self._messages.items[what]
            assert isinstance(message, Join | Heartbeat | Report | Preempted | Leave)
            trigger, text = message, f"{self._names[i]} -> controller: {describe(message)}"
        decided = self._controllers.decide(controller, trigger)
        pushes: dict[int, tuple[int, ...]] = {}
        for name, message in decided.sends:
            to = self._names.index(name)
            pushes[to] = (*pushes.get(to, ()), self._messages.of(message))
        return Turn(decided, text, tuple(pushes.items()))

    def _passing_time(self, state: State, views: list[View], *, is_early: bool) -> list[Move]:
        """Return the move in which time passes to the next deadline of controller or agents, if it changes the state.

        Args:
            state: The state.
            views: The facts about each node's state.
            is_early: Time passes as a fault, before a step that is SOON.
        """
        controller = state[0]
        outlook = self._controllers.outlook(controller)
        contacts = [
            _contact_of(view, is_answered=name in outlook.silence_ns and name not in outlook.suspected)
            for name, view in zip(self._names, views, strict=True)
        ]
        heard = tuple(name for name, contact in zip(self._names, contacts, strict=True) if contact == "answered")
        deadlines = [view.deadlines_ns[contact] for view, contact in zip(views, contacts, strict=True)]
        # As a fault, time may pass by the moment at which a node is suspected: the controller then notices that late.
        silence = outlook.silence_ns if is_early else outlook.watch_ns
        deadlines += [outlook.deadline_ns, *(silence.get(name) for name in self._names if name not in heard)]
        times = [time for time in deadlines if time is not None]
        by_ns = min(times, default=0 if is_early else IDLE_NS)
        if by_ns <= 0:
            return []
        later = self._controllers.pass_time(controller, by_ns, heard)
        nodes = [self._nodes[i].pass_time(number, by_ns, contacts[i]) for i, number in enumerate(state[1:-1])]
        text = f"{format_duration(by_ns)} pass" + (" (before what is about to happen)" if is_early else "")
        after = (later, *nodes, state[-1] - is_early)
        pace = Pace.FAULT if is_early else Pace.LATER if times else Pace.FREE
        return [Move(after, text, pace)] if after != state else []


def _contact_of(view: View, *, is_answered: bool) -> Contact:
    """Return what happens to the heartbeats of a node while time passes.

    A node without a connection that was refused once is refused until it connects: the controller may have moved to
    another host, so that only a connection shows that it is back (R21).

    Args:
        view: The facts about the node's state.
        is_answered: The controller watches the node and does not suspect it.
    """
    if view.node.link == "none":
        return "refused" if view.node.is_refused else "unanswered"
    return "answered" if view.is_in_contact and is_answered else "unanswered"


def _with(state: State, i: int, node: int, left: int) -> State:
    """Return the state with another state of node `i`, and with `left` faults."""
    return (*state[: 1 + i], node, *state[2 + i : -1], left)
