"""What macro mode comes to, and the words that it shares with its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from flowdist.graph import FailureKind
from flowdist.record.accounts import Bucket

Phase = Literal["opening", "running", "stopping", "back-off", "gated", "waiting"]
Later = tuple[int, int, Callable[[int], None] | None, int]  # when, serial, what; or of whom: see `Macro.at`
NEVER = 1 << 62
FAILED: dict[str, tuple[FailureKind, str | None]] = {
    "kill": ("signal", "KILL"),
    "oom": ("oom", "KILL"),
    "exit": ("exit", None),
}


@dataclass(slots=True)
class MacroResult:
    """How it ended, times in ns. `spent` is by bucket, together wall time x replicas; `causes` counts incidents."""

    spent: dict[Bucket, int]
    outcome: str | None = None
    reason: str = ""
    now: int = 0
    step: int = 0
    lost_ns: int = 0
    lost_steps: int = 0
    generations: int = 0
    faults: int = 0  # that hit somebody
    causes: Counter[str] = field(default_factory=Counter)
    charged: int = 0
    cordoned: list[str] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)  # when stepping began, if they were asked for
    sizes: list[int] = field(default_factory=list)  # of the generations, likewise
    beside: dict[str, tuple[int, int]] = field(default_factory=dict)  # generation and saved step, of other replicas

    @property
    def goodput(self) -> float:
        total = sum(self.spent.values())
        return self.spent["productive"] / total if total else 0.0
