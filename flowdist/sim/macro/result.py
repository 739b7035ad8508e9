"""Result of a run in macro mode, and names that several parts of macro mode share."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from flowdist.record.accounts import Bucket, productive_share

Phase = Literal["opening", "running", "stopping", "back-off", "waiting", "over"]
NEVER = 1 << 62  # later than every time


@dataclass(slots=True)
class MacroResult:
    """Result of a run in macro mode, filled in as the run goes on. Times are ns.

    Attributes:
        spent: Time by bucket, summed over all replicas of the gang: wall time times replicas.
        outcome: "succeeded" or "failed"; None: the job has not ended.
        reason: Why the job ended; empty while it has not.
        now: When the run ended.
        step: The step that the gang has reached, saved or not.
        lost_ns, lost_steps: Work of one worker of the gang that had to be done again.
        unsaved_ns, unsaved_steps: Work of one worker that was not saved when the job, or the run, ended.
        generations: How many generations the gang has formed.
        faults: How many faults hit something.
        by_rate: How many of these each rate has brought, by its name.
        causes: Number of incidents by kind.
        charged: How many incidents are charged to a budget.
        cordoned: Names of the cordoned nodes.
    """

    spent: dict[Bucket, int]
    outcome: str | None = None
    reason: str = ""
    now: int = 0
    step: int = 0
    lost_ns: int = 0
    lost_steps: int = 0
    unsaved_ns: int = 0
    unsaved_steps: int = 0
    generations: int = 0
    faults: int = 0
    by_rate: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    charged: int = 0
    cordoned: list[str] = field(default_factory=list)

    @property
    def goodput(self) -> float | None:
        """Return the productive share of the gang's time before it was done, from 0 to 1; None if there is none."""
        return productive_share(["gang"], {"gang": self.spent})
