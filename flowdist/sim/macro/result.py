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
    """Result of a run in macro mode, filled in as the run goes on. Times are ns."""

    spent: dict[Bucket, int]  # time by bucket, summed over all replicas of the gang: wall time times replicas
    outcome: str | None = None  # "succeeded" or "failed"; None: the job has not ended
    reason: str = ""  # why the job ended; empty while it has not
    now: int = 0  # when the run ended
    step: int = 0  # the step that the gang has reached, saved or not
    lost_ns: int = 0  # work of one worker of the gang that had to be done again
    lost_steps: int = 0
    unsaved_ns: int = 0  # work of one worker that was not saved when the job, or the run, ended
    unsaved_steps: int = 0
    generations: int = 0  # how many the gang has formed
    faults: int = 0  # how many hit something
    by_rate: Counter[str] = field(default_factory=Counter)  # how many of these each rate has brought, by its name
    causes: Counter[str] = field(default_factory=Counter)  # number of incidents by kind
    charged: int = 0  # how many incidents are charged to a budget
    cordoned: list[str] = field(default_factory=list)  # names of the cordoned nodes

    @property
    def goodput(self) -> float | None:
        """Return the productive share of the gang's time before it was done, from 0 to 1; None if there is none."""
        return productive_share(["gang"], {"gang": self.spent})
