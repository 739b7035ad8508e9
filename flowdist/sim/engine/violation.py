"""The exception of a simulation in which something that must always hold did not."""

from __future__ import annotations


class Violation(AssertionError):
    """A property of the job or of the simulation does not hold.

    Args:
        property: The name of the property, such as "invariant", "split brain" or "liveness".
        text: What does not hold, with names and times.
    """

    def __init__(self, property: str, text: str) -> None:
        super().__init__(f"{property}: {text}")
        self.property = property
