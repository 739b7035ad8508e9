"""Comparison of a run whose world has had other sizes: what must be the same whatever the number of ranks is.

Losses are not: each rank has other samples. The state that a restart begins from is, where all ranks have the same, and
so is what the data promises: no sample is used again before the others have had their turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Any

from flowdist.prove.compare import Finding, batches_of, began_at, flat, lost_save, ranges, reached_save, training_loader
from flowdist.prove.history import Attempt, Run, Step
from flowdist.prove.watched import Watched

Draws = list[list[Hashable]]  # the samples of each step, of all ranks


def of_worlds(watched: Watched, run: Run) -> list[Finding]:
    """Return what a run shows whose world has changed its size after each kill."""
    before = _attempts(run, 0)
    if not before:
        return []
    clean, own = watched.first(min(watched.clean.attempts)).steps, before[0].steps
    steps = [*own, *clean[len(own) :]]  # that lead to where the next attempts begin: of this run, as far as it came
    found: list[Finding] = []
    parts, begun = [(before, 0)], 0
    for kills in range(1, run.kills + 1):
        attempts = _attempts(run, kills)
        if not attempts:
            continue
        own = attempts[0].steps
        reached = reached_save(watched, run) if kills == 1 else begun
        begun = began_at(steps, own, reached)
        parts.append((attempts, begun))
        if begun <= watched.former(reached):
            found.append(lost_save(run, begun, reached))
        found += _of_state(watched, run, steps[begun], own[0], begun)
        steps = [*steps[:begun], *own]
    again = _again(watched, parts)
    if again and not found:
        text = f"in a world of another size, samples {ranges(again)} are used again before others have been"
        found.append(Finding("data again", text, run.place("loader", "step"), begun + 1))
    return found


def _attempts(run: Run, kills: int) -> list[Attempt]:
    """Return the attempts with steps that have begun after so many kills, by rank."""
    every = (each for worker in sorted(run.attempts) for each in run.attempts[worker])
    return [each for each in every if each.kills == kills and each.steps]


def _of_state(watched: Watched, run: Run, clean: Step, step: Step, begun: int) -> Iterator[Finding]:
    """Yield what a restart has not restored of that which all ranks have alike."""
    ranks = [attempts[0].steps for attempts in watched.clean.attempts.values() if attempts[0].steps]
    names = {"weights": "the weights are", "optimizer": "the optimizer's state is"}
    for name, words in names.items():
        is_shared = all(getattr(each, name) == getattr(other, name) for each, other in zip(*ranks[:2], strict=False))
        if is_shared and getattr(step, name) != getattr(clean, name):
            text = f"after a resume at step {begun} in a world of another size, {words} not what that step has left"
            yield Finding(name, text, run.restore(), begun + 1)
            return


def _again(watched: Watched, parts: list[tuple[list[Attempt], int]]) -> Counter[Hashable]:
    """Return the samples that are used again too early, beyond what the run without a fault does of itself."""
    clean = [attempts[0] for attempts in watched.clean.attempts.values() if attempts[0].steps]
    loader = training_loader(clean[0].steps)
    first = len(batches_of(clean[0].steps[0], loader))
    whole = _draws(clean, loader, first)
    draws: Draws = []
    for (attempts, _), until in zip(parts, [*(begun for _, begun in parts[1:]), None], strict=True):
        draws += _draws(attempts, loader, first)[: None if until is None else max(0, until - len(draws))]
    room = max(map(len, whole), default=0)  # of an epoch's last batch, or fetched ahead
    used, usual = _too_early(draws, whole, room), _too_early(whole, whole, room)
    if used.total() > usual.total() + room:
        return used
    ahead, usually = _ahead_for_good(draws, whole), _ahead_for_good(whole, whole)
    return ahead if len(ahead) > len(usually) + room else Counter()


def _draws(attempts: list[Attempt], loader: str, first: int) -> Draws:
    """Return what each step has used. Before its first step a script may fetch batches that it skips."""
    count = min((len(each.steps) for each in attempts), default=0)

    def batches(step: Step, at: int) -> list[Any]:
        found = batches_of(step, loader)
        return found if at else found[max(0, len(found) - first) :]

    return [[s for each in attempts for s in flat(batches(each.steps[at], at))] for at in range(count)]


def _ahead_for_good(draws: Draws, known: Draws) -> Counter[Hashable]:
    """Return the samples that are used twice more often than others, all through the last epoch's worth of steps."""
    used: Counter[Hashable] = Counter(dict.fromkeys((s for step in (*known, *draws) for s in step), 0))
    steps = -(-len(used) // max((len(step) for step in draws if step), default=1))
    fewest: Counter[Hashable] | None = None
    for at, step in enumerate(draws):
        used.update(step)
        if at >= len(draws) - steps:
            low = min(used.values())
            ahead = Counter({sample: count - low for sample, count in used.items() if count > low + 1})
            fewest = ahead if fewest is None or len(ahead) < len(fewest) else fewest
    return fewest or Counter()


def _too_early(draws: Draws, known: Draws, room: int) -> Counter[Hashable]:
    """Return the samples that are drawn while more than twice `room` others have been drawn less often."""
    used: Counter[Hashable] = Counter(dict.fromkeys((s for step in (*known, *draws) for s in step), 0))
    levels, early = Counter(used.values()), Counter[Hashable]()
    for step in draws:
        for sample in step:
            count = used[sample]
            if sum(levels[lower] for lower in range(count)) > 2 * room:
                early[sample] += 1
            used[sample] += 1
            levels[count] -= 1
            levels[count + 1] += 1
    return early
