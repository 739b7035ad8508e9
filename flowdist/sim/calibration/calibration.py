"""Calibration: the measured times of each role of a job, and a graph whose workloads have them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from flowdist.graph import RoleGraph
from flowdist.sim.calibration.distribution import Distribution, distribution
from flowdist.sim.calibration.fit import NOTHING, RoleTimes, role_times
from flowdist.sim.calibration.observe import Observed, fault_before

ARRIVAL = "arrival of a node"


class Calibration(NamedTuple):
    """Measured times of a job.

    `roles` has the times of each role. `job` has distributions of what flowdist itself takes, by name: detection from
    an injected fault to the decision, re-formation from there until all workers run, and the time until the next step.
    `arrival_ns` is the time from the start of the job until the agents of its nodes connect; None if it is unknown.
    """

    roles: dict[str, RoleTimes]
    job: Mapping[str, Distribution] = NOTHING
    arrival_ns: int | None = None

    @property
    def fields(self) -> dict[str, dict[str, Any]]:
        """Return the measured fields of the workload of each role."""
        return {name: times.fields for name, times in self.roles.items() if times.fields}

    @property
    def unreported(self) -> tuple[str, ...]:
        """Return the tasks whose workers report no step numbers."""
        return tuple(name for name, times in self.roles.items() if not times.reports_steps)


def calibrate(runs: Sequence[Observed]) -> Calibration:
    """Return the times that records show together. The roles are those of all records; the last one describes them.

    Args:
        runs: What `observe` found in each record.
    """
    roles = {role.name: role for run in runs for role in run.header.graph.roles}
    of_job = _of_job(runs)
    arrival_ns = of_job[ARRIVAL].median_ns if ARRIVAL in of_job else None
    return Calibration({name: role_times(role, runs) for name, role in roles.items()}, of_job, arrival_ns)


def calibrated(graph: RoleGraph, calibration: Calibration, keep: Collection[str] = ()) -> RoleGraph:
    """Return a copy of the graph whose workloads have the measured fields. Roles without any keep their workload.

    Args:
        graph: The graph.
        calibration: The measured times, by role.
        keep: Fields that keep the graph's value, as `role.field`: what a user has set by hand.
    """
    roles = []
    for role in graph.roles:
        fields = calibration.roles[role.name].fields if role.name in calibration.roles else {}
        chosen = {name: value for name, value in fields.items() if f"{role.name}.{name}" not in keep}
        roles.append(msgspec.structs.replace(role, workload=msgspec.structs.replace(role.workload, **chosen)))
    return msgspec.structs.replace(graph, roles=tuple(roles))


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
