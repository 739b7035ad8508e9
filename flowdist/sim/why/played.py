"""Counterfactuals of a recorded job, played in the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowdist.errors import FlowdistError
from flowdist.graph import HOUR
from flowdist.record.journal import FaultLine
from flowdist.sim.experiment.compare import compare
from flowdist.sim.experiment.experiment import Experiment
from flowdist.sim.experiment.outcome import IncidentOutcome, Outcome
from flowdist.sim.experiment.play import Progress, play
from flowdist.sim.why.search import Cause, causes_of, without

LONGER = 10  # a counterfactual is given up after so many times the length of the run, and some hours more
MORE_NS = 10 * HOUR


class IncidentCost(NamedTuple):
    """Cost of an `incident`: the job `again`, and its `end` without the `cause`, and `others` that it caused."""

    incident: IncidentOutcome
    cause: Cause
    again: Outcome
    end: Outcome
    others: tuple[IncidentOutcome, ...]


class Counterfactuals:
    """Simulations of one recorded job, which took `lasted_ns`, each without some of its causes.

    `tell` is called with the virtual time in ns and the number of events, while a simulation runs and after it.
    """

    def __init__(self, experiment: Experiment, lasted_ns: int, tell: Progress) -> None:
        self._experiment, self._tell = experiment._replace(until_ns=LONGER * lasted_ns + MORE_NS), tell
        self.causes = causes_of(experiment.plan)
        self.n_played = 0

    def play(self, removed: Sequence[Cause]) -> Outcome:
        """Return the outcome of the job without these causes."""
        return self._play(removed)._replace(result=None)  # hundreds of them are kept

    def _play(self, removed: Sequence[Cause]) -> Outcome:
        self.n_played += 1
        plan = without(self._experiment.plan, removed)
        outcome = play(self._experiment._replace(plan=plan), tell=self._tell, fast_forward=True)
        self._tell(outcome.lasted_ns, outcome.exact.handled)
        return outcome

    def cost_of(self, number: int, was: Outcome) -> IncidentCost:
        """Return what incident `number` (from 1) of the run, which ended as it `was`, cost, and its cause.

        The cause is the last fault or order that hit the root of the incident before it was opened. If nothing hit the
        root itself, it is the last one before the incident without which the incident does not happen. Raises
        FlowdistError if the run or its simulation has no such incident, or no cause is known.
        """
        count = len(was.incidents)
        if not 1 <= number <= count:
            has = f"the run has {count} incident{'s' * (count != 1)}" if count else "the run has no incidents"
            raise FlowdistError(f"there is no incident {number}: {has}", help="flowdist report lists them")
        incident, again = was.incidents[number - 1], self._play(())
        played = compare(was, again).matches.get(number)
        name = f"incident {number} ({incident.kind} of {incident.root})"
        if played is None:
            message = f"{name} does not happen when the run is simulated"
            raise FlowdistError(message, help="flowdist replay compares the run with its simulation")
        cause = self._last_hit(again, played)
        found = (cause, self.play((cause,))) if cause is not None else self._last_without(again, played)
        if found is None:
            message = f"{name} happens whatever single fault is left out"
            raise FlowdistError(message, help="flowdist why without a number looks for pairs as well")
        also = [one for one in compare(again, found[1]).gone if one.number != played.number]
        return IncidentCost(incident, found[0], again, found[1], tuple(also))

    def _last_hit(self, again: Outcome, incident: IncidentOutcome) -> Cause | None:
        """Return the cause that hit the root of an incident last before it was opened; None if none did."""
        by_text = {cause.text: cause for cause in self.causes if cause.flag == "--fail"}
        hits = [
            (line.t_ns, by_text[line.spec])
            for line in again.exact.lines
            if isinstance(line, FaultLine) and line.spec in by_text and line.hit.partition(".")[0] == incident.root
        ]
        orders = [cause for cause in self.causes if cause.flag != "--fail" and cause.target == incident.root]
        hits += [(cause.at_ns or 0, cause) for cause in orders]
        early = [(at, cause) for at, cause in hits if at <= incident.opened_ns]
        return max(early, key=lambda hit: hit[0])[1] if early else None

    def _last_without(self, again: Outcome, incident: IncidentOutcome) -> tuple[Cause, Outcome] | None:
        """Return the last cause before an incident without which it does not happen, with that end; None: none is."""
        early = [cause for cause in self.causes if cause.at_ns is None or cause.at_ns <= incident.opened_ns]
        for cause in reversed(early):
            end = self.play((cause,))
            if incident in compare(again, end).gone:
                return cause, end
        return None
