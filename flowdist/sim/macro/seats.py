"""Seats of the gang on its nodes, in macro mode: placement, free seats, bad nodes (R22).

Replicas and nodes are numbers. Seats are given as `control` gives them: to the lowest replica first, on the node with
most free seats (with fewest if the placement is to pack). Of equal nodes the one that is listed first is taken.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterator

from flowdist.control.placement.placement import recent, repeated
from flowdist.control.rules import no_better
from flowdist.graph import JobOptions, RoleSpec


class Seats:
    """Seats of the replicas of one role: which replica is on which node, and which nodes may take more.

    `slots` says how many replicas of the role fit on each node that may ever join, by its resources; the first `known`
    nodes are there from the start.
    """

    def __init__(self, role: RoleSpec, options: JobOptions, slots: tuple[int, ...], known: int) -> None:
        self._options, self._least = options, role.min_replicas
        self.sign = 1 if role.placement.strategy == "pack" else -1  # the order of `candidates`
        self._slots, most = slots, 1 if role.placement.apart else max(slots)
        # By node: how many replicas may have their seat on it (1 at most if they are to be apart; `slots` is the order
        # of `candidates` all the same), and which ones have.
        self.room, self.on = [min(count, most) for count in slots], [[] for _ in slots]  # type: list[int], list[list[int]]
        # By node: it has joined, and is not lost as far as the controller knows.
        self.usable = [node < known for node in range(len(slots))]
        self.cordoned: dict[int, None] = {}  # nodes that take no more replicas
        self.node_of: list[int | None] = [None] * role.max_replicas  # of its seat; None: the replica has none
        self.vacant = list(range(role.max_replicas))  # replicas without a seat, ascending
        self.taken = self.free = 0  # number of replicas with a seat, and of seats without a replica
        # Heap of (key, node) of nodes with free seats. Entries may be out of date; `_best` drops them.
        self.candidates: list[tuple[int, int]] = []
        # By node: when (ns) it was lost with a running replica on it, within `bad_node_window`.
        self.losses: dict[int, list[int]] = {}
        # Time, kind, replica and node of each failure that counts against a node, within that window.
        self.failures: list[tuple[int, str, int, int]] = []
        # The node on which a replica has run that lost its seat there for another reason than the loss of the node. It
        # returns there if it can, since its ports were chosen there.
        self.home: dict[int, int] = {}
        self.fresh: dict[int, None] = {}  # replicas with a seat on a node on which they have not run
        self._step = role.step
        for node in range(known):
            self.free += self.room[node]
            self._offer(node)

    @property
    def _block(self) -> int:
        """Number of replicas that get their seats together: as many as complete the mesh of the role's ranks."""
        return self._step - self.taken % self._step

    @property
    def has_minimum(self) -> bool:
        """Return whether the role has its minimum."""
        return self.taken >= self._least

    @property
    def has_block(self) -> bool:
        """Return whether the replicas that want a seat, and the free seats, are enough for a larger mesh."""
        return min(len(self.vacant), self.free) >= self._block

    @property
    def seated(self) -> Iterator[tuple[int, int]]:
        """Yield the replicas that have a seat, ascending, each with its node."""
        return ((replica, node) for replica, node in enumerate(self.node_of) if node is not None)

    def drop_part_of_block(self) -> None:
        """Take the seats of the highest replicas away that are too many for a mesh; none without a mesh."""
        for _ in range(self.taken % self._step):
            replica, node = max(self.seated)
            insort(self.vacant, replica)
            self._empty(node, replica)

    def _offer(self, node: int) -> None:
        """Add a node with free seats to the candidates; nothing if it is full, not usable or cordoned."""
        if self.room[node] > len(self.on[node]) and self._is_open(node):
            heapq.heappush(self.candidates, (self._key(node), node))

    def _key(self, node: int) -> int:
        return self.sign * (self._slots[node] - len(self.on[node]))

    def _is_open(self, node: int) -> bool:
        return self.usable[node] and node not in self.cordoned

    def _best(self, avoid: list[int]) -> int | None:
        """Remove and return the best node for one more replica that is not in `avoid`; None if no other has a seat."""
        put_back, found = [], None
        while self.candidates and found is None:
            entry = heapq.heappop(self.candidates)
            node = entry[1]
            if not self._is_open(node) or self._key(node) != entry[0]:
                continue
            if node in avoid:
                put_back.append(entry)
            else:
                found = node
        for entry in put_back:
            heapq.heappush(self.candidates, entry)
        return found

    def _choose(self, replica: int, avoid: list[int]) -> int | None:
        """Return the best node for a replica, or its home if that has a free seat; None if only nodes in `avoid` do."""
        home = self.home.get(replica)
        if home is not None and home not in avoid and self._is_open(home) and self.room[home] > len(self.on[home]):
            return home
        return self._best(avoid)

    def fill(self, now: int) -> int:
        """Give free seats to replicas without one, lowest replica first, and return how many got one.

        Replicas of a mesh get their seats in whole blocks. A replica gets a seat on a node on which it failed
        repeatedly only if no other node has a free seat (R22).
        """
        before, left = self.taken, 0
        while self.vacant and self.free:
            if not left and not self.has_block:
                break
            left = (left or self._block) - 1
            replica = self.vacant[0]
            node = self._choose(replica, self._avoided(replica, now) if self.failures else [])
            if node is None:
                node = self._choose(replica, [])
            assert node is not None, "a free seat is not among the candidates"
            del self.vacant[0]
            if self.home.pop(replica, None) != node:
                self.fresh[replica] = None
            self.node_of[replica] = node
            self.on[node].append(replica)
            self.taken += 1
            self.free -= 1
            self._offer(node)
        return self.taken - before

    def lose(self, node: int) -> int:
        """Take all seats of a lost node away, and return how many replicas lost theirs; 0 if it is lost already."""
        if not self.usable[node]:
            return 0
        lost = self.on[node]
        if node not in self.cordoned:
            self.free -= self.room[node] - len(lost)
        self.usable[node] = False
        for replica in lost:
            self.fresh.pop(replica, None)
            self.node_of[replica] = None
            insort(self.vacant, replica)
        self.taken -= len(lost)
        self.on[node] = []
        return len(lost)

    def _empty(self, node: int, replica: int) -> None:
        """Take a replica's seat on a node away. The seat is free for others if the node is usable and not cordoned."""
        if self.fresh.pop(replica, replica) is not None:
            self.home[replica] = node
        self.on[node].remove(replica)
        self.node_of[replica] = None
        self.taken -= 1
        if self._is_open(node):
            self.free += 1
            self._offer(node)

    def note_loss(self, node: int, now: int) -> None:
        """Count the loss of a node on which a replica ran. With too many within the window the node flaps (R22)."""
        since = now - self._options.bad_node_window_ns
        self.losses[node] = [*(at for at in self.losses.get(node, ()) if at > since), now]

    def join(self, node: int, now: int) -> None:
        """Offer the seats of a node that joined, unless it is cordoned, or flaps and is not needed (R22)."""
        self.usable[node] = True
        if node in self.cordoned:
            return
        self.free += self.room[node] - len(self.on[node])
        self._offer(node)
        since = now - self._options.bad_node_window_ns
        if sum(at > since for at in self.losses.get(node, ())) >= self._options.cordon_after:
            self._cordon(node)

    def blame(self, replica: int, kind: str, now: int) -> None:
        """Count a failure of a seated replica against its node, which may be cordoned if the minimum has room (R22)."""
        node = self.node_of[replica]
        assert node is not None
        self.failures = [*recent(self.failures, now, self._options), (now, kind, replica, node)]
        same = sum(past[1] == kind and past[3] == node for past in self.failures)
        if same >= self._options.cordon_after and node not in self.cordoned:
            self._cordon(node)

    def _cordon(self, node: int) -> None:
        """Cordon a usable node, unless the minimum has no room without it. Replicas on it keep their seats."""
        others = len(self.on[node])
        own = self.room[node] - others
        if node not in self.cordoned and self.taken - others + self.free - own >= self._least:
            self.cordoned[node] = None
            self.free -= own

    def _avoided(self, replica: int, now: int) -> list[int]:
        """Return the nodes on which the replica has failed so often in one way that it should not be there (R22)."""
        own = [past for past in recent(self.failures, now, self._options) if past[2] == replica]
        return repeated(own, self._options.move_after)

    def move_away(self, now: int) -> None:
        """Take seats on bad nodes, cordoned or failed on, away if others are free, for `fill`; all have stopped."""
        suspects = {replica: None for _, _, replica, _ in self.failures}
        suspects |= {replica: None for node in self.cordoned for replica in self.on[node]}
        for replica in sorted(suspects):
            node = self.node_of[replica]
            if node is None:
                continue
            others = no_better(node, self._avoided(replica, now), is_closed=node in self.cordoned)
            free = sum(self.room[each] - len(self.on[each]) for each in others if self._is_open(each))
            if others and self.free > free:  # a better node has a free seat
                insort(self.vacant, replica)
                self._empty(node, replica)
