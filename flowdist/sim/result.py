"""The result of a simulation, and why faults of its plan hit nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from flowdist.control.job.state import JobState
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import WorldName
from flowdist.faults.grammar import Fault
from flowdist.faults.milestones import why_never_due, why_nothing_was_hit
from flowdist.record.accounts import Spent
from flowdist.record.journal import Line, Record
from flowdist.sim.engine.context import Trace
from flowdist.sim.engine.queue import Violation
from flowdist.sim.user_code.played import Played
from flowdist.sim.user_code.workload import WorldModel


@dataclass(slots=True)
class SimResult:
    """Result of a simulation: the last state of the job, the trace, and what was measured. Times are virtual, in ns."""

    job: JobState  # as the controller saw it when the simulation stopped
    lines: Trace  # the record of the job, with its header
    now: int  # when the simulation stopped
    models: dict[str, WorldModel]  # the worlds of tasks that have started, by name
    unfired: list[Fault]  # faults of the plan that hit nothing
    spent: Spent  # in ns, by role and bucket; the sum is wall time x replicas
    hits: Counter[tuple[str, str]]  # number of hits, by kind of fault and phase of the job (see `Work.phase`)
    by_rate: Counter[str] = field(default_factory=Counter)  # number of hits of each rate, by its name
    violation: Violation | None = None  # the property that did not hold; None: all held
    waiting: list[str] = field(default_factory=list)  # what the job waits for, in words; empty if it is over
    handled: int = 0  # actions of the event queue that were run
    seen: dict[str, int] = field(default_factory=dict)  # when each point was reached first, by its name
    points: tuple[str, ...] = ()  # names of all points that `seen` can hold
    played: Played = field(default_factory=Played)  # the results of user code

    @property
    def digest(self) -> str:
        """SHA-256 of the trace without its header, as hex."""
        return self.lines.digest()

    def worlds_of_roles(self) -> list[tuple[str, WorldModel]]:
        """Return each role of each world of tasks with the model of that world, which a joint world shares."""
        return [(role, model) for model in self.models.values() for role in model.roles]


def worlds_of(lines: Iterable[Line]) -> dict[WorldName, tuple[tuple[str, ...], ...]]:
    """Return the members of each generation in the order of their ranks, by world, from the lines of a record."""
    found: dict[WorldName, dict[int, list[StartReplica]]] = {}
    for line in lines:
        for effect in line.effects if isinstance(line, Record) else ():
            if isinstance(effect, StartReplica):
                found.setdefault(effect.world, {}).setdefault(effect.generation, []).append(effect)
    ranked = {
        name: [sorted(of[each], key=lambda start: start.rank) for each in sorted(of)] for name, of in found.items()
    }
    # each member once: an order is repeated after a lost connection
    return {name: tuple(tuple(dict.fromkeys(str(s.replica) for s in one)) for one in of) for name, of in ranked.items()}


def unfired_texts(result: SimResult) -> list[str]:
    """Return why each fault of the plan hit nothing, unless a violation came before its moment."""
    texts, job = [], result.job
    for fault in result.unfired:
        not_yet = _is_never_said(fault, job) or why_never_due(fault, job, result.now)
        if not (not_yet and result.violation is not None):
            why = not_yet or _is_not_simulated(fault, job) or why_nothing_was_hit(fault, job)
            texts.append(f"fault {fault.spec} never fired: {why}")
    return texts


def _is_never_said(fault: Fault, job: JobState) -> str:
    """Return why the simulation never reports the event that the fault waits for; empty if it may report it."""
    role = fault.when.role
    if fault.when.event in ("step", "checkpoint") and _is_service(role, job):
        return f"{role} is a service: it counts no steps, and saves nothing that is simulated"
    return ""


def _is_not_simulated(fault: Fault, job: JobState) -> str:
    """Return why the effect of the fault on its target is not simulated; empty if it is."""
    role = fault.target.partition("/")[0]
    if fault.kind == "slow" and _is_service(role, job):
        return f"{role} is a service: what a slow service costs its callers is not simulated"
    if fault.kind in ("disk-full", "slow-checkpoint") and _is_service(role, job):
        return f"{role} is a service: it saves nothing that is simulated, unless simulate= names a model of its worker"
    return ""


def _is_service(role: str, job: JobState) -> bool:
    return role in job.roles and job.roles[role].spec.kind == "service"
