"""Buddies: which nodes hold the copies of the shards of which others. A pure function of the nodes of a world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flowdist.control.protocol.ids import NodeName


def ring(nodes: Sequence[tuple[NodeName, str]], copies: int) -> dict[NodeName, tuple[NodeName, ...]]:
    """Return the `copies` - 1 buddies of each node, or all others if there are not as many.

    The nodes, each with its place (a rack, or itself), form a ring, in which places take turns, so that each node holds
    about as much. The buddies of a node are the next ones that are in places of their own, and if there are too few
    places, the next of the others.
    """
    found, seen = {}, Counter[str]()
    turns = []
    for name, place in nodes:
        turns.append((seen[place], name, place))
        seen[place] += 1
    nodes = [(name, place) for _, name, place in sorted(turns, key=lambda turn: turn[0])]
    for i, (name, place) in enumerate(nodes):
        places, chosen, others = {place: None}, list[NodeName](), list[NodeName]()
        for at in range(i + 1, i + len(nodes)):
            if len(chosen) == copies - 1:
                break
            other, its_place = nodes[at % len(nodes)]
            (others if its_place in places else chosen).append(other)
            places[its_place] = None
        found[name] = (*chosen, *others)[: copies - 1]
    return found


def place_of(name: NodeName, labels: Sequence[tuple[str, str]], apart: str) -> str:
    """Return the place of a node for `ring`: the value of its label `apart`, or its name if it has no such label."""
    return dict(labels).get(apart, name) if apart != "node" else name
