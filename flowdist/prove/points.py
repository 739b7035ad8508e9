"""The points at which a script is killed, and in which order they are tried: the most telling ones first."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

from flowdist.prove.calls import NOT_CARRIED_OUT
from flowdist.prove.history import Call, Run, Worker, count
from flowdist.prove.watched import Place, Watched, without_numbers

On = Literal["call", "step", "read", "end"]
When = Literal["before", "after", "half"]
SAVES = 2  # so many saves are tried in which a call of one kind on files of one name comes
SAVES_MAX = 6
TELLING = 24  # points that come first whatever the seed is
AND = " + "  # between the names of points that come in one run
STEPS_MAX = 12  # steps all over the run that are tried if no save is seen
_ALIKE = 3  # calls of one kind on one file that are tried: the first, the last and one between


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill of one worker, or of all, when one of them comes to a point.

    `on` is what the point is: the `nth` call of `kind` on `path`, the `nth` step, the `nth` file that is read, or the
    end. Of a call, `when` says whether it has happened: `half` is a write of which the first half has. With `power`
    the machine loses its power, too: files that were not forced to the disk are empty. With a `size` the worker's role
    has so many replicas from then on.
    """

    worker: Worker
    on: On
    nth: int = 1
    kind: str = ""
    path: str = ""
    when: When = "before"
    all_ranks: bool = True
    power: bool = False
    size: int = 0

    def is_at(self, calls: Sequence[Call]) -> bool:
        """Return whether the last of a worker's calls is the one of this kill."""
        is_alike = (calls[-1].kind, calls[-1].path) == (self.kind, self.path)
        return is_alike and count(calls, self.kind, self.path) == self.nth


@dataclass(frozen=True, slots=True)
class Point:
    """A run that is played: its kills, one after the other, under a name that stays the same.

    `about` says in words which sort of point it is. `save` is the number of the save in which the first kill comes,
    from 1; 0: it comes elsewhere.
    """

    name: str
    about: str
    kills: tuple[Kill, ...]
    save: int = 0

    def variant(self, name: str, about: str, change: Callable[[Kill], Kill]) -> Point:
        """Return this point with its kills changed."""
        return Point(f"{self.name}:{name}", about, tuple(map(change, self.kills)), self.save)


def joined(several: Sequence[Point]) -> Point:
    """Return one point whose run has the kills of several, one after the other."""
    kills = tuple(kill for point in several for kill in point.kills)
    return Point(AND.join(point.name for point in several), "several kills in one run", kills)


def points(
    watched: Watched,
    killed: Run,
    between: int,
    first: Worker,
    *,
    power: bool,
    sizes: Mapping[str, tuple[int, int]] = MappingProxyType({}),
) -> list[Point]:
    """Return all points of a script, the most telling first.

    Args:
        watched: What the runs without a fault have shown.
        killed: A run that was killed after step `between`, whose restart shows which files a restore reads.
        between: The number of a step between the first two saves.
        first: The worker whose steps count.
        power: Whether the machine may lose its power, too.
        sizes: By elastic role its smallest number of replicas and its usual one.
    """
    of_saves: list[Point] = []
    # The second save has one before it, and most of the run behind it: that shows most. Of later ones little is tried.
    for number, places in sorted(_tried(watched).items(), key=lambda save: (save[0] > SAVES, -save[0])):
        of_saves += _at_calls(watched, number, places)
    found = [*of_saves]
    found += _at_steps(watched, first)
    found += _of_sizes(watched, between, sizes)
    found += _at_reads(killed, between, first)
    before = [point for point in of_saves if point.kills[0].when == "before"]
    found += [
        point.variant("one", "one rank alone in a save", lambda kill: replace(kill, all_ranks=False))
        for point in before
    ]
    found += _twice(watched, before, first)
    found += _in_removals(watched)
    if power:
        whole = [point for point in of_saves if point.kills[0].when != "half"]
        found += [
            point.variant("power", "a loss of power in a save", lambda kill: replace(kill, power=True))
            for point in whole
        ]
    return list({point.name: point for point in found}.values())


def seeded(points: Sequence[Point], seed: int) -> list[Point]:
    """Return points, the most telling first, the others in an order that the seed decides."""
    others = list(points[TELLING:])
    random.Random(seed).shuffle(others)
    return [*points[:TELLING], *others]


def _tried(watched: Watched) -> dict[int, list[Place]]:
    """Return the calls that are tried, by the number of their save.

    These are the first two saves, and a later one from the first call on that fewer of them make: the first to remove
    an old checkpoint is often the third. Of removals one is enough.
    """
    known, chosen = Counter[tuple[str, str]](), dict[int, list[Place]]()
    for number, save in enumerate(watched.saves, start=1):
        found: list[Place] = []
        seen: set[tuple[str, str]] = set()
        for worker in sorted({place.worker for place in save.places}):
            mine = [place for place in save.places if place.worker == worker]
            calls = [watched.first(worker).calls[place.at] for place in mine]
            does = [(call.kind, without_numbers(call.path)) for call in calls]
            new = [at for at, each in enumerate(does) if known[each] < (1 if each[0] == "unlink" else SAVES)]
            found += mine if number <= SAVES else mine[new[0] :] if new else []
            seen.update(does)
        if found and len(chosen) < SAVES_MAX:
            known.update(seen)
            chosen[number] = found
    return chosen


def _at_calls(watched: Watched, number: int, places: list[Place]) -> Iterator[Point]:
    """Yield the points before each call of a save, after its last, and in the middle of its largest writes."""
    for worker in sorted({place.worker for place in places}):
        calls = watched.first(worker).calls
        mine = [place for place in places if place.worker == worker]
        for place in _telling(mine, calls):
            yield _point(number, place, calls, "before")
        if calls[mine[-1].at].name not in NOT_CARRIED_OUT:
            yield _point(number, mine[-1], calls, "after")
        for place in _largest(mine, calls):
            yield _point(number, place, calls, "half")


def _telling(places: list[Place], calls: list[Call]) -> Iterator[Place]:
    """Yield the calls to be tried: of many of one kind on one file the first, the middle one and the last."""
    groups: dict[tuple[str, str], list[Place]] = {}
    for place in places:
        groups.setdefault((calls[place.at].kind, calls[place.at].path), []).append(place)
    chosen: set[int] = set()
    for group in groups.values():
        some = group if len(group) <= _ALIKE else [group[0], group[len(group) // 2], group[-1]]
        chosen |= {place.at for place in some}
    return (place for place in places if place.at in chosen)


def _largest(places: list[Place], calls: list[Call]) -> Iterator[Place]:
    """Yield the largest write of each file of a save."""
    largest: dict[str, Place] = {}
    for place in places:
        call = calls[place.at]
        if call.kind == "write" and call.size > 1:
            known = largest.get(call.path)
            if known is None or calls[known.at].size < call.size:
                largest[call.path] = place
    yield from largest.values()


def _point(number: int, place: Place, calls: list[Call], when: When) -> Point:
    call = calls[place.at]
    nth = count(calls[: place.at + 1], call.kind, call.path)
    kill = Kill(place.worker, "call", nth, call.kind, call.path, when)
    which = f"{call.kind}{nth if nth > 1 else ''}"
    name = f"save{number}:{place.worker}:{which}:{call.path}:{when}"
    return Point(name, "all ranks in a save", (kill,), number)


def _at_steps(watched: Watched, worker: Worker) -> Iterator[Point]:
    """Yield the points between saves, or all over a run of which no save is seen, at the last step, and at the end."""
    saves = [save.step for save in watched.saves]
    for number, step in enumerate(saves[:SAVES], start=1):
        following = saves[number] if number < len(saves) else watched.steps
        if following - step > 1:
            yield _step((step + following + 1) // 2, worker)
    if saves and saves[0] > 1:
        yield _step(saves[0] // 2 or 1, worker)
    if not saves:
        count = min(STEPS_MAX, watched.steps)
        for step in reversed(range(count)):
            yield replace(_step(1 + step * watched.steps // count, worker), about="at a step")
    if watched.steps:
        yield Point("last step", "the last step", (Kill(worker, "step", watched.steps),))
    yield Point("end", "the end", (Kill(worker, "end"),))


def _step(nth: int, worker: Worker) -> Point:
    return Point(f"step{nth}", "between saves", (Kill(worker, "step", nth),))


def _of_sizes(watched: Watched, between: int, sizes: Mapping[str, tuple[int, int]]) -> Iterator[Point]:
    """Yield the points after which a role has one replica less, and then as many as before."""
    for role, (least, usual) in sorted(sizes.items()):
        worker = min((worker for worker in watched.clean.attempts if worker.role == role), default=None)
        steps = len(watched.first(worker).steps) if worker is not None else 0
        if worker is None or not between or steps <= between or usual <= least:
            continue
        saves = [save.step for save in watched.saves if save.step > between]
        later = min(saves[0] + 1, steps) if saves else (between + steps + 1) // 2
        shrunk = Kill(worker, "step", between, size=usual - 1)
        name, about = f"{role}={usual - 1}@step{between}", "a world of another size"
        yield Point(name, about, (shrunk,))
        yield Point(f"{name},{role}={usual}@step{later}", about, (shrunk, Kill(worker, "step", later, size=usual)))


def _at_reads(killed: Run, between: int, first: Worker) -> Iterator[Point]:
    """Yield the points at which a restore opens its files, after a kill at step `between`."""
    for worker, attempts in sorted(killed.attempts.items()):
        restored = attempts[1].reads[: attempts[1].restored or None] if len(attempts) > 1 else []
        for nth, path in enumerate(restored, start=1):
            kills = (Kill(first, "step", between), Kill(worker, "read", nth))
            yield Point(f"restore:{worker}:read{nth}:{path}", "in a restore", kills)


def _twice(watched: Watched, before: Sequence[Point], worker: Worker) -> Iterator[Point]:
    """Yield points at which the job is killed twice in a row: in each save, at one step, and at two."""
    about = "twice in a row"
    for number in sorted({point.save for point in before}, reverse=True):
        of_save = [point for point in before if point.save == number]
        publishing = [point for point in of_save if point.kills[0].kind in ("rename", "link", "commit")]
        point = publishing[-1] if publishing else of_save[len(of_save) // 2]  # when most files are written
        kill = point.kills[0]
        again = kill if watched.steps else replace(kill, nth=1)  # without steps, the next such call
        yield Point(f"{point.name}:twice", about, (kill, again), number)
    yield Point("step1:twice", about, (Kill(worker, "step", 1), Kill(worker, "step", 1)))
    between = [point for point in _at_steps(watched, worker) if point.about == "between saves"]
    for one, other in pairwise(sorted(between, key=lambda point: point.kills[0].nth)):
        yield joined([one, other])


def _in_removals(watched: Watched) -> Iterator[Point]:
    """Yield the point at which two saves in a row are killed while each removes something old, if there is one.

    The restart goes on after such a save and does not remove the same again, so that the second kill is in the next
    one. A save that removes follows them: if it does not tidy up, nobody does.
    """
    saves = [(number, _first_removal(watched, save.places)) for number, save in enumerate(watched.saves, start=1)]
    removals = [(number, place) for number, place in saves if place is not None]
    for (number, one), (then, other), _ in zip(removals, removals[1:], removals[2:], strict=False):
        calls = watched.first(one.worker).calls
        is_alike = without_numbers(calls[one.at].path) == without_numbers(calls[other.at].path)
        if then == number + 1 and one.worker == other.worker and is_alike:
            both = [_point(save, place, calls, "before") for save, place in ((number, one), (then, other))]
            yield replace(joined(both), about="in the removals of two saves", save=number)
            return


def _first_removal(watched: Watched, places: Sequence[Place]) -> Place | None:
    return next((place for place in places if watched.first(place.worker).calls[place.at].kind == "unlink"), None)
