"""Calibration: the measured times of each role of a job, and a graph whose workloads have them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from flowdist.graph import RoleGraph, RoleSpec
from flowdist.sim.calibration.fit import NOTHING, Distribution, RoleTimes, distribution, role_times
from flowdist.sim.calibration.observe import Observed, fault_before
from flowdist.sim.user_code.workload import with_workloads

ARRIVAL = "arrival of a node"


class Calibration(NamedTuple):
    """Measured times of a job."""

    roles: dict[str, RoleTimes]
    # What flowdist itself takes, by name: detection from an injected fault to the decision, re-formation from there
    # until all workers run, and the time until the next step.
    job: Mapping[str, Distribution] = NOTHING
    arrival_ns: int | None = None  # from the start of the job until the agents of its nodes connect; None: unknown

    @property
    def fields(self) -> dict[str, dict[str, Any]]:
        """Return the measured fields of the workload of each role."""
        return {name: times.fields for name, times in self.roles.items() if times.fields}

    @property
    def unreported(self) -> tuple[str, ...]:
        """Return the tasks whose workers report no step numbers."""
        return tuple(name for name, times in self.roles.items() if not times.reports_steps)


def calibrate(runs: Sequence[Observed]) -> Calibration:
    """Return the times that records show together, for the roles of all of them; the last one describes a role."""
    roles = {role.name: role for run in runs for role in run.header.graph.roles}
    of_job = _of_job(runs)
    arrival_ns = of_job[ARRIVAL].median_ns if ARRIVAL in of_job else None
    return Calibration({name: role_times(role, runs) for name, role in roles.items()}, of_job, arrival_ns)


def calibrated(graph: RoleGraph, calibration: Calibration, keep: Collection[str] = ()) -> RoleGraph:
    """Return the graph with the measured fields in its workloads, except for those to `keep`, as `role.field`."""

    def chosen(role: RoleSpec) -> dict[str, Any]:
        fields = calibration.roles[role.name].fields if role.name in calibration.roles else {}
        return {name: value for name, value in fields.items() if f"{role.name}.{name}" not in keep}

    return with_workloads(graph, chosen)


def _of_job(runs: Sequence[Observed]) -> dict[str, Distribution]:
    samples: dict[str, list[int]] = {}
    for run in runs:
        samples.setdefault(ARRIVAL, []).extend(run.arrivals)
        for incident in run.incidents:
            hit = fault_before(run.faults, incident, run.header.graph.options)
            if hit is not None:
                samples.setdefault(f"detection, {incident.kind}", []).append(incident.opened_ns - hit)
            if incident.took_ns is not None:
                samples.setdefault("re-formation", []).append(incident.took_ns - incident.backoff_ns)
            if incident.first_step_ns is not None:
                samples.setdefault("time to the next step", []).append(incident.first_step_ns - incident.backoff_ns)
    return {name: found for name, ns in samples.items() if (found := distribution(ns)) is not None}
