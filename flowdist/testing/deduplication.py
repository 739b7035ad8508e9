"""Failures that are alike: one bug makes many seeds fail, and is to be read once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from flowdist.testing.verdicts import Failure

_DURATION = re.compile(r"\b(?:\d+(?:\.\d+)?(?:ms|us|ns|s|m|h|d))+\b")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
_AFTERWARDS = re.compile(r"; (?:waiting for|resumed: ).*")  # another in each seed


class Kind(NamedTuple):
    """The one that is easiest to understand, and the seeds of all of them, in order."""

    shown: Failure
    seeds: tuple[int, ...]


def kinds_of(failures: Iterable[Failure]) -> list[Kind]:
    """In the order in which the first of each was found. What is alike says the same but for times and numbers."""
    found: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        found.setdefault(likeness(failure), []).append(failure)
    return [Kind(min(alike, key=_size), tuple(failure.seed for failure in alike)) for alike in found.values()]


def likeness(failure: Failure) -> tuple[str, str]:
    """The same for those that are alike."""
    return failure.property, _pattern(failure)


def _pattern(failure: Failure) -> str:
    """Of user code that raised, the place in it says more than whose budget was used up by it."""
    where = re.search(r"user code raised in .*, at (.*)$", failure.text)
    if where is not None:
        return where[1]
    return _NUMBER.sub("#", _DURATION.sub("#", _AFTERWARDS.sub("", failure.text)))


def _size(failure: Failure) -> tuple[int, int]:
    return len(failure.faults), failure.seed


def seeds_text(shown: Failure, seeds: tuple[int, ...], most: int = 8) -> str:
    """`seed 2, and 81 alike: 3, 4, 6, ...`"""
    others = [seed for seed in seeds if seed != shown.seed]
    if not others:
        return f"seed {shown.seed}"
    names = ", ".join(map(str, others[:most])) + (", ..." if len(others) > most else "")
    return f"seed {shown.seed}, and {len(others)} alike ({names})"
