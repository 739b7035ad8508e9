"""What the two halves of the explorer share: states by number, and what may be left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import HOUR

START_NS = HOUR  # of every clock: no time is zero

Process = tuple[ReplicaId, int]  # one attempt: its only worker
Life = Literal[
    "spawning",
    "up",
    "ready",
    "asked",  # how far it is; it will wait at its next should_stop()
    "waits",  # there, for the step to be named
    "saving",  # at the agreed step
    "left",  # that step
    "leaving",  # its generation, in place
    "suspended",  # has left it, and waits for the next
    "parting",  # was told to end while it waited
    "told",  # has got SIGTERM
    "killed",  # has got SIGKILL
]
Hears = Literal["answered", "refused", "nothing"]  # what becomes of a node's heartbeats while time passes


@dataclass(slots=True, frozen=True)
class How:
    """What may happen besides failures, and what is excluded unless it is asked for.

    `crashes`: the controller dies, and another takes over. `operates`: the operator drains a node, or cancels the job
    with its grace or at once; or a node is to be taken away. Each counts as a fault. `reorders`: messages overtake each
    other on one connection, which is a stream.
    """

    crashes: bool = True
    operates: bool = True
    reorders: bool = False


T = TypeVar("T")


class Numbered(Generic[T]):
    """States by number; those with equal keys share one."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self._numbers: dict[Any, int] = {}

    def number(self, key: Any, item: T) -> int:
        """`item` is kept if its key is new."""
        found = self._numbers.setdefault(key, len(self.items))
        if found == len(self.items):
            self.items.append(item)
        return found

    def of(self, item: T) -> int:
        """Of something that is its own key."""
        return self.number(item, item)
