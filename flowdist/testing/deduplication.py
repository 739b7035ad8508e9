"""Deduplication of failures: one bug makes many seeds fail, and a report shows it once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from flowdist.testing.verdicts import Failure

_DURATION = re.compile(r"\b(?:\d+(?:\.\d+)?(?:ms|us|ns|s|m|h|d))+\b")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
_AFTERWARDS = re.compile(r"; (?:waiting for|resumed: ).*")  # differs from seed to seed


class Kind(NamedTuple):
    """Failures that are alike: the one with the fewest faults, and the seeds of all of them in order."""

    shown: Failure
    seeds: tuple[int, ...]


def kinds_of(failures: Iterable[Failure]) -> list[Kind]:
    """Group failures that say the same but for times and numbers, in the order in which each group was first found."""
    found: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        found.setdefault(likeness(failure), []).append(failure)
    return [Kind(min(alike, key=_size), tuple(failure.seed for failure in alike)) for alike in found.values()]


def likeness(failure: Failure) -> tuple[str, str]:
    """Return a key that is equal for failures that are alike."""
    return failure.property, _pattern(failure)


def _pattern(failure: Failure) -> str:
    """Return the text without times and numbers. For user code that raised it is the place in the code instead."""
    where = re.search(r"user code raised in .*, at (.*)$", failure.text)
    if where is not None:
        return where[1]
    return _NUMBER.sub("#", _DURATION.sub("#", _AFTERWARDS.sub("", failure.text)))


def _size(failure: Failure) -> tuple[int, int]:
    return len(failure.faults), failure.seed


def seeds_text(shown: Failure, seeds: tuple[int, ...], most: int = 8) -> str:
    """Return words such as `seed 2, and 81 alike (3, 4, 6, ...)`."""
    others = [seed for seed in seeds if seed != shown.seed]
    if not others:
        return f"seed {shown.seed}"
    names = ", ".join(map(str, others[:most])) + (", ..." if len(others) > most else "")
    return f"seed {shown.seed}, and {len(others)} alike ({names})"
