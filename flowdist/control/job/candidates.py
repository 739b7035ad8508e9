"""Index of the nodes that one more replica of a given size and placement fits on, the best first.

The index stays sorted while seats are taken and freed, so that a choice among ten thousand nodes costs what it costs
among ten. `placement/chooser.py` decides which nodes are in it, and chooses.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from flowdist.control.protocol.ids import NodeName
from flowdist.graph import Placement
from flowdist.graph.capacity import Need

# Rank, the node's order, its name; the lowest is the best. The rank is the number of replicas that fit on the node,
# negative unless the role packs nodes.
Candidate = tuple[int, int, NodeName]


class CandidateIndex:
    """Nodes that have room for one more replica of a given need and placement, sorted with the best node first.

    Iteration yields the candidates in that order. `slots` is how many replicas fit on all of the nodes together.
    `is_picky`: the placement has rules besides room, so that a node with room may still be excluded.
    """

    def __init__(self, need: Need, placement: Placement) -> None:
        self.need, self.placement = need, placement
        self.is_picky = bool(placement.where or placement.near or placement.apart)
        self.slots = 0
        self._found: dict[NodeName, Candidate] = {}
        self._sorted: list[Candidate] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CandidateIndex) and self._found == other._found

    __hash__ = None  # type: ignore[assignment]  # an index is mutable

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._sorted)

    def get(self, name: NodeName) -> Candidate | None:
        """Return the candidate of the node; None if the node is not in the index."""
        return self._found.get(name)

    def put(self, name: NodeName, candidate: Candidate | None) -> None:
        """Set the candidate of a node and adjust `slots`. None removes the node, if it is in the index."""
        was = self._found.get(name)
        if was == candidate:
            return
        if was is not None:
            del self._found[name]
            del self._sorted[bisect_left(self._sorted, was)]
            self.slots -= abs(was[0])
        if candidate is not None:
            insort(self._sorted, candidate)
            self._found[name] = candidate
            self.slots += abs(candidate[0])

    def after(self, candidate: Candidate | None) -> Candidate | None:
        """Return the best candidate that sorts after the given one, or the best of all for None; None if there is none.

        The given candidate need not be in the index any more.
        """
        index = bisect_right(self._sorted, candidate) if candidate is not None else 0
        return self._sorted[index] if index < len(self._sorted) else None
