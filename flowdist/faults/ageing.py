"""Ageing: rates that change with the time since the start of a node, or since its last repair.

    node-kill=6.5e-3/node-day/4h/weibull=0.7      infant mortality: most faults soon after a start or a repair
    node-kill=6.5e-3/node-day/4h/weibull=3        wear: few faults soon, more with age

The time to the next fault of an entity is a Weibull time with this shape. Its mean is that of the rate. With the shape
1 it is exponential, as without a shape. The clock of a rate begins when an entity starts, and anew when its fault of
this rate is over.
"""

from __future__ import annotations

from math import gamma, log1p

from flowdist.faults.grammar import Rate, refuse

SHAPES = (0.2, 10.0)  # below, single times are longer than any run; above, all times are equal
HELP = "write weibull=0.7 for faults soon after a start or a repair, weibull=3 for wear"


def parse_shape(text: str, start: int, value: str, *, shared: bool) -> float:
    """Return the shape that `value`, `weibull=SHAPE` at `start` in the text of a rate, names.

    `shared` says whether the rate is that of the whole job.

    Raises:
        FaultError: The value cannot be read, or the rate is of no single entity.
    """
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
    """Return the time to the next fault of an entity, in ns.

    `mean_ns` is the mean of such times, `drawn` a number that was drawn evenly from 0 to 1.
    """
    gap = -log1p(-drawn)
    if rate.shape is None:
        return int(gap * mean_ns)
    return int(gap ** (1 / rate.shape) * mean_ns / gamma(1 + 1 / rate.shape))
