"""Choice of the best node for one more replica: the one with most free slots, or with fewest if the role packs.

Ties go to the node that is listed first, not to the first to join, so that a simulation and a real run place alike. A
choice is subtracted from a trial, the capacity that is assumed free, and not from the state.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable

from flowdist.control.job.parts import Candidate, CandidateIndex
from flowdist.control.job.state import JobState, Node, Role
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.graph import Placement
from flowdist.graph.capacity import Capacity, slots, subtract

# Capacity assumed free on nodes, where it differs from the real one; None: the node takes nothing.
Trial = dict[NodeName, Capacity | None]
Seat = tuple[ReplicaId, NodeName]


class Chooser:
    """Source of nodes for further replicas of one role: each `take` chooses the best node and subtracts from `trial`.

    Heap entries of nodes in the trial may be outdated: `take` recomputes them. `trial` has the capacity assumed free on
    some nodes (None: takes nothing); `taken` the seats that were chosen, not given, for `near` and `apart`.
    """

    def __init__(self, job: JobState, role: Role, trial: Trial, taken: Iterable[Seat] = ()) -> None:
        self._job, self._role, self._trial = job, role, trial
        self._taken: dict[NodeName, list[str]] = {}
        for replica, node in taken:
            self._taken.setdefault(node, []).append(replica.role)
        self._passed: Candidate | None = None  # the last entry of the candidate index that was read
        self._heap = [candidate for name in trial if (candidate := self._candidate(name)) is not None]
        heapq.heapify(self._heap)

    def lacks(self, count: int) -> bool:
        """Return True if all free slots are fewer than `count`. False proves nothing. Call before the first `take`."""
        if self._role.need.is_nothing:
            return False
        tried = sum(abs(found[0]) for name in self._trial if (found := self._role.candidates.get(name)) is not None)
        return self._role.candidates.slots - tried + sum(abs(rank) for rank, _, _ in self._heap) < count

    def take(self, prefer: NodeName | None = None, avoid: Collection[NodeName] = ()) -> NodeName | None:
        """Return a node for one more replica and subtract its need from the trial; None if no node has room.

        `prefer` is chosen if the replica fits there, best or not: its ports were chosen there. Nodes in `avoid` are not
        chosen.
        """
        if prefer is not None and prefer not in avoid and self._candidate(prefer) is not None:
            return self._give(prefer)
        put_back = []
        found = None
        while found is None and (best := self._next()) is not None:
            candidate = self._candidate(best[2])
            if candidate is None:
                continue
            if candidate != best:
                heapq.heappush(self._heap, candidate)
            elif best[2] in avoid:
                put_back.append(best)
            else:
                found = best[2]
        for entry in put_back:
            heapq.heappush(self._heap, entry)
        return self._give(found) if found is not None else None

    def _next(self) -> Candidate | None:
        """Take out and return the next best entry, of the heap (maybe outdated) or the index; None: none."""
        fresh = self._role.candidates.after(self._passed)
        while fresh is not None and fresh[2] in self._trial:
            self._passed = fresh
            fresh = self._role.candidates.after(fresh)
        if self._heap and (fresh is None or self._heap[0] < fresh):
            return heapq.heappop(self._heap)
        self._passed = fresh or self._passed
        return fresh

    def _give(self, name: NodeName) -> NodeName:
        free = self._left(name)
        assert free is not None
        self._trial[name] = subtract(free, self._role.need)
        self._taken.setdefault(name, []).append(self._role.spec.name)
        candidate = self._candidate(name)
        if candidate is not None:
            heapq.heappush(self._heap, candidate)
        return name

    def _left(self, name: NodeName) -> Capacity | None:
        return self._trial[name] if name in self._trial else self._job.free.get(name)

    def _candidate(self, name: NodeName) -> Candidate | None:
        return candidate(self._job, self._role.candidates, name, self._left(name), self._taken.get(name, ()))


def candidate(
    job: JobState, candidates: CandidateIndex, name: NodeName, free: Capacity | None, taken: Collection[str] = ()
) -> Candidate | None:
    """Return the entry of a node for a candidate index, the best being the lowest; None if no replica fits there.

    `free` is None if the node takes nothing; `taken` are names of roles that are about to get a seat there.
    """
    if free is None or (candidates.is_picky and refusal(job.nodes[name], candidates.placement, taken)):
        return None
    count = slots(candidates.need, free)
    if count < 1:
        return None
    return (count if candidates.placement.strategy == "pack" else -count), job.nodes[name].order, name


def refusal(node: Node, placement: Placement, taken: Collection[str] = ()) -> str:
    """Return why the placement rules of a role exclude the node, whatever room there is; empty if they allow it.

    The text follows the name of the node in a message, as in `is not zone=a` or `has no ps`. `taken` are names of roles
    that are about to get a seat on the node.
    """
    labels = dict(node.spec.labels)
    for key, value in placement.where:
        if labels.get(key) != value:
            return f"is not {key}={value}"
    if not (placement.near or placement.apart):
        return ""
    there = {replica.role for replica in node.replicas} | set(taken)
    for role in placement.near:
        if role not in there:
            return f"has no {role}"
    for role in placement.apart:
        if role in there:
            return f"has a {role} already"
    return ""
