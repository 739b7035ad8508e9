"""Result of a run in macro mode, and constants that its parts share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from flowdist.graph import FailureKind
from flowdist.record.accounts import Bucket

Phase = Literal["opening", "running", "stopping", "back-off", "gated", "waiting"]
Later = tuple[int, int, Callable[[int], None] | None, int]  # time, serial, action, node: see `Job.at`
NEVER = 1 << 62  # later than every time
FAILED: dict[str, tuple[FailureKind, str | None]] = {
    "kill": ("signal", "KILL"),
    "oom": ("oom", "KILL"),
    "exit": ("exit", None),
}


@dataclass(slots=True)
class MacroResult:
    """End of a run, and where its time went. Times are ns.

    Attributes:
        spent: Time by bucket, summed over all replicas of the gang: wall time times replicas.
        outcome: "succeeded" or "failed"; None: the run was stopped before the end of the job.
        step: The step that was reached.
        lost_ns, lost_steps: Work of one worker that had to be done again.
        faults: Faults that hit something.
        causes: Incidents by kind.
        charged: Incidents that a budget has paid for.
        cordoned: Names of nodes.
        beside: Generation and saved step of each auxiliary replica, by name.
    """

    spent: dict[Bucket, int]
    outcome: str | None = None
    reason: str = ""
    now: int = 0
    step: int = 0
    lost_ns: int = 0
    lost_steps: int = 0
    generations: int = 0
    faults: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    charged: int = 0
    cordoned: list[str] = field(default_factory=list)
    beside: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def goodput(self) -> float:
        """Productive share of all time, from 0 to 1."""
        total = sum(self.spent.values())
        return self.spent["productive"] / total if total else 0.0
