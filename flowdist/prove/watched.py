"""Knowledge of a script from runs without a fault: which files belong to a save, when it saves, what repeats itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from flowdist.prove.calls import COMMIT
from flowdist.prove.history import Attempt, Call, Run, Worker, is_in


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
        for field_name in ("random", "own", "variables"):
            mine, again = ([getattr(step, field_name) for step in each] for each in (steps, theirs))
            left_out = _changing(zip(mine, again, strict=False))
            left_out |= _constant(mine) if field_name == "variables" else set()
            if left_out:
                states = [{name: state for name, state in each.items() if name not in left_out} for each in mine]
                steps = [
                    msgspec.structs.replace(s, **{field_name: state}) for s, state in zip(steps, states, strict=True)
                ]
        attempts[0].steps = steps


def _changing(pairs: Iterable[tuple[dict[str, str], dict[str, str]]]) -> set[str]:
    return {name for states, others in pairs for name, state in states.items() if others.get(name) != state}


def _constant(steps: list[dict[str, str]]) -> set[str]:
    """Return the variables that no step changes, such as one that says from which folder to go on."""
    return {name for each in steps for name in each if len({states.get(name) for states in steps}) == 1}


def made_at_first(run: Run) -> frozenset[str]:
    """Return the folders that a run makes before its first step.

    If each run finds them, empty, a script that looks for its folder before its ranks part finds the same in a restart,
    and in the run after that: it need not be run anew up to its split each time.
    """
    return frozenset(call.path for call in _calls(run) if call.kind == "mkdir" and call.steps == 0)


def paths_of(run: Run) -> set[str]:
    """Return all paths that a run has changed."""
    return {path for call in _calls(run) for path in (call.path, call.target) if path} | run.written


def _calls(run: Run) -> Iterator[Call]:
    return (call for attempts in run.attempts.values() for attempt in attempts for call in attempt.calls)


class Roles(NamedTuple):
    """Roles of a job: those whose workers end (None: all), replicas of those without a gang, and of elastic ones.

    Of an elastic role these are the smallest number of replicas and the usual one.
    """

    tasks: frozenset[str] | None = None
    loners: Mapping[str, int] = MappingProxyType({})
    sizes: Mapping[str, tuple[int, int]] = MappingProxyType({})


ALL_END = Roles()  # a script: all of its workers end


Turns = tuple[frozenset[str], ...]  # names of files, without numbers: those of one save, of the one after it, ...


class Place(NamedTuple):
    """A call of a save: the worker, and its place among the calls of its attempt."""

    worker: Worker
    at: int


@dataclass(frozen=True, slots=True)
class Save:
    """One save: after how many steps its calls began, and these calls.

    What is saved may be of an earlier step, if the calls come in the background, but not of one that the save before
    it may have. See `Watched.former`.
    """

    step: int
    places: tuple[Place, ...]


@dataclass(slots=True)
class Watched:
    """Knowledge of a script from its runs without a fault, and from one that was killed between two saves.

    `saved` are the files and folders that a restart reads. Of a folder, all that is in it counts; `read` are the files
    alone. Roles that are `stateless` have no gang and read none of it: each of their workers begins anew whenever it is
    started. `turns` are names of files that saves have in turns, see `turns_of`.
    """

    clean: Run
    saved: frozenset[str]
    read: frozenset[str] = frozenset()
    stateless: frozenset[str] = frozenset()
    turns: Turns = ()
    saves: list[Save] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.saves = _saves(self.clean, self)

    def is_saved(self, path: str) -> bool:
        """Return whether a file belongs to what a restart reads."""
        return is_in(path, self.saved)

    def changes_save(self, call: Call) -> bool:
        """Return whether a call changes what a restart reads."""
        return any(self.is_saved(path) for path in (call.path, call.target) if path)

    def first(self, worker: Worker) -> Attempt:
        """Return the attempt of a worker without a fault."""
        return self.clean.attempts[worker][0]

    def former(self, step: int) -> int:
        """Return the step of the last save before a step; 0 if there is none, and -1 for step 0."""
        return max((save.step for save in self.saves if save.step < step), default=0 if step else -1)

    def calls_behind(self, worker: Worker, begun: int) -> list[Call]:
        """Return the calls that a worker without a fault makes up to a step, with those of the saves of that step."""
        of_saves = {place for save in self.saves if self.former(save.step) < begun for place in save.places}
        calls = self.first(worker).calls
        return [call for at, call in enumerate(calls) if call.steps <= begun or Place(worker, at) in of_saves]

    @property
    def steps(self) -> int:
        """Return how many steps the script takes."""
        return max((len(attempts[0].steps) for attempts in self.clean.attempts.values()), default=0)


def files_read(killed: Run) -> frozenset[str]:
    """Return the files of the run that its restarts read."""
    return frozenset(path for attempts in killed.attempts.values() for each in attempts[1:] for path in each.reads)


def saved_files(clean: Run, killed: Run) -> frozenset[str]:
    """Return the files and folders that a restart reads, of those that a run writes.

    A folder that is listed or was renamed, or from which a file is read, counts as a whole; a file beside the script
    counts alone. So does all that differs from these by a number, such as the next save.
    """
    written = paths_of(clean) | paths_of(killed)
    moves = [call for run in (clean, killed) for call in _calls(run) if call.kind in ("rename", "link")]
    targets = {call.target for call in moves}
    found: set[str] = set()
    for attempt in (each for attempts in killed.attempts.values() for each in attempts[1:]):
        read = {*attempt.reads, *written.intersection(attempt.looked)}
        found |= {_whole(path, targets) for path in read}
        found |= {folder for folder in attempt.listed if any(path.startswith(f"{folder}/") for path in written)}
    names = set(map(without_numbers, found))
    found |= {path for path in written if without_numbers(path) in names}
    found |= {call.path for call in moves if call.target in found}
    return frozenset(path for path in found if not is_in(str(PurePosixPath(path).parent), found))


def _whole(path: str, renamed: set[str]) -> str:
    """Return the folder that a file belongs to: the outermost that was renamed, or else its own."""
    _, *folders = map(str, reversed(PurePosixPath(path).parents))
    return next((each for each in folders if each in renamed), folders[-1] if folders else path)


def turns_of(clean: Run, restarts: Mapping[int, Run]) -> Turns:
    """Return the files that take turns: `a.pt` has one save and `b.pt` the next, each whole by itself.

    A part of the save before it, or a best model, is written in the same way. But no restart begins with its step.

    Args:
        clean: A run without a fault.
        restarts: By step, a run whose restart began with it.
    """
    known, turns = set[str](), list[frozenset[str]]()
    for step, run in restarts.items():
        read = {without_numbers(str(each)) for path in files_read(run) for each in (path, *PurePosixPath(path).parents)}
        turns.append(opened_after(clean, step) & read - known)
        known |= read
    return tuple(filter(None, turns))


def opened_after(clean: Run, step: int) -> frozenset[str]:
    """Return the names, without numbers, of the files that are opened or renamed to after a step."""
    calls = [call for call in _calls(clean) if call.steps == step]
    paths = {path for call in calls for path in (call.path if call.kind == "open" else "", call.target)}
    return frozenset(map(without_numbers, paths - {""}))


def stateless_roles(killed: Run, saved: Watched, loners: Iterable[str]) -> frozenset[str]:
    """Return the roles without a gang of which no worker has read anything that was saved."""
    restarts = [(worker.role, each) for worker, attempts in killed.attempts.items() for each in attempts[1:]]
    reading = {role for role, each in restarts if any(map(saved.is_saved, [*each.reads, *each.looked]))}
    return frozenset(loners) - reading if reading else frozenset()


def _saves(clean: Run, watched: Watched) -> list[Save]:
    """Return the saves of a run: the calls after one step, with those after later ones that go on with the save."""
    by_step: dict[int, list[Place]] = {}
    for worker, attempts in clean.attempts.items():
        for index, call in enumerate(attempts[0].calls):
            if watched.changes_save(call):
                by_step.setdefault(call.steps, []).append(Place(worker, index))
    by_step.pop(0, None)  # folders are made before the first step
    parts = [_Part(step, by_step[step], watched) for step in sorted(by_step)]
    wanted = {without_numbers(path) for path in watched.read} & {name for part in parts for name in part.made}
    whole: list[_Part] = []
    for part in parts:
        if whole and part.goes_on(whole[-1], wanted, watched.turns):
            whole[-1].add(part)
        else:
            whole.append(part)
    return [Save(part.step, tuple(part.places)) for part in whole]


class _Part:
    """Calls of a save after one step, or several up to the `last`.

    `changed` are the files that they change, by worker, and `opened` those of them that they open. `brought` are names
    that they open, rename to or commit, and `made` names of all that is there afterwards. A name is a path without its
    numbers, which is the same in each save.
    """

    def __init__(self, step: int, places: list[Place], watched: Watched) -> None:
        self.step, self.last, self.places = step, step, places
        calls = [(place.worker, watched.first(place.worker).calls[place.at]) for place in places]
        self.changed = {(worker, call.path) for worker, call in calls}
        self.opened = {(worker, call.path) for worker, call in calls if call.kind == "open"}
        targets = {(worker, call.target) for worker, call in calls if call.target}
        commits = {(worker, f"{COMMIT} {call.path}") for worker, call in calls if call.kind == COMMIT}
        self.brought = {(worker, without_numbers(path)) for worker, path in self.opened | targets | commits}
        left = {(worker, call.path) for worker, call in calls if call.kind != "unlink"}
        self.made = {without_numbers(path) for _, path in left | targets}

    def add(self, other: _Part) -> None:
        """Add the calls of another part to this one."""
        self.last, self.places = other.last, [*self.places, *other.places]
        self.changed, self.opened = self.changed | other.changed, self.opened | other.opened
        self.brought, self.made = self.brought | other.brought, self.made | other.made

    def takes_turns(self, save: _Part, turns: Turns) -> bool:
        """Return whether this part has the files of one turn, and the save before it those of another."""
        of_each = ({name for _, name in each.brought} for each in (self, save))
        mine, theirs = ({turn for turn in turns if turn & names} for names in of_each)
        return bool(mine and theirs) and not mine & theirs

    def goes_on(self, save: _Part, wanted: set[str], turns: Turns) -> bool:
        """Return whether this part belongs to the save before it: `wanted` are names of what a restart reads.

        A save in the background writes its files while the script takes steps, and may name them, or remove old ones,
        several steps later. A new one brings the same names again; or it comes later than one step after, and makes
        something that is wanted, while the one before it lacks nothing of that and has nothing open.
        """
        if self.brought & save.brought or self.takes_turns(save, turns):
            return False
        is_next, is_open = self.step == save.last + 1, bool(self.changed & save.opened)
        return is_next or is_open or not self.made & wanted or not wanted <= save.made


def without_numbers(path: str) -> str:
    """Return a path that is the same for files that differ by a number, such as that of a step."""
    return re.sub(r"\d+", "0", path)
