"""Expectation of a recorded run: what the simulator makes of the whole job, and of each of its incidents.

The simulator plays what happened to the run, with times that were measured elsewhere (`prediction`). The simulated
incident that is the pair of the run's own says how long the recovery takes, and what it costs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from flowdist.control.job.facts import Incident
from flowdist.record.accounts import Bucket
from flowdist.record.story import IncidentStory
from flowdist.sim.calibration.calibration import Calibration
from flowdist.sim.calibration.observe import Observed
from flowdist.sim.prediction import Run, losses_of, predict
from flowdist.sim.result import SimResult

NOT_EXPECTED = "the simulation of the run has no such incident"


class ExpectedJob(NamedTuple):
    """Whole job as the simulator expects it: its outcome (None: it does not end), its length, and where time goes.

    `spent` is in ns, by role and bucket, without zeros. `tasks` are the roles whose time counts as goodput; `others`
    are the other tasks: their workers report no step numbers, so that a run does not show what they have lost.
    """

    outcome: str | None
    lasted_ns: int
    spent: Mapping[str, Mapping[Bucket, int]]
    tasks: tuple[str, ...]
    others: tuple[str, ...] = ()


class ExpectedIncident(NamedTuple):
    """One incident of a run as the simulator expects it.

    `number`, `kind` and `root` are those of the run. If `story` is None, `why` says why the incident is not expected.
    `lost_ns` is the lost work by role, for all its worlds.
    """

    number: int
    kind: str
    root: str
    why: str = ""
    story: IncidentStory | None = None
    lost_ns: Mapping[str, int] = {}


class Expected(NamedTuple):
    """Job and each incident of a run as the simulator expects them, and in words the incidents that it alone has."""

    job: ExpectedJob
    incidents: tuple[ExpectedIncident, ...] = ()
    more: tuple[str, ...] = ()


def expect(run: Run, calibration: Calibration) -> Expected:
    """Return what the simulator expects of a recorded run, with all its faults known and the times of a calibration.

    Raises:
        BadLine: A line of the record cannot be replayed.
    """
    found = predict(run, calibration)
    pairs, losses = found.stories.pairs, _simulated_losses(found.result)
    incidents = tuple(_expected(one, other, losses) for one, other in pairs if one is not None)
    more = [other for one, other in pairs if one is None and other is not None]
    texts = tuple(f"the simulation has an incident more: {one.kind} of {one.root}" for one in more)
    return Expected(_job(found.result, calibration.unreported), incidents, texts)


def losses_by_incident(run: Observed) -> dict[int, dict[str, int]]:
    """Return the lost work that each incident of a record has caused: ns by role, by the number of the incident."""
    found: dict[int, dict[str, int]] = {}
    for loss in losses_of(run):
        causes = [one for one in run.incidents if loss.world in one.worlds and one.opened_ns <= loss.at_ns]
        if causes:
            _add(found, causes[-1].number, loss.role, loss.ns)
    return found


def _simulated_losses(result: SimResult) -> dict[int, dict[str, int]]:
    """Return the lost work that each incident of a simulation has caused: ns by role, by the number of the incident.

    Work is lost before its incident opens, as a lost node is noticed late. So the cause is the first incident of the
    world that is not over by then.
    """
    found: dict[int, dict[str, int]] = {}
    for world, model in result.models.items():
        for at_ns, ns in model.losses:
            causes = [one for one in result.job.incidents if world in one.worlds and not _is_over(one, at_ns)]
            if causes:
                _add(found, causes[0].number, model.pace.name, ns)
    return found


def _is_over(incident: Incident, at_ns: int) -> bool:
    took_ns = incident.took_ns if incident.first_step_ns is None else incident.first_step_ns
    return took_ns is not None and incident.opened_ns + took_ns < at_ns


def _add(found: dict[int, dict[str, int]], number: int, role: str, ns: int) -> None:
    lost = found.setdefault(number, {})
    lost[role] = lost.get(role, 0) + ns


def _job(result: SimResult, unreported: Collection[str]) -> ExpectedJob:
    spent = {role: {bucket: ns for bucket, ns in buckets.items() if ns} for role, buckets in result.spent.items()}
    tasks = tuple(role.name for role in result.job.graph.roles if role.kind == "task")
    told, others = (tuple(name for name in tasks if (name in unreported) == is_in) for is_in in (False, True))
    return ExpectedJob(result.job.outcome, result.now, spent, told, others)


def _expected(
    one: IncidentStory, other: IncidentStory | None, losses: Mapping[int, Mapping[str, int]]
) -> ExpectedIncident:
    """Return the expectation of incident `one` of a run, whose pair in the simulation is `other`."""
    if other is None or (one.kind, one.root) != (other.kind, other.root):
        why = NOT_EXPECTED if other is None else f"the simulation has {other.kind} of {other.root} in its place"
        return ExpectedIncident(one.number, one.kind, one.root, why)
    lost = {role: ns for role, ns in losses.get(other.number, {}).items() if ns > 0}
    return ExpectedIncident(one.number, one.kind, one.root, "", other, lost)
