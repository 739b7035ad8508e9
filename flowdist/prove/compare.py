"""Comparison of a run with a kill with the run without: each difference is a finding, named by its cause.

A restart begins at the step whose weights it has: that is looked up in the run without a kill, step by step. From there
on both must use the same samples and have the same losses, learning rates and weights. Where they do not, what the
first differing step began from says why.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import msgspec

from flowdist.prove.history import Attempt, Run, Step, count
from flowdist.prove.points import Point
from flowdist.prove.watched import Watched

SHOWN = 4  # ranges of samples that are named
SAFE_SUM = 2  # numbers whose sum does not depend on their order
ROUNDING = 1e-3  # by which losses may differ if it does

HELP = {
    "torn save": "write to a temporary name, os.fsync, then os.replace; or worker.commit(path)",
    "no resume": "load the last complete checkpoint when the script starts, and all that is in it",
    "lost save": "remove the old checkpoint only when the new one is complete; resume from the newest complete one, by "
    "its number",
    "hang": "every rank has to take the same way after a restart",
    "error": "a restart has to work with whatever a kill leaves",
    "weights": "save and load the state of the model with the step that it belongs to",
    "optimizer": "save and load optimizer.state_dict()",
    "schedule": "save and load scheduler.state_dict(), and what its steps are given",
    "scaler": "save and load scaler.state_dict()",
    "data again": "save the position in the data, and skip what is done; torchdata's StatefulDataLoader does",
    "random numbers": "save and load the state of that generator, of each rank (a DataLoader draws from torch's when "
    "it begins, unless it has its own)",
    "steps": "save how many steps are done, and go on with the next one",
    "server state": "have the server save and load this value, and go back with its trainers to one and the same save",
    "losses": "save and load everything that a step uses: modes, buffers, generators of your own",
    "the end": "save and load this value with the rest",
    "leftovers": "use one fixed temporary name, or remove what an earlier attempt has left",
}


class Finding(NamedTuple):
    """Something that a kill changes: its kind, what it is in words, and the line of the script that has to do with it.

    `step` is the first step that differs, from 1; 0: none does.
    """

    kind: str
    text: str
    place: str = ""
    step: int = 0

    @property
    def help(self) -> str:
        """Return what a person would write instead."""
        return HELP[self.kind]


@dataclass(frozen=True, slots=True)
class Ends:
    """Files that a run has left: by name how each differs from the run without a kill, in words; and those too many.

    A folder that is one too many stands for all that is in it.
    """

    differ: dict[str, str]
    extra: tuple[str, ...] = ()


def findings(watched: Watched, run: Run, point: Point, ends: Ends, tolerance: float | None = 0.0) -> list[Finding]:
    """Return what a run with a kill shows, the cause first.

    Args:
        watched: What the runs without a fault have shown.
        run: The run with the kills of `point`.
        point: Which kills these were.
        ends: What it has left.
        tolerance: By how much of its value a loss may differ; 0: nothing may, and gradients and saved files neither;
            None: values are not compared, as two runs without a fault were not equal.
    """
    if run.outcome != "ended":
        return [_not_ended(watched, run, point)]
    count = max(map(len, run.attempts.values()), default=0)
    reached = list(accumulate((reached_save(watched, run, at) for at in range(count)), max))
    found: list[Finding] = []
    for worker, attempts in sorted(run.attempts.items()):
        is_known = worker in watched.clean.attempts and worker.role not in watched.stateless
        if is_known and len(attempts) > 1:
            clean = watched.first(worker).steps
            found += _of_worker(watched, run, attempts, clean, reached, tolerance)
    if not found and tolerance == 0 and ends.differ:
        found += _at_end(watched, run, ends, reached)
    if len(point.kills) > 1 and point.save and len(ends.extra) >= len(point.kills):
        files = ", ".join(ends.extra[:SHOWN])
        path = PurePosixPath(point.kills[0].path)
        place = run.place(*(f"write {each}" for each in (path, *path.parents)), *run.reads())
        found.append(Finding("leftovers", f"each kill leaves a file for good: {files}", place))
    return _merged(found)


def _at_end(watched: Watched, run: Run, ends: Ends, reached: list[int]) -> Iterator[Finding]:
    """Yield the entries of saved files that differ, with what a restart had in other ways."""
    kind, more = "the end", ""
    for worker, attempts in sorted(run.attempts.items()):
        clean = watched.first(worker).steps if worker in watched.clean.attempts and attempts[1:] else []
        if clean and (steps := attempts[-1].steps) and not more:
            begun = began_at(clean, steps, reached[len(attempts) - 2])
            alike = [step.schedule == other.schedule for step, other in zip(steps, clean[begun:], strict=False)]
            if alike[0] and not all(alike):
                kind = "schedule"
                more = f"; the state of a schedule differs from step {begun + 1 + alike.index(False)} on"
            more += _in_words(_other_values(clean[begun], steps[0]))
    for name, how in ends.differ.items():
        yield Finding(kind, f"{name}: {how} at the end{more}", run.place(f"write {name}", *run.reads()))


def _merged(found: Sequence[Finding]) -> list[Finding]:
    """Return the findings without those that others of the same kind say for another rank."""
    kinds: dict[str, Finding] = {}
    for finding in found:
        kinds.setdefault(finding.kind, finding)
    if len(kinds) > 1:
        kinds.pop("losses", None)  # what differs on one rank comes to all by its gradients
    return list(kinds.values())


def _not_ended(watched: Watched, run: Run, point: Point) -> Finding:
    kill = point.kills[0]
    place = run.place(f"write {kill.path}", *run.reads())
    if run.outcome == "hung":
        return Finding("hang", f"the job hangs after the restart, and waits for {run.waits}", place)
    error = run.error or "a worker ends by itself"
    if kill.on == "call" and watched.is_saved(kill.path):
        return Finding("torn save", f"the job cannot resume: {error}", place)
    return Finding("error", f"the job cannot resume: {error}", run.place("error") or place)


def reached_save(watched: Watched, run: Run, at: int = 0) -> int:
    """Return the step of the last save that was certainly complete when the attempts `at` were killed; 0: none was.

    Folders that are made complete nothing: which rank makes one is chance.
    """
    reached = 0
    for save in watched.saves:
        for place in save.places:
            attempts = run.attempts.get(place.worker)
            if not attempts:
                return reached
            attempt = attempts[min(at, len(attempts) - 1)]
            clean = watched.first(place.worker).calls[: place.at + 1]
            wanted, done = (
                count(calls, clean[-1].kind, clean[-1].path) for calls in (clean, attempt.calls[: attempt.done])
            )
            if done < wanted and clean[-1].kind != "mkdir":
                return reached
        reached = save.step
    return reached


def _of_worker(
    watched: Watched, run: Run, attempts: list[Attempt], clean: list[Step], reached: list[int], tolerance: float | None
) -> list[Finding]:
    """Return what the attempts of one worker show after the first kill."""
    last = attempts[-1]
    if not clean or not any(each.steps for each in attempts):
        return []
    found: list[Finding] = []
    done = len(attempts[0].steps)
    for at, attempt in enumerate(attempts[1:]):
        if attempt.steps and not found:  # what comes of a difference is none
            begun = began_at(clean, attempt.steps, reached[at])
            found += _of_attempt(watched, run, attempt.steps, clean, begun, reached[at], tolerance)
            if found and (gone := removed(watched, run, at, begun)):
                found = [_of_remains(run, begun, gone, found[0])]
            done = begun + len(attempt.steps)
    if found or done == len(clean):
        return found
    text = f"it takes {done} steps in all, and {len(clean)} without a kill"
    if not last.steps:
        text = f"the job ends after step {done} of {len(clean)}"
    return [Finding("steps", text, run.restore(), min(done, len(clean)) + 1)]


def _of_attempt(
    watched: Watched, run: Run, steps: list[Step], clean: list[Step], begun: int, reached: int, tolerance: float | None
) -> list[Finding]:
    """Return what an attempt shows that has begun after step `begun`, while the save of step `reached` is complete."""
    found: list[Finding] = []
    if begun == 0 and not watched.saved:
        last = len(next(each.steps for attempts in run.attempts.values() for each in attempts if each.steps))
        text = f"it begins anew after step {last}: a restart reads nothing that the script has written"
        found.append(Finding("no resume", text, run.place("step"), 1))
    if begun <= watched.former(reached):
        found.append(lost_save(run, begun, reached))
    if _begins_anew(clean, steps, begun):
        text = f"it begins anew with the weights of step {begun}: all {len(clean)} steps are taken again"
        found.append(Finding("no resume", text, run.restore(), begun + 1))
    elif tolerance is not None:
        if difference := _difference(clean, steps, begun, run, tolerance):
            found.append(difference)
    elif again := _samples(clean, steps, begun):
        text = f"after a resume at step {begun}, {again}"
        found.append(Finding("data again", text, run.place("loader", "step"), begun + 1))
    return found


def _begins_anew(clean: Sequence[Step], steps: Sequence[Step], begun: int) -> bool:
    """Return whether an attempt takes all steps, and has all but its weights as the first one of them has it."""
    others = ("optimizer", "count", "rates", "scale", "samples")
    has_weights = steps[0].weights == clean[begun].weights != clean[0].weights
    is_whole = len(steps) >= len(clean)
    return is_whole and has_weights and all(getattr(steps[0], name) == getattr(clean[0], name) for name in others)


def removed(watched: Watched, run: Run, at: int, begun: int) -> list[str]:
    """Return files of the save that has step `begun` which the attempts `at` had removed when they were killed."""
    save = next((save for save in watched.saves if watched.former(save.step) < begun <= save.step), None)
    if save is None:
        return []
    own = [watched.first(place.worker).calls[place.at] for place in save.places]
    attempts = [each[min(at, len(each) - 1)] for each in run.attempts.values()]
    later = [call for each in attempts for call in each.calls[: each.done] if call.steps > max(c.steps for c in own)]
    made, again = ({call.target or call.path for call in calls if call.kind != "unlink"} for calls in (own, later))
    return sorted(made & {call.path for call in later if call.kind == "unlink"} - again)


def _of_remains(run: Run, begun: int, gone: list[str], finding: Finding) -> Finding:
    """Return a finding for a restart that has taken what was left of a save, some files of which are removed."""
    text = f"a part of the save of step {begun} was removed before the next one was complete, and it goes on with the "
    text += f"rest: {', '.join(gone[:SHOWN])}; {finding.text}"
    return Finding("lost save", text, run.place(*(f"write {name}" for name in gone)) or finding.place, finding.step)


def lost_save(run: Run, begun: int, reached: int) -> Finding:
    """Return the finding for a restart that has not found the last complete save."""
    text = f"it goes on with step {begun + 1}, although the save of step {reached} was complete"
    return Finding("lost save", text, run.restore(), begun + 1)


def began_at(clean: Sequence[Step], steps: Sequence[Step], expected: int) -> int:
    """Return how many steps of the run without a kill an attempt has behind it when it begins.

    It is the step that is most like the first one of the attempt: weights weigh most, or else generators, then the
    optimizer's state and the samples. A later step wins against the first one, which is like everything that was not
    restored. Of several the one that is next to the `expected` one. Generators that nobody seeds are not compared: the
    run without a kill lacks them.
    """
    start = clean[0]

    def likeness(at: int) -> tuple[bool, int, int]:
        step = clean[at]
        seeded = {name: state for name, state in steps[0].random.items() if name in step.random}
        first = msgspec.structs.replace(steps[0], random=seeded)
        is_restored = any(
            getattr(first, name) == getattr(step, name) != getattr(start, name)
            for name in ("weights", "optimizer", "count", "random")
        )
        alike = 3 * (step.weights == first.weights) + 2 * (step.optimizer == first.optimizer)
        alike += 2 * (bool(step.samples) and step.samples == first.samples) + (step.rates == first.rates)
        alike += 2 * (step.count is not None and step.count == first.count) + (1 if step.weights else 3) * (
            step.random == first.random
        )
        return is_restored, alike, -abs(at - expected)

    return max(range(len(clean)), key=likeness)


def _difference(clean: Sequence[Step], steps: Sequence[Step], begun: int, run: Run, tolerance: float) -> Finding | None:
    """Return the first step that differs from the run without a kill, by its cause."""
    again = _samples(clean, steps, begun)
    causes = _causes(clean[begun], steps[0])
    for offset, (step, other) in enumerate(zip(steps, clean[begun:], strict=False)):
        is_same = _same_losses(step, other, tolerance, is_first=offset == 0)
        if again or not is_same or _outcome(step, tolerance) != _outcome(other, tolerance):
            return _named(clean, steps, begun, begun + offset + 1, causes or _causes(other, step), again, run)
    return None


def sums_differ(watched: Watched, run: Run) -> bool:
    """Return whether the first step of a restart differs in its gradients alone, in a world of three ranks or more.

    DDP sums up gradients in another order in its first step than in those that follow, and so does a restart.
    """
    for worker, attempts in run.attempts.items():
        clean = watched.first(worker).steps if worker in watched.clean.attempts else []
        for attempt in attempts[1:] if clean and len(run.attempts) > SAFE_SUM else []:
            if attempt.steps:
                step = attempt.steps[0]
                same = clean[began_at(clean, attempt.steps, attempt.begun)]
                alike = not _causes(same, step) and _same_losses(step, same, is_first=True)
                if alike and step.gradients != same.gradients:
                    return True
    return False


def _same_losses(step: Step, clean: Step, tolerance: float = 0.0, *, is_first: bool) -> bool:
    """Return whether a step has the losses of the run without a kill.

    The first one of an attempt may lack some: of steps that a gradient scaler has skipped, or of a validation.
    """
    ours, theirs = step.losses, clean.losses
    count = min(len(ours), len(theirs))
    if is_first:
        ours, theirs = ours[len(ours) - count :], theirs[len(theirs) - count :]
    return len(ours) == len(theirs) and all(_is_same(*pair, tolerance) for pair in zip(ours, theirs, strict=True))


def _is_same(loss: str, clean: str, tolerance: float) -> bool:
    if loss == clean or not tolerance:
        return loss == clean
    try:
        return math.isclose(float(loss), float(clean), rel_tol=tolerance)
    except ValueError:
        return False  # a digest


def _outcome(step: Step, tolerance: float) -> tuple[object, ...]:
    return (step.rates, step.scale) + (() if tolerance else (step.gradients, step.weights))


def _causes(clean: Step, step: Step) -> list[str]:
    """Return what a step begins from that differs, by the kinds of findings, the cause of others first."""
    names = {"weights": "weights", "optimizer": "optimizer", "rates": "schedule", "scale": "scaler"}
    found = [kind for name, kind in names.items() if getattr(clean, name) != getattr(step, name)]
    return found + ["random numbers"] * bool(_generators(clean, step))


def _generators(clean: Step, step: Step) -> list[str]:
    """Return the generators that are not where they were.

    A variable that the script has not made yet, or makes no more, says nothing of its generator.
    """
    of_modules = [name for name, state in clean.random.items() if step.random.get(name) != state]
    return of_modules + [name for name, state in clean.own.items() if step.own.get(name, state) != state]


def _other_values(clean: Step, step: Step) -> dict[str, tuple[str, str]]:
    """Return what variables have now and had then, of those that a step begins with in other ways."""
    pairs = {name: (step.variables.get(name, then), then) for name, then in clean.variables.items()}
    return {name: (now, then) for name, (now, then) in pairs.items() if now != then}


def _in_words(values: dict[str, tuple[str, str]]) -> str:
    words = []
    for name, (now, then) in values.items():
        is_number = now[0] == then[0] == "="
        words.append(f"{name} ({_short(now, then)}, not {_short(then, now)})" if is_number else name)
    return f"; other values: {', '.join(words[:SHOWN])}" if words else ""


def _short(number: str, other: str) -> str:
    """Return a number, `=0.5`, with six digits, unless the other one has the same."""
    short, other_short = (f"{float(each[1:]):.6g}" if "." in each else each[1:] for each in (number, other))
    return short if short != other_short else number[1:]


def _named(
    clean: Sequence[Step], steps: Sequence[Step], begun: int, step: int, causes: list[str], again: str, run: Run
) -> Finding:
    """Return the finding for the first step that differs. `again` are samples that are used again, in words."""
    since = f"after a resume at step {begun}"
    if again and causes in ([], ["random numbers"]):
        return Finding("data again", f"{since}, {again}", run.place("loader", "step"), begun + 1)
    kind, *others = causes or ["losses"]
    more = f"; the same holds of: {', '.join(others)}" if others else ""
    total = begun + len(steps)
    if kind == "losses":
        values = _other_values(clean[begun], steps[0])
        if names := [name for name in values if " of " in name]:
            text = f"{since}, a server does not have what step {begun} has left: {', '.join(names[:SHOWN])}"
            place = run.place(*run.opened_by(names[0].rpartition(" of ")[2])) or run.restore()
            return Finding("server state", text, place, step)
        more = _in_words(values)
        numbers = [(now[1:], then[1:]) for now, then in values.values() if now[0] == then[0] == "="]
        behind = [int(then) - int(now) for now, then in numbers if then.isdigit() and now.isdigit()]
        kind = "steps" if total - len(clean) in behind else kind
    now, then = steps[step - begun - 1], clean[step - 1]
    generators = ", ".join(_generators(clean[begun], steps[0]) or _generators(then, now))
    drawn = f"the generator of {generators} is not where it was"
    text = {
        "weights": f"{since}, the weights are not those that step {begun} has left",
        "optimizer": f"{since}, the optimizer's state is not the one that step {begun} has left",
        "schedule": f"{since}, the learning rate of step {step} is {_rates(now)}, not {_rates(then)}",
        "scaler": f"{since}, the scale of the gradients is {now.scale}, not {then.scale}",
        "random numbers": f"{since}, {drawn}; values differ from step {step} on",
        "losses": f"{since}, losses or gradients differ from step {step} on, with the same weights and samples",
        "steps": f"{since}, it takes {total} steps in all, and {len(clean)} without a kill",
    }[kind]
    return Finding(kind, text + more, run.restore(), step)


def _rates(step: Step) -> str:
    return ", ".join(f"{rate!r}" for rate in step.rates if rate is not None)


def _samples(clean: Sequence[Step], steps: Sequence[Step], begun: int) -> str:
    """Return which samples are used again or never, in the steps that count, in words; empty if the data goes on.

    The batches of the attempt have to be those that follow in the run without a kill. A loader may fetch some ahead of
    the step that uses them, and a script may fetch those that it skips before its first step.
    """
    loader = training_loader(clean)
    fetched = [batches_of(step, loader) for step in clean]
    whole = [batch for batches in fetched for batch in batches]
    mine = [batch for step in steps for batch in batches_of(step, loader)]
    before = sum(map(len, fetched[:begun]))
    usual = Counter(map(len, fetched)).most_common(1)[0][0]
    ahead = min(max(0, len(fetched[0]) - usual), before - usual * begun)  # fetched before the attempt, and not used
    first = len(batches_of(steps[0], loader))
    ahead_then = sum(map(len, fetched[: begun + 1])) - usual * (begun + 1)  # of the same step without a fault
    unused = len(whole) > usual * len(clean)  # some batches are for no step, and so may be those that look ahead
    for skipped in range(first + 1 if first > usual + ahead_then else 1):
        rest = mine[skipped:]  # fewer than there are: it ends early, which is no matter of the data
        for start in {before - ahead, before} if unused else {before - ahead}:
            if whole[start : start + len(rest)] == rest:
                return ""
    want, used = Counter(flat(whole)), Counter(flat([*whole[: before - ahead], *mine]))
    again, never = used - want, want - used
    parts = [f"samples {ranges(again)} are used again"] if again else []
    parts += [f"samples {ranges(never)} are never used"] if never else []
    return " and ".join(parts) or "the same samples come in another order"


def training_loader(steps: Sequence[Step]) -> str:
    """Return the loader of which most steps have a batch: others are for validation."""
    names = Counter(name for step in steps for name in set(step.loaders))
    return names.most_common(1)[0][0] if names else ""


def batches_of(step: Step, loader: str) -> list[Any]:
    if not step.loaders:
        return step.samples
    return [batch for batch, name in zip(step.samples, step.loaders, strict=True) if name == loader]


def flat(batches: Iterable[Any]) -> Iterable[Any]:
    for batch in batches:
        if isinstance(batch, list):
            yield from (str(each) if isinstance(each, list) else each for each in batch)
        else:
            yield batch


def ranges(samples: Iterable[Any]) -> str:
    """Return numbers as ranges, `0..63, 70`, and names as they are, shortened."""
    numbers = sorted({each for each in samples if isinstance(each, int)})
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    words = [str(low) if low == high else f"{low}..{high}" for low, high in found]
    words += sorted(str(each)[:12] for each in samples if not isinstance(each, int))
    return ", ".join(words[:SHOWN]) + (f" and {len(words) - SHOWN} more" if len(words) > SHOWN else "")
