"""Reasons why a fault of a plan hit nothing in a simulation, where services count no steps and save nothing."""

from __future__ import annotations

from flowdist.control.job.state import JobState
from flowdist.faults.grammar import Fault
from flowdist.faults.unfired import why_never_due, why_nothing_was_hit
from flowdist.sim.result import SimResult


def unfired_texts(result: SimResult) -> list[str]:
    """Return a line with the reason for each fault of the plan that hit nothing in the simulation.

    If a violation ended the simulation early, faults whose moment had not come by then are left out.
    """
    texts, job = [], result.job
    for fault in result.unfired:
        not_yet = _is_never_said(fault, job) or why_never_due(fault, job, result.now)
        if not (not_yet and result.violation is not None):
            why = not_yet or _is_not_simulated(fault, job) or why_nothing_was_hit(fault, job)
            texts.append(f"fault {fault.spec} never fired: {why}")
    return texts


def _is_never_said(fault: Fault, job: JobState) -> str:
    """Return why the simulation never reports the event that the fault waits for; empty if it may report it."""
    role = fault.when.role
    if fault.when.event in ("step", "checkpoint") and _is_service(role, job):
        return f"{role} is a service: it counts no steps, and saves nothing that is simulated"
    return ""


def _is_not_simulated(fault: Fault, job: JobState) -> str:
    """Return why the effect of the fault on its target is not simulated; empty if it is."""
    role = fault.target.partition("/")[0]
    if fault.kind == "slow" and _is_service(role, job):
        return f"{role} is a service: what a slow service costs its callers is not simulated"
    if fault.kind in ("disk-full", "slow-checkpoint") and _is_service(role, job):
        return f"{role} is a service: it saves nothing that is simulated, unless simulate= names a model of its worker"
    return ""


def _is_service(role: str, job: JobState) -> bool:
    return role in job.roles and job.roles[role].spec.kind == "service"
