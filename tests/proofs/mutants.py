"""Mutation bench, `python -m tests.proofs.mutants`: switch off one safeguard at a time; a property has to fail.

The unmutated build comes first and has to pass all properties with the same examples. Then each mutant is tried with
one property after the other until one fails; the failing case is shrunk. In every run, every number but the seconds is
the same: the seed is fixed, and no limit is a time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import msgspec
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.proofs.budgets import judge_repeated_failures, repeated_failures
from tests.proofs.conversation import conversations, judge_conversation
from tests.proofs.judge.restart_rules import Complaint
from tests.proofs.mutations import MUTANTS, Mutant, Property, mutated
from tests.proofs.network import judge_network, networks
from tests.proofs.runs import judge_restart, judge_run, quiet_runs, restarts, runs
from tests.proofs.snapshots import judge_snapshots, snapshot_cases
from tests.proofs.versions import judge_versions, version_cases

SEED = 0
SHRINKS_MAX = 150  # cases tried to make a failing case smaller


class Checked(NamedTuple):
    """Property that the bench tries.

    `cases` returns the Hypothesis strategy of its cases, `judge` what is wrong with a case, and `size` the number of
    moves, faults or hits in it. `examples` is how many cases are tried.
    """

    cases: Callable[[], st.SearchStrategy[Any]]
    judge: Callable[[Any], list[Complaint]]
    size: Callable[[Any], int]
    examples: int


PROPERTIES: dict[Property, Checked] = {
    "conversation": Checked(conversations, judge_conversation, lambda case: len(case.moves), 2000),
    "run": Checked(runs, judge_run, lambda case: sum(map(len, case.plan)), 400),
    "quiet": Checked(quiet_runs, judge_run, lambda case: 0, 600),
    "restart": Checked(restarts, judge_restart, lambda case: 1, 200),
    "network": Checked(networks, judge_network, lambda case: sum(map(len, case.plan)) + len(case.changes), 600),
    "repeated": Checked(repeated_failures, judge_repeated_failures, lambda case: len(case.hits), 1000),
    "snapshots": Checked(snapshot_cases, judge_snapshots, lambda case: len(case.moves), 1500),
    "versions": Checked(version_cases, judge_versions, lambda case: len(case.moves), 600),
}


class Found(NamedTuple):
    """Failure that a property found, in its smallest case.

    `by` names the check that found it (see `_by`), `text` says what is wrong, and `case` is the case as code.
    """

    property: Property
    by: str
    text: str
    size: int
    case: str


class Result(NamedTuple):
    """Result for the mutant `name` over all properties, or for the unmutated build with the property `name`.

    `examples` is how many cases were tried, `seconds` the CPU time, and `found` None if no property failed.
    """

    name: str
    examples: int
    seconds: float
    found: Found | None


class _Enough(BaseException):
    """Signal to Hypothesis that shrinking is done. A BaseException, because any Exception counts as a failing case."""


class _Wrong(Exception):
    """Signal to Hypothesis that the case fails."""


def find_failure(name: Property, share: float = 1.0) -> tuple[Found | None, int]:
    """Search for a case that violates the property, and shrink it.

    Args:
        name: The property.
        share: The fraction of the property's number of examples to try, at least one.

    Returns:
        The failure, and how many cases were tried until it first appeared; without one, None and all cases tried.
    """
    checked = PROPERTIES[name]
    cases = _Cases(checked)
    search = given(checked.cases())(cases.try_case)
    search = settings(
        max_examples=max(1, round(checked.examples * share)),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        print_blob=False,
    )(search)
    try:
        seed(SEED)(search)()
    except (_Wrong, _Enough):
        complaint, case = cases.best
        return Found(name, _by(complaint), complaint.text, checked.size(case), in_short(case)), cases.first
    return None, cases.tried


class _Cases:
    """Judge of the cases that Hypothesis draws: it counts them and keeps the smallest one that fails.

    `tried` is the number of cases so far, `first` the number of the first that failed, 0 before.
    """

    def __init__(self, checked: Checked) -> None:
        self._checked = checked
        self.tried = self.first = 0
        self._best: tuple[tuple[int, int], Complaint, Any] | None = None

    @property
    def best(self) -> tuple[Complaint, Any]:
        assert self._best is not None
        return self._best[1:]

    def try_case(self, case: Any) -> None:
        """Judge a case, and keep it if it is the smallest failing one so far.

        Raises:
            _Wrong: The case fails.
            _Enough: `SHRINKS_MAX` cases were tried since the first failing one.
        """
        self.tried += 1
        wrong = self._checked.judge(case)
        if wrong:
            self.first = self.first or self.tried
            rank = (self._checked.size(case), len(in_short(case)))
            if self._best is None or rank < self._best[0]:
                self._best = (rank, wrong[0], case)
        if self.first and self.tried >= self.first + SHRINKS_MAX:
            raise _Enough
        if wrong:
            raise _Wrong


def in_short(value: Any) -> str:
    """Return the value as code, without fields that have their default: `RoleSpec(name='a', max_replicas=2)`."""
    if isinstance(value, msgspec.Struct):
        defaults = {field.name: field.default for field in msgspec.structs.fields(value)}
    elif hasattr(value, "_field_defaults"):  # a NamedTuple
        defaults = dict.fromkeys(value._fields, msgspec.NODEFAULT) | value._field_defaults
    elif isinstance(value, tuple | list):
        return f"[{', '.join(map(in_short, value))}]"
    else:
        return repr(value)
    items = [(name, getattr(value, name), default) for name, default in defaults.items()]
    fields = ", ".join(f"{name}={in_short(item)}" for name, item, default in items if item != default)
    return f"{type(value).__name__}({fields})"


def _by(complaint: Complaint) -> str:
    """Return the check that complained, for the table: `checker R6`, or a word such as `invariant` or `liveness`."""
    return complaint.rule if not complaint.rule[0].isupper() else f"checker {complaint.rule}"


def bench(mutant: Mutant, share: float = 1.0) -> Result:
    """Try one mutant with the property that it names as `first`, then with the others, until one fails.

    `share` is the fraction of each property's examples that is tried.
    """
    begun, examples = time.process_time(), 0
    found = None
    with mutated(mutant):
        for name in sorted(PROPERTIES, key=lambda name: name != mutant.first):
            found, tried = find_failure(name, share)
            examples += tried
            if found is not None:
                break
    return Result(mutant.name, examples, time.process_time() - begun, found)


def bench_unmutated(name: Property, share: float = 1.0) -> Result:
    """Try the unmutated build with one property, and `share` of its examples; it is expected to pass."""
    begun = time.process_time()
    found, tried = find_failure(name, share)
    return Result(name, tried, time.process_time() - begun, found)


def table(results: Sequence[Result], mutants: Sequence[Mutant]) -> Iterator[str]:
    """Yield the lines of a Markdown table of the results, which are in the order of `mutants`."""
    rows = [["mutant", "rule", "what it does wrong", "found by", "examples", "size", "seconds"]]
    for done, mutant in zip(results, mutants, strict=True):
        found = done.found
        by = f"{found.property}: {found.by}" if found is not None else "**survives**"
        size = str(found.size) if found is not None else ""
        rows.append([mutant.name, mutant.rule, mutant.about, by, str(done.examples), size, f"{done.seconds:.1f}"])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    rows.insert(1, ["-" * width for width in widths])
    for row in rows:
        yield "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"


def main(args: Sequence[str] | None = None, mutants: Sequence[Mutant] = MUTANTS) -> int:
    """Run the command and print its results; return 1 if a mutant survives or the unmutated build fails, else 0.

    Args:
        args: The words of the command line; None: those of the process.
        mutants: The mutants to choose from.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.proofs.mutants", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", choices=[mutant.name for mutant in mutants])
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--share", type=float, default=1.0, help="fraction of the examples of each property")
    parser.add_argument("--json", action="store_true", help="one object on stdout, with the shrunk cases")
    options = parser.parse_args(args)
    chosen = [mutant for mutant in mutants if options.only is None or mutant.name in options.only]
    begun = time.perf_counter()
    with ProcessPoolExecutor(max(1, options.jobs), multiprocessing.get_context("spawn")) as pool:
        clean = list(_reported(pool.map(bench_unmutated, PROPERTIES, [options.share] * len(PROPERTIES))))
        wrong = [done for done in clean if done.found is not None]
        results = list(_reported(pool.map(bench, chosen, [options.share] * len(chosen)))) if not wrong else []
    seconds = time.perf_counter() - begun
    if options.json:
        print(json.dumps(_as_json(clean, results, seconds), indent=2))
    else:
        _print(clean, results, chosen, seconds)
    return 1 if wrong or any(done.found is None for done in results) else 0


def _reported(results: Iterator[Result]) -> Iterator[Result]:
    """Print each result to stderr as soon as it arrives, and pass it on."""
    for done in results:
        what = f"{done.found.property}: {done.found.text}" if done.found is not None else "nothing found"
        print(f"{done.name} ({done.examples} examples, {done.seconds:.1f} s): {what}", file=sys.stderr, flush=True)
        yield done


def _as_json(clean: Sequence[Result], results: Sequence[Result], seconds: float) -> dict[str, Any]:
    def plain(done: Result) -> dict[str, Any]:
        return {**done._asdict(), "found": done.found._asdict() if done.found is not None else None}

    unmutated, found = [plain(done) for done in clean], [plain(done) for done in results]
    return {"format": 1, "kind": "mutants", "unmutated": unmutated, "mutants": found, "seconds": seconds}


def _print(clean: Sequence[Result], results: Sequence[Result], mutants: Sequence[Mutant], seconds: float) -> None:
    for done in clean:
        if done.found is not None:
            print(f"the unmutated build fails {done.name}: {done.found.text}\n  {done.found.case}")
    if not results:
        return
    tried = ", ".join(f"{done.examples} of {done.name}" for done in clean)
    print(f"The unmutated build passes all properties: {tried}.\n")
    print("\n".join(table(results, mutants)))
    survivors = [done.name for done in results if done.found is None]
    print(f"\n{len(results) - len(survivors)} of {len(results)} mutants were found, in {seconds:.0f} s.")
    if survivors:
        print(f"These survive: {', '.join(survivors)}.")


if __name__ == "__main__":
    sys.exit(main())
