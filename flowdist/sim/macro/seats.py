"""Seats of a gang on its nodes, in macro mode: who sits where, which nodes are bad (R22), where there is room.

Replicas and nodes are numbers here. Places are given as control gives them: the lowest replica first, to the node with
most free seats (packed: with fewest), ties to the node that is listed first.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import Counter
from collections.abc import Callable

from flowdist.graph import JobOptions, RoleSpec


class Seats:
    """`usable` is what the controller believes. `taken` counts replicas that have a seat, `free` seats without one."""

    def __init__(self, role: RoleSpec, options: JobOptions, room: tuple[int, ...], known: int) -> None:
        self._options, self._least = options, role.min_replicas
        self.sign = 1 if role.placement.strategy == "pack" else -1
        self.room, self.on = list(room), [[] for _ in room]  # type: list[int], list[list[int]]
        self.usable = [node < known for node in range(len(room))]
        self.cordoned: dict[int, None] = {}
        self.node_of: list[int | None] = [None] * role.max_replicas
        self.vacant = list(range(role.max_replicas))  # replicas without a seat, sorted
        self.taken = 0
        self.free = 0
        self.candidates: list[tuple[int, int]] = []
        self.losses: dict[int, list[int]] = {}
        self.flapping: dict[int, None] = {}  # nodes that may be used no more when they come back
        self.failures: list[
            tuple[int, int, int, str]
        ] = []  # time, node, replica and kind of those by a replica's fault
        self.others_have_room: Callable[[], bool] = lambda: True  # for the minima of other roles
        self.wary = False  # a replica may have to leave its node, or one node be avoided for it
        for node in range(known):
            self.free += room[node]
            self._offer(node)

    def _offer(self, node: int) -> None:
        left = self.room[node] - len(self.on[node])
        if left > 0 and self.usable[node] and node not in self.cordoned:
            heapq.heappush(self.candidates, (self.sign * left, node))

    def _is_open(self, node: int) -> bool:
        return self.usable[node] and node not in self.cordoned

    def _best(self, avoid: list[int]) -> int | None:
        """The node for one more replica: entries that are no longer so are dropped as they come up."""
        put_back, found = [], None
        while self.candidates and found is None:
            entry = heapq.heappop(self.candidates)
            node = entry[1]
            if not self._is_open(node) or self.sign * (self.room[node] - len(self.on[node])) != entry[0]:
                continue
            if node in avoid:
                put_back.append(entry)
            else:
                found = node
        for entry in put_back:
            heapq.heappush(self.candidates, entry)
        return found

    def fill(self, now: int, most: int | None = None) -> int:
        """Give seats to those that have none, as long as there are any, and to so many at most. Returns how many."""
        before = self.taken
        while self.vacant and self.free and (most is None or self.taken - before < most):
            replica = self.vacant[0]
            avoid = self._avoided(replica, now) if self.failures else []
            node = self._best(avoid)
            if node is None:
                node = self._best([])
            assert node is not None, "a free seat that nobody offers"
            del self.vacant[0]
            self.node_of[replica] = node
            self.on[node].append(replica)
            self.taken += 1
            self.free -= 1
            self._offer(node)
        return self.taken - before

    def lose(self, node: int) -> int:
        """The node is gone with what it ran. Returns how many lost their seat."""
        if not self.usable[node]:
            return 0
        lost = self.on[node]
        if node not in self.cordoned:
            self.free -= self.room[node] - len(lost)
        self.usable[node] = False
        for replica in lost:
            self.node_of[replica] = None
            insort(self.vacant, replica)
        self.taken -= len(lost)
        self.on[node] = []
        return len(lost)

    def release(self, replica: int) -> None:
        """It has done its work, and wants no seat any more; it still counts for the minimum."""
        self._least -= 1
        node = self.node_of[replica]
        assert node is not None
        self.on[node].remove(replica)
        self.node_of[replica] = None
        self.taken -= 1
        if self._is_open(node):
            self.free += 1
            self._offer(node)

    def note_loss(self, node: int, now: int) -> None:
        """Something ran there when it was lost."""
        before = self.losses.get(node)
        if before is None:
            after = self.losses[node] = [now]
        else:
            since = now - self._options.bad_node_window_ns
            after = self.losses[node] = [*(at for at in before if at > since), now]
        if len(after) >= self._options.cordon_after:
            self.flapping[node] = None

    def join(self, node: int, now: int) -> None:
        """It is there, for the first time or again; one that flaps is used no more if the job can do without it."""
        self.usable[node] = True
        if node in self.cordoned:
            return
        self.free += self.room[node] - len(self.on[node])
        self._offer(node)
        losses = self.losses.get(node)
        if losses is not None and len(losses) >= self._options.cordon_after:
            since = now - self._options.bad_node_window_ns
            if sum(at > since for at in losses) >= self._options.cordon_after:
                self._cordon(node)

    def blame(self, replica: int, kind: str, now: int) -> None:
        """A replica failed by itself: that tells against its node."""
        node = self.node_of[replica]
        assert node is not None
        since = now - self._options.bad_node_window_ns
        self.failures = [past for past in self.failures if past[0] > since] + [(now, node, replica, kind)]
        same = sum(past[1] == node and past[3] == kind for past in self.failures)
        if same >= self._options.cordon_after and node not in self.cordoned:
            self._cordon(node)
        counts = Counter(past[1:] for past in self.failures)
        self.wary = max(counts.values()) >= self._options.move_after or any(self.on[node] for node in self.cordoned)

    def note_failure(self, replica: int, kind: str, now: int) -> bool:
        """As `blame`, where it is of no consequence. False: it may be, and nothing is noted."""
        node, least = self.node_of[replica], min(self._options.move_after, self._options.cordon_after)
        assert node is not None
        since = now - self._options.bad_node_window_ns
        while self.failures and self.failures[0][0] <= since:
            del self.failures[0]
        if least <= 1 or any(past[1] == node and past[3] == kind for past in self.failures):
            return False
        self.failures.append((now, node, replica, kind))
        return True

    def forgive(self, at: int) -> None:
        """A failure of then was none of the replica's."""
        self.failures = [past for past in self.failures if past[0] != at]

    def _cordon(self, node: int) -> None:
        """Unless a minimum would have no room without it."""
        own = self.room[node] - len(self.on[node])
        if self.others_have_room() and self.taken - len(self.on[node]) + self.free - own >= self._least:
            self.cordoned[node] = self.flapping[node] = None
            self.free -= own

    def _avoided(self, replica: int, now: int) -> list[int]:
        since = now - self._options.bad_node_window_ns
        counts = Counter((node, kind) for at, node, who, kind in self.failures if who == replica and at > since)
        return [node for (node, _), count in counts.items() if count >= self._options.move_after]

    def move_away(self, now: int) -> None:
        """All have stopped: whoever is on a bad node loses the seat, if there is another one."""
        suspects = {replica: None for _, _, replica, _ in self.failures}
        suspects |= {replica: None for node in self.cordoned for replica in self.on[node]}
        for replica in sorted(suspects):
            node = self.node_of[replica]
            if node is None:
                continue
            bad = self._avoided(replica, now)
            if (node in bad or node in self.cordoned) and self._has_seat_besides({node, *bad}):
                self.on[node].remove(replica)
                self.node_of[replica] = None
                insort(self.vacant, replica)
                self.taken -= 1
                if self._is_open(node):
                    self.free += 1
                    self._offer(node)

    def _has_seat_besides(self, nodes: set[int]) -> bool:
        here = sum(self.room[node] - len(self.on[node]) for node in nodes if self._is_open(node))
        return self.free > here
