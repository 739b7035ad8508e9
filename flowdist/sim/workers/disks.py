"""Disks that are full or slow, as far as the checkpoints of worlds are concerned."""

from __future__ import annotations

from fractions import Fraction

from flowdist.sim.engine.context import Context
from flowdist.sim.user_code.checkpoints import Disk
from flowdist.sim.user_code.workload import EVEN


class Disks:
    """The faults of the disks of all roles. A checkpoint is complete with its last part, so the worst role counts."""

    def __init__(self, ctx: Context, disk: Disk) -> None:
        self._ctx, self._disk = ctx, disk
        self._slow: dict[str, Fraction] = {}  # how many times longer roles take to save

    @property
    def has_fault(self) -> bool:
        """A disk is full or slow."""
        return bool(self._disk.full or self._slow)

    def fill(self, role: str) -> None:
        """Let every write of a role fail from now on."""
        self._disk.full[role] = None

    def free(self, role: str) -> None:
        """Let a role write again."""
        self._disk.full.pop(role, None)

    def full_role(self, world: str) -> str | None:
        """Return a role of the world whose disk is full; None if every role can save."""
        full = self._disk.full
        return next((role for role in self._ctx.job.worlds[world].roles if role in full), None) if full else None

    def slow_down(self, role: str, factor: Fraction) -> None:
        """Let the checkpoints of a role take `factor` times as long; 1 ends the fault."""
        self._slow.pop(role, None)
        if factor != 1:
            self._slow[role] = factor

    def slowness(self, world: str) -> Fraction:
        """Return how many times longer than usual the world takes to save."""
        if not self._slow:
            return EVEN
        return max(self._slow.get(role, EVEN) for role in self._ctx.job.worlds[world].roles)
