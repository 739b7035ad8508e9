"""Causes and counterfactuals in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from flowdist.faults.grammar import Fault, Scale
from flowdist.faults.kinds import KINDS
from flowdist.graph import format_duration
from flowdist.sim.calibration.fit import rounded
from flowdist.sim.experiment.compare import compare
from flowdist.sim.experiment.outcome import Outcome
from flowdist.sim.why.search import Cause, Counterfactual


def time_words(ns: int) -> str:
    """Return a duration in ns with four digits at most: `12m4s`."""
    return format_duration(rounded(ns))


def cause_words(cause: Cause) -> str:
    """Return what happened, to what and when: `the loss of node3 at 12m4s`."""
    if isinstance(cause.what, Fault):
        return f"{_fault_words(cause.what)} {_when_words(cause.what)}"
    arg = str(cause.what.replicas) if isinstance(cause.what, Scale) else ""
    what = KINDS[cause.flag.removeprefix("--")].words.format(target=cause.target, arg=arg)
    return f"{what} at {time_words(cause.what.at_ns)}"


def _fault_words(fault: Fault) -> str:
    """Return what happened to what: `the failure of trainer/0 (exit code 3)`."""
    if fault.kind == "kill" and (fault.target == "controller" or fault.replica is not None):
        return f"the death of {_target_words(fault)}"
    arg = fault.arg.partition(",")[0] if fault.kind == "xid" else fault.arg  # the rest is the number of the GPU
    return KINDS[fault.kind].words.format(target=_target_words(fault), arg=arg)


def _target_words(fault: Fault) -> str:
    if fault.label is not None:
        return f"the nodes with {fault.target}"
    return {"controller": "the controller", "all": "all replicas"}.get(fault.target, fault.target)


def _when_words(fault: Fault) -> str:
    """Return when a fault happens: `at 12m4s`, `at step 500 of trainer`, `every 18m`."""
    when, later = fault.when, f"{time_words(fault.offset_ns)} after " if fault.offset_ns else ""
    if when.at_ns is not None:
        return f"at {time_words(when.at_ns + fault.offset_ns)}"
    if when.every_ns is not None:
        return f"every {time_words(when.every_ns)}"
    first = f"the first {'start' if when.event == 'start' else 'readiness'}"
    return f"{later or 'at '}{f'{when.event} {when.number}' if when.number else first} of {when.role}"


def end_words(end: Outcome) -> str:
    """Return how a job ended: `succeeded after 10m`, `failed after 2m (reason)`."""
    reason = f" ({end.reason})" if end.reason and not end.is_good else ""
    return f"{end.outcome or 'unfinished'} after {time_words(end.lasted_ns)}{reason}"


def sentence(again: Outcome, one: Counterfactual) -> str:
    """Return in a sentence what a counterfactual changes, compared with the end with all causes (`again`)."""
    names = [cause_words(cause) for cause in one.removed]
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    text = f"Without {listed} the job would {difference_words(again, one.end)}."
    if not one.is_enough:
        return text
    alone = "It alone is" if len(names) == 1 else "They alone are"
    return f"{text} {alone} enough to prevent that."


def difference_words(again: Outcome, end: Outcome) -> str:
    """Return what a job would do otherwise: `have ended 41m earlier, after 1h2m`."""
    if end.is_good and not again.is_good:
        return f"have succeeded, after {time_words(end.lasted_ns)}"
    if not end.is_good:
        kind = "have failed" if end.outcome == "failed" else "not have ended"
        when = f", after {time_words(end.lasted_ns)}{f': {end.reason}' if end.reason else ''}"
        return f"{kind}{' all the same' * (not again.is_good)}{when}"
    saved = compare(again, end).saved_ns
    if not saved:
        return "have ended at the same time"
    return (
        f"have ended {time_words(abs(saved))} {'earlier' if saved > 0 else 'later'}, after {time_words(end.lasted_ns)}"
    )


def options_of(removed: Sequence[Cause]) -> list[str]:
    """Return the options of `flowdist replay` that leave these causes out, as words of a command line."""
    return [word for cause in removed for word in ("--without", cause.text)]
