"""A job to be played: its graph, and all that comes to it from outside."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from flowdist.control.protocol.ids import NodeName
from flowdist.faults.grammar import NOTHING, Plan
from flowdist.graph import RoleGraph
from flowdist.sim.calibration.calibration import Calibration, calibrated
from flowdist.sim.simulation import Simulation, with_nodes

NO_ARRIVALS: Mapping[NodeName, int] = MappingProxyType({})


class Gaps(NamedTuple):
    """Parts of a job that its record does not show, or that an experiment does not repeat: lines of text, and roles."""

    left_out: tuple[str, ...] = ()  # a line for each thing that happened and is not repeated
    guesses: Mapping[str, tuple[str, ...]] = MappingProxyType({})  # such lines about how steps are played, by role
    untold: tuple[str, ...] = ()  # roles whose workers do not report the time of saving; it was measured all the same
    endless: tuple[str, ...] = ()  # primary tasks whose number of steps neither record nor topology has
    unrestarted: tuple[str, ...] = ()  # roles whose warm start neither has: each start was the first on its node

    @property
    def omitted(self) -> tuple[str, ...]:
        """Return a line of text for each thing that an experiment does not repeat."""
        return (*self.left_out, *(text for texts in self.guesses.values() for text in texts))


class Experiment(NamedTuple):
    """Everything that a simulation of a job takes. All times are virtual, in ns."""

    graph: RoleGraph  # the job, with nodes; the workloads of its roles have the times of the workers
    plan: Plan = NOTHING  # the faults, and the orders of the operator
    until_ns: int | None = None  # when the experiment ends at the latest; None: with the job
    seed: int = 0  # draws start-up times, faults of rates, and all else that is drawn
    schedule: int = 0  # draws the order of events of one time; 0: as planned
    arrivals: Mapping[NodeName, int] = NO_ARRIVALS  # by node, when its first agent connects
    arrival_ns: int = 0  # time from the start of any other node until its agent connects
    gaps: Gaps = Gaps()  # what the record of the job does not show; nothing for a topology

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of all nodes."""
        return sum(node.gpu for node in self.graph.cluster.nodes)

    @property
    def units(self) -> int:
        """Return what is paid for each hour: the number of GPUs, or of nodes if there are no GPUs."""
        return self.gpus or len(self.graph.cluster.nodes)

    def with_times(self, times: Calibration) -> Experiment:
        """Return the experiment with measured times; numbers of steps that they have are no guesses any more."""
        known = [name for name, each in times.roles.items() if "steps" in each.fields]
        guesses = {name: texts for name, texts in self.gaps.guesses.items() if name not in known}
        endless = tuple(name for name in self.gaps.endless if name not in known)
        gaps = self.gaps._replace(guesses=guesses, endless=endless)
        return self._replace(graph=calibrated(self.graph, times), gaps=gaps)

    def simulation(self, **options: Any) -> Simulation:
        """Return the simulation of each message of the job, which has not run yet, with options of `Simulation`."""
        simulation = Simulation(
            self.graph,
            self.plan,
            seed=self.seed,
            schedule=self.schedule,
            checks="paced",
            arrival_ns=self.arrival_ns,
            **options,
        )
        for name, at_ns in self.arrivals.items():
            if name in simulation.nodes:
                simulation.nodes[name].comes_at_ns = at_ns
        return simulation


def of_topology(
    graph: RoleGraph,
    plan: Plan = NOTHING,
    times: Calibration | None = None,
    *,
    keep: Collection[str] = (),
    seed: int = 0,
) -> Experiment:
    """Return the experiment of a compiled topology; one that declares no nodes gets a node for all of it.

    With measured `times`, workloads get them, except for the fields to `keep`, as `role.field`.
    """
    graph = with_nodes(graph)
    if times is None:
        return Experiment(graph, plan, seed=seed)
    return Experiment(calibrated(graph, times, keep), plan, seed=seed, arrival_ns=times.arrival_ns or 0)
