"""Violations: a property that a simulation has broken, by a check or by an exception of the controller."""

from __future__ import annotations

import traceback

CRASHES = (AssertionError, KeyError, ValueError, StopIteration, TypeError, AttributeError)


class Violation(AssertionError):
    """A property of the job or of the simulation does not hold.

    Args:
        property: The name of the property, such as "invariant", "split brain" or "liveness".
        text: What does not hold, with names and times.
        waits: What the job waits for, in words, if it does not end.
    """

    def __init__(self, property: str, text: str, waits: str = "") -> None:
        super().__init__(f"{property}: {text}" + (f"; {waits}" if waits else ""))
        self.property, self.waits = property, waits


def broken_by(error: Exception) -> tuple[str, str]:
    """Return the property that an exception of the controller breaks, "invariant" or "crash", and what is wrong."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    if isinstance(error, AssertionError) and str(error):
        return "invariant", str(error)
    return "crash", f"{error!r} in {place.name}: {place.line}"
