"""Survival of a state in memory: who holds whose copies, and which losses of nodes they survive, exactly (R24).

The state of a world is lost with a set of nodes if these are all holders of a shard. So the question is how many sets
of k nodes contain a set of holders. For k up to 3 that is counted, without going through all sets of k nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fractions import Fraction
from math import comb
from typing import Any

from flowdist.control.job.state import JobState, World
from flowdist.control.protocol.ids import NodeName
from flowdist.control.snapshots.buddies import place_of

LOSSES_MAX = 3  # nodes that are lost at one time
Holders = frozenset[NodeName]


def memory_of(job: JobState) -> dict[str, Any]:
    """Return, for each world with snapshots that runs, its holders and what survives, as plain values."""
    found = {}
    for world in job.worlds.values():
        spec = job.roles[world.roles[0]].spec.snapshots
        if spec is not None and world.buddies:
            holders = holders_of(world)
            shares = survival(set(map(frozenset, holders.values())), len(holders))
            lost = [(f"{number} node{'s' * (number > 1)}", share) for number, share in enumerate(shares, 1)]
            if spec.apart != "node":
                lost.append((f"one {spec.apart}", _survives_places(job, holders, spec.apart)))
            found[world.name] = {
                "copies": spec.copies,
                "every": spec.every,
                "apart": spec.apart,
                "holders": {str(member.id): holders[member.node] for member in job.members_of(world) if member.node},
                "survives": [{"lost": what, **_share(share)} for what, share in lost],
            }
    return found


def holders_of(world: World) -> dict[NodeName, list[NodeName]]:
    """Return the nodes that hold the shards of the workers on each node of a world, its own first."""
    return {name: [name, *(buddy for buddy, _ in order.buddies)] for name, order in world.buddies.items()}


def survival(holders: Collection[Holders], nodes: int) -> list[Fraction]:
    """Return the probability that a state survives the loss of 1, 2 and 3 of so many nodes, each set being as likely.

    `holders` are the sets of nodes that hold a shard each. More nodes than there are cannot be lost.
    """
    return [
        Fraction(comb(nodes, lost) - _fatal(holders, nodes, lost), comb(nodes, lost))
        for lost in range(1, min(LOSSES_MAX, nodes) + 1)
    ]


def _fatal(holders: Collection[Holders], nodes: int, lost: int) -> int:
    """Return how many sets of `lost` nodes contain a set of holders."""
    single = {node for each in holders if len(each) == 1 for node in each}
    rest = nodes - len(single)
    pairs = [each for each in holders if len(each) == 2 and not each & single]
    with_single = comb(nodes, lost) - comb(rest, lost)
    if lost < 2:
        return with_single
    if lost == 2:
        return with_single + len(pairs)
    near: dict[NodeName, set[NodeName]] = {}
    for one, other in map(sorted, pairs):
        near.setdefault(one, set()).add(other)
        near.setdefault(other, set()).add(one)
    twice = sum(comb(len(others), 2) for others in near.values())  # triples with two pairs; a triangle is three
    triangles = sum(len(near[one] & near[other]) for one, other in map(sorted, pairs)) // 3
    triples = [each for each in holders if len(each) == 3 and not each & single]
    others = [each for each in triples if not any(near.get(node, set()) & each for node in each)]
    return with_single + len(pairs) * (rest - 2) - twice + triangles + len(others)


def _survives_places(job: JobState, holders: dict[NodeName, list[NodeName]], apart: str) -> Fraction:
    """Return the probability that a state survives the loss of all nodes of one place, such as a rack."""
    places: dict[str, set[NodeName]] = {}
    for name in holders:
        places.setdefault(place_of(name, job.nodes[name].spec.labels, apart), set()).add(name)
    survived = [not any(set(each) <= lost for each in holders.values()) for lost in places.values()]
    return Fraction(sum(survived), len(survived))


def memory_lines(memory: dict[str, Any]) -> Iterable[str]:
    """Yield the text of what `memory_of` has returned."""
    for name, told in memory.items():
        many = f"{told['copies']} cop{'y' if told['copies'] == 1 else 'ies'}"
        yield f"  {name}: every {told['every']} step{'s' * (told['every'] > 1)}, {many} of each shard"
        for replica, nodes in told["holders"].items():
            yield f"    {replica}: {', '.join(nodes)}"
        for each in told["survives"]:
            yield f"    survives the loss of {each['lost']}: {_words(each['exact'], each['probability'])}"


def _share(share: Fraction) -> dict[str, Any]:
    """Return a probability as plain values: as a number, and as the fraction that it is exactly."""
    return {"probability": float(share), "exact": str(share)}


def _words(exact: str, probability: float) -> str:
    return {"0": "never", "1": "always"}.get(exact, f"{probability:.4g} ({exact})")
