"""One case: a test of a peer in our words, and what it shows here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from tests.peers.runs import Runs

Stance = Literal["passes", "refused", "differs"]


class Case(NamedTuple):
    """A test of a peer, with the same inputs and assertions.

    `play` raises AssertionError if flowdist does not do what `stance` says: for `passes` that the peer's assertions
    hold, for `refused` that flowdist refuses, for `differs` that it does what `line` says.
    """

    peer: str  # the peer's file, such as launcher/test_run.py
    test: str  # the name of its test; several cases of one test have a number behind it
    what: str  # inputs and assertion
    play: Callable[[Runs], object]
    stance: Stance = "passes"
    line: str = ""  # for `refused` and `differs`: PAGE: words on that page, which say so
    is_real: bool = False  # it starts processes

    @property
    def id(self) -> str:
        """Return the name of the case."""
        return f"{self.peer.rpartition('/')[2].removesuffix('.py')}:{self.test}"


def holds(condition: bool) -> None:
    """Assert the condition: for cases that are one expression."""
    assert condition
