"""Compare what a case showed under torchrun, twice, with what it showed under flowdist, entry by entry.

What torchrun shows alike in both of its sequences has to be equal. What differs between them is the process's own: a
pid, a port, a random number. Of such entries the pattern has to be equal: which ranks, attempts and runs share a value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

from tests.oracle.play import Observation

RUNS = ("first", "second", "edited")
SITUATIONS = ("first", "restart", "second", "edited")


class Key(NamedTuple):
    """Where an entry was observed: in which run, attempt and rank; runs as a whole have neither of the latter."""

    run: str
    process: str  # "attempt-rank", or ""
    entry: str

    @property
    def situation(self) -> str:
        """Return the column of the table: restarts of the first run are told apart from its start."""
        return "restart" if self.run == "first" and self.process[:1] not in ("", "0") else self.run


class Difference(NamedTuple):
    """An entry that is not as it is under torchrun."""

    key: Key
    expected: str
    found: str

    def __str__(self) -> str:
        rank = f"attempt {self.key.process.replace('-', ' rank ')}, " if self.key.process else ""
        return f"{self.key.situation}: {rank}{self.key.entry}: {self.values}"

    @property
    def values(self) -> str:
        """Return how the two values differ: of lists, the first items that do."""
        return _unequal_part(self.expected, self.found)


def subject(key: Key) -> str:
    """Return what an entry is about, without the point at which it was noted."""
    return key.entry.split(": ", 2)[2] if key.entry.startswith("notes: ") else key.entry


ORIGIN = re.compile(r"^notes: .*?: origins: ")  # of a module: the same at each point, whenever it is imported
MISSING = "(missing)"
NAMELESS = re.compile(r'\["(socket|pipe|anon_inode:)')  # threads of torch open them, in any order
OWN_FD = 700  # from here on descriptors are flowdist's


def differences(
    reference: dict[str, Observation], again: dict[str, Observation], tried: dict[str, Observation], fails: bool = False
) -> Iterator[Difference]:
    """Yield the entries that differ, in the order in which they were observed.

    Where every rank `fails` by itself, the first one ends the others. The output of these may end early, if that of one
    rank of the attempt is whole.
    """
    whole = set(_whole_attempts(reference, again, tried)) if fails else set()
    for difference in _all_differences(reference, again, tried):
        key = difference.key
        if (key.run, key.process.partition("-")[0]) in whole and _ends_early(difference):
            continue
        yield difference


def _whole_attempts(
    reference: dict[str, Observation], again: dict[str, Observation], tried: dict[str, Observation]
) -> Iterator[tuple[str, str]]:
    """Yield the run and the attempt of each process that has told all that it told under torchrun.

    What torchrun tells otherwise each time, such as the address of a thread, may be anything.
    """
    for run, observation in reference.items():
        for process, shown in observation["processes"].items():
            second, found = (runs[run]["processes"].get(process, {}) for runs in (again, tried))
            streams = [
                zip_longest(shown[stream], second.get(stream, []), found.get(stream, []))
                for stream in ("stdout", "stderr")
            ]
            if all(a == c or (None not in (a, b, c) and a != b) for stream in streams for a, b, c in stream):
                yield run, process.partition("-")[0]


def _ends_early(difference: Difference) -> bool:
    if difference.key.entry.startswith("notes: "):
        return difference.found == MISSING
    if difference.key.entry not in ("stdout", "stderr"):
        return False
    texts = ["[]" if text == MISSING else text for text in difference[1:]]
    if any(text[:1] != "[" for text in texts):
        return True  # who shares a value with whom: torchrun itself has ended one rank early here, and there another
    expected, found = map(json.loads, texts)
    *lines, last = found or [""]  # the end may have come in the middle of a line
    return bool(expected[: len(lines)] == lines and [*expected, ""][len(lines)].startswith(last))


def _all_differences(
    reference: dict[str, Observation], again: dict[str, Observation], tried: dict[str, Observation]
) -> Iterator[Difference]:
    first, second, third = (_flat(observed) for observed in (reference, again, tried))
    own: dict[str, list[Key]] = {}
    for key in {**first, **third}:
        expected, found = first.get(key, MISSING), third.get(key, MISSING)
        if expected != second.get(key, MISSING):
            own.setdefault(key.entry, []).append(key)
        elif expected != found and not (key.entry.startswith("origins: ") and MISSING in (expected, found)):
            # Which modules there are, and since when, the lists of their names say.
            yield Difference(key, expected, found)
    for keys in own.values():
        yield from _unequal_pattern(keys, first, second, third)


def _unequal_pattern(keys: list[Key], *flats: dict[Key, str]) -> Iterator[Difference]:
    """Yield the first place where flowdist's processes share a value and torchrun's do not, or the other way round."""
    first, second, third = ([flat.get(key, MISSING) for key in keys] for flat in flats)
    if _pattern(first) != _pattern(second):
        return  # chance: torchrun itself is not like torchrun
    for number, key in enumerate(keys):
        if _pattern(first[: number + 1]) != _pattern(third[: number + 1]):
            expected, found = (_shared(keys, values, number) for values in (first, third))
            yield Difference(key, expected, found)
            return


def _pattern(values: list[str]) -> list[int]:
    return [values.index(value) for value in values]


def _shared(keys: list[Key], values: list[str], number: int) -> str:
    earlier = values.index(values[number])
    if values[number] == MISSING:
        return MISSING
    if earlier == number:
        return f"a value of its own ({_short(values[number])})"
    return f"the value of {keys[earlier].run} {keys[earlier].process} ({_short(values[number])})"


def _flat(observed: dict[str, Observation]) -> dict[Key, str]:
    """Return the entries of all runs; lists and numbers as their JSON."""
    found = {}
    for run, observation in observed.items():
        found[Key(run, "", "exit code")] = str(observation["exit code"])
        for process, shown in observation["processes"].items():
            nameless: dict[str, list[str]] = {}  # by point; the numbers of these descriptors are chance
            for name, value in _leaves("", shown):
                point, _, number = name.rpartition("files: ")
                if number.isdigit() and int(number) < OWN_FD and NAMELESS.match(value):
                    nameless.setdefault(f"{point}nameless files", []).append(value)
                else:
                    found[Key(run, process, ORIGIN.sub("origins: ", name))] = value
            for name, values in nameless.items():
                found[Key(run, process, name)] = json.dumps(sorted(values))
        for name, value in _leaves("files", observation["files"]):
            found[Key(run, "", name)] = value
    return found


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for inner, item in value.items():
            yield from _leaves(f"{name}: {inner}" if name else inner, item)
    else:
        yield name, json.dumps(value)


def _unequal_part(expected: str, found: str) -> str:
    """Say how two values differ: of lists, the first items that do."""
    try:
        left, right = json.loads(expected), json.loads(found)
    except json.JSONDecodeError:
        left, right = expected, found
    if isinstance(left, list) and isinstance(right, list):
        number = next(
            (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
        )
        where = f"item {number} of {len(left)} and {len(right)}: "
        left, right = ([*items, MISSING][number] if number <= len(items) else MISSING for items in (left, right))
        return f"{where}torchrun {_short(left)}, flowdist {_short(right)}"
    return f"torchrun {_short(left)}, flowdist {_short(right)}"


def _short(value: Any) -> str:
    text = re.sub(r"\s+", " ", str(value))
    return text if len(text) <= 160 else text[:157] + "..."
