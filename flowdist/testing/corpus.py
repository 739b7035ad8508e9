"""Corpus of a campaign: a file of failures with their seeds and shortest plans; and groups of failures that are alike.

The plan is tried again as well as the seed, because in a changed topology the seed draws another plan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from flowdist.errors import FlowdistError
from flowdist.testing.verdicts import Failure

ALIKE_MAX = 10  # one bug can make most seeds fail, and each kept failure costs a run in every later campaign
SEEDS_SHOWN = 8  # of failures that are alike, besides the first
_DURATION = re.compile(r"\b(?:\d+(?:\.\d+)?(?:ms|us|ns|s|m|h|d))+\b")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
_AFTERWARDS = re.compile(r"; (?:waiting for|resumed: ).*")  # the end of a message, which differs from seed to seed


class Known(NamedTuple):
    """A failure of the corpus: seed, shortest plan, property; `collective` is what peers of dead workers did, or ""."""

    seed: int
    faults: tuple[str, ...]
    property: str
    collective: str = ""


class Corpus:
    """File of failures, one JSON object per line, in the order in which they were found; read when it is opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._alike: dict[tuple[str, str], dict[tuple[int, tuple[str, ...]], None]] = {}

    def open(self) -> list[Known]:
        """Return the failures in the file, whose folder is made; FlowdistError if it cannot be used."""
        was_there = self._path.exists()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.open("a").close()
            known = self.known()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise FlowdistError(f"corpus {self._path}: {why}", help="name another file") from None
        if not known and self._path.read_text().strip():
            help = "is it another file? A corpus is made anew"
            raise FlowdistError(f"corpus {self._path}: no line of it tells of a failure", help=help)
        if not was_there:
            self._path.unlink()
        return known

    def known(self) -> list[Known]:
        """Return the failures in the file, oldest first; none without a file. A line that cannot be read is skipped."""
        lines = self._path.read_text().splitlines() if self._path.is_file() else []
        return [known for known in map(_read, lines) if known is not None]

    def keep(self, failures: Iterable[Failure]) -> None:
        """Append new failures to the file; of those that are alike, over all calls, at most ALIKE_MAX."""
        before = {(known.seed, known.faults) for known in self.known()}
        new = []
        for failure in failures:
            plan, alike = (failure.seed, failure.faults), self._alike.setdefault(likeness(failure), {})
            if plan not in alike and len(alike) < ALIKE_MAX:
                alike[plan] = None
                new += [failure] if plan not in before else []
        if new:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                for one in new:
                    file.write(json.dumps(Known(one.seed, one.faults, one.property, one.collective)._asdict()) + "\n")


def _read(line: str) -> Known | None:
    try:
        entry: Any = json.loads(line)
        faults = tuple(map(str, entry.get("faults", ())))
        return Known(int(entry["seed"]), faults, str(entry.get("property", "")), str(entry.get("collective", "")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


# Failures that are alike: one bug makes many seeds fail, and a report shows it once.


class Kind(NamedTuple):
    """Failures that are alike: the one with the fewest faults to show, and the seeds of all of them in order."""

    shown: Failure
    seeds: tuple[int, ...]


def kinds_of(failures: Iterable[Failure]) -> list[Kind]:
    """Group failures whose messages differ in numbers only, in the order in which the first of each was found."""
    found: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        found.setdefault(likeness(failure), []).append(failure)
    return [
        Kind(
            min(alike, key=lambda failure: (len(failure.faults), failure.seed)),
            tuple(failure.seed for failure in alike),
        )
        for alike in found.values()
    ]


def likeness(failure: Failure) -> tuple[str, str]:
    """Return a key that failures share if they are alike: the property, and the message without numbers, or a place."""
    where = re.search(r"user code raised in .*, at (.*)$", failure.text)
    pattern = where[1] if where else _NUMBER.sub("#", _DURATION.sub("#", _AFTERWARDS.sub("", failure.text)))
    return failure.property, pattern


def seeds_text(shown: Failure, seeds: tuple[int, ...]) -> str:
    """Return words for the seeds of failures that are alike: `seed 2, and 81 alike (3, 4, 6, ...)`."""
    others = [seed for seed in seeds if seed != shown.seed]
    if not others:
        return f"seed {shown.seed}"
    names = ", ".join(map(str, others[:SEEDS_SHOWN])) + (", ..." if len(others) > SEEDS_SHOWN else "")
    return f"seed {shown.seed}, and {len(others)} alike ({names})"
