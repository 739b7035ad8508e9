"""A recorded job, ready to be simulated again: the graph, the faults, and all else that a simulation takes.

The trace of a simulation has all of that: the faults as they were given, the seed, and the workloads in its graph. The
new simulation is then the same job, to the nanosecond. Of a real run the faults are reconstructed from the events, and
the workloads are measured: see `reconstruct`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from flowdist.control.protocol.ids import NodeName
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import ORDERS, Plan, parse_fault
from flowdist.graph import MINUTE, SECOND, RoleGraph
from flowdist.record.journal import FaultLine, Header, Line
from flowdist.sim.engine.network import LATENCY_NS
from flowdist.sim.reconstruct import Reconstructed, let_arrive, reconstruct, with_workloads
from flowdist.sim.simulation import Simulation, with_nodes

# Kinds of faults that slow a job down, or damage what it has saved, and need not make anything fail.
WITHOUT_EVENT = (
    *("slow", "pause", "disk-full", "slow-checkpoint", "torn-checkpoint", "lost-checkpoint", "corrupt-checkpoint"),
    *("partition", "cut-to", "delay", "drop", "duplicate", "reorder", "flap"),
)


class Again(NamedTuple):
    """Everything that a simulation of a recorded job takes.

    `plan` has the faults and orders. `recorded` is the reconstruction from the events alone, which also says what is
    not repeated. `arrivals` has, by node, the time in ns at which its first agent connects; agents of other nodes
    connect `arrival_ns` after their node's start.
    """

    graph: RoleGraph
    plan: Plan
    recorded: Reconstructed
    arrivals: Mapping[NodeName, int]
    arrival_ns: int = 0
    seed: int = 0
    schedule: int = 0

    def simulation(
        self,
        plan: Plan | None = None,
        graph: RoleGraph | None = None,
        *,
        tell: Callable[[int, int], None] | None = None,
        fast_forward: bool = False,
    ) -> Simulation:
        """Return a simulation of the job that has not run yet.

        Args:
            plan: The faults and orders; None: those of the record.
            graph: The graph; None: that of the record.
            tell, fast_forward: As for `Simulation`.
        """
        simulation = Simulation(
            self.graph if graph is None else graph,
            self.plan if plan is None else plan,
            seed=self.seed,
            schedule=self.schedule,
            checks="paced",
            tell=tell,
            fast_forward=fast_forward,
            arrival_ns=self.arrival_ns,
        )
        return let_arrive(simulation, self.arrivals)


def again_of(header: Header, lines: Sequence[Line]) -> Again:
    """Return what a simulation of a recorded job takes. A record without the id of a run is that of a simulation.

    Args:
        header: The header of the record.
        lines: The other lines, in order.

    Raises:
        BadLine: A line cannot be replayed.
        FaultError: A fault of a trace cannot be read.
    """
    recorded = reconstruct(header, lines)
    if header.run_id:
        graph = with_nodes(with_workloads(header.graph, recorded.workloads))
        complete = recorded._replace(left_out=(*recorded.left_out, *_unseen(recorded.plan, lines)))
        return Again(graph, recorded.plan, complete, recorded.arrivals)
    arrival_ns = min(recorded.arrivals.values(), default=0)  # later ones are effects of faults
    schedule = header.options.get("schedule", "")
    plan = _as_given(recorded.plan, lines, arrival_ns)
    number = int(schedule) if schedule.isdecimal() else 0
    complete = recorded._replace(
        left_out=(), guesses={}
    )  # the trace has each fault, those that explain the rest among them
    return Again(with_nodes(header.graph), plan, complete, {}, arrival_ns, header.seed, number)


def _unseen(plan: Plan, lines: Sequence[Line]) -> list[str]:
    """Return a text for each fault that a run injected and that left no event from which it could be reconstructed.

    A fault that did leave one is in the plan at about the same time.
    """
    seen = [(fault.target, fault.when.at_ns or 0) for fault in plan.faults]

    def is_seen(line: FaultLine) -> bool:
        return any(line.hit.partition(".")[0] == target and abs(line.t_ns - at) < MINUTE for target, at in seen)

    hits = [line for line in lines if isinstance(line, FaultLine) and parse_fault(line.spec).kind in WITHOUT_EVENT]
    specs = dict.fromkeys(line.spec for line in hits if not is_seen(line))
    return [f"{spec} was injected, and left no event" for spec in specs]


def _as_given(plan: Plan, lines: Sequence[Line], arrival_ns: int) -> Plan:
    """Return the plan of a simulation from its reconstruction and its trace, which has each fault that hit something.

    Orders that are in the trace as faults (`trainer@5m:scale=4`) are left out of the reconstructed ones. A node that
    was added is reconstructed at the time when its agent has joined: the order came before that.
    """
    hits = [line for line in lines if isinstance(line, FaultLine)]
    faults = parse_plan(dict.fromkeys(line.spec for line in hits)).faults
    orders = [(fault.kind, line.hit, line.t_ns) for line in hits if (fault := parse_fault(line.spec)).kind in ORDERS]
    early_ns = LATENCY_NS + arrival_ns
    return Plan(
        faults,
        tuple(scale for scale in plan.scales if not _is_among(orders, "scale", scale.role, scale.at_ns)),
        tuple(
            add._replace(at_ns=max(0, add.at_ns - early_ns))
            for add in plan.adds
            if not _is_among(orders, "add", add.node, add.at_ns - early_ns)
        ),
        tuple(drain for drain in plan.drains if not _is_among(orders, "drain", drain.node, drain.at_ns)),
    )


def _is_among(orders: Sequence[tuple[str, str, int]], kind: str, target: str, at_ns: int) -> bool:
    """Return whether an order of this kind went to the target within a second of the time."""
    return any((kind, target) == order[:2] and abs(at_ns - order[2]) < SECOND for order in orders)
