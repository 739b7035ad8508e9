"""What a simulation came to."""

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
    """How a simulation ended. `lines` are the trace with its header; `violation` is what did not hold."""

    job: JobState
    lines: Trace
    now: int
    models: dict[str, WorldModel]
    unfired: list[Fault]
    spent: Spent  # together wall time x replicas
    hits: Counter[tuple[str, str]]  # faults, by kind and by the phase of the job
    violation: Violation | None = None
    waiting: list[str] = field(default_factory=list)
    handled: int = 0
    seen: dict[str, int] = field(default_factory=dict)  # points that it reached, and when: see `points`
    points: tuple[str, ...] = ()  # those that it looked for
    played: Played = field(default_factory=Played)  # what the models that roles brought have done

    @property
    def digest(self) -> str:
        """SHA-256 of the trace without its header, as hex."""
        return self.lines.digest()
