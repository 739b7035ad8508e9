"""Limits of what peers can make a controller keep and do: connections, unfinished frames, messages in a second.

All of it is arithmetic: the caller measures and closes. Where there is too much, the address with the largest part
loses, so that a host beside a hostile one loses nothing. The sizes let a controller grow by less than 64 MB, with TLS,
which takes 25 KB for each connection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from itertools import islice
from typing import Generic, TypeVar

FRAME_MAX = 512 << 10  # bytes of a frame of a host that has joined; its largest is an error report, of 0.4 MB
UNFINISHED_MAX = 8 << 20  # bytes of unfinished frames, over all connections of other hosts
UNREAD_MAX = 64 << 10  # bytes that wait for one peer: above, no answer and no line of the journal is added
UNSENT_MAX = 4 << 20  # bytes that wait for one peer, orders included: above, its connection is closed
READ_AHEAD = 32 << 10  # bytes that a connection of another host may have sent before they are handled
NEWCOMERS_MAX = 256  # connections that have no node yet and are read, over all addresses
WAITING_MAX = 1024  # connections that wait until they are read; nothing is kept of what they send
SCRAPES_MAX = 32  # connections to the port of the metrics; a scrape takes milliseconds
CONNECTIONS_MAX = 64  # connections of one address that have a node; a host has two
NAMES_MAX = 32  # nodes that one address may bring to a job, in the time of one controller
RATE = 1000  # units in a second that one address may send for long; a frame costs 1 unit and 1 for each UNIT_BYTES
BURST = 10_000  # units that an address may send at once
UNIT_BYTES = 4096
PACED_MAX = 256  # addresses that are remembered before those that have caught up are forgotten

C = TypeVar("C", bound=Hashable)


class Connections(Generic[C]):
    """The connections of other hosts: newcomers, which have no node yet, and connections with a node.

    Newcomers above a number wait for their turn. When a thousand hosts come at once, each would otherwise be refused
    several times and come again, which costs more than to let all of them in.
    """

    def __init__(self, newcomers_max: int = NEWCOMERS_MAX, waiting_max: int = 0) -> None:
        self._newcomers_max, self._waiting_max = newcomers_max, waiting_max
        self._coming: dict[C, str] = {}  # address of each newcomer, also of those that wait; the oldest first
        self._coming_of: Counter[str] = Counter()  # how many of these each address has
        self._turned: set[C] = set()  # those that no longer wait: they are the oldest
        self._joined: dict[C, str] = {}
        self._joined_of: Counter[str] = Counter()  # how many of these each address has

    def opened(self, connection: C, address: str) -> C | None:
        """Add a newcomer that waits, and return the one that has to be closed for it, if there are too many.

        That is the oldest of the address that has the most; where no address has two, the new one, if too many wait.
        """
        self._coming[connection] = address
        self._coming_of[address] += 1
        if len(self._coming) <= self._newcomers_max:
            return None
        most = max(self._coming_of.values())
        if most == 1 and len(self._coming) <= self._newcomers_max + self._waiting_max:
            return None
        largest = (each for each, its in self._coming.items() if self._coming_of[its] == most)
        victim = next(largest) if most > 1 else connection
        self._leave(victim)
        return victim

    def next_turns(self) -> list[C]:
        """Return the newcomers that no longer wait: call this when one has come, joined or gone."""
        if len(self._turned) >= self._newcomers_max:
            return []
        turns = [each for each in islice(self._coming, self._newcomers_max) if each not in self._turned]
        self._turned.update(turns)
        return turns

    def _leave(self, connection: C) -> None:
        """Forget a newcomer; nothing happens if the connection is none."""
        self._turned.discard(connection)
        if (address := self._coming.pop(connection, None)) is not None:
            self._coming_of[address] -= 1
            if not self._coming_of[address]:
                del self._coming_of[address]

    def joined(self, connection: C) -> bool:
        """Record that an open connection has a node now; return False if its address has too many such connections."""
        if connection in self._joined:
            return True
        if (address := self._coming.get(connection)) is not None:
            if self._joined_of[address] >= CONNECTIONS_MAX:
                return False
            self._leave(connection)
            self._joined[connection] = address
            self._joined_of[address] += 1
        return True

    def closed(self, connection: C) -> None:
        """Forget a connection."""
        self._leave(connection)
        if (address := self._joined.pop(connection, None)) is not None:
            self._joined_of[address] -= 1
            if not self._joined_of[address]:
                del self._joined_of[address]


class ByteBudget(Generic[C]):
    """The bytes of unfinished frames, by connection, which together stay within a limit."""

    def __init__(self, limit: int = UNFINISHED_MAX) -> None:
        self._limit = limit
        self._sizes: dict[C, tuple[str, int]] = {}  # address and bytes
        self.total = 0

    def note(self, connection: C, address: str, size: int) -> list[C]:
        """Record the bytes of a connection's unfinished frame (0: none); return those to close, which are forgotten.

        Each has the largest frame of the address with the largest sum. So an address is spared as long as all others
        that are spared, and itself twice, fit in the limit.
        """
        self.forget(connection)
        if size:
            self._sizes[connection] = (address, size)
            self.total += size
        closed = []
        while self.total > self._limit:
            closed.append(self._largest())
            self.forget(closed[-1])
        return closed

    def forget(self, connection: C) -> None:
        """Forget a connection that is closed."""
        self.total -= self._sizes.pop(connection, ("", 0))[1]

    def _largest(self) -> C:
        sums: Counter[str] = Counter()
        for address, size in self._sizes.values():
            sums[address] += size
        largest = max(sums, key=lambda address: sums[address])
        return max((each for each in self._sizes if self._sizes[each][0] == largest), key=lambda c: self._sizes[c][1])


class Pace:
    """How fast each address may send: BURST units at once, then RATE in a second (a token bucket).

    A faster address is read later, not refused: its own network waits, and its lines in the journal are bounded.
    """

    def __init__(self) -> None:
        self._owed: dict[str, tuple[float, float]] = {}  # units that are not worked off, at a time in seconds

    def charge(self, address: str, size: int, now_s: float) -> None:
        """Record that a frame of `size` bytes was read. The clock of `now_s`, in seconds, must not go back."""
        owed = self._owed_at(address, now_s) + 1 + size // UNIT_BYTES
        self._owed[address] = (owed, now_s)
        if len(self._owed) > PACED_MAX:
            self._owed = {each: owes for each, owes in self._owed.items() if self._owed_at(each, now_s)}

    def wait_s(self, address: str, now_s: float) -> float:
        """Return the seconds to wait before a connection of the address is read again."""
        return max(0.0, (self._owed_at(address, now_s) - BURST) / RATE)

    def _owed_at(self, address: str, now_s: float) -> float:
        owed, since_s = self._owed.get(address, (0.0, now_s))
        return max(0.0, owed - (now_s - since_s) * RATE)
