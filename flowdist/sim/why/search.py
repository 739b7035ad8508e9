"""The search for causes of a bad end: which counterfactuals are played, and which of them explain it.

A cause is what happened to a job from outside, by itself, so that a plan can be played without it. A counterfactual is
the same job without some of its causes. First each cause is left out by itself. Two faults may hide each other: when a
job waits for two nodes, neither helps alone. So pairs are left out where single causes do not explain the end: no
single one saves a job that failed, or together they save less than three quarters of the time that the job would save
without any harm. If no pair helps either, a smallest set is searched: all harm is left out, and then each cause that
makes no difference is put back.

Each counterfactual is a simulation, and there may be thousands of causes. So their number is bounded, and the answer
says what was left out for that: causes first, in the order of their times, then pairs, then causes of a smallest set.

A job that succeeds is better than one that fails, whatever it takes. Of two that succeed the shorter one is better. Of
two that fail none is better: to fail later is no gain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from flowdist.errors import FlowdistError
from flowdist.faults.grammar import Fault, NodeOrder, Plan, Scale
from flowdist.sim.experiment.compare import compare
from flowdist.sim.experiment.outcome import Outcome

FIELDS = ("faults", "scales", "adds", "drains")


class Cause(NamedTuple):
    """One fault, order of the operator, or node that joins."""

    flag: str  # option of the command line that causes it: `--fail`, `--scale`, `--add` or `--drain`
    text: str  # text of that option, such as `node3@12m/2m`
    at_ns: int | None  # when it happens; None: it waits for an event or happens again and again
    is_harm: bool  # it takes something away from the job: every fault and drain; a job may need the others
    what: Fault | Scale | NodeOrder  # the item of the plan

    @property
    def target(self) -> str:
        """Node, role, replica, worker, label, `all` or `controller` that is hit."""
        if isinstance(self.what, NodeOrder):
            return self.what.node
        return self.what.role if isinstance(self.what, Scale) else self.what.target


def causes_of(plan: Plan) -> list[Cause]:
    """Return the causes of a plan, in the order of their times; those without a time come last. Rates have none."""
    found = dict.fromkeys(cause for _, cause in _items(plan))
    return sorted(found, key=lambda cause: (cause.at_ns is None, cause.at_ns or 0))


def without(plan: Plan, removed: Collection[Cause]) -> Plan:
    """Return the plan without some of its causes, and without what happens to nodes that only these add."""
    gone = {(cause.flag, cause.text) for cause in removed}
    kept: dict[str, list[Any]] = {field: [] for field in FIELDS}
    for field, cause in _items(plan):
        if (cause.flag, cause.text) not in gone:
            kept[field].append(cause.what)
    left = plan._replace(**{field: tuple(items) for field, items in kept.items()})
    strays = set(plan.new_nodes) - set(left.new_nodes)
    if not strays:
        return left
    faults = (fault for fault in left.faults if fault.target not in strays and not strays.intersection(fault.others))
    return left._replace(faults=tuple(faults), drains=tuple(drain for drain in left.drains if drain.node not in strays))


def named(causes: Iterable[Cause], texts: Iterable[str]) -> list[Cause]:
    """Return the causes with these texts, as `flowdist why` prints them; FlowdistError if there is no such cause."""
    causes, texts = list(causes), list(texts)
    missing = [text for text in texts if not any(cause.text == text for cause in causes)]
    if missing:
        known = ", ".join(dict.fromkeys(cause.text for cause in causes))
        message = "\n".join(f"--without {text}: the run had no such fault" for text in missing)
        raise FlowdistError(message, help=f"name one of {known}" if known else "nothing happened to this run")
    return [cause for cause in causes if cause.text in texts]


def _items(plan: Plan) -> Iterator[tuple[str, Cause]]:
    for field in FIELDS:
        for item in getattr(plan, field):
            ((flag, text),) = Plan()._replace(**{field: (item,)}).options
            is_harm = flag in ("--fail", "--drain") and getattr(item, "kind", "") not in ("scale", "add")
            yield field, Cause(flag, text, _at_ns(item), is_harm, item)


def _at_ns(item: Fault | Scale | NodeOrder) -> int | None:
    if not isinstance(item, Fault):
        return item.at_ns
    return None if item.when.at_ns is None else item.when.at_ns + item.offset_ns


SMALL = 0.001  # the share of the job's length that a cause has to cost to be named
UNEXPLAINED = 0.25  # the share of the whole cost that may be left unexplained by single causes
PLAYS_MAX = 240  # simulations; half of them may be of pairs


Play = Callable[[Sequence[Cause]], Outcome]


class Counterfactual(NamedTuple):
    """The end of the job without the causes in `removed`; `is_enough`: with these alone, it fails as well."""

    removed: tuple[Cause, ...]
    end: Outcome
    is_enough: bool = False


class Answer(NamedTuple):
    """Result of a search. There may be too many causes and pairs to leave out each."""

    again: Outcome  # the end with all causes: the simulation of the job as it was
    calm: Outcome  # the end without any harm
    # The counterfactuals that are better than `again`: those whose causes are enough by themselves first, then the best
    # first. None could do with fewer causes.
    causes: tuple[Counterfactual, ...]
    n_causes: int  # causes that were left out by themselves
    n_pairs: int = 0  # pairs that were left out
    n_untried: int = 0  # pairs that were not
    n_alone: int = 0  # causes that were not left out by themselves
    n_kept: int = 0  # causes of the last set that were not put back, so that a smaller set may do


def is_better(again: Outcome, end: Outcome) -> bool:
    """Return whether a counterfactual is better: it alone succeeds, or it saves more than a small share of the time."""
    if not again.is_good:
        return end.is_good
    return compare(again, end).saved_ns > SMALL * again.lasted_ns


def search(causes: Sequence[Cause], play: Play, plays_max: int = PLAYS_MAX) -> Answer:
    """Find what a bad end is due to, of causes in the order of their times.

    `play` returns the end of the job without some causes. It is called once for each set, `plays_max` times at most,
    but twice in any case.
    """
    harm, once = [cause for cause in causes if cause.is_harm], _Once(play, plays_max)
    again, calm = once(()), once(harm)
    singles = [Counterfactual((cause,), once((cause,))) for cause in causes if once.may_play((cause,))]
    found = [one for one in singles if is_better(again, one.end)]
    pairs: list[tuple[Cause, Cause]] = []
    n_pairs = n_kept = 0
    if _is_open(again, calm, found):
        pairs = sorted(combinations(harm, 2), key=_apart_ns)
        n_pairs = min(len(pairs), once.left, plays_max // 2)
        saved = {one.removed[0]: max(0, compare(again, one.end).saved_ns) for one in singles}
        together = [Counterfactual(pair, once(pair)) for pair in pairs[:n_pairs]]
        found += [pair for pair in together if _needs_both(again, calm, saved, pair)]
        if _is_open(again, calm, found):
            smallest, n_kept = _smallest(again, calm, harm, once, found)
            found += smallest
    if not again.is_good:  # several faults may have to come together, and then leaving out any of them helps
        alone = [(one, tuple(cause for cause in harm if cause not in one.removed)) for one in found]
        found = [one._replace(is_enough=once.may_play(rest) and not once(rest).is_good) for one, rest in alone]
    best = sorted(found, key=lambda one: (not one.is_enough, one.end.lasted_ns, len(one.removed)))  # all succeed
    n_alone = len(causes) - len(singles)
    return Answer(again, calm, tuple(best), len(singles), n_pairs, len(pairs) - n_pairs, n_alone, n_kept)


class _Once:
    """Plays each set of causes once only, in whatever order they are given, and `plays_max` sets at most."""

    def __init__(self, play: Play, plays_max: int) -> None:
        self._play, self._plays_max = play, plays_max
        self._ends: dict[frozenset[Cause], Outcome] = {}

    @property
    def left(self) -> int:
        """Return how many more sets may be played."""
        return max(0, self._plays_max - len(self._ends))

    def may_play(self, removed: Sequence[Cause]) -> bool:
        """Return whether the end without these causes is known, or may be played."""
        return self.left > 0 or frozenset(removed) in self._ends

    def __call__(self, removed: Sequence[Cause]) -> Outcome:
        key = frozenset(removed)
        if key not in self._ends:
            self._ends[key] = self._play(tuple(removed))
        return self._ends[key]


def _is_open(again: Outcome, calm: Outcome, found: Sequence[Counterfactual]) -> bool:
    """Return whether the counterfactuals found so far leave open why the job did not end as without any harm."""
    if not is_better(again, calm):
        return False
    if not again.is_good:
        return not any(one.end.is_good for one in found)
    return sum(compare(again, one.end).saved_ns for one in found) < (1 - UNEXPLAINED) * compare(again, calm).saved_ns


def _apart_ns(pair: tuple[Cause, Cause]) -> int:
    """Return the time between two causes, in ns: those that are close hide each other most."""
    return abs((pair[0].at_ns or 0) - (pair[1].at_ns or 0))


def _needs_both(again: Outcome, calm: Outcome, saved: dict[Cause, int], pair: Counterfactual) -> bool:
    """Return whether a pair is better than each cause alone (`saved`, in ns), by a good part of the whole cost."""
    if not again.is_good or not is_better(again, pair.end):
        return is_better(again, pair.end)
    more = compare(again, pair.end).saved_ns - sum(saved[cause] for cause in pair.removed)
    return more > UNEXPLAINED * compare(again, calm).saved_ns


def _smallest(
    again: Outcome, calm: Outcome, harm: Sequence[Cause], once: _Once, found: Sequence[Counterfactual]
) -> tuple[list[Counterfactual], int]:
    """Return a set of causes that explains the end and from which none can be put back; nothing if it is known.

    The number is that of its causes that there was no simulation left to put back.
    """
    gone, end, n_kept = tuple(harm), calm, 0
    for cause in harm:
        fewer = tuple(other for other in gone if other != cause)
        if not fewer:
            break
        if not once.may_play(fewer):
            n_kept += 1
            continue
        without = once(fewer)
        if not _is_open(again, calm, [Counterfactual(fewer, without)]):
            gone, end = fewer, without
    return [] if any(one.removed == gone for one in found) else [Counterfactual(gone, end)], n_kept
