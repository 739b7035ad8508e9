"""Buddies: which nodes hold the copies of the shards of which others. A function of the nodes and the buddies so far.

Nodes form groups of as many as there are copies, which hold each other's shards. Of all ways to choose holders this one
has the fewest sets of nodes whose loss is fatal, as Wang et al. show (GEMINI, SOSP 2023): of 16 nodes with two copies 8
pairs, where a ring has 16.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from flowdist.control.protocol.ids import NodeName

Buddies = dict[NodeName, tuple[NodeName, ...]]


def buddies(
    nodes: Sequence[tuple[NodeName, str]], copies: int, before: Mapping[NodeName, Sequence[NodeName]] | None = None
) -> Buddies:
    """Return the `copies` - 1 buddies of each node, or all others if there are not as many.

    A group that is there in whole stays: its nodes have what they need of each other. The other nodes, of which places
    take turns, form new groups, with nodes in different places as far as there are enough. What is left, fewer nodes
    than copies, forms a ring with the last group, so that each node holds as much. If places are too uneven for groups,
    all nodes form the ring.

    Args:
        nodes: The nodes, each with its place: a rack, or itself.
        copies: How many nodes hold a shard, its own one included.
        before: The buddies that nodes had so far.
    """
    order = _in_turns(nodes)
    groups = _whole(before or {}, order, copies)
    staying = {name for group in groups for name in group}
    ring = {name: place for name, place in order.items() if name not in staying}
    left = dict[NodeName, str]()
    most = min(copies, len(set(order.values())))
    while ring:
        name, place = next(iter(ring.items()))
        group = [name, *_next(name, ring, copies)]
        if len(group) == copies and len({order[each] for each in group}) == most:
            groups.append(group)
        else:
            group, left[name] = [name], place
        for each in group:
            del ring[each]
    if len(left) >= copies:
        groups, left = [], order
    elif left and groups:
        last = groups.pop()
        left = {name: place for name, place in order.items() if name in last or name in left}
    found = {name: (*group[i + 1 :], *group[:i]) for group in groups for i, name in enumerate(group)}
    return found | {name: tuple(_next(name, left, copies)) for name in left}


def place_of(name: NodeName, labels: Sequence[tuple[str, str]], apart: str) -> str:
    """Return the place of a node for `buddies`: the value of its label `apart`, or its name if it has no such label."""
    return dict(labels).get(apart, name) if apart != "node" else name


def _in_turns(nodes: Iterable[tuple[NodeName, str]]) -> dict[NodeName, str]:
    """Return the nodes with their places, which take turns."""
    seen, turns = Counter[str](), list[tuple[int, NodeName, str]]()
    for name, place in nodes:
        turns.append((seen[place], name, place))
        seen[place] += 1
    return {name: place for _, name, place in sorted(turns, key=lambda turn: turn[0])}


def _whole(
    before: Mapping[NodeName, Sequence[NodeName]], nodes: Mapping[NodeName, str], copies: int
) -> list[list[NodeName]]:
    """Return the groups that are there in whole: as many nodes as there are copies, each with the others as buddies."""
    groups: dict[frozenset[NodeName], list[NodeName]] = {}
    for name in nodes:
        group = [name, *before.get(name, ())]
        if len(group) == copies and all(each in nodes for each in group):
            groups.setdefault(frozenset(group), []).append(name)
    return [group for key, group in groups.items() if len(group) == len(key)]


def _next(name: NodeName, ring: Mapping[NodeName, str], copies: int) -> list[NodeName]:
    """Return the buddies of a node in a ring: the next ones in places of their own, then the next of the others."""
    names = list(ring)
    at = names.index(name)
    places, chosen, others = {ring[name]}, list[NodeName](), list[NodeName]()
    for other in names[at + 1 :] + names[:at]:
        if len(chosen) == copies - 1:
            break
        (others if ring[other] in places else chosen).append(other)
        places.add(ring[other])
    return [*chosen, *others][: copies - 1]
