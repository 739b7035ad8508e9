"""Times at which a world writes or reads a checkpoint, as its workload says, for the nemesis to aim faults at.

Both take seconds within hours, so that a fault at a random time seldom hits them. The times are computed before the
simulation runs: start-up times are drawn from the seed, and the plan is taken to have at most one fault before. So a
plan stays a plain list of faults with times, which can be reduced to fewer faults as any other plan.
"""

from __future__ import annotations

from flowdist.faults.grammar import Fault
from flowdist.faults.kinds import having
from flowdist.faults.streams import draw, spread
from flowdist.graph import MS, RoleGraph, RoleSpec, WorkloadSpec

STOP_NS = 150 * MS  # estimate: from the moment the controller learns of a failure to the start of the next generation
CYCLES = 3  # checkpoints after a restart that are aimed at; the times of later ones are too uncertain


class Aim:
    """Computed times at which gangs without user code write checkpoints that take time, or read them."""

    def __init__(self, graph: RoleGraph) -> None:
        self._graph = graph
        gangs = [spec for spec in graph.roles if spec.gang and spec.kind == "task" and not spec.simulate]
        saves = [spec for spec in gangs if _checkpoints(spec.workload)]
        self._savers = [spec for spec in saves if spec.workload.checkpoint_ns]
        self._readers = [spec for spec in saves if spec.workload.restore_ns]

    def saving(self, seed: int, n: int, after: Fault | None) -> int | None:
        """Draw a time, in ns, at which a gang writes a checkpoint, after a fault that restarts it; None: none."""
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
        """Draw a time, in ns, at which a gang reads its checkpoint because the fault `after` restarts it.

        None if the drawn gang does not restart then, or has no checkpoint yet, or if no gang takes time to read one.
        """
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
        """Return about when, in ns, a fault with a time makes the gang start anew; None if it does not.

        A node fault counts for every gang, since it is not known here where replicas are.
        """
        at, options = fault.when.at_ns, self._graph.options
        role = fault.replica[0] if fault.replica is not None else None
        if at is None or fault.target == "controller" or role not in (None, *self._graph.mates_of(spec.name)):
            return None
        if fault.kind in having("ends"):
            return at + STOP_NS
        if fault.kind == "hang":
            return at + (spec.hang_after_ns or 0) + spec.stop_grace_ns + STOP_NS
        silence = options.silent_after_ns
        if fault.kind in having("silences") and (fault.duration_ns is None or fault.duration_ns > silence):
            return at + silence + STOP_NS
        return None

    def _begins_ns(self, seed: int, spec: RoleSpec) -> int:
        """Return when, in ns, the first generation begins to step: its last worker is up, and all have warmed up."""
        return max(
            self._up_ns(seed, self._graph.role(name)) for name in self._graph.mates_of(spec.name)
        ) + self._warmup_ns(spec)

    def _warmup_ns(self, spec: RoleSpec) -> int:
        """Return how long, in ns, the world of the role warms up: as long as the slowest of its roles."""
        return max(self._graph.role(name).workload.warmup_ns for name in self._graph.mates_of(spec.name))

    def _up_ns(self, seed: int, spec: RoleSpec) -> int:
        """Return when, in ns, the last replica of the role has started up for the first time."""
        return self._starts_ns(seed, spec) + max(_startups_ns(seed, spec, attempt=1))

    def _starts_ns(self, seed: int, spec: RoleSpec) -> int:
        """Return when, in ns, the gates of all roles in the world of the role are open."""
        waits = [0]
        for name in self._graph.mates_of(spec.name):
            for gate in self._graph.role(name).gates:
                other = self._graph.role(gate.role)
                up = self._up_ns(seed, other) if gate.condition != "started" else self._starts_ns(seed, other)
                waits.append(up + (_work_ns(other.workload) if gate.condition == "succeeded" else 0))
        return max(waits)


def _startups_ns(seed: int, spec: RoleSpec, attempt: int) -> list[int]:
    """Return how long, in ns, each replica of a role takes to start up in that attempt, by index."""
    names = [f"{spec.name}/{number}#{attempt}" for number in range(spec.max_replicas)]
    return [
        round(spec.workload.startup_ns * spread(seed, name, "startup", spec.workload.startup_spread)) for name in names
    ]


def _checkpoints(load: WorkloadSpec) -> int:
    """Return how many checkpoints a world begins if nothing goes wrong: none when the last step ends."""
    return (load.steps * load.step_ns - 1) // load.checkpoint_every_ns


def _work_ns(load: WorkloadSpec) -> int:
    """Return how long, in ns, the whole work takes after the start-up if nothing goes wrong."""
    return load.warmup_ns + load.steps * load.step_ns + _checkpoints(load) * load.blocking_ns
