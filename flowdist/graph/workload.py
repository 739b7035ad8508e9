"""Workloads: the timing of a worker, as the simulator plays it."""

from __future__ import annotations

from typing import Literal

import msgspec

from flowdist.graph.units import MINUTE, SECOND


class WorkloadSpec(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Timing of a simulated worker: steps of `step_ns` after `startup_ns`, and a checkpoint at every interval.

    A checkpoint is complete `checkpoint_ns` after its beginning. Its workers do not step for the first `blocking_ns`.
    """

    steps: int = 600
    step_ns: int = 1 * SECOND
    startup_ns: int = 5 * SECOND
    checkpoint_every_ns: int = 1 * MINUTE
    checkpoint_ns: int = 1 * SECOND
    restore_ns: int = 0
    rejoin_ns: int | None = None  # to join a new generation in place; None: workers are restarted instead
    collective: Literal["", "wait", "fail", "hang"] = ""  # what a dead worker's peers do; empty: not said, they wait
    collective_timeout_ns: int | None = None  # of the process group; None: the default of its backend
    step_spread: float = 0.0  # share of `step_ns` by which a step of the slowest worker may be longer
    warmup_ns: int = 0  # from the start-up of the last worker to the first step
    checkpoint_blocks_ns: int | None = None  # None: a checkpoint blocks for all of `checkpoint_ns`

    @property
    def blocking_ns(self) -> int:
        """Part of a checkpoint for which its workers do not step, in ns."""
        return self.checkpoint_ns if self.checkpoint_blocks_ns is None else self.checkpoint_blocks_ns

    @property
    def lag_ns(self) -> int:
        """Part of a checkpoint in which workers step again before it is complete, in ns."""
        return self.checkpoint_ns - self.blocking_ns

    @property
    def cycle_ns(self) -> int:
        """Time from the beginning of one checkpoint to the beginning of the next, in ns."""
        return self.checkpoint_every_ns + self.blocking_ns
