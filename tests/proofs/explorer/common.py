"""Definitions that the explorer's states of controller and nodes share: phases of a process, options, numbering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import HOUR

START_NS = HOUR  # first value of every clock, so that no time is zero

Process = tuple[ReplicaId, int]  # an attempt; each has one worker
Life = Literal[
    "spawning",
    "up",
    "ready",
    "asked",  # was asked for its step, and waits at its next should_stop()
    "waits",  # waits in should_stop() for the agreed step
    "saving",  # saves at the agreed step
    "left",  # has left the agreed step
    "leaving",  # leaves its generation in place
    "suspended",  # has left its generation and waits for the next
    "discarded",  # was sent a signal while suspended
    "terminating",  # was sent SIGTERM
    "killed",  # was sent SIGKILL
]
Contact = Literal["answered", "refused", "unanswered"]  # what happens to a node's heartbeats while time passes


@dataclass(slots=True, frozen=True)
class Allowed:
    """Choice of optional steps, which an exploration tries besides those that are always possible.

    Args:
        crashes: The controller dies, and another takes over. Counts as a fault.
        operates: The operator drains a node, or cancels the job with its grace or at once; a node gets a preemption
            notice. Each counts as a fault.
        reorders: Messages overtake each other on one connection. Production excludes this: a connection is a stream.
    """

    crashes: bool = True
    operates: bool = True
    reorders: bool = False


T = TypeVar("T")


class Numbered(Generic[T]):
    """Numbers for states, in the order of their first occurrence. States with equal keys share one number.

    `items` are the states by number: of several with one key, the first.
    """

    def __init__(self) -> None:
        self.items: list[T] = []
        self._numbers: dict[Any, int] = {}

    def number(self, key: Any, item: T) -> int:
        """Return the number of the key. If the key is new, store the item under the next number; else drop the item."""
        found = self._numbers.setdefault(key, len(self.items))
        if found == len(self.items):
            self.items.append(item)
        return found

    def of(self, item: T) -> int:
        """Return the number of an item, with the item itself as its key; it has to be hashable."""
        return self.number(item, item)
