"""Comparison of the expectations of a scenario file (`[expect]`) with the simulation of that scenario."""

from __future__ import annotations

from collections.abc import Mapping

from flowdist.control.protocol.effects import Decided
from flowdist.errors import did_you_mean
from flowdist.faults.scenario import Expect
from flowdist.record.journal import Record
from flowdist.sim.checks.bounds import GOODPUT, LOST_WORK, RECOVERS, bounds_of
from flowdist.sim.result import SimResult, unfired_texts, worlds_of

OF_BOUNDS = {RECOVERS: "recovered_within", LOST_WORK: "lost_work_max", GOODPUT: "goodput_min"}


def unmet(expect: Expect, result: SimResult) -> list[str]:
    """Return a line of text for each expectation of a scenario that is not met, and for each fault that never fired."""
    decided = [effect for line in result.lines if isinstance(line, Record) for effect in line.effects]
    texts = [effect.text for effect in decided if isinstance(effect, Decided)]
    bounds = bounds_of(expect.recovered_within, expect.lost_work_max, expect.goodput_min)
    return [
        *unfired_texts(result),
        *_unmet_end(expect, result),
        *_unmet_numbers(expect, result),
        *(f"says: no notice contains {words!r}" for words in expect.says if not any(words in text for text in texts)),
        *(f"{OF_BOUNDS[which]}: {text}" for which, text in bounds.broken(result)),
        *_unmet_points(expect, result),
    ]


def _unmet_end(expect: Expect, result: SimResult) -> list[str]:
    job, wrong = result.job, []
    if expect.outcome is not None and job.outcome != expect.outcome:
        why = job.ending_reason or f"waiting for {', '.join(result.waiting)}"
        wrong.append(f"outcome: expected {expect.outcome}, found {job.outcome or 'unfinished'} ({why})")
    if expect.reason_contains is not None and expect.reason_contains not in job.ending_reason:
        wrong.append(f"reason: expected {expect.reason_contains!r} in {job.ending_reason!r}")
    return wrong


def _unmet_numbers(expect: Expect, result: SimResult) -> list[str]:
    """Return a line for each expected number of a role or world that the simulation does not have."""
    job, none = result.job, dict.fromkeys([*result.job.roles, *result.job.worlds], ())
    members = none | worlds_of(result.lines)
    sizes = {name: [len(each) for each in of] for name, of in members.items()}
    indexes = {name: [" ".join(one.rpartition("/")[2] for one in each) for each in of] for name, of in members.items()}
    generations = {name: max(world.generation for world in job.worlds_of(role)) for name, role in job.roles.items()}
    return [
        *_compare("restarted", expect.restarted, {name: times_restarted(result, name) for name in job.roles}),
        *_compare("generations", expect.generations, generations),
        *_compare("world_sizes", expect.world_sizes, sizes),
        *_compare("members", expect.members, indexes),
        *_compare("charged", expect.charged, {name: len(role.charges) for name, role in job.roles.items()}),
    ]


def _unmet_points(expect: Expect, result: SimResult) -> list[str]:
    wrong = []
    for point in expect.seen:
        if point not in result.points:
            wrong.append(f"seen: there is no point {point!r}; {did_you_mean(point, result.points)}")
        elif point not in result.seen:
            wrong.append(f"seen: {point!r} was never reached")
    return wrong


def _compare(what: str, expected: Mapping[str, object], found: Mapping[str, object]) -> list[str]:
    wrong = []
    for name, value in expected.items():
        if name not in found:
            wrong.append(f"{what}: the job has no role or world {name!r}")
        elif found[name] != value:
            wrong.append(f"{what}: expected {name} = {value}, found {found[name]}")
    return wrong


def times_restarted(result: SimResult, name: str) -> int:
    """Return how often the role was restarted: a gang by generations after the first, others by replicas."""
    role = result.job.roles[name]
    if role.spec.gang:
        return max(0, result.job.worlds[role.worlds[0]].generation - 1)
    return sum(max(0, replica.attempt - 1) for replica in result.job.replicas_of(role))
