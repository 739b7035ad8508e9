"""Milestones of a job for which faults wait (`step=trainer,500`), the same in simulation and on real processes."""

from __future__ import annotations

from typing import assert_never

from flowdist.control.job.state import JobState
from flowdist.control.protocol.events import (
    CheckpointOffered,
    Event,
    ReplicaProgressed,
    ReplicaReady,
    ReplicaStarted,
    ReplicaStepped,
)
from flowdist.faults.grammar import Event as Milestone


def has_come(job: JobState, event: Event, what: Milestone, role: str, number: int) -> bool:
    """Return whether the event, which the controller has just handled, brings the job to a milestone.

    Args:
        job: The state of the job after the event.
        event: The event.
        what: `start`: a replica of the role starts, in generation `number` or later. `ready`: a replica is ready.
            `generation`: all of generation `number` or a later one runs. `step`: a replica reports step `number` or a
            later one, or so many optimizer steps were counted in an attempt of it. `checkpoint`: `number` checkpoints
            of the role have been accepted.
        role: Name of the role.
        number: See `what`; 0 for a `start` or `ready` without a number.
    """
    if not isinstance(event, ReplicaStarted | ReplicaReady | ReplicaProgressed | ReplicaStepped | CheckpointOffered):
        return False
    if event.replica.role != role or event.replica not in job.replicas:
        return False
    world = job.worlds[job.replicas[event.replica].world]
    match what:
        case "start":
            return isinstance(event, ReplicaStarted) and world.generation >= number
        case "ready":
            return isinstance(event, ReplicaReady)
        case "step":
            if isinstance(event, ReplicaStepped):
                return event.steps >= number
            return isinstance(event, ReplicaProgressed) and event.step >= number
        case "generation":
            return isinstance(event, ReplicaStarted) and world.formed_ns is not None and world.generation >= number
        case "checkpoint":
            accepted = sum(job.worlds[name].checkpoints for name in job.roles[role].worlds)
            return isinstance(event, CheckpointOffered) and accepted >= number
        case _:
            assert_never(what)
