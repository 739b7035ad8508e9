"""Return values of user code: checked, copied and compared. A wrong value raises, as an exception of that user code.

Values are compared as a whole. Arrays and tensors compare element by element with `==`, and a loss that is NaN does not
equal itself, so two values are also the same if their pickles are.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from flowdist.worker.model import steps_done

# Raised by `==` of arrays, tensors and what contains them: there is no single answer, or the shapes differ.
NO_ONE_ANSWER = (ValueError, RuntimeError)
PLAIN = (int, float, str, bytes, bool, type(None))  # cannot be changed


def restored(model: Any, latest: str | None, steps: int) -> int:
    """Call `restore()` of the model, and return how many steps are done.

    Args:
        model: The model.
        latest: The name of the latest checkpoint; None: there is none, so `restore()` may return None for 0.
        steps: How many steps the task has.

    Raises:
        TypeError: `restore()` returns no whole number.
        ValueError: The number is negative, or larger than `steps`.
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
    """Call `combine()` of one rank's model with a copy of what `step()` of each rank has returned.

    Raises:
        TypeError: A part cannot be pickled, so it could not be sent to other ranks.
    """
    try:
        own = list(map(copied, parts))
    except Exception as error:  # pickle, or a class of the user's, may raise anything
        raise TypeError(f"what step() returns is sent to the other ranks, but it cannot be pickled: {error}") from None
    model.combine(step, own)


# Functions that check what a method of a model, their first argument, has returned; and the name of the method.
CHECKED = ((restored, "restore"), (state_of, "state"), (combine, "step"))


def sample_of(value: Any) -> Any:
    """Return the hashable value that identifies a sample: the number in an array or tensor of one, else the value.

    Raises:
        TypeError: The value is not hashable, so that two samples could not be told apart.
    """
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
