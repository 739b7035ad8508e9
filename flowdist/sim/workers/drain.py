"""Disks that are full or slow, and drains: a world stops at an agreed step, saves, and leaves.

The checkpoint is complete when every part of it is written. A slow disk makes that later, a stalled member delays it
for as long as it is stalled, a full disk prevents it, and so does the death of a member before the end.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import SECOND
from flowdist.sim.engine.context import Context
from flowdist.sim.engine.node import SimNode
from flowdist.sim.user_code.checkpoints import Disk
from flowdist.sim.user_code.models import UserCode
from flowdist.sim.user_code.workload import EVEN, WorldModel
from flowdist.sim.workers.fast_forward import FastForward
from flowdist.sim.workers.worlds import Worlds

HELD_NS = 1 * SECOND  # how often a world that a stalled member holds up tries again to complete its checkpoint


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


class _Stop(NamedTuple):
    """An order for the workers of an attempt to stop at a step."""

    node: SimNode
    replica: ReplicaId
    attempt: int
    step: int


class Drain:
    """The worlds that are to stop at a step, by name."""

    def __init__(self, ctx: Context, worlds: Worlds, code: UserCode, disks: Disks, fast_forward: FastForward) -> None:
        self._ctx, self._queue, self._worlds = ctx, ctx.queue, worlds
        self._code, self._disks, self._fast_forward = code, disks, fast_forward
        self._stops: dict[str, list[_Stop]] = {}
        self._stopped: dict[str, int] = {}  # the generation in which a world has reached its step

    def forget(self, world: str) -> None:
        """Drop the orders of the last generation of a world, which begins a new one."""
        self._stops.pop(world, None)

    def stop_at(self, node: SimNode, replica: ReplicaId, attempt: int, step: int, model: WorldModel) -> None:
        """Have the workers of an attempt stop at a step: they save there, and then have left it."""
        world = self._ctx.job.replicas[replica].world
        stop = _Stop(node, replica, attempt, step)
        if self._stopped.get(world) == model.generation:  # the order came over a slow link: the others wait already
            self._queue.after(self._save_takes(world, model), self._leave, stop)
            return
        if model.begun_ns is None:
            return
        self._stops.setdefault(world, []).append(stop)
        self.plan(world, model)

    def plan(self, world: str, model: WorldModel) -> None:
        """Plan the moment at which a world reaches its step, if nothing changes before."""
        if world not in self._stops:
            return
        for step in dict.fromkeys(stop.step for stop in self._stops[world]):
            at = model.time_of_step(min(step, model.pace.workload.steps))
            if at is not None:  # an order that comes too late stops the world where it is
                self._queue.at(max(at, self._queue.now), self._stop, world, model, model.version)

    def _stop(self, world: str, model: WorldModel, version: int) -> None:
        """Begin the checkpoint at the step."""
        if model.version != version or model.begun_ns is None:
            return
        stops = self._stops.pop(world, [])
        self._stopped[world] = model.generation
        self._code.catch_up(world)
        self._fast_forward.report(model)
        takes = self._save_takes(world, model)
        model.leave(self._queue.now)
        self._queue.after(takes, self._saved, world, model, model.generation, stops)

    def _save_takes(self, world: str, model: WorldModel) -> int:
        return model.save_takes(self._disks.slowness(world))

    def _saved(self, world: str, model: WorldModel, generation: int, stops: list[_Stop]) -> None:
        """Complete the checkpoint, unless a member has ended meanwhile or a disk is full, and leave the step."""
        if model.generation == generation and model.begun_ns is not None:
            if model.holds:  # a member is stalled, and has not written its part
                self._queue.after(HELD_NS, self._saved, world, model, generation, stops)
                return
            step, full = model.step_at(self._queue.now), self._disks.full_role(world)
            self._code.save_at_once(world)
            if full is None:
                model.save(step)
            elif not self._code.plays(world):
                self._ctx.note_unsaved(world, step, full)
            self._worlds.halt(model)
        for stop in stops:
            self._leave(stop)

    def _leave(self, stop: _Stop) -> None:
        stop.node.tell_of_workers(io.WorkerLeftStep, stop.replica, stop.attempt)
