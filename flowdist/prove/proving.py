"""A script proved: watched twice without a fault, killed at each of its points, and compared."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from flowdist.prove.chain import LONGEST, Queue, came, is_as_planned
from flowdist.prove.compare import ROUNDING, Ends, Finding, began_at, findings, reached_save, sums_differ
from flowdist.prove.contents import first_difference
from flowdist.prove.folder import CannotProve, Folder
from flowdist.prove.history import Call, Run, Step, Worker, is_in
from flowdist.prove.lane import Lane, StartAgain
from flowdist.prove.points import Kill, Point, points
from flowdist.prove.watched import (
    ALL_END,
    Names,
    Roles,
    Watched,
    files_read,
    keep_common,
    made_at_first,
    opened_after,
    paths_of,
    saved_files,
    stateless_roles,
    turns_of,
)
from flowdist.prove.worlds import of_worlds

AGAIN_MAX = 8  # times that the folder is made anew, because the script writes what was there
WITHIN_S = 300.0  # without anything that happens, in the first run, which may compile and download
WITHIN_LEAST_S, SLOWER = 20.0, 10  # in the others: at least so long, and so many times the whole first run


@dataclass(frozen=True, slots=True)
class Tried:
    """A point that was played, and what it has shown. `came` is False if the run ended before all of its kills."""

    point: Point
    findings: tuple[Finding, ...]
    seconds: float
    came: bool = True


@dataclass(slots=True)
class Proof:
    """Result of proving a script."""

    script: str
    workers: int
    watched: Watched
    points: list[Point]
    uneven: str = ""  # how two runs without a fault differ; empty: they do not
    coarse: str = ""  # why no call is stopped, so that no kill comes inside a save; empty: calls are
    left_alone: tuple[str, ...] = ()  # entries of the user's folder that each run begins without
    tried: list[Tried] = field(default_factory=list)
    unsteady: list[tuple[Point, Finding]] = field(default_factory=list)  # found once, and not when it was tried again
    rounds: bool = False  # gradients of a restart differ by the order in which they are summed up
    seed: int | None = None  # of the order of the points after the most telling ones
    skipped: int = 0  # points that the budget has left out
    seconds: float = 0.0

    @property
    def found(self) -> list[tuple[Tried, Finding]]:
        """Return each finding once, with the first point that has shown it."""
        known: dict[tuple[str, str], tuple[Tried, Finding]] = {}
        for tried in self.tried:
            for finding in tried.findings:
                known.setdefault((finding.kind, finding.place), (tried, finding))
        return list(known.values())

    def is_new(self, finding: Finding) -> bool:
        """Return whether no finding of this kind and place is known."""
        return all((finding.kind, finding.place) != (each.kind, each.place) for _, each in self.found)


class Prover:
    """A script that is proved.

    Args:
        command: The command of the job, which runs in the copy of the user's folder.
        script: The name of the script, as people call it.
        users: The user's folder.
        own: A folder for the runs.
        roles: What is known of the roles.
        role: The role whose workers are killed; None: those of all.
        power: Whether the machine loses its power at some points.
        within_s: Seconds without anything that happens after which a run hangs; None: by the first run.
        longest: How many points one run may have. See `chain`.
        tolerance: By how much of its value a loss may differ; 0: nothing may.
    """

    def __init__(
        self,
        command: list[str],
        script: str,
        users: Path,
        own: Path,
        *,
        roles: Roles = ALL_END,
        role: str | None = None,
        power: bool = False,
        within_s: float | None = None,
        longest: int = LONGEST,
        tolerance: float = 0.0,
    ) -> None:
        self._command, self._script, self._users, self._own = command, script, users, own
        self._roles, self._role, self._power = roles, role, power
        self._longest, self._tolerance = longest, tolerance
        self._lanes: list[Lane] = []
        self._left_out: set[str] = set()
        self._ready_made: frozenset[str] = frozenset()
        self._name_of: Callable[[str], str] = str
        self._changing: frozenset[str] = frozenset()  # files that differ between two runs without a fault
        self._within_s, self._is_given = within_s or WITHIN_S, within_s is not None

    def close(self) -> None:
        """End all jobs."""
        for lane in self._lanes:
            lane.close()

    def watch(self, seen: Callable[[str], None] = lambda text: None) -> Proof:
        """Run the script twice without a fault and once with a kill between two saves; return its points.

        Args:
            seen: Is called with what is done next, in words.

        Raises:
            CannotProve: The script does not run without a fault.
        """
        seen("a run without a fault")
        clean, lane = self._first_run()
        if not self._is_given:
            self._within_s = max(WITHIN_LEAST_S, SLOWER * clean.seconds)
        lane.folder.keep(self._own / "kept")
        seen("another one, to see what repeats itself")
        other = self._again(lane, clean)
        lane.folder.keep(self._own / "again")
        lane.name_of = self._name_of = Names(paths_of(clean), paths_of(other))
        for run in (clean, other):
            _rename(run, self._name_of)
        keep_common(clean, other)
        between = _between(clean)
        seen(f"one that is killed at step {between}, to see what a restart reads")
        first = min(
            worker for worker in clean.attempts if self._roles.tasks is None or worker.role in self._roles.tasks
        )
        kill = Kill(first, "step", between) if between else Kill(first, "end")
        killed = lane.play([kill], within_s=self._within_s)
        watched = self._with_turns(Watched(clean, saved_files(clean, killed), files_read(killed)), killed, first, seen)
        watched.stateless = stateless_roles(killed, watched, self._roles.loners)
        self._changing = frozenset(self._ends(watched, _files(self._own / "again"), lane).differ)
        found = points(watched, killed, between, first, power=self._power, sizes=self._roles.sizes)
        if self._role is not None:
            found = [point for point in found if all(kill.worker.role == self._role for kill in point.kills)]
        if not watched.steps and not watched.saves:
            help = "call flowdist.worker.progress(step) if it takes steps without an optimizer of torch"
            raise CannotProve("the script takes no step, and saves nothing that a restart reads", help=help)
        if lane.coarse and self._power:
            raise CannotProve(f"--power needs to see what a script writes: {lane.coarse}", help="leave it out")
        proof = Proof(self._script, len(clean.attempts), watched, found, _first_unequal(clean, other))
        proof.coarse = lane.coarse
        proof.left_alone = tuple(sorted(self._left_out))
        return proof

    def _with_turns(self, watched: Watched, killed: Run, first: Worker, seen: Callable[[str], None]) -> Watched:
        """Return what is known of the script, with the files that take turns.

        They are looked for where something is written under a name that nothing had before: it was not there when the
        first restart read.
        """
        clean, lane, apart = watched.clean, self._lanes[0], _apart(watched.clean)
        if not watched.saves:
            return watched
        restarts, known, saved = {apart[0]: killed}, opened_after(clean, apart[0]), watched.saved
        for one, other, kill in zip(apart, apart[1:], [*apart[2:], watched.steps], strict=False):
            if other < kill and not opened_after(clean, other) <= known:
                seen(f"one killed at step {kill}, to see whether a restart reads what is written after step {other}")
                run = lane.play([Kill(first, "step", kill)], within_s=self._within_s)
                saved |= saved_files(clean, run)
                if one < _began(clean, run, one) <= other:
                    restarts[other] = run
            known |= opened_after(clean, other)
        read = watched.read.union(*map(files_read, restarts.values()))
        return Watched(clean, saved, read, turns=turns_of(clean, restarts))

    def _again(self, lane: Lane, clean: Run) -> Run:
        """Run the script once more without a fault, with the folders that it makes first made, if it bears that."""
        of_prefix = lane.folder.ready_made
        lane.folder.ready_made |= made_at_first(clean)
        other = lane.play(within_s=self._within_s)
        if _failed(other) and lane.folder.ready_made != of_prefix:
            lane.folder.ready_made = of_prefix
            other = lane.play(within_s=self._within_s)
        self._ready_made = lane.folder.ready_made
        return _checked(lane, other)

    def _first_run(self) -> tuple[Run, Lane]:
        """Run the script without a fault, in a copy of its folder without the results of earlier trainings."""
        run, lane = self._begun()
        every = [each for attempts in run.attempts.values() for each in attempts]
        read = [path for each in every for path in (*each.opened, *each.looked, *each.listed)]
        suspects = sorted(lane.folder.results(read))[:AGAIN_MAX]
        results = self._results(suspects)
        if results is None and len(suspects) > 1:
            results = {name for name in suspects if self._results([name])}
        if results:
            self._left_out |= results
            self._end(lane)
            run, lane = self._begun()
        return _checked(lane, run), lane

    def _begun(self) -> tuple[Run, Lane]:
        """Run the script in a copy of its folder without what it writes, which is known only when it has written."""
        for _ in range(AGAIN_MAX):
            lane = self._lane()
            try:
                return lane.play(within_s=self._within_s), lane
            except StartAgain:
                self._left_out |= lane.folder.left_out
                self._end(lane)
        names = ", ".join(sorted(self._left_out))
        raise CannotProve(f"the script writes too much of what its folder has already: {names}")

    def _results(self, suspects: list[str]) -> set[str] | None:
        """Return which of these entries the script writes after a step, if it runs without them; None if it does not.

        What it reads and writes is the result of an earlier training, from which no run may go on.
        """
        if not suspects:
            return set()
        lane = self._lane(*suspects)
        try:
            run = lane.play(within_s=self._within_s)
        except StartAgain:
            return None
        finally:
            self._end(lane)
        if _failed(run):
            return None
        calls = [call for attempts in run.attempts.values() for call in attempts[0].calls]
        last = max((call.steps for call in calls), default=0)
        paths = {path for call in calls if call.steps or not last for path in (call.path, call.target)}
        return {name for name in suspects if any(is_in(path, {name}) for path in paths)}

    def _end(self, lane: Lane) -> None:
        lane.close()
        self._lanes.remove(lane)

    def _lane(self, *without: str) -> Lane:
        """Return a new lane, with a folder of its own, which lacks these entries of the user's."""
        own = Path(tempfile.mkdtemp(prefix="lane", dir=self._own))
        folder = Folder(self._users, own / "folder", self._own, {*self._left_out, *without})
        folder.make()
        folder.ready_made = self._ready_made
        folder.reset()
        lane = Lane(self._command, folder, own, self._roles)
        lane.name_of = self._name_of
        self._lanes.append(lane)
        return lane

    def play(
        self, proof: Proof, chosen: Sequence[Point], goes_on: Callable[[Tried | None], bool], *, lanes: int = 1
    ) -> None:
        """Play points, and add them to the proof. What is found is played again, to be sure.

        Args:
            proof: The proof.
            chosen: The points, in the order in which they begin.
            goes_on: Is asked before the first point, and after each with what it has shown; False ends it.
            lanes: How many points are played at once.
        """
        began, lock = time.monotonic(), threading.Lock()
        queue = Queue(proof.watched, chosen, 1 if proof.uneven or self._tolerance else self._longest)
        is_on = goes_on(None)

        def play_on(lane: Lane | None) -> None:
            nonlocal is_on
            own = lane or self._lane()  # of this thread, with which its job would end
            if proof.watched.steps:
                own.behind = lambda run, worker: _behind(proof.watched, run, worker)
            try:
                while True:
                    with lock:
                        chain = queue.take() if is_on else []
                    if not chain:
                        return
                    played, shown, unsteady = self._played(own, proof, chain)
                    with lock:
                        queue.note(chain, len(played), shown)
                        proof.unsteady += unsteady
                        for tried in played:
                            proof.tried.append(tried)
                            is_on = goes_on(tried) and is_on
            finally:
                if lane is None:
                    self._end(own)

        with ThreadPoolExecutor() as pool:
            others = [pool.submit(play_on, None) for _ in range(min(lanes, len(chosen)) - 1)]
            try:
                play_on(self._lanes[0])
                for other in others:
                    other.result()
            finally:
                proof.skipped = len(queue.left)
                is_on = False  # if it is interrupted, or a lane fails, the others end with the points that they play
        proof.tried.sort(key=lambda tried: queue.place(tried.point))  # not as the lanes were done with them
        proof.seconds += time.monotonic() - began

    def _played(
        self, lane: Lane, proof: Proof, chain: list[Point]
    ) -> tuple[list[Tried], set[str], list[tuple[Point, Finding]]]:
        """Play points in one run; return those that have come, the kinds of what it shows, and what it shows only once.

        If a run of several shows anything, none of them counts.
        """
        if len(chain) == 1:
            tried, unsteady = self._sure(lane, proof, chain[0])
            return [tried], {finding.kind for finding in tried.findings}, unsteady
        run = self._run(lane, [kill for point in chain for kill in point.kills])
        shown = {finding.kind for finding in findings(proof.watched, run, chain[0], self._ends_of(lane, proof, run))}
        if shown or not is_as_planned(proof.watched, run):
            return [], shown, []
        return [Tried(point, (), run.seconds / len(chain)) for point in came(chain, run.kills)], shown, []

    def _sure(self, lane: Lane, proof: Proof, point: Point) -> tuple[Tried, list[tuple[Point, Finding]]]:
        """Play a point, and again if something new is found; return what was found twice, and what only once."""
        tried = self._tried(lane, proof, point)
        if not any(proof.is_new(finding) for finding in tried.findings):
            return tried, []
        again = {finding.kind for finding in self._tried(lane, proof, point).findings}
        once = [(point, finding) for finding in tried.findings if finding.kind not in again]
        return replace(tried, findings=tuple(each for each in tried.findings if each.kind in again)), once

    def _tried(self, lane: Lane, proof: Proof, point: Point) -> Tried:
        """Play a point once, in a run of its own."""
        run = self._run(lane, point.kills)
        ends = self._ends_of(lane, proof, run)
        tolerance = None if proof.uneven else self._tolerance
        if tolerance == 0 and sums_differ(proof.watched, run):
            proof.rounds, tolerance = True, ROUNDING
        shown = findings(proof.watched, run, point, ends, tolerance) if run.kills else []
        if run.outcome == "ended" and any(kill.size for kill in point.kills[: run.kills]):
            shown = of_worlds(proof.watched, run)
        return Tried(point, tuple(shown), run.seconds, run.kills == len(point.kills))

    def _run(self, lane: Lane, kills: Sequence[Kill]) -> Run:
        """Run the script once with these kills."""
        try:
            return lane.play(kills, within_s=self._within_s)
        except StartAgain:
            names = ", ".join(sorted(lane.folder.left_out - self._left_out))
            raise CannotProve(f"after a kill the script writes {names}, which your folder has already") from None

    def _ends_of(self, lane: Lane, proof: Proof, run: Run) -> Ends:
        return self._ends(proof.watched, lane.folder.files(), lane) if run.outcome == "ended" else Ends({})

    def _ends(self, watched: Watched, files: Mapping[str, Path], lane: Lane) -> Ends:
        """Compare what a run has left, of what a restart reads, with what the run without a fault has."""
        kept = _files(self._own / "kept")
        homes = f"{self._lanes[0].folder.path}/", f"{lane.folder.path}/"
        now = {name: path for name, path in files.items() if watched.is_saved(self._name_of(name))}
        differ: dict[str, str] = {}
        for name, path in kept.items():
            if self._name_of(name) != name or not watched.is_saved(name) or name in self._changing:
                continue
            if name not in now:
                differ[name] = "it is missing"
            elif entry := first_difference(path, now[name], homes):
                differ[name] = f"{entry} differs"
        return Ends(differ, too_many(now, self._own / "kept"))


def too_many(files: Iterable[str], kept: Path) -> tuple[str, ...]:
    """Return which of these files the run without a fault has not left: a folder stands for all that is in it.

    Args:
        files: Paths of files, relative to the folder of a run.
        kept: A copy of what the run without a fault has left.
    """
    ways = ([*reversed(PurePosixPath(name).parents), PurePosixPath(name)] for name in files)
    new = (next((str(each) for each in way if not (kept / each).exists()), "") for way in ways)
    return tuple(sorted({*new} - {""}))


def _behind(watched: Watched, run: Run, worker: Worker) -> tuple[int, list[Call]]:
    """Return how many steps the last attempt of a worker has behind it, at its first one, and the calls until then."""
    clean, attempts = watched.clean.attempts.get(worker), run.attempts[worker]
    if not clean:
        return 0, attempts[-1].calls
    if not clean[0].steps:  # a server has those of its job
        return 0, watched.calls_behind(worker, max(each[-1].begun for each in run.attempts.values()))
    begun = began_at(clean[0].steps, attempts[-1].steps, reached_save(watched, run, len(attempts) - 2))
    return begun, watched.calls_behind(worker, begun)


def _checked(lane: Lane, run: Run) -> Run:
    """Return a run without a fault; raise CannotProve if it did not end well."""
    if run.outcome == "hung":
        raise CannotProve(f"without any fault, the script hangs, and waits for {run.waits}:\n{lane.output}")
    if _failed(run):
        raise CannotProve(f"without any fault, the script fails: {run.error}\n{lane.output}")
    return run


def _failed(run: Run) -> bool:
    return run.outcome != "ended" or any(len(attempts) > 1 for attempts in run.attempts.values())


def _files(folder: Path) -> dict[str, Path]:
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}


def _rename(run: Run, name_of: Callable[[str], str]) -> None:
    run.written = set(map(name_of, run.written))
    for attempts in run.attempts.values():
        for attempt in attempts:
            attempt.calls = [call.named(name_of) for call in attempt.calls]


def _between(clean: Run) -> int:
    """Return a step between the first two steps after which files were written; 0 if the script takes no steps."""
    total = max((len(attempts[0].steps) for attempts in clean.attempts.values()), default=0)
    apart = _apart(clean)
    if len(apart) > 1:
        return apart[1]
    return min(total, ((apart[0] if apart else 0) + total + 1) // 2)


def _apart(clean: Run) -> list[int]:
    """Return the steps after which files were written, without those that follow such a step at once."""
    steps = sorted({call.steps for attempts in clean.attempts.values() for call in attempts[0].calls} - {0})
    return [step for at, step in enumerate(steps) if at == 0 or step > steps[at - 1] + 1]


def _began(clean: Run, run: Run, expected: int) -> int:
    """Return the step with which the restart of a run has begun; 0 if it takes none."""
    pairs = [(clean.attempts[worker][0].steps, each[-1].steps) for worker, each in run.attempts.items() if each[1:]]
    return max((began_at(steps, again, expected) for steps, again in pairs if steps and again), default=0)


def _first_unequal(one: Run, other: Run) -> str:
    """Return the first thing by which two runs without a fault differ; empty if they are equal."""
    for worker, attempts in sorted(one.attempts.items()):
        steps, others = attempts[0].steps, other.attempts[worker][0].steps if worker in other.attempts else []
        if len(steps) != len(others):
            return f"rank {worker.rank} takes {len(steps)} steps and {len(others)}"
        for number, (step, again) in enumerate(zip(steps, others, strict=True), start=1):
            if what := _unequal(step, again):
                return f"{what} of rank {worker.rank} at step {number}"
    return ""


def _unequal(step: Step, again: Step) -> str:
    named = {
        "weights": "the weights before the first operation",
        "samples": "the samples",
        "losses": "the loss",
        "gradients": "the gradients",
        "rates": "the learning rate",
    }
    return next((text for name, text in named.items() if getattr(step, name) != getattr(again, name)), "")
