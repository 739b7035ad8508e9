"""Comparison of the expectations of a scenario file (`[expect]`) with the simulation of that scenario."""

from __future__ import annotations

from collections.abc import Mapping

from flowdist.control.protocol.effects import Decided, StartReplica
from flowdist.errors import did_you_mean
from flowdist.faults.scenario import Expect
from flowdist.record.journal import Record
from flowdist.sim.checks.bounds import GOODPUT, LOST_WORK, RECOVERS, bounds_of, recoveries
from flowdist.sim.faults.unfired import unfired_texts
from flowdist.sim.result import SimResult

__all__ = ["recoveries", "unmet"]

OF_BOUNDS = {RECOVERS: "recovered_within", LOST_WORK: "lost_work_max", GOODPUT: "goodput_min"}


def unmet(expect: Expect, result: SimResult) -> list[str]:
    """Return a line of text for each expectation that is not met, and for each fault that never fired.

    Args:
        expect: The expectations of a scenario file.
        result: The simulation of that scenario.
    """
    return [
        *unfired_texts(result),
        *_unmet_end(expect, result),
        *_unmet_numbers(expect, result),
        *_unmet_texts(expect, result),
        *_unmet_bounds(expect, result),
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
    job = result.job
    names = dict.fromkeys([*job.roles, *job.worlds])
    generations = {name: max(world.generation for world in job.worlds_of(role)) for name, role in job.roles.items()}
    return [
        *_compare("restarted", expect.restarted, {name: times_restarted(result, name) for name in job.roles}),
        *_compare("generations", expect.generations, generations),
        *_compare("world_sizes", expect.world_sizes, {name: world_sizes(result, name) for name in names}),
        *_compare("members", expect.members, {name: members(result, name) for name in names}),
        *_compare("charged", expect.charged, {name: len(role.charges) for name, role in job.roles.items()}),
    ]


def _unmet_texts(expect: Expect, result: SimResult) -> list[str]:
    texts = [text for line in result.lines if isinstance(line, Record) for text in _notices(line)]
    return [f"says: no notice contains {words!r}" for words in expect.says if not any(words in text for text in texts)]


def _unmet_bounds(expect: Expect, result: SimResult) -> list[str]:
    bounds = bounds_of(expect.recovered_within, expect.lost_work_max, expect.goodput_min)
    return [f"{OF_BOUNDS[which]}: {text}" for which, text in bounds.broken(result)]


def _unmet_points(expect: Expect, result: SimResult) -> list[str]:
    wrong = []
    for point in expect.seen:
        if point not in result.points:
            wrong.append(f"seen: there is no point {point!r}; {did_you_mean(point, result.points)}")
        elif point not in result.seen:
            wrong.append(f"seen: {point!r} was never reached")
    return wrong


def _notices(line: Record) -> list[str]:
    return [effect.text for effect in line.effects if isinstance(effect, Decided)]


def _compare(what: str, expected: Mapping[str, object], found: Mapping[str, object]) -> list[str]:
    wrong = []
    for name, value in expected.items():
        if name not in found:
            wrong.append(f"{what}: the job has no role or world {name!r}")
        elif found[name] != value:
            wrong.append(f"{what}: expected {name} = {value}, found {found[name]}")
    return wrong


def times_restarted(result: SimResult, name: str) -> int:
    """Return how often the role `name` was restarted.

    A gang restarts as one: generations after the first count. In another role the restarts of all replicas add up.
    """
    role = result.job.roles[name]
    if role.spec.gang:
        return max(0, result.job.worlds[role.worlds[0]].generation - 1)
    return sum(max(0, replica.attempt - 1) for replica in result.job.replicas_of(role))


def world_sizes(result: SimResult, name: str) -> list[int]:
    """Return the number of replicas of each generation that was started of the world `name`, oldest first."""
    return [len(starts) for starts in _generations(result, name)]


def members(result: SimResult, name: str) -> list[str]:
    """Return the members of each generation that was started of the world `name`, oldest first.

    Each text has the indexes of the replicas, in the order of their ranks: "0 1 3".
    """
    return [" ".join(str(start.replica.index) for start in starts) for starts in _generations(result, name)]


def _generations(result: SimResult, world: str) -> list[list[StartReplica]]:
    found: dict[int, list[StartReplica]] = {}
    for line in result.lines:
        for effect in line.effects if isinstance(line, Record) else ():
            if isinstance(effect, StartReplica) and effect.world == world:
                found.setdefault(effect.generation, []).append(effect)
    return [sorted(found[generation], key=lambda start: start.rank) for generation in sorted(found)]
