"""Repairs (`/15m`, `/2h..6h`, `/exp(4h)`, `/exp(4h)/lemon=0.1,50`) of what a rate has hit, and ages of entities.

With `weibull=SHAPE` the times between faults have that shape, and the mean of the rate: below 1 most come soon after a
start or repair, above 1 with age. The clock begins when an entity starts, and anew when its fault of the rate is over.
"""

from __future__ import annotations

import re
from math import gamma, isfinite, log1p

from flowdist.faults.grammar import Lemon, Rate, Repair, refuse, wrong_duration
from flowdist.faults.kinds import having
from flowdist.faults.streams import number
from flowdist.graph import MS, SECOND, duration_help, parse_duration

_EXPONENTIAL = re.compile(r"exp\((.*)\)")


def parse_repair(text: str, start: int, value: str) -> tuple[Repair | None, int]:
    """Return distribution (None for a plain duration) and mean (ns) of the time after which the faults of a rate heal.

    `value` is a duration, `2h..6h` or `exp(4h)`; FaultError for anything else.
    """
    low, dots, high = value.partition("..")
    if dots:
        low_ns = _duration_ns(text, start, low)
        high_ns = _duration_ns(text, start + len(low) + len(dots), high)
        if low_ns >= high_ns:
            refuse(text, start, len(low) + start, f"{low} is not less than {high}", "write the shorter one first")
        return Repair(False, low_ns, high_ns), (low_ns + high_ns) // 2
    match = _EXPONENTIAL.fullmatch(value)
    if match is None:
        return None, _duration_ns(text, start, value)
    mean_ns = _duration_ns(text, start + len("exp("), match[1])
    if mean_ns <= SECOND:
        refuse(text, start, start + len(value), "no repair takes less than a second", "write a longer mean")
    return Repair(True, SECOND, mean_ns), mean_ns


def _duration_ns(text: str, start: int, value: str) -> int:
    try:
        return parse_duration(value)
    except ValueError:
        help = duration_help(value, "write 15m, 2h..6h or exp(4h)")
        refuse(text, start, max(start + len(value), start + 1), wrong_duration(text, value, start), help)


def parse_lemon(text: str, start: int, value: str, kind: str, *, returns: bool) -> Lemon:
    """Return what `lemon=PART,TIMES` of a rate says; FaultError if it is wrong, or no node of the rate `returns`."""
    end, help = start + len(value), "write lemon=0.1,50: a tenth of the nodes then fail 50 times as often"
    try:
        part, times = map(float, value.removeprefix("lemon=").split(","))
    except ValueError:
        refuse(text, start, end, f"{value!r} cannot be read", help)
    if not (0 < part <= 1 and times > 1 and isfinite(times)):
        refuse(text, start, end, "a part is from 0 to 1, and lemons fail more than once as often", help)
    if kind not in having("takes-node") or not returns:
        help = "write node-kill=1e-3/node-day/4h/lemon=0.1,50"
        refuse(text, start, end, "no node comes back from these faults", help)
    return Lemon(part, times)


def repair_ns(rate: Rate, key: bytes, n: int) -> int | None:
    """Return how long repair `n` of an entity, whose faults have stream `key`, takes (ns, whole ms); None: for good."""
    if rate.repair is None:
        return rate.duration_ns
    is_exponential, low_ns, high_ns = rate.repair
    drawn = number(key + b"repair/", n)
    ns = -log1p(-drawn) * high_ns if is_exponential else low_ns + drawn * (high_ns - low_ns)
    return max(low_ns, int(ns) // MS * MS)


def sooner(rate: Rate, key: bytes, n: int) -> float:
    """Return how many times sooner than usual the node fails again after repair `n`: 1 unless it came back bad."""
    is_bad = rate.lemon is not None and number(key + b"lemon/", n) < rate.lemon.part
    return rate.lemon.times if rate.lemon is not None and is_bad else 1.0


SHAPES = (0.2, 10.0)  # below, single times are longer than any run; above, all times are equal
HELP = "write weibull=0.7 for faults soon after a start or a repair, weibull=3 for wear"


def parse_shape(text: str, start: int, value: str, *, shared: bool) -> float:
    """Return the shape that `weibull=SHAPE` names; FaultError for other values, or a rate of the job (`shared`)."""
    end = start + max(len(value), 1)
    try:
        shape = float(value.removeprefix("weibull="))
    except ValueError:
        refuse(text, start, end, f"{value!r} cannot be read", HELP)
    low, high = SHAPES
    if not low <= shape <= high:
        refuse(text, start, end, f"a shape is from {low:g} to {high:g}", HELP)
    if shared:
        refuse(text, start, end, "a job does not age: its entities do", "write the rate of each, such as /node-day")
    return shape


def gap_ns(rate: Rate, mean_ns: float, drawn: float) -> int:
    """Return the time in ns to an entity's next fault, from the mean and an evenly drawn number (0 to 1)."""
    gap = -log1p(-drawn)
    if rate.shape is None:
        return int(gap * mean_ns)
    return int(gap ** (1 / rate.shape) * mean_ns / gamma(1 + 1 / rate.shape))
