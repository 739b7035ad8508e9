"""Model checker: every order of the messages, failures and deadlines of a small job.

    python -m tests.proofs.explorer [--roles gang,gate] [--faults 2 [--running]] [--states 200000] [--json]

The explorer runs the production code of one controller and of one agent for each node, and tries every step that is
possible between them, breadth first, so that the path to a violation is the shortest one. It checks in every state:

* the invariants of the job hold, and no replica runs twice;
* a restart set has ended before any replica of it starts again, and reports of ended attempts have no effect;
* a job that has ended has no process, and a job in which nothing is going to happen names what it waits for;
* a generation goes on from one snapshot, which the vaults hold as the start orders say and the record justifies;
* a controller that replays the record reaches the same state (for a sample of the states);
* the job can still end without another fault.
"""

from __future__ import annotations

import argparse
import json
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tests.proofs.explorer.common import Allowed
from tests.proofs.explorer.jobs import JOBS, PARTS, STATES_MAX, Part
from tests.proofs.explorer.node_states import Pace
from tests.proofs.explorer.planted_bugs import PLANTED_BUGS, planted
from tests.proofs.explorer.space import PRODUCTION, Move, Space, State

INEVITABLE = (Pace.PROMPT, Pace.SOON, Pace.LATER)


@dataclass(frozen=True)
class Violation:
    """A violated property, and the shortest path to it in words."""

    text: str
    path: tuple[str, ...]


@dataclass(frozen=True)
class Explored:
    """Result of one exploration.

    Args:
        job: The name of the job.
        is_running: The exploration began in the state in which the whole job runs.
        faults: The largest number of faults on one path.
        states: The number of distinct states that were found.
        transitions: The number of moves that were tried.
        depth: The largest number of moves on a shortest path from the first state.
        ends: The number of states in which the job has ended.
        seconds: CPU time.
        is_whole: Every state was visited, so that nothing is left to explore.
        violation: The first violated property; None if there is none.
    """

    job: str
    is_running: bool
    faults: int
    states: int
    transitions: int
    depth: int
    ends: int
    seconds: float
    is_whole: bool
    violation: Violation | None = None


class _Search:
    """Breadth-first search for a violation, from `first` up to about `states_max` distinct states.

    States are numbered in the order in which they are found. Each keeps the number of the state that it was first
    reached from, so that the path to it can be found again.
    """

    def __init__(self, space: Space, first: State, states_max: int) -> None:
        self._space, self._max = space, states_max
        self._numbers: dict[State, int] = {first: 0}
        self.states: list[State] = [first]
        self._parents = array("l", [-1])
        self._from, self._to = array("I"), array("I")  # the moves that are no fault
        self.ends = array("I")
        self.transitions = self.depth = self.expanded = 0

    @property
    def is_whole(self) -> bool:
        """Return whether the moves of every state that was found have been tried."""
        return self.expanded == len(self.states)

    def run(self) -> Violation | None:
        """Search until a property is violated or the limit of states is reached; return the violation, if any."""
        level_ends = 1
        while self.expanded < len(self.states) < self._max:
            if self.expanded == level_ends:
                self.depth, level_ends = self.depth + 1, len(self.states)
            violation = self._expand(self.expanded)
            if violation is not None:
                return violation
            self.expanded += 1
        return self._dead_end()

    def _expand(self, number: int) -> Violation | None:
        """Try every move of a state and record the states that they lead to; return the first violation, if any."""
        state, space = self.states[number], self._space
        moves = space.moves(state)
        for move in moves:
            self.transitions += 1
            if move.broken is not None:
                return Violation(move.broken, (*self._path(number), *_lines(move)))
            known = self._numbers.setdefault(move.state, len(self.states))
            if known == len(self.states):
                self.states.append(move.state)
                self._parents.append(number)
                if (broken := space.broken(move.state)) is not None:
                    return Violation(broken, tuple(self._path(known)))
            if move.pace is not Pace.FAULT:
                self._from.append(number)
                self._to.append(known)
        if space.is_over(state):
            self.ends.append(number)
        elif not any(move.pace in INEVITABLE for move in moves) and not space.waiting(state):
            return Violation("the job is idle and names nothing that it waits for", tuple(self._path(number)))
        return None

    def _dead_end(self) -> Violation | None:
        """Return a violation if the job cannot end without a fault from one of the states that were found.

        States whose moves were not tried count as ends.
        """
        before: list[list[int]] = [[] for _ in self.states]
        for source, target in zip(self._from, self._to, strict=True):
            before[target].append(source)
        good = bytearray(len(self.states))
        todo = [*self.ends, *range(self.expanded, len(self.states))]
        for number in todo:
            good[number] = 1
        while todo:
            for source in before[todo.pop()]:
                if not good[source]:
                    good[source] = 1
                    todo.append(source)
        stuck = good.find(0)
        if stuck < 0:
            return None
        path = (*self._path(stuck), "  no path leads from here to an end; for example:", *self._example_of(stuck))
        return Violation("the job can never end", path)

    def _example_of(self, number: int) -> list[str]:
        """Return one continuation of the state without faults, in words, until nothing more happens or it repeats."""
        space, state, lines = self._space, self.states[number], list[str]()
        seen: dict[State, None] = {}
        while state not in seen:
            seen[state] = None
            move = next((move for move in space.moves(state) if move.pace is not Pace.FAULT), None)
            if move is not None:
                lines, state = lines + _lines(move), move.state
        return [*lines, f"  nothing more; the job waits for: {'; '.join(space.waiting(state)) or 'nothing'}"]

    def _path(self, number: int) -> list[str]:
        """Return the shortest path to a state in words. Its moves are computed again: the search keeps no texts."""
        chain = [number]
        while self._parents[chain[-1]] >= 0:
            chain.append(self._parents[chain[-1]])
        states = [self.states[number] for number in reversed(chain)]
        lines: list[str] = []
        for before, after in pairwise(states):
            lines += _lines(next(move for move in self._space.moves(before) if move.state == after))
        return lines


def _lines(move: Move) -> list[str]:
    """Return the lines of a path that describe the move; `!` marks a fault."""
    mark = "! " if move.pace is Pace.FAULT else "  "
    return [mark + move.text, *(f"      {note}" for note in move.notes)]


def explore(part: Part, allowed: Allowed = PRODUCTION) -> Explored:
    """Try everything that can happen to the job of the part, within its limits, and return what was found.

    The exploration ends at the first violation.
    """
    begun = time.process_time()
    space = Space(part.job, part.faults, allowed)
    search = _Search(space, space.running() if part.is_running else space.first, part.states_max)
    violation = search.run()
    return Explored(
        job=part.job.name,
        is_running=part.is_running,
        faults=part.faults,
        states=len(search.states),
        transitions=search.transitions,
        depth=search.depth,
        ends=len(search.ends),
        seconds=time.process_time() - begun,
        is_whole=search.is_whole,
        violation=violation,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and print its results; return 0 if no property is violated, else 1.

    `argv` are the words of the command line; None: those of the process. The command ends at the first violation. A
    mistake in the words, such as an unknown job, raises SystemExit(2).
    """
    parser = _parser()
    args = parser.parse_args(argv)
    names = args.roles.split(",") if args.roles else list(JOBS)
    unknown = [name for name in names if name not in JOBS]
    if unknown:
        parser.error(f"argument --roles: no such job: {', '.join(unknown)}; known: {', '.join(JOBS)}")
    allowed = Allowed(not args.no_crash, not args.no_operator, args.reorder)
    found = []
    with planted(args.plant):
        for part in _parts(names, args.faults, args.running, args.states):
            explored = explore(part, allowed)
            found.append(explored)
            if not args.json:
                print(_row(explored) if len(found) > 1 else f"{_HEAD}\n{_row(explored)}", flush=True)
            if explored.violation is not None:
                break
    violation = found[-1].violation
    if args.json:
        print(json.dumps(_as_json(found)))
    else:
        _print_end(found)
    return int(violation is not None)


def _parts(names: list[str], faults: int | None, is_running: bool, states: int | None) -> list[Part]:
    """Return the explorations that the command line asks for.

    Args:
        names: The jobs.
        faults: Explore each job once, with so many faults at most; None: those of `PARTS` for these jobs.
        is_running: Begin in the state in which the whole job runs. With `PARTS`, leave out those that do not.
        states: The limit of states; None: as in `PARTS`.
    """
    if faults is None:
        parts = [part for part in PARTS if part.job.name in names and (part.is_running or not is_running)]
    else:
        parts = [Part(JOBS[name], faults, is_running, STATES_MAX) for name in names]
    return [part if states is None else replace(part, states_max=states) for part in parts]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.proofs.explorer", description=(__doc__ or "").split("\n")[0])
    jobs = "; ".join(f"{job.name}: {job.about}" for job in JOBS.values())
    bugs = "; ".join(f"{name}: {bug.about}" for name, bug in PLANTED_BUGS.items())
    add = parser.add_argument
    add("--roles", metavar="JOBS", help=f"jobs to explore, comma separated ({jobs})")
    add("--faults", type=int, choices=range(4), metavar="N", help="explore each job once, with at most N faults")
    add("--running", action="store_true", help="begin in the state in which the whole job runs")
    add("--states", type=int, metavar="N", help="leave a job after N distinct states")
    add("--reorder", action="store_true", help="let messages overtake each other on one connection")
    add("--no-crash", action="store_true", help="the controller does not die")
    add("--no-operator", action="store_true", help="no drain, no cancel, no preemption notice")
    add("--plant", choices=list(PLANTED_BUGS), metavar="NAME", help=f"switch off a safeguard ({bugs})")
    add("--json", action="store_true", help="one object on stdout")
    return parser


_HEAD = f"{'job':<9} {'from':<8} {'faults':>6} {'states':>9} {'transitions':>11} {'depth':>5} {'seconds':>7}  explored"


def _row(e: Explored) -> str:
    how = "violation" if e.violation else "in whole" if e.is_whole else "in part"
    numbers = f"{e.faults:>6} {e.states:>9,} {e.transitions:>11,} {e.depth:>5} {e.seconds:>7.1f}"
    return f"{e.job:<9} {_moment(e):<8} {numbers}  {how}"


def _moment(explored: Explored) -> str:
    return "running" if explored.is_running else "start"


def _print_end(found: list[Explored]) -> None:
    states, transitions = sum(e.states for e in found), sum(e.transitions for e in found)
    depth, seconds = max(e.depth for e in found), sum(e.seconds for e in found)
    print(f"{'total':<25} {states:>9,} {transitions:>11,} {depth:>5} {seconds:>7.1f}")
    last = found[-1]
    if last.violation is not None:
        print(f"\n{last.job}, from {_moment(last)}: {last.violation.text}", *last.violation.path, sep="\n")


def _as_json(found: list[Explored]) -> dict[str, object]:
    jobs = [
        {
            "job": e.job,
            "from": _moment(e),
            "faults": e.faults,
            "states": e.states,
            "transitions": e.transitions,
            "depth": e.depth,
            "ends": e.ends,
            "seconds": round(e.seconds, 1),
            "whole": e.is_whole,
            "violation": None if e.violation is None else {"text": e.violation.text, "path": e.violation.path},
        }
        for e in found
    ]
    return {"format": 1, "kind": "explored", "states": sum(e.states for e in found), "jobs": jobs}
