"""The states of a small job and the steps between them.

A state is the number of the controller's state, the number of each site's, and how many faults are left. What the
controller makes of one piece of news is worked out once for each of its states and kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowdist.control.protocol.events import CancelRequested, DrainRequested, NodeGone, TimePassed
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.protocol.messages import Heartbeat, Join, Leave, Preempted, Report
from flowdist.graph import MINUTE, format_duration
from flowdist.proofs.explorer.common import Hears, How, Numbered
from flowdist.proofs.explorer.controller_states import Brains, Crash, Decided, News, TakeOver
from flowdist.proofs.explorer.jobs import SmallJob
from flowdist.proofs.explorer.node_states import Messages, Pace, Sites, View
from flowdist.proofs.explorer.words import describe

CALM_NS = 2 * MINUTE  # when no deadline is left
PROOF, WAKE, CANCEL, CANCEL_NOW, DRAIN, CRASH, TAKE_OVER = range(-1, -8, -1)  # news that are no messages

PRODUCTION = How()

State = tuple[int, ...]


@dataclass(slots=True, frozen=True)
class Turn:
    """What the controller makes of one piece of news; `pushes` are message numbers by the index of the node."""

    decided: Decided
    text: str
    pushes: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(slots=True, frozen=True)
class Move:
    """One step of the whole. `notes` are the controller's words about it, `broken` is what must not be."""

    state: State
    text: str
    pace: Pace
    notes: tuple[str, ...] = ()
    broken: str | None = None


class Space:
    """`faults` is how many there may be, `how` what else may be that production excludes."""

    def __init__(self, job: SmallJob, faults: int, how: How = PRODUCTION) -> None:
        self._how, nodes = how, job.graph.cluster.nodes
        self._names = [node.name for node in nodes]
        self._messages: Messages = Numbered()
        self._brains = Brains(job.graph)
        does = {"asks": job.asks, "elastic": job.elastic}
        self._sites = [Sites(job.graph, spec, self._messages, how, **does) for spec in nodes]
        self._turns: dict[tuple[int, int, int], Turn] = {}
        self._brain_later: dict[tuple[int, int, tuple[str, ...]], int] = {}
        self.first: State = (self._brains.first, *(sites.first for sites in self._sites), faults)

    def running(self) -> State:
        """The state in which everything has come up without a fault, one thing after the other, and works."""
        state = self.first
        while moves := [move for move in self.moves(state) if move.pace in (Pace.PROMPT, Pace.SOON)]:
            state = moves[0].state
        return state

    def moves(self, state: State) -> list[Move]:
        """Everything that may happen next. Nothing when the job is over and nothing of it runs or will."""
        brain, faults = state[0], state[-1]
        outlook = self._brains.outlook(brain)
        views = [sites.view(number) for sites, number in zip(self._sites, state[1:-1], strict=True)]
        is_over = outlook.outcome is not None
        if is_over:
            faults, state = 0, (*state[:-1], 0)
            if all(view.is_empty for view in views):
                return []
        moves: list[Move] = []
        is_prompt = any(view.is_prompt for view in views)
        for i, view in enumerate(views):
            for step in view.steps:
                if (step.pace is Pace.FAULT and not faults) or (step.pace is Pace.FREE and is_over):
                    continue
                if step.listens is not None and step.listens == outlook.is_down:
                    continue
                left = state[-1] - (step.pace is Pace.FAULT)
                moves.append(Move(_with(state, i, step.site, left), step.text, step.pace, (), step.broken))
            if not outlook.is_down:
                moves += self._speaks(state, i, view, faults)
        if outlook.is_down:
            moves.append(self._move(state, self._turn(brain, TAKE_OVER, -1), Pace.SOON, state[-1]))
        elif faults:
            moves += self._decreed(state, faults)
        if outlook.deadline_ns == 0 or min(outlook.watch_ns.values(), default=1) <= 0:
            is_prompt = True
            moves.append(self._move(state, self._turn(brain, WAKE, -1), Pace.PROMPT, state[-1]))
        is_soon = outlook.is_down or any(view.is_soon for view in views)
        if not is_prompt and (faults or not is_soon):
            moves += self._waits(state, views, is_early=is_soon)
        return moves

    def _decreed(self, state: State, faults: int) -> list[Move]:
        """What the operator may want, and the death of the controller."""
        brain, how, left = state[0], self._how, faults - 1
        wanted = [(CANCEL, -1), (CANCEL_NOW, -1), *((DRAIN, i) for i in range(len(self._names)))]
        turns = [self._turn(brain, what, i) for what, i in wanted if how.operates]
        moves = [self._move(state, turn, Pace.FAULT, left) for turn in turns if turn.decided.brain != brain]
        if how.crashes:
            crash = self._turn(brain, CRASH, -1)
            cut = [sites.cut(number) for sites, number in zip(self._sites, state[1:-1], strict=True)]
            moves.append(self._move((brain, *cut, left), crash, Pace.FAULT, left))
        return moves

    def broken(self, state: State) -> str | None:
        """What must not be in this state, however it came to be."""
        views = self._views(state)
        running: dict[ReplicaId, int] = {}
        for i, view in enumerate(views):
            if view.broken is not None:
                return view.broken
            for replica in view.runs:
                if replica in running:
                    first, second = self._names[running[replica]], self._names[i]
                    return f"split brain: {replica} runs on {first} and on {second}"
                running[replica] = i
        outcome = self._brains.outlook(state[0]).outcome
        if outcome is not None and running:
            return f"the job has {outcome}, but {', '.join(sorted(map(str, running)))} runs"
        return None

    def is_over(self, state: State) -> bool:
        return self._brains.outlook(state[0]).outcome is not None

    def waiting(self, state: State) -> tuple[str, ...]:
        """What the job says that it waits for."""
        return self._brains.outlook(state[0]).waiting

    def _views(self, state: State) -> list[View]:
        return [sites.view(number) for sites, number in zip(self._sites, state[1:-1], strict=True)]

    def _speaks(self, state: State, i: int, view: View, faults: int) -> list[Move]:
        """What the node has sent, or the proof of its death, reaches the controller."""
        moves, sites, brain = [], self._sites[i], state[0]
        for at, message in enumerate(view.site.up if self._how.reorders else view.site.up[:1]):
            turn = self._turn(brain, message, i)
            for repeats in (False, True) if faults and sites.may_repeat(message) else (False,):
                site = sites.heard(state[1 + i], at, registers=turn.decided.registers, repeats=repeats)
                left = state[-1] - repeats
                pace = Pace.FAULT if repeats else Pace.SOON
                also = " (it will come again)" if repeats else ""
                moves.append(self._move(_with(state, i, site, left), turn, pace, left, also))
        if view.site.is_unproven:
            proven = _with(state, i, sites.proven(state[1 + i]), state[-1])
            moves.append(self._move(proven, self._turn(brain, PROOF, i), Pace.SOON, state[-1]))
        return moves

    def _move(self, state: State, turn: Turn, pace: Pace, left: int, also: str = "") -> Move:
        """The controller's turn: what it decides goes out to the nodes."""
        decided = turn.decided
        sites = list(state[1:-1])
        for i, messages in turn.pushes:
            sites[i] = self._sites[i].pushed(sites[i], messages)
        broken = decided.broken
        if decided.gone and broken is None:
            broken = self._not_gone(state, decided)
        return Move((decided.brain, *sites, left), turn.text + also, pace, decided.notes, broken)

    def _not_gone(self, state: State, decided: Decided) -> str | None:
        last = dict(decided.gone)
        for name, view in zip(self._names, self._views(state), strict=True):
            for replica, attempt in view.processes:
                if attempt <= last.get(replica, 0):
                    return f"gone before start: {replica}#{attempt} runs on {name} while its restart set starts anew"
        return None

    def _turn(self, brain: int, what: int, i: int) -> Turn:
        found = self._turns.get((brain, what, i))
        if found is None:
            found = self._turns[brain, what, i] = self._take_turn(brain, what, i)
        return found

    def _take_turn(self, brain: int, what: int, i: int) -> Turn:
        news: News
        if what == WAKE:
            news, text = TimePassed(), "controller: a deadline has come"
        elif what in (CANCEL, CANCEL_NOW):
            news = CancelRequested(now=what == CANCEL_NOW)
            text = f"the operator cancels the job{' at once' * news.now}"
        elif what == DRAIN:
            news, text = DrainRequested(self._names[i]), f"the operator drains {self._names[i]}"
        elif what == CRASH:
            news, text = Crash(), "the controller dies, and all connections with it"
        elif what == TAKE_OVER:
            news, text = TakeOver(), "a controller takes over"
        elif what == PROOF:
            news, text = NodeGone(self._names[i], "it was killed"), f"controller: {self._names[i]} is proven dead"
        else:
            said = self._messages.items[what]
            assert isinstance(said, Join | Heartbeat | Report | Preempted | Leave)
            news, text = said, f"{self._names[i]} -> controller: {describe(said)}"
        decided = self._brains.decide(brain, news)
        pushes: dict[int, tuple[int, ...]] = {}
        for name, message in decided.sends:
            to = self._names.index(name)
            pushes[to] = (*pushes.get(to, ()), self._messages.of(message))
        return Turn(decided, text, tuple(pushes.items()))

    def _waits(self, state: State, views: list[View], *, is_early: bool) -> list[Move]:
        """Time passes to the next deadline. Nodes that can be heard are; of the others, the lease runs."""
        brain = state[0]
        outlook = self._brains.outlook(brain)
        calm = [name for name in outlook.silence_ns if name not in outlook.overdue]
        hears = [_hears(view, name in calm) for name, view in zip(self._names, views, strict=True)]
        deadlines = [view.deadlines_ns[how] for view, how in zip(views, hears, strict=True)]
        deaf = [name for name, how in zip(self._names, hears, strict=True) if how != "answered"]
        silence = outlook.silence_ns if is_early else outlook.watch_ns  # early: that it is overdue is noticed late
        deadlines += [outlook.deadline_ns, *(silence.get(name) for name in deaf)]
        times = [time for time in deadlines if time is not None]
        if is_early and not times:
            return []
        by_ns = min(times, default=CALM_NS)
        if by_ns <= 0:
            return []
        names = tuple(name for name in self._names if name not in deaf)
        key = (brain, by_ns, names)
        if key not in self._brain_later:
            self._brain_later[key] = self._brains.later(*key)
        sites = [self._sites[i].later(number, by_ns, hears[i]) for i, number in enumerate(state[1:-1])]
        text = f"{format_duration(by_ns)} pass" + (" (before what is about to happen)" if is_early else "")
        after = (self._brain_later[key], *sites, state[-1] - is_early)
        pace = Pace.FAULT if is_early else Pace.LATER if times else Pace.FREE
        return [Move(after, text, pace)] if after != state else []


def _hears(view: View, is_calm: bool) -> Hears:
    """Who was refused is refused until it connects: another host may stand in for the one that it knows (R21)."""
    if view.site.link == "none":
        return "refused" if view.site.is_refused else "nothing"
    return "answered" if view.can_be_heard and is_calm else "nothing"


def _with(state: State, i: int, site: int, left: int) -> State:
    return (*state[: 1 + i], site, *state[2 + i : -1], left)
