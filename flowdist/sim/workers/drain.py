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

HELD_NS = 1 * SECOND  # how long a world with a stalled member waits before it tries again to complete its checkpoint


class Disks:
    """Disks that are full or slow, by role; a joint world is as slow as the worst of its roles."""

    def __init__(self, ctx: Context, disk: Disk) -> None:
        self._ctx, self._disk = ctx, disk
        self._slow: dict[str, Fraction] = {}  # how many times longer roles take to save

    @property
    def has_fault(self) -> bool:
        """Return whether any disk is full or slow."""
        return bool(self._disk.full or self._slow)

    def full_role(self, world: str) -> str | None:
        """Return a role of the world whose disk is full; None if every role can save."""
        full = self._disk.full
        return next((role for role in self._ctx.job.worlds[world].roles if role in full), None) if full else None

    def slow_down(self, role: str, factor: Fraction) -> None:
        """Record that checkpoints of a role take `factor` times as long; 1 ends the fault. A later call replaces it."""
        self._slow.pop(role, None)
        if factor != 1:
            self._slow[role] = factor

    def slowness(self, world: str) -> Fraction:
        """Return how many times longer than usual the world takes to save; 1 without a slow disk."""
        if not self._slow:
            return EVEN
        return max(self._slow.get(role, EVEN) for role in self._ctx.job.worlds[world].roles)


class _Stop(NamedTuple):
    """The controller's order that the workers of an attempt stop at a step."""

    node: SimNode
    replica: ReplicaId
    attempt: int
    step: int


class Drain:
    """The stops of worlds at an agreed step, after a save, which the drain or loss of a node demands (R14)."""

    def __init__(self, ctx: Context, worlds: Worlds, code: UserCode, disks: Disks, fast_forward: FastForward) -> None:
        self._ctx, self._queue, self._worlds = ctx, ctx.queue, worlds
        self._code, self._disks, self._fast_forward = code, disks, fast_forward
        self._stops: dict[str, list[_Stop]] = {}
        self._stopped: dict[str, int] = {}  # the last generation of each world that has reached its agreed step

    def forget(self, world: str) -> None:
        """Drop the orders of a world, whose next generation begins to start."""
        self._stops.pop(world, None)

    def stop_at(self, node: SimNode, replica: ReplicaId, attempt: int, step: int, model: WorldModel) -> None:
        """Order the workers of an attempt to stop at a step.

        When their world gets there it saves, and then the workers tell their agent that they have left the step
        (`WorkerLeftStep`). If the world has stopped already they tell so after the time of a save.
        """
        world = self._ctx.job.replicas[replica].world
        stop = _Stop(node, replica, attempt, step)
        if self.has_stopped(world, model):  # the order came over a slow link: the others wait already
            self._queue.after(self._save_takes(world, model), self._leave, stop)
            return
        if model.begun_ns is None:
            return
        self._stops.setdefault(world, []).append(stop)
        self.plan(world, model)

    def has_stopped(self, world: str, model: WorldModel) -> bool:
        """Return whether the present generation of a world has reached its agreed step."""
        return self._stopped.get(world) == model.generation

    def plan(self, world: str, model: WorldModel) -> None:
        """Plan the stop of a world whenever its timing has changed, unless it ends its work before that step."""
        if world not in self._stops:
            return
        for step in dict.fromkeys(stop.step for stop in self._stops[world]):
            at = model.time_of_step(step) if step < model.pace.workload.steps else None
            if at is not None:  # an order that comes too late stops the world where it is
                self._queue.at(max(at, self._queue.now), self._stop, world, model, model.version)

    def _stop(self, world: str, model: WorldModel, version: int) -> None:
        """Stop a world at its agreed step, and begin its checkpoint, unless the plan is outdated (`version`)."""
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
        """Complete the checkpoint, halt the world, and let the workers leave the step.

        The checkpoint is not completed if a member has ended meanwhile or a disk is full. While a member is stalled the
        world tries again every second.
        """
        if model.generation == generation and model.begun_ns is not None:
            if model.holds:  # a member is stalled, and has not written its part
                self._queue.after(HELD_NS, self._saved, world, model, generation, stops)
                return
            step, full = model.step_at(self._queue.now), self._disks.full_role(world)
            self._code.save_at_once(world)
            if full is None:
                model.save(step)
                self._offer(world, model, step, stops)
            elif not self._code.plays(world):
                self._ctx.note_unsaved(world, step, full)
            self._worlds.halt(model)
        for stop in stops:
            self._leave(stop)

    def _offer(self, world: str, model: WorldModel, step: int, stops: list[_Stop]) -> None:
        """Let the first member of a world commit the checkpoint of its agreed step; user code commits by itself."""
        if stops and not self._code.plays(world):
            first = min(stops, key=lambda stop: stop.replica)
            offer = io.WorkerOffered(first.replica, first.attempt, model.generation, f"{world}/step-{step}", step)
            first.node.tell(offer)

    def _leave(self, stop: _Stop) -> None:
        stop.node.tell_of_workers(io.WorkerLeftStep, stop.replica, stop.attempt)
