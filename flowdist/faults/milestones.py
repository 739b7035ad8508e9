"""When a job has come so far: what faults wait for, in simulation and on real processes alike."""

from __future__ import annotations

from typing import Literal, assert_never

from flowdist.control.job.state import JobState
from flowdist.control.protocol.events import CheckpointOffered, Event, ReplicaProgressed, ReplicaReady, ReplicaStarted

Milestone = Literal["start", "ready", "generation", "step", "checkpoint"]


def has_come(job: JobState, event: Event, what: Milestone, role: str, number: int) -> bool:
    """Whether `event`, which `job` has just handled, is the one.

    `start` and `ready` are those of any replica of the role, `start` with a number that of this generation or a later
    one; a generation has come when all of it runs; a checkpoint is the n-th that was accepted.
    """
    if not isinstance(event, ReplicaStarted | ReplicaReady | ReplicaProgressed | CheckpointOffered):
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
            return isinstance(event, ReplicaProgressed) and event.step >= number
        case "generation":
            return isinstance(event, ReplicaStarted) and world.formed_ns is not None and world.generation >= number
        case "checkpoint":
            accepted = sum(job.worlds[name].checkpoints for name in job.roles[role].worlds)
            return isinstance(event, CheckpointOffered) and accepted >= number
        case _:
            assert_never(what)
