"""Counterfactuals of a recorded job, played in the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from flowdist.control.job.state import JobState
from flowdist.errors import FlowdistError
from flowdist.graph import HOUR
from flowdist.record.journal import FaultLine, Header, Line
from flowdist.record.replay import Replay
from flowdist.sim.again import Again
from flowdist.sim.result import SimResult
from flowdist.sim.why.causes import Cause, causes_of, without
from flowdist.sim.why.search import End, gone, matches

LONGER = 10  # a counterfactual is given up after so many times the length of the run, and some hours more
MORE_NS = 10 * HOUR


class IncidentCost(NamedTuple):
    """Cost of one incident of a run: `again` is the job as it was, and `end` the job without `cause`.

    `number` is that of the incident in the run, `kind` and `root` are its own. `others` are the incidents, as kind and
    root, that would not have happened either.
    """

    number: int
    kind: str
    root: str
    cause: Cause
    again: End
    end: End
    others: tuple[tuple[str, str], ...]


def recorded_end(header: Header, lines: Sequence[Line]) -> End:
    """Return how a recorded job ended, or where its record ends.

    Raises:
        ReplayError: The record does not replay.
        BadLine: A line of it cannot be replayed.
    """
    replay = Replay(header, strict=True)
    for line in lines:
        replay.hear(line)
    return End(replay.job.outcome, replay.sheet.lasted(), replay.job.ending_reason, _incidents(replay.job))


class Counterfactuals:
    """Simulations of one recorded job, each without some of its causes.

    Args:
        again: The job.
        lasted_ns: How long it took in the record.
        tell: Called with the virtual time in ns and the number of events, while a simulation runs and after it.
    """

    def __init__(self, again: Again, lasted_ns: int, tell: Callable[[int, int], None]) -> None:
        self._again, self._tell = again, tell
        self._until_ns = LONGER * lasted_ns + MORE_NS
        self.causes = causes_of(again.plan)
        self.n_played = 0

    def play(self, removed: Sequence[Cause]) -> End:
        """Return the end of the job without these causes."""
        return _end_of(self._run(removed))

    def _run(self, removed: Sequence[Cause]) -> SimResult:
        self.n_played += 1
        simulation = self._again.simulation(without(self._again.plan, removed), tell=self._tell, fast_forward=True)
        result = simulation.run(self._until_ns)
        self._tell(result.now, result.handled)
        return result

    def cost_of(self, number: int, was: End) -> IncidentCost:
        """Return what one incident of the run cost, and its cause.

        The cause is the last fault or order that hit the root of the incident before it was opened. If nothing hit the
        root itself, it is the last one before the incident without which the incident does not happen.

        Args:
            number: Number of the incident, from 1, as `flowdist report` shows it.
            was: The end of the run.

        Raises:
            FlowdistError: The run has no such incident, or its simulation has not, or no cause is known.
        """
        kind, root = _incident_of(was, number)
        result = self._run(())
        again = _end_of(result)
        place = matches(was, again).get(number - 1)
        if place is None:
            message = f"incident {number} ({kind} of {root}) does not happen when the run is simulated"
            raise FlowdistError(message, help="flowdist replay compares the run with its simulation")
        opened_ns = result.job.incidents[place].opened_ns
        cause = _last_hit(self.causes, result, root, opened_ns)
        found = (cause, self.play((cause,))) if cause is not None else self._last_without(again, place, opened_ns)
        if found is None:
            message = f"incident {number} ({kind} of {root}) happens whatever single fault is left out"
            raise FlowdistError(message, help="flowdist why without a number looks for pairs as well")
        also = [again.incidents[other - 1] for other in gone(again, found[1]) if other != place + 1]
        return IncidentCost(number, kind, root, found[0], again, found[1], tuple(also))

    def _last_without(self, again: End, place: int, opened_ns: int) -> tuple[Cause, End] | None:
        """Return the last cause before an incident without which it does not happen, with that end; None: none is."""
        early = [cause for cause in self.causes if cause.at_ns is None or cause.at_ns <= opened_ns]
        for cause in reversed(early):
            end = self.play((cause,))
            if place + 1 in gone(again, end):
                return cause, end
        return None


def _incident_of(was: End, number: int) -> tuple[str, str]:
    count = len(was.incidents)
    if not 1 <= number <= count:
        has = f"the run has {count} incident{'s' * (count != 1)}" if count else "the run has no incidents"
        raise FlowdistError(f"there is no incident {number}: {has}", help="flowdist report lists them")
    return was.incidents[number - 1]


def _last_hit(causes: Sequence[Cause], result: SimResult, root: str, opened_ns: int) -> Cause | None:
    """Return the cause that hit the root of an incident last before it was opened; None if none did."""
    by_text = {cause.text: cause for cause in causes if cause.flag == "--fail"}
    hits = [
        (line.t_ns, by_text[line.spec])
        for line in result.lines
        if isinstance(line, FaultLine) and line.spec in by_text and line.hit.partition(".")[0] == root
    ]
    hits += [(cause.at_ns or 0, cause) for cause in causes if cause.flag != "--fail" and cause.target == root]
    early = [(at, cause) for at, cause in hits if at <= opened_ns]
    return max(early, key=lambda hit: hit[0])[1] if early else None


def _end_of(result: SimResult) -> End:
    """Return the end of a simulation; one in which a check of the simulator failed has not ended."""
    job = result.job
    reason = job.ending_reason or (f"waiting for {', '.join(result.waiting)}" if result.waiting else "")
    if result.violation is not None:
        text, waits = str(result.violation), str(result.violation).partition("; ")[2]
        is_stuck = result.violation.property == "liveness" and waits
        return End(None, result.now, waits if is_stuck else text, _incidents(job))
    return End(job.outcome, result.now, reason, _incidents(job))


def _incidents(job: JobState) -> tuple[tuple[str, str], ...]:
    return tuple((incident.kind, incident.root) for incident in job.incidents)
