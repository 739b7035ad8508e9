"""Predicted beside actual: what the simulator expects of a run compared with its record, as values and as text.

A figure is compared only if both sides count alike. Where workers do not report their saving, it counts as work on both
sides. What a role without progress has lost is not known, so the goodput is that of the other tasks, on both sides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from flowdist.record.accounts import BUCKETS, Bucket, productive_share
from flowdist.record.story import IncidentStory, story_of
from flowdist.report.record.alike import as_in_record, silent_roles
from flowdist.report.record.summary import rounded
from flowdist.report.table import table
from flowdist.sim.calibration.calibration import calibrate
from flowdist.sim.calibration.observe import observe
from flowdist.sim.forecast import Expected, ExpectedIncident, ExpectedJob, losses_by_incident
from flowdist.sim.prediction import Figure, Run

LISTED = 5  # decisions that differ


def compare(run: Run, times: str, expected: Expected, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the expectation of a run beside what it was, as plain values for --json. Times are in ns.

    Each figure has `predicted`, `actual` and `error`, a share of the actual one; None is what is not known.

    Args:
        run: The record of the run.
        times: Where the times of the workers come from, in words.
        expected: What the simulator expects of it.
        summary: The summary of the run: `summary_of` and `time_of_run`.

    Raises:
        BadLine: A line of the record cannot be replayed.
    """
    story, observed = story_of(run.header, run.lines), observe(run.header, run.lines)
    losses, silent = losses_by_incident(observed), silent_roles(summary.get("not_reported", {}))
    lasted_ns = story.lasted_ns if summary["outcome"] is not None else None
    incidents = []
    for one, other in zip(story.incidents, expected.incidents, strict=True):
        lost = {role: ns for role, ns in losses.get(one.number, {}).items() if role not in silent}
        incidents.append(_incident(one, other, lost))
    untold = [name for name, role in calibrate([observed]).roles.items() if not role.tells_saving]
    job = _job(expected.job, summary, untold, silent, lasted_ns)
    return {
        "times": times,
        "job": job,
        "incidents": incidents,
        "more_incidents": list(expected.more),
        "not_compared": list(_silent_texts(silent, job["goodput"]["of"])),
    }


def _silent_texts(silent: Collection[str], tasks: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each role that reported no steps: what is therefore not known or not counted."""
    rest = f"the goodput is that of {', '.join(tasks)}, without {{}}" if tasks else "no goodput can be compared"
    for name in silent:
        yield f"{name} reported no step numbers, so its lost work is not known, and {rest.format(name)}"


def _job(
    job: ExpectedJob, summary: Mapping[str, Any], untold: Collection[str], silent: Collection[str], lasted: int | None
) -> dict[str, Any]:
    """Return outcome, length and goodput of the whole job, predicted beside actual."""
    unsaved = [name for name, kinds in summary.get("not_reported", {}).items() if "checkpoints" in kinds]
    tasks = [name for name in job.tasks if name not in silent]
    without = [name for name in (*job.tasks, *job.others) if name not in tasks]
    predicted, actual = (_goodput(spent, tasks, untold, unsaved) for spent in (job.spent, summary["time_ns"]))
    roles = {"of": tasks, "without": without}
    return {
        "outcome": {"predicted": job.outcome, "actual": summary["outcome"]},
        "lasted_ns": _figure(job.lasted_ns, lasted),
        "goodput": {"predicted": predicted, "actual": actual if lasted is not None else None} | roles,
    }


def _goodput(
    spent: Mapping[str, Mapping[Bucket, int]], tasks: Collection[str], untold: Collection[str], unsaved: Collection[str]
) -> float | None:
    whole = {name: {**dict.fromkeys(BUCKETS, 0), **spent.get(name, {})} for name in tasks}
    return productive_share(tasks, as_in_record(whole, untold, unsaved))


def _incident(one: IncidentStory, expected: ExpectedIncident, lost: Mapping[str, int]) -> dict[str, Any]:
    """Return one incident, predicted beside actual: times, lost work by role, and decisions that differ.

    What a role has lost is not known (None) where the generation after the incident reported no step.
    """
    found: dict[str, Any] = {"number": one.number, "kind": one.kind, "root": one.root, "why": expected.why}
    story = expected.story
    if story is None:
        return found
    roles = [role for role in dict.fromkeys([*expected.lost_ns, *lost]) if expected.lost_ns.get(role) or lost.get(role)]
    return {
        **found,
        "re_formed_ns": _figure(story.re_formed_ns, one.re_formed_ns),
        "next_step_ns": _figure(_first_step_ns(story), _first_step_ns(one)),
        "lost_ns": {role: _figure(expected.lost_ns.get(role, 0), lost.get(role)) for role in roles},
        "decisions": list(_differences(story, one)),
    }


def _first_step_ns(one: IncidentStory) -> int | None:
    """Return the time until the first step after an incident; None if no step is known, as of services.

    `next_step_ns` is that of the re-formation then.
    """
    return one.next_step_ns if one.next_step_ns != one.re_formed_ns else None


def _differences(expected: IncidentStory, one: IncidentStory) -> Iterator[str]:
    """Yield the decisions about an incident that differ.

    A job that ends before a step is reported has re-formed, and is not known to have recovered: that is no decision.
    """
    for (name, x), y in zip(expected.decision.items(), one.decision.values(), strict=True):
        if x != y and {x, y} != {"re-formed", "recovered"}:
            yield f"{name}: {_words(x)} / {_words(y)}"


def _figure(predicted: int | None, actual: int | None) -> dict[str, Any]:
    error = None  # of 0, or of what is not known, there is no share
    if predicted is not None and actual:
        error = Figure("", actual, predicted).error
    return {"predicted": predicted, "actual": actual, "error": None if error is None else round(error, 4)}


def _words(value: object) -> str:
    return (", ".join(map(str, value)) or "nothing") if isinstance(value, tuple) else str(value or "nothing")


def comparison_text(values: Mapping[str, Any]) -> list[str]:
    """Return the lines of the comparison for people.

    Args:
        values: The values of `compare`.
    """
    lines = [f"Predicted beside actual (with all faults known; times: {values['times']})"]
    rows = [*_job_rows(values["job"]), *(row for one in values["incidents"] for row in _incident_rows(one))]
    lines += table([("", "predicted", "actual", "off by"), *rows])
    known = [one for one in values["incidents"] if not one["why"]]
    lines += [f"{_name(one)}: not predicted: {one['why']}" for one in values["incidents"] if one["why"]]
    lines += values["more_incidents"]
    differ = [f"  {_name(one)}: {text}" for one in known for text in one["decisions"]]
    if differ:
        lines += ["decisions that differ (predicted / actual):", *differ[:LISTED]]
        lines += [f"  and {len(differ) - LISTED} more: --json lists all"] if len(differ) > LISTED else []
    elif known:
        lines.append(f"decisions: as predicted, in {len(known)} incident{'s' * (len(known) != 1)}")
    return [*lines, *values["not_compared"]]


def _job_rows(job: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    yield ("outcome", *(job["outcome"][side] or "unfinished" for side in ("predicted", "actual")), "")
    yield ("the job", *_texts(job["lasted_ns"]))
    predicted, actual = (job["goodput"][side] for side in ("predicted", "actual"))
    points = "-" if predicted is None or actual is None else f"{100 * abs(predicted - actual):.1f} points"
    tasks = job["goodput"]["of"] if job["goodput"]["without"] else []
    name = f"goodput of {', '.join(tasks)}" if tasks else "goodput"
    yield (name, *("-" if share is None else f"{100 * share:.1f} %" for share in (predicted, actual)), points)


def _incident_rows(one: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    if one["why"]:
        return
    yield (f"{_name(one)}: re-formed", *_texts(one["re_formed_ns"]))
    if any(one["next_step_ns"].values()):
        yield ("   first step", *_texts(one["next_step_ns"]))
    for role, figure in one["lost_ns"].items():
        yield (f"   lost work of {role}", *_texts(figure))


def _name(one: Mapping[str, Any]) -> str:
    return f"{one['number']}. {one['kind']} of {one['root']}"


def _texts(figure: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return both times and their difference, for people: 80 % of a tenth of a second is little."""
    times = ["-" if figure[side] is None else rounded(figure[side] / 1e9) for side in ("predicted", "actual")]
    if None in (figure["predicted"], figure["actual"]):
        return times[0], times[1], "-"
    off = rounded(abs(figure["predicted"] - figure["actual"]) / 1e9)
    share = f" ({100 * figure['error']:.1f} %)" if figure["error"] is not None else ""
    return times[0], times[1], off + share
