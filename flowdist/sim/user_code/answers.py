"""Return values of user code, checked where they are returned: a wrong one is raised as an exception of that code.

Values are compared as a whole. Arrays and tensors answer `==` element by element, and a loss that is NaN does not equal
itself, so two values are also the same if their pickles are.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from flowdist.worker.model import steps_done

PLAIN = (int, float, str, bytes, bool, type(None))  # cannot be changed


def restored(model: Any, latest: str | None, steps: int) -> int:
    """Return how many steps are done, as `restore()` says; ValueError if there are not so many."""
    done = steps_done(model.restore(), latest)
    if done > steps:
        raise ValueError(f"restore() returned {done}, but all of it is {steps} steps")
    return done


def state_of(model: Any) -> dict[str, object]:
    """Return what `state()` returns: a dict of values that must be the same at the end. TypeError if it is none."""
    state = model.state()
    if not isinstance(state, dict):
        raise TypeError(f"state() has to return a dict of what has to be the same at the end, not {state!r:.80}")
    return state


def combine(model: Any, step: int, parts: Sequence[Any]) -> None:
    """Call `combine()` with copies of the parts of all ranks, as if they had come over a wire."""
    try:
        own = list(map(copied, parts))
    except Exception as error:  # pickle, or a class of the user's, may raise anything
        raise TypeError(f"what step() returns is sent to the other ranks, but it cannot be pickled: {error}") from None
    model.combine(step, own)


def sample_of(value: Any) -> Any:
    """Return the value by which a sample is known; an array or a tensor with one number is that number."""
    plain = value.item() if hasattr(value, "item") else value
    try:
        hash(plain)
    except TypeError:
        what = f"a {type(plain).__name__}"
        raise TypeError(f"consume() takes samples that can be told apart, such as their numbers; not {what}") from None
    return plain


def copied(value: Any) -> Any:
    """Return a copy, as if it had come over a wire: later changes do not reach the other side."""
    return value if is_plain(value) else pickle.loads(pickle.dumps(value))


def is_plain(value: Any) -> bool:
    """Return whether the value cannot be changed, so that it need not be copied."""
    if isinstance(value, tuple):
        return all(is_plain(item) for item in value)
    return isinstance(value, PLAIN)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, or have the same pickle."""
    try:
        if bool(one == other):
            return True
    except Exception:  # the truth of an array is ambiguous
        pass
    try:
        return pickle.dumps(one) == pickle.dumps(other)
    except Exception:  # only == is left
        return False
