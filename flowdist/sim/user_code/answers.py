"""Return values of user code: checked, copied and compared. A wrong value raises, as an exception of that user code.

Values are compared as a whole. Arrays and tensors compare element by element with `==`, and a loss that is NaN does not
equal itself, so two values are also the same if their pickles are.

Rounding alone may explain a difference: the sum of the same numbers in another order is rounded otherwise, and a world
of another size adds in another order. Such values remain different: only what is said about them changes. A mistake may
be as small, so nothing here decides that there is none.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flowdist.worker.model import steps_done

# Raised by `==` of arrays, tensors and what contains them: there is no single answer, or the shapes differ.
NO_ONE_ANSWER = (ValueError, RuntimeError)
PLAIN = (int, float, str, bytes, bool, type(None))  # cannot be changed
DOUBLE_MAX = 1e-9  # relative difference that a sum in another order may have; a double has 16 digits
SINGLE_MAX = 1e-5  # the same if both numbers are single floats, which have 7 digits
SINGLE_LARGEST = 3.4e38  # no single float is much larger
OTHER_ORDER = "as sums of the same numbers in another order do, for example over another number of ranks; in that case "
OTHER_ORDER += "sum in the order of the samples, or round what is logged and what state() returns"


def restored(model: Any, latest: str | None, steps: int) -> int:
    """Call `restore()` of the model, and return how many of all `steps` are done.

    Without a checkpoint (`latest` is None) it may return None for 0. Raises TypeError if it returns no whole number,
    ValueError if that is negative, or larger than `steps`.
    """
    done = steps_done(model.restore(), latest)
    if done > steps:
        raise ValueError(f"restore() returned {done}, but all of it is {steps} steps")
    return done


def state_of(model: Any) -> dict[str, object]:
    """Call `state()` of the model, and return its dict; TypeError if it returns anything else."""
    state = model.state()
    if not isinstance(state, dict):
        raise TypeError(f"state() has to return a dict of what has to be the same at the end, not {state!r:.80}")
    return state


def combine(model: Any, step: int, parts: Sequence[Any]) -> None:
    """Call `combine()` of a model with copies of what `step()` of each rank returned; TypeError if they have none."""
    try:
        own = list(map(copied, parts))
    except Exception as error:  # pickle, or a class of the user's, may raise anything
        raise TypeError(f"what step() returns is sent to the other ranks, but it cannot be pickled: {error}") from None
    model.combine(step, own)


# Functions that check what a method of a model, their first argument, has returned; and the name of the method.
CHECKED = ((restored, "restore"), (state_of, "state"), (combine, "step"))


def sample_of(value: Any) -> Any:
    """Return what identifies a sample: the number in an array or tensor of one, else the value, or TypeError."""
    plain = value.item() if hasattr(value, "item") else value
    try:
        hash(plain)
    except TypeError:
        what = f"a {type(plain).__name__}"
        raise TypeError(f"consume() takes samples that can be told apart, such as their numbers; not {what}") from None
    return plain


def copied(value: Any) -> Any:
    """Return a copy, by pickle, that shares nothing with the value; an immutable value is returned itself."""
    return value if is_plain(value) else pickle.loads(pickle.dumps(value))


def is_plain(value: Any) -> bool:
    """Return whether the value is immutable: a plain number, string, bytes, bool or None, or a tuple of such values."""
    if isinstance(value, tuple):
        return all(is_plain(item) for item in value)
    return isinstance(value, PLAIN)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, or have the same pickle; False for values that cannot be pickled.

    An exception of `==` decides nothing here, since values with one pickle are the same whatever `==` does. Where
    values are reported as different, `raised_by_equal` says that it has raised.
    """
    if _equal(one, other) is True:
        return True
    try:
        return pickle.dumps(one) == pickle.dumps(other)
    except Exception:  # only == is left
        return False


def raised_by_equal(one: Any, other: Any) -> str:
    """Return, as words to append to a message, what `==` of two values raises: a mistake in the user's class.

    Empty if it raises nothing, or what arrays and tensors raise (`NO_ONE_ANSWER`), which is no mistake.
    """
    error = _equal(one, other)
    if isinstance(error, (bool, *NO_ONE_ANSWER)):
        return ""
    return f" (== of the two raised {type(error).__name__}: {error})"


def _equal(one: Any, other: Any) -> bool | Exception:
    """Return whether `==` of two values is true, or the exception that it raises: it may be a method of the user's."""
    try:
        return bool(one == other)
    except Exception as error:
        return error


def rounding_text(pairs: Iterable[tuple[Any, Any]]) -> str:
    """Return, as words to append to a message, how far all pairs of values differ by rounding; "" if one is apart."""
    found = [rounding(one, other) for one, other in pairs]
    known = [far for far in found if far]
    if not known or len(known) < len(found):
        return ""
    return f" (they differ by {max(known):.1e} of their size, {OTHER_ORDER})"


def rounding(one: Any, other: Any) -> float | None:
    """Return the largest relative difference of numbers in two values, however nested; None if more differs."""
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
