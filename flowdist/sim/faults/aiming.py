"""When a world saves and when it restores, as its workload says: what a nemesis aims at.

Both last for seconds in hours, so that what is drawn at random seldom hits them. A time is enough: start-ups are what
the seed makes of them, and after a fault all takes what it takes without another. So plans stay plain lists of faults
with times, and are made small as ever.
"""

from __future__ import annotations

from flowdist.faults.grammar import Fault
from flowdist.graph import MS, RoleGraph, RoleSpec, WorkloadSpec
from flowdist.sim.engine.streams import draw, spread

QUICK = ("kill", "exit", "oom")  # what is known at once
SILENT = ("lost", "pause", "partition", "cut-to")  # of a node: only its lease tells
STOP_NS = 150 * MS  # the rest of a world is stopped, and started again
CYCLES = 3  # checkpoints after a restart that are near enough to be known


class Aim:
    """At the gangs of a graph that save, and at those that have something to read when they restart."""

    def __init__(self, graph: RoleGraph) -> None:
        self._graph = graph
        gangs = [spec for spec in graph.roles if spec.gang and spec.kind == "task" and not spec.simulate]
        saves = [spec for spec in gangs if _checkpoints(spec.workload)]
        self._savers = [spec for spec in saves if spec.workload.checkpoint_ns]
        self._readers = [spec for spec in saves if spec.workload.restore_ns]

    def saving(self, seed: int, n: int, after: Fault | None) -> int | None:
        """A time at which one of them writes a checkpoint, if `after` is the last that befell it."""
        if not self._savers:
            return None
        spec = self._savers[int(draw(seed, "aim", "saver", n) * len(self._savers))]
        load, begins, cycles = spec.workload, self._begins_ns(seed, spec), _checkpoints(spec.workload)
        started = self._started_again_ns(spec, after) if after is not None else None
        if started is not None:
            has_saved = started > begins + load.checkpoint_every_ns + load.checkpoint_ns
            slowest = max(_startups_ns(seed, spec, attempt=2))
            begins = started + slowest + (load.restore_ns if has_saved else 0) + self._warmup_ns(spec)
            cycles = min(cycles, CYCLES)
        cycle = int(draw(seed, "aim", "cycle", n) * cycles)
        inside = int(draw(seed, "aim", "inside", n) * load.checkpoint_ns)
        return begins + cycle * load.cycle_ns + load.checkpoint_every_ns + inside

    def restoring(self, seed: int, n: int, after: Fault) -> int | None:
        """A time at which one of them reads its checkpoint because of `after`; None where it does not, or has none."""
        if not self._readers:
            return None
        spec = self._readers[int(draw(seed, "aim", "reader", n) * len(self._readers))]
        load, started = spec.workload, self._started_again_ns(spec, after)
        saved = self._begins_ns(seed, spec) + load.checkpoint_every_ns + load.checkpoint_ns
        if started is None or started < saved:
            return None
        startups = _startups_ns(seed, spec, attempt=2)
        up = startups[int(draw(seed, "aim", "up", n) * len(startups))]
        return started + up + int(draw(seed, "aim", "read", n) * load.restore_ns)

    def _started_again_ns(self, spec: RoleSpec, fault: Fault) -> int | None:
        """When the processes of its next generation are there, if that fault makes one."""
        at, options = fault.when.at_ns, self._graph.options
        role = fault.replica[0] if fault.replica is not None else None
        if at is None or fault.target == "controller" or role not in (None, *self._world(spec)):
            return None
        if fault.kind in QUICK:
            return at + STOP_NS
        if fault.kind == "hang":
            return at + (spec.hang_after_ns or 0) + spec.stop_grace_ns + STOP_NS
        silence = options.lease_ns + options.lease_margin_ns
        if fault.kind in SILENT and (fault.duration_ns is None or fault.duration_ns > silence):
            return at + silence + STOP_NS
        return None

    def _world(self, spec: RoleSpec) -> tuple[str, ...]:
        joint = self._graph.world_of(spec.name)
        return joint.roles if joint is not None else (spec.name,)

    def _begins_ns(self, seed: int, spec: RoleSpec) -> int:
        """When its first generation begins to step: the last of its workers is up, and they have warmed up."""
        return max(self._up_ns(seed, self._graph.role(name)) for name in self._world(spec)) + self._warmup_ns(spec)

    def _warmup_ns(self, spec: RoleSpec) -> int:
        """Its world waits for the member that takes longest."""
        return max(self._graph.role(name).workload.warmup_ns for name in self._world(spec))

    def _up_ns(self, seed: int, spec: RoleSpec) -> int:
        return self._starts_ns(seed, spec) + max(_startups_ns(seed, spec, attempt=1))

    def _starts_ns(self, seed: int, spec: RoleSpec) -> int:
        """When its gates are open, those of its world among them."""
        waits = [0]
        for name in self._world(spec):
            for gate in self._graph.role(name).gates:
                other = self._graph.role(gate.role)
                up = self._up_ns(seed, other) if gate.condition != "started" else self._starts_ns(seed, other)
                waits.append(up + (_work_ns(other.workload) if gate.condition == "succeeded" else 0))
        return max(waits)


def _startups_ns(seed: int, spec: RoleSpec, attempt: int) -> list[int]:
    """Of its replicas in that attempt: after a fault the second, unless it is not the first."""
    names = [f"{spec.name}/{number}#{attempt}" for number in range(spec.max_replicas)]
    return [round(spec.workload.startup_ns * spread(seed, name, "startup")) for name in names]


def _checkpoints(load: WorkloadSpec) -> int:
    """How many it writes if nothing goes wrong: the end of the work needs none."""
    return (load.steps * load.step_ns - 1) // load.checkpoint_every_ns


def _work_ns(load: WorkloadSpec) -> int:
    return load.warmup_ns + load.steps * load.step_ns + _checkpoints(load) * load.blocking_ns
