"""Problems that show while a topology file is executed: words of the DSL record them here, and the file is read on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from flowdist.dsl.problems.problem import Problems


class Recording:
    """Record that the words of a topology file make while it is executed.

    Attributes:
        problems: Takes the problems.
        topologies: Topologies that the file has made so far, in order.
    """

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.topologies: list[Any] = []


_recording: ContextVar[Recording | None] = ContextVar("recording", default=None)


def current_recording() -> Recording | None:
    """Return the recording of the file that is executed; None if none is, as in a test that builds a topology."""
    return _recording.get()


@contextmanager
def recording(problems: Problems) -> Iterator[Recording]:
    """Record the mistakes in words of the DSL that are used inside the `with` statement, instead of raising them."""
    made = Recording(problems)
    token = _recording.set(made)
    try:
        yield made
    finally:
        _recording.reset(token)
