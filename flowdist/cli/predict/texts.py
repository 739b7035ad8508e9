"""Predictions as lines for the terminal of a run."""

from __future__ import annotations

from flowdist.cli.predict.saved import Predictions
from flowdist.report.record.summary import rounded
from flowdist.sim.forecast import ExpectedIncident, ExpectedJob

VERBS = {"succeeded": "succeeds", "failed": "fails", "cancelled": "is cancelled"}


def job_text(predictions: Predictions) -> str:
    """Return what is expected of the whole job as one line, or why nothing is."""
    job = predictions.job
    if job is None:
        return f"the job is not predicted: {predictions.problem}"
    goodput = f", goodput {100 * job.goodput:.1f} %" if job.goodput is not None else ""
    goodput += f" of {', '.join(job.tasks)}" if goodput and job.others else ""
    return f"predicted: the job {_end(job)}{goodput} (times: {predictions.times})"


def incident_text(expected: ExpectedIncident) -> str:
    """Return what is expected of an incident, and of the job from then on, as one line."""
    if expected.why:
        return f"incident {expected.number}: not predicted: {expected.why}"
    parts = [_recovery(expected)]
    parts += [f"lost work of {role} {_text(ns)}" for role, ns in expected.lost_ns.items()]
    parts += [f"the job {_end(expected.job)}"] if expected.job is not None else []
    return f"incident {expected.number}: predicted: {', '.join(parts)}"


def _recovery(expected: ExpectedIncident) -> str:
    if expected.re_formed_ns is None:
        return f"no recovery ({expected.result})" if expected.result else "no recovery"
    text = f"re-formed after {_text(expected.re_formed_ns)}"
    if expected.next_step_ns not in (None, expected.re_formed_ns):
        text += f", first step after {_text(expected.next_step_ns or 0)}"
    return text


def _end(job: ExpectedJob) -> str:
    if job.outcome is None:
        return "does not end"
    return f"{VERBS.get(job.outcome, job.outcome)} after {_text(job.lasted_ns)}"


def _text(ns: int) -> str:
    return rounded(ns / 1e9)
