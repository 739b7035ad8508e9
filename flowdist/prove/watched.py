"""Knowledge of a script from runs without a fault: which files belong to a save, when it saves, what repeats itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from flowdist.prove.history import Attempt, Call, Run, Worker


class Names:
    """Names of paths that are the same in each run: parts that two runs have in common stay, others become `*`.

    Args:
        one: The paths of one run.
        other: Those of another run of the same script.
    """

    def __init__(self, one: Iterable[str], other: Iterable[str]) -> None:
        self._common = _parts(one) & _parts(other)

    def __call__(self, path: str) -> str:
        """Return the name of a path."""
        return "/".join(part if part in self._common else _any(part) for part in path.split("/"))


def _parts(paths: Iterable[str]) -> set[str]:
    return {part for path in paths for part in path.split("/")}


def _any(part: str) -> str:
    """Return a file's name with its changing beginning left out: `*.tmp`."""
    return "*" + "".join(suffix for suffix in PurePosixPath(part).suffixes if re.fullmatch(r"\.[a-zA-Z]{1,12}", suffix))


def keep_common(run: Run, other: Run) -> None:
    """Take out of a run what another one without a fault does not have.

    These are calls, where ranks race for a folder, and generators that nobody has seeded.
    """
    _keep_seeded(run, other)
    for worker, attempts in run.attempts.items():
        theirs = other.attempts.get(worker)
        left = Counter((call.kind, call.path) for call in theirs[0].calls) if theirs else Counter[tuple[str, str]]()
        kept = []
        for call in attempts[0].calls:
            if left[call.kind, call.path] > 0:
                left[call.kind, call.path] -= 1
                kept.append(call)
        attempts[0].calls = kept


def _keep_seeded(run: Run, other: Run) -> None:
    for worker, attempts in run.attempts.items():
        steps = attempts[0].steps
        theirs = other.attempts[worker][0].steps if worker in other.attempts else []
        changing = {
            name
            for step, again in zip(steps, theirs, strict=False)
            for name, state in step.random.items()
            if again.random.get(name) != state
        }
        if changing:
            attempts[0].steps = [
                msgspec.structs.replace(step, random={n: s for n, s in step.random.items() if n not in changing})
                for step in steps
            ]


def made_at_first(run: Run) -> frozenset[str]:
    """Return the folders that a run makes before its first step.

    If each run finds them, empty, a script that looks for its folder before its ranks part finds the same in a restart,
    and in the run after that: it need not be run anew up to its split each time.
    """
    calls = [call for attempts in run.attempts.values() for call in attempts[0].calls]
    return frozenset(call.path for call in calls if call.kind == "mkdir" and call.steps == 0)


def paths_of(run: Run) -> set[str]:
    """Return all paths that a run has changed."""
    calls = [call for attempts in run.attempts.values() for attempt in attempts for call in attempt.calls]
    return {path for call in calls for path in (call.path, call.target) if path}


class Roles(NamedTuple):
    """Roles of a job: those whose workers end (None: all), replicas of those without a gang, and of elastic ones.

    Of an elastic role these are the smallest number of replicas and the usual one.
    """

    tasks: frozenset[str] | None = None
    loners: Mapping[str, int] = MappingProxyType({})
    sizes: Mapping[str, tuple[int, int]] = MappingProxyType({})


ALL_END = Roles()  # a script: all of its workers end


class Place(NamedTuple):
    """A call of a save: the worker, and its place among the calls of its attempt."""

    worker: Worker
    at: int


@dataclass(frozen=True, slots=True)
class Save:
    """One save: after how many steps it began, and its calls."""

    step: int
    places: tuple[Place, ...]


@dataclass(slots=True)
class Watched:
    """Knowledge of a script from its runs without a fault, and from one that was killed between two saves.

    `saved` are the files and folders that a restart reads. Of a folder, all that is in it counts. Roles that are
    `stateless` have no gang and read none of it: each of their workers begins anew whenever it is started. `lag` is by
    how many steps a save is behind the step after which its calls come, as one in the background is.
    """

    clean: Run
    saved: frozenset[str]
    stateless: frozenset[str] = frozenset()
    saves: list[Save] = field(default_factory=list)
    lag: int = 0

    def __post_init__(self) -> None:
        self.saves = _saves(self.clean, self)

    def is_saved(self, path: str) -> bool:
        """Return whether a file belongs to what a restart reads."""
        return path in self.saved or any(str(parent) in self.saved for parent in PurePosixPath(path).parents)

    def changes_save(self, call: Call) -> bool:
        """Return whether a call changes what a restart reads."""
        return any(self.is_saved(path) for path in (call.path, call.target) if path)

    def first(self, worker: Worker) -> Attempt:
        """Return the attempt of a worker without a fault."""
        return self.clean.attempts[worker][0]

    def calls_behind(self, worker: Worker, begun: int) -> list[Call]:
        """Return the calls that a worker without a fault makes up to a step, with those of the saves of that step."""
        of_saves = {place for save in self.saves if save.step - self.lag <= begun for place in save.places}
        calls = self.first(worker).calls
        return [call for at, call in enumerate(calls) if call.steps <= begun or Place(worker, at) in of_saves]

    @property
    def steps(self) -> int:
        """Return how many steps the script takes."""
        return max((len(attempts[0].steps) for attempts in self.clean.attempts.values()), default=0)


def saved_files(clean: Run, killed: Run) -> frozenset[str]:
    """Return the files and folders that a restart reads, of those that a run writes.

    A folder that is listed, or from which a file is read, counts as a whole; a file beside the script counts alone.
    """
    written = paths_of(clean) | paths_of(killed)
    found: set[str] = set()
    for attempts in killed.attempts.values():
        for attempt in attempts[1:]:
            for path in [*attempt.reads, *attempt.looked]:
                if path in written:
                    parent = str(PurePosixPath(path).parent)
                    found.add(path if parent == "." else parent)
            for folder in attempt.listed:
                if folder != "." and any(each.startswith(folder + "/") for each in written):
                    found.add(folder)
    temporary = {
        call.path
        for attempts in clean.attempts.values()
        for call in attempts[0].calls
        if call.kind in ("rename", "link") and call.target in found
    }
    return frozenset(found | temporary)


def stateless_roles(killed: Run, saved: Watched, loners: Iterable[str]) -> frozenset[str]:
    """Return the roles without a gang of which no worker has read anything that was saved."""
    restarts = [(worker.role, each) for worker, attempts in killed.attempts.items() for each in attempts[1:]]
    reading = {role for role, each in restarts if any(map(saved.is_saved, [*each.reads, *each.looked]))}
    return frozenset(loners) - reading if reading else frozenset()


def _saves(clean: Run, watched: Watched) -> list[Save]:
    """Return the saves of a run: calls after the same number of steps, or of neighbouring ones, are one save."""
    by_step: dict[int, list[Place]] = {}
    for worker, attempts in clean.attempts.items():
        for index, call in enumerate(attempts[0].calls):
            if watched.changes_save(call):
                by_step.setdefault(call.steps, []).append(Place(worker, index))
    by_step.pop(0, None)  # folders are made before the first step
    saves: list[Save] = []
    last = None
    steps = sorted(by_step)
    merges = len(steps) < max(2, watched.steps) * 0.7  # else it saves at almost each step
    for step in steps:
        if merges and last is not None and step == last + 1:
            saves[-1] = Save(saves[-1].step, (*saves[-1].places, *by_step[step]))
        else:
            saves.append(Save(step, tuple(by_step[step])))
        last = step
    return saves
