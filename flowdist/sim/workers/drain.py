"""Worlds that leave a step on which all have agreed, for a drain or a preemption: they stand still there and save.

What they save is whole when all of it is written, and not before. On a slow disk that takes longer, a member that
stands still holds it up, on a full disk it comes to nothing, and who dies before that is over loses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import SECOND
from flowdist.sim.workers.workload import WorldModel

if TYPE_CHECKING:
    from flowdist.sim.engine.node import SimNode
    from flowdist.sim.engine.simulation import Simulation

HELD_NS = 1 * SECOND  # how often it is looked whether a member that stood still has saved after all


class _Stop(NamedTuple):
    """The workers of an attempt know the step at which they are to stop."""

    node: SimNode
    replica: ReplicaId
    attempt: int
    step: int


class Leaving:
    """Of all worlds, by name."""

    def __init__(self, sim: Simulation) -> None:
        self._sim, self._queue = sim, sim.queue
        self._stops: dict[str, list[_Stop]] = {}  # of worlds that are to stop at a step
        self._stopped: dict[str, int] = {}  # the generation in which a world has reached that step

    def forget(self, world: str) -> None:
        """A generation begins: what the last one was told is not for it."""
        self._stops.pop(world, None)

    def at(self, node: SimNode, replica: ReplicaId, attempt: int, step: int, model: WorldModel) -> None:
        """The workers are told to stop at that step: there they save, then they have left it."""
        world = self._sim.job.replicas[replica].world
        stop = _Stop(node, replica, attempt, step)
        if self._stopped.get(world) == model.generation:  # its link is slow: the others are there already, and wait
            self._queue.after(self._save_takes(world, model), self._leave, stop)
            return
        if model.begun_ns is None:
            return
        self._stops.setdefault(world, []).append(stop)
        self.plan(world, model)

    def plan(self, world: str, model: WorldModel) -> None:
        """When it will be at that step, as long as it goes on like this."""
        if world not in self._stops:
            return
        for step in dict.fromkeys(stop.step for stop in self._stops[world]):
            at = model.time_of_step(min(step, model.pace.workload.steps))
            if at is not None:  # a world that was told too late is past it, and stops where it is
                self._queue.at(max(at, self._queue.now), self._stop, world, model, model.version)

    def _stop(self, world: str, model: WorldModel, version: int) -> None:
        """It is: there it stands still, and saves."""
        if model.version != version or model.begun_ns is None:
            return
        work, stops = self._sim.work, self._stops.pop(world, [])
        self._stopped[world] = model.generation
        work.code.catch_up(world)
        work.report_steps(model)
        takes = self._save_takes(world, model)
        model.leave(self._queue.now)
        self._queue.after(takes, self._saved, world, model, model.generation, stops)

    def _save_takes(self, world: str, model: WorldModel) -> int:
        return model.save_takes(self._sim.work.slowness(world))

    def _saved(self, world: str, model: WorldModel, generation: int, stops: list[_Stop]) -> None:
        """What it saved there is whole, and not lost; unless a member has died meanwhile, or the disk is full."""
        work = self._sim.work
        if model.generation == generation and model.begun_ns is not None:
            if model.holds:  # a member stands still: so does its part
                self._queue.after(HELD_NS, self._saved, world, model, generation, stops)
                return
            step, full = model.step_at(self._queue.now), work.full_disk(world)
            work.code.save_at_once(world)
            if full is None:
                model.save(step)
            elif not work.code.plays(world):
                self._sim.note_unsaved(world, step, full)
            work.halt(model)
        for stop in stops:
            self._leave(stop)

    def _leave(self, stop: _Stop) -> None:
        for local_rank in range(stop.node.procs_of(stop.replica)):
            stop.node.tell(io.WorkerLeftStep(stop.replica, stop.attempt, local_rank))
