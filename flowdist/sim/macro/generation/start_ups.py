"""Start-ups of the gang in macro mode: which are warm, how long the slowest takes, and how slow its steps are.

The first start on a node is cold. Once it has taken its time, further starts on the node are warm, until the
node dies (`warm_startup`). The simulator draws these times for each worker; macro mode draws the slowest of a gang at
once, from the same distribution: if N numbers are drawn evenly from [0, 1), the largest is distributed as the root of
order N of one such number.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from flowdist.faults.streams import draw
from flowdist.graph import WorkloadSpec
from flowdist.sim.macro.generation.course import EVEN

PACES = 1_000_000  # a drawn slow-down is rounded to one part in so many, as in the simulator


class WarmNodes:
    """Nodes on which the gang has started before, and since when its starts there are warm."""

    def __init__(self, load: WorkloadSpec) -> None:
        self._load = load
        self._since: dict[int, int] = {}

    def split(self, nodes: Sequence[int], now: int) -> tuple[int, int]:
        """Return how many of the starts on these nodes, all at `now` (ns), are cold, and how many are warm.

        The cold ones make their nodes warm once they have taken their time. Without `warm_startup` all are cold.
        """
        if self._load.warm_startup_ns is None:
            return len(nodes), 0
        warm = sum(self._since.get(node, now + 1) <= now for node in nodes)
        for node in nodes:
            self._since.setdefault(node, now + self._load.startup_ns)
        return len(nodes) - warm, warm

    def forget(self, node: int) -> None:
        """Note that a node has died, and with it the modules in its memory."""
        self._since.pop(node, None)


def slowest_ns(load: WorkloadSpec, cold: int, warm: int, seed: int, entity: str, generation: int) -> int:
    """Return how long the slowest of a gang's start-ups takes, without the restore, in ns.

    Args:
        load: The workload of the gang.
        cold: Number of members that start cold.
        warm: Number of members that start warm.
        seed: Seed of the run; with 0 all start-ups take their nominal time.
        entity: The name of the gang, for the draw.
        generation: The number of the generation, for the draw.
    """
    kinds = ((cold, load.startup_ns, "slowest"), (warm, load.warm_startup_ns or 0, "slowest warm"))
    times = [0]
    for members, nominal_ns, purpose in kinds:
        if members:
            drawn = draw(seed, entity, purpose, generation) if seed else 0.0
            extra_ns = extra_startup_ns(load, nominal_ns, drawn, members) if seed else 0
            times.append(nominal_ns + extra_ns)
    return max(times)


def extra_startup_ns(load: WorkloadSpec, nominal_ns: int, drawn: float, members: int) -> int:
    """Return how much longer than nominal, in ns, the slowest of so many start-ups takes; it may be negative.

    The time of each is spread evenly by `startup_spread` in both directions. `drawn` is a number from [0, 1).
    """
    return int(nominal_ns * (2 * load.startup_spread * drawn ** (1 / members) - load.startup_spread))


def pace_of(load: WorkloadSpec, workers: int, seed: int, entity: str, generation: int) -> Fraction:
    """Return how many times longer than nominal the slowest of a gang's workers takes for a step; 1 for seed 0.

    Args:
        load: The workload, with `step_spread`: the time of each worker is spread evenly upwards by this share.
        workers: Number of workers of all members.
        seed: Seed of the run.
        entity: The name of the gang, for the draw.
        generation: The number of the generation, for the draw.
    """
    if not load.step_spread or not seed:
        return EVEN
    slowest = draw(seed, entity, "pace", generation) ** (1 / workers)
    return 1 + Fraction(round(load.step_spread * slowest * PACES), PACES)
