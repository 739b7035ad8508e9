"""What user code gives back, looked at where it gives it: a wrong answer is its mistake, told as an exception of it.

Values are compared as whole values. Arrays and tensors answer `==` element by element, and a loss that is NaN is not
equal to itself: such values are the same when their pickles are.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from flowdist.worker.model import steps_done

PLAIN = (int, float, str, bytes, bool, type(None))  # what cannot be changed need not be copied


def restored(model: Any, latest: str | None, steps: int) -> int:
    """How many steps are done, of so many."""
    done = steps_done(model.restore(), latest)
    if done > steps:
        raise ValueError(f"restore() returned {done}, but all of it is {steps} steps")
    return done


def state_of(model: Any) -> dict[str, object]:
    state = model.state()
    if not isinstance(state, dict):
        raise TypeError(f"state() has to return a dict of what has to be the same at the end, not {state!r:.80}")
    return state


def combine(model: Any, step: int, parts: Sequence[Any]) -> None:
    """Each rank gets parts of its own, as over a wire."""
    try:
        own = list(map(copied, parts))
    except Exception as error:  # whatever pickle or a class of the user's raises
        raise TypeError(f"what step() returns is sent to the other ranks, but it cannot be pickled: {error}") from None
    model.combine(step, own)


def sample_of(value: Any) -> Any:
    """A sample is known by its value; a number of an array or a tensor is the number."""
    plain = value.item() if hasattr(value, "item") else value
    try:
        hash(plain)
    except TypeError:
        what = f"a {type(plain).__name__}"
        raise TypeError(f"consume() takes samples that can be told apart, such as their numbers; not {what}") from None
    return plain


def copied(value: Any) -> Any:
    """As over a wire: nobody's changes reach the other."""
    return value if is_plain(value) else pickle.loads(pickle.dumps(value))


def is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(is_plain(item) for item in value)
    return isinstance(value, PLAIN)


def same(one: Any, other: Any) -> bool:
    """Equal, or the same when pickled."""
    try:
        if bool(one == other):
            return True
    except Exception:  # of an array: which element is meant?
        pass
    try:
        return pickle.dumps(one) == pickle.dumps(other)
    except Exception:  # what cannot be pickled has only its ==
        return False
