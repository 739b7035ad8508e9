"""Differences of two values that rounding alone may explain: how far two numbers, or the numbers in two values, differ.

The sum of the same numbers in another order is rounded otherwise. A world of another size adds in another order, so two
runs that use the same samples may end with sums that differ in their last digits. Values remain different then: only
what is said about them changes. A mistake may be as small, so nothing here decides that there is none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

DOUBLE_MAX = 1e-9  # relative difference that a sum in another order may have; a double has 16 digits
SINGLE_MAX = 1e-5  # the same if both numbers are single floats, which have 7 digits
SINGLE_LARGEST = 3.4e38  # no single float is much larger
OTHER_ORDER = "as sums of the same numbers in another order do, for example over another number of ranks; in that case "
OTHER_ORDER += "sum in the order of the samples, or round what is logged and what state() returns"


def rounding_text(pairs: Iterable[tuple[Any, Any]]) -> str:
    """Return, as words to append to a message, how far values differ that may differ by rounding; else an empty text.

    Args:
        pairs: The values that differ, each from one run with that from the other.
    """
    found = [rounding(one, other) for one, other in pairs]
    known = [far for far in found if far]
    if not known or len(known) < len(found):
        return ""
    return f" (they differ by {max(known):.1e} of their size, {OTHER_ORDER})"


def rounding(one: Any, other: Any) -> float | None:
    """Return the largest relative difference between two numbers, or between the numbers of two values.

    Lists, tuples, dicts, arrays and tensors are compared number by number, however they are nested.

    Returns:
        0 if all is equal. None if the values differ in anything but numbers, or if two numbers differ by more than
        sums in another order do.
    """
    try:
        return max(_differences(one, other), default=0.0)
    except Exception:  # _Unlike, or anything that a class of the user's raises
        return None


class _Unlike(Exception):
    """Two values differ by more than rounding."""


def _differences(one: Any, other: Any) -> Iterable[float]:
    """Yield the relative differences of the numbers at the same places of two values; raise _Unlike if more differs."""
    one, other = _plain(one), _plain(other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() != other.keys():
            raise _Unlike
        for key in one:
            yield from _differences(one[key], other[key])
    elif isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) != len(other):
            raise _Unlike
        for mine, theirs in zip(one, other, strict=True):
            yield from _differences(mine, theirs)
    elif isinstance(one, (float, complex)) and isinstance(other, (float, complex)):
        yield _relative(one, other)
    elif one != other:
        raise _Unlike


def _plain(value: Any) -> Any:
    """Return an array or a tensor as nested lists of numbers, or as one number; any other value as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _relative(one: complex, other: complex) -> float:
    """Return by what part of the larger number two numbers differ; raise _Unlike if it is more than rounding."""
    if one == other or (one != one and other != other):  # NaN equals NaN here
        return 0.0
    far = abs(one - other) / max(abs(one), abs(other))
    if not far <= (SINGLE_MAX if _is_single(one) and _is_single(other) else DOUBLE_MAX):  # NaN is no rounding
        raise _Unlike
    return far


def _is_single(number: complex) -> bool:
    """Return whether a number is a single float without loss: it came from torch's or numpy's float32, or is short."""
    if isinstance(number, complex):
        return _is_single(number.real) and _is_single(number.imag)
    return abs(number) < SINGLE_LARGEST and struct.unpack("f", struct.pack("f", number))[0] == number
