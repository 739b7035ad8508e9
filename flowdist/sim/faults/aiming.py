"""Times at which a world saves or restores, as its workload says: targets of the nemesis.

Both last for seconds in hours, so that a fault at a random time seldom hits them. The time is computed: start-ups are
drawn from the seed, and after one fault everything takes as long as it would without another. So a plan stays a plain
list of faults with times, and can be made small as usual.
"""

from __future__ import annotations

from flowdist.faults.grammar import Fault
from flowdist.faults.streams import draw, spread
from flowdist.graph import MS, RoleGraph, RoleSpec, WorkloadSpec
from flowdist.sim.user_code.workload import world_roles

QUICK = ("kill", "exit", "oom")  # faults that are known at once
SILENT = ("lost", "pause", "partition", "cut-to")  # faults of a node that only its lease reveals
STOP_NS = 150 * MS  # from a failure to the start of the next generation
CYCLES = 3  # checkpoints after a restart whose times are certain enough


class Aim:
    """Times for the gangs of a graph that save, and for those that read a checkpoint when they restart."""

    def __init__(self, graph: RoleGraph) -> None:
        self._graph = graph
        gangs = [spec for spec in graph.roles if spec.gang and spec.kind == "task" and not spec.simulate]
        saves = [spec for spec in gangs if _checkpoints(spec.workload)]
        self._savers = [spec for spec in saves if spec.workload.checkpoint_ns]
        self._readers = [spec for spec in saves if spec.workload.restore_ns]

    def saving(self, seed: int, n: int, after: Fault | None) -> int | None:
        """Return a time at which a gang writes a checkpoint; None if no gang does.

        Args:
            seed: The seed of the plan.
            n: The number of the fault in the plan.
            after: The last fault that hits the gang before, if any.
        """
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
        """Return a time at which a gang reads its checkpoint because of the fault `after`; None if it does not."""
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
        """Return when the processes of the next generation run, if the fault makes one."""
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
        return world_roles(self._graph, spec.name)

    def _begins_ns(self, seed: int, spec: RoleSpec) -> int:
        """Return when the first generation begins to step: its last worker is up, and all have warmed up."""
        return max(self._up_ns(seed, self._graph.role(name)) for name in self._world(spec)) + self._warmup_ns(spec)

    def _warmup_ns(self, spec: RoleSpec) -> int:
        """Return how long the world warms up: as long as its slowest member."""
        return max(self._graph.role(name).workload.warmup_ns for name in self._world(spec))

    def _up_ns(self, seed: int, spec: RoleSpec) -> int:
        return self._starts_ns(seed, spec) + max(_startups_ns(seed, spec, attempt=1))

    def _starts_ns(self, seed: int, spec: RoleSpec) -> int:
        """Return when the gates of the role and of its world are open."""
        waits = [0]
        for name in self._world(spec):
            for gate in self._graph.role(name).gates:
                other = self._graph.role(gate.role)
                up = self._up_ns(seed, other) if gate.condition != "started" else self._starts_ns(seed, other)
                waits.append(up + (_work_ns(other.workload) if gate.condition == "succeeded" else 0))
        return max(waits)


def _startups_ns(seed: int, spec: RoleSpec, attempt: int) -> list[int]:
    """Return how long each replica of a role takes to start up in that attempt."""
    names = [f"{spec.name}/{number}#{attempt}" for number in range(spec.max_replicas)]
    return [round(spec.workload.startup_ns * spread(seed, name, "startup")) for name in names]


def _checkpoints(load: WorkloadSpec) -> int:
    """Return how many checkpoints a world begins if nothing goes wrong.

    One is due after every `checkpoint_every_ns` of nominal stepping time, and none when the last step ends.
    """
    return (load.steps * load.step_ns - 1) // load.checkpoint_every_ns


def _work_ns(load: WorkloadSpec) -> int:
    return load.warmup_ns + load.steps * load.step_ns + _checkpoints(load) * load.blocking_ns
