"""Comparison of what users' models did in two runs of the same seed: one with faults, one without.

In the history that counts, samples, what rank 0 logs, and final states have to be the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from flowdist.graph import RoleGraph, format_duration
from flowdist.sim.simulation import SimResult
from flowdist.sim.user_code.answers import raised_by_equal, rounding_text, same
from flowdist.sim.user_code.played import Played, PlayedStep

SHOWN_MAX = 80  # characters of a value in a message
VALUES_MAX = 4  # values that differ in one message
DIGITS = 5  # of a rounded number, unless more are needed to see a difference
MISSING = object()
UNSTEADY = "a model does not do the same twice: it reads a clock, or random numbers that are not ctx.random's"
UNSTEADY += "; check_determinism() tests this alone"


class Broken(NamedTuple):
    """Name of a property that does not hold, and what is wrong in words."""

    property: str
    text: str


def has_models(graph: RoleGraph) -> bool:
    """Return whether a role of the graph has a user's model (`simulate=`)."""
    return any(role.simulate for role in graph.roles)


def difference(truth: SimResult, result: SimResult) -> Broken | None:
    """Return the first difference between two runs that succeeded, `truth` without faults; None if there is none."""
    for world in truth.played.steps:
        for property, compare in (("same result", _steps), ("exactly once", _samples), ("same result", _logs)):
            if text := compare(world, truth.played, result.played):
                return Broken(property, text)
    if result.played.clashes:
        return Broken("same result", result.played.clashes[0])
    text = _ends(truth.played, result.played)
    return Broken("same result", text) if text else None


def _steps(world: str, truth: Played, played: Played) -> str:
    """Return, in words, the first step of the world that only the run without faults has done; empty if none."""
    missing = [step for step in truth.steps[world] if step not in played.steps.get(world, {})]
    if not missing:
        return ""
    return f"{world}: step {missing[0]} was never done, or taken back; {_resumed(world, played)}"


def _samples(world: str, truth: Played, played: Played) -> str:
    """Return, in words, samples that the world used more or less often than without faults; empty if there are none."""
    wanted = Counter(sample for step in truth.steps[world].values() for sample in step.samples)
    used = Counter(sample for step in played.steps[world].values() for sample in step.samples)
    if wanted == used:
        return ""
    more, less = used - wanted, wanted - used
    texts = []
    if more:
        sample = next(iter(more))
        steps = [number for number, step in sorted(played.steps[world].items()) if sample in step.samples]
        numbers = " and ".join(map(str, steps))
        often = f"is used {used[sample]} times, in step {numbers}"
        wrong = f"is used in step {numbers}, and without faults in none"
        texts.append(f"sample {sample!r} {often if sample in wanted else wrong}")
    if less:
        sample = next(iter(less))
        step = next(number for number, step in truth.steps[world].items() if sample in step.samples)
        texts.append(f"sample {sample!r} of step {step} is never used")
    counts = f"{len(more)} sample{'s' * (len(more) != 1)} too often, {len(less)} too seldom"
    return f"{world}: {', '.join(texts)} ({counts}); {_resumed(world, played)}"


def _logs(world: str, truth: Played, played: Played) -> str:
    """Return, in words, what rank 0 logged otherwise than without faults in the first such step; empty if nothing."""
    for number, step in truth.steps[world].items():
        other = played.steps[world][number]
        if found := _differing(other.logged, step.logged):
            return f"{world}: in step {number} of generation {other.generation} {found}; {_resumed(world, played)}"
    return ""


def _ends(truth: Played, played: Played) -> str:
    """Return, in words, the values of the first state at the end that differ between two runs; empty if none do."""
    for name, state in truth.ends.items():
        if found := _differing(played.ends.get(name, {}), state):
            return f"{name}: at the end {found}; {_resumed(name, played)}"
    return ""


def _differing(found: Mapping[str, object], wanted: Mapping[str, object]) -> str:
    """Return, in words, the values by name that differ, VALUES_MAX at most, maybe by rounding; empty if none do."""
    keys = [
        key for key in {**wanted, **found} if key not in found or key not in wanted or not same(wanted[key], found[key])
    ]
    texts = []
    for key in keys[:VALUES_MAX]:
        values = [values.get(key, MISSING) for values in (found, wanted)]
        digits = next((n for n in range(DIGITS, 17) if _shown(values[0], n) != _shown(values[1], n)), 17)
        mine, theirs = ("missing" if value is MISSING else _shown(value, digits) for value in values)
        is_in_both = key in found and key in wanted
        raised = raised_by_equal(*values) if is_in_both else ""
        texts.append(f"{key} is {mine}, without faults {theirs}{raised}")
    more = f"; {len(keys) - VALUES_MAX} more values differ" if len(keys) > VALUES_MAX else ""
    return "; ".join(texts) + more + rounding_text((found.get(key, MISSING), wanted.get(key, MISSING)) for key in keys)


def _resumed(world: str, played: Played) -> str:
    found = [f"generation {r.generation} from step {r.step}" for r in played.resumed.get(world, [])]
    return f"resumed: {', '.join(found[-4:])}" if found else "it never resumed"


def _shown(value: object, digits: int = 17) -> str:
    text = f"{value:.{digits}g}" if isinstance(value, float) and digits < 17 else repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


def errors_text(played: Played) -> str:
    """Return the first exception that a user's model raised, in words; "" if none: later ones may be its effects."""
    if not played.errors:
        return ""
    first = played.errors[0]
    where = f", at {first.place}" if first.place else ""
    return f"user code raised in {first.replica} after {format_duration(first.at_ns)}: {first.line}{where}"


def _alike(step: PlayedStep, other: PlayedStep) -> bool:
    """Return whether two runs of one step have used the same samples in the same generation, and logged the same."""
    return step[:2] == other[:2] and same(step.logged, other.logged)


def unlike(first: SimResult, second: SimResult) -> str:
    """Return in words how two runs with the same seed and plan differ: by a clock or random numbers; empty if not."""
    text = _first_unlike(first, second)
    return f"{text}: {UNSTEADY}" if text else ""


def unlike_or(broken: Broken, first: SimResult, second: SimResult) -> Broken:
    """Return how two runs of one plan differ, as the cause of `broken`; `broken` itself if they do not."""
    text = unlike(first, second)
    return Broken("determinism", text) if text else broken


def _first_unlike(first: SimResult, second: SimResult) -> str:
    for world, steps in first.played.steps.items():
        for number, step in steps.items():
            other = second.played.steps.get(world, {}).get(number)
            if other is None or not _alike(step, other):
                found = "is not done" if other is None else f"has {_shown(other.logged)}"
                raised = raised_by_equal(step.logged, other.logged) if other is not None else ""
                return f"{world}: step {number} has {_shown(step.logged)}, and when it runs again {found}{raised}"
    text = _ends(first.played, second.played)
    if text:
        return text.replace("without faults", "when it ran before")
    if first.digest != second.digest:
        return f"the traces have the digests {first.digest[:12]} and {second.digest[:12]}"
    return ""
