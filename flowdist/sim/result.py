"""The result of a simulation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from flowdist.control.job.state import JobState
from flowdist.faults.grammar import Fault
from flowdist.record.accounts import Spent
from flowdist.sim.engine.trace import Trace
from flowdist.sim.engine.violation import Violation
from flowdist.sim.user_code.played import Played
from flowdist.sim.user_code.workload import WorldModel


@dataclass(slots=True)
class SimResult:
    """Result of a simulation. `lines` are its trace with the header; `violation` is what did not hold, if anything."""

    job: JobState
    lines: Trace
    now: int
    models: dict[str, WorldModel]
    unfired: list[Fault]
    spent: Spent  # in ns, by role and bucket; the sum is wall time x replicas
    hits: Counter[tuple[str, str]]  # faults that hit, by their kind and the phase of the job
    violation: Violation | None = None
    waiting: list[str] = field(default_factory=list)
    handled: int = 0
    seen: dict[str, int] = field(default_factory=dict)  # when each point was reached first, in ns
    points: tuple[str, ...] = ()  # names of the points that the run looked for
    played: Played = field(default_factory=Played)  # the results of user code

    @property
    def digest(self) -> str:
        """SHA-256 of the trace without its header, as hex."""
        return self.lines.digest()
