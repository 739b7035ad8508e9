"""Start-ups of the gang in macro mode: what nodes have in memory for them, how long the slowest takes, and its pace.

The first start on a node is cold. Once it has taken its time, further starts on the node are warm, until the
node dies (`warm_startup`). When a generation begins to work, the nodes of its members have the parts of the checkpoint
and a copy of each in memory (`peer_restore`). A node loses them when it dies, and they are out of reach while it is cut
off.

The simulator draws these times for each worker; macro mode draws the slowest of a gang at
once, from the same distribution: if N numbers are drawn evenly from [0, 1), the largest is distributed as the root of
order N of one such number.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from flowdist.faults.streams import draw
from flowdist.graph import WorkloadSpec
from flowdist.sim.user_code.workload import EVEN, pace_of


class NodeMemory:
    """Memory of the nodes, by number: since when (ns) the gang starts warm there, and parts of the checkpoint."""

    def __init__(self, load: WorkloadSpec) -> None:
        self._load = load
        self._warm_since: dict[int, int] = {}
        self._holders: set[int | None] = set()  # nodes that had parts of the checkpoint; none without `peer_restore`
        self._dead: set[int] = set()  # those of them that have died since
        self._cut_until: dict[int, int] = {}

    def split(self, members: int, living: Iterable[int], now: int) -> tuple[int, int]:
        """Return how many of the starts of so many members, all at `now`, are cold, and how many are warm.

        The cold ones make their nodes warm once they have taken their time. Without `warm_startup` all are cold; else
        those on dead nodes are none: `living` are the nodes of the others.
        """
        if self._load.warm_startup_ns is None:
            return members, 0
        nodes = list(living)
        warm = sum(self._warm_since.get(node, now + 1) <= now for node in nodes)
        for node in nodes:
            self._warm_since.setdefault(node, now + self._load.startup_ns)
        return len(nodes) - warm, warm

    def take_back(self, node: int, at: int) -> None:
        """Note that a node has not got the order for the start at `at`: if it was cold, it has stayed so."""
        if self._warm_since.get(node) == at + self._load.startup_ns:
            del self._warm_since[node]

    def begin(self, nodes: Iterable[int | None]) -> None:
        """Note that a generation with members on these nodes begins to work; None stands for no node."""
        if self._load.peer_restore_ns is not None:
            self._holders = set(nodes)
            self._dead.clear()

    def forget(self, node: int) -> None:
        """Note that a node has died, and with it what was in its memory; a cut is over when it is back."""
        self._warm_since.pop(node, None)
        self._cut_until.pop(node, None)
        if node in self._holders:
            self._dead.add(node)

    def cut_off(self, node: int, until: int) -> None:
        """Note that a node is cut off until a time."""
        self._cut_until[node] = until

    def restore_ns(self, now: int) -> int:
        """Return how long a generation needs to read its checkpoint, if what it can reach at `now` is all there is."""
        away = {node for node, until in self._cut_until.items() if now < until and node in self._holders}
        return self._load.restore_ns_after(len(self._dead | away))


def slowest_ns(load: WorkloadSpec, cold: int, warm: int, seed: int, entity: str, generation: int) -> int:
    """Return how long the slowest of a gang's `cold` and `warm` start-ups takes, without the restore, in ns.

    Each time is drawn evenly, by `startup_spread` in both directions; with seed 0 all take their nominal time.
    """
    times = [0]
    for members, nominal_ns, purpose in (
        (cold, load.startup_ns, "slowest"),
        (warm, load.warm_startup_ns or 0, "slowest warm"),
    ):
        if members:
            slowest = draw(seed, entity, purpose, generation) ** (1 / members)
            extra = 2 * load.startup_spread * slowest - load.startup_spread if seed else 0
            times.append(nominal_ns + int(nominal_ns * extra))
    return max(times)


def slowest_pace(load: WorkloadSpec, workers: int, seed: int, entity: str, generation: int) -> Fraction:
    """Return how much slower than nominal, from 1 by `step_spread`, the slowest drawn worker is; 1 for seed 0."""
    if not load.step_spread or not seed:
        return EVEN
    return pace_of(load, draw(seed, entity, "pace", generation) ** (1 / workers))
