"""Milestones for which faults wait (`step=trainer,500`), and why one never came, simulated or real."""

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
from flowdist.faults.grammar import Fault
from flowdist.graph import SECOND, format_duration


def has_come(job: JobState, event: Event, what: Milestone, role: str, number: int) -> bool:
    """Return whether the event, which the controller has just handled, brings the job to a milestone.

    Later generations and steps count as well; a `step` may also be so many counted optimizer steps in an attempt.
    `number` is 0 for a `start` or `ready` without one.
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


def why_it_never_fired(fault: Fault, job: JobState, now_ns: int) -> str:
    """Return why a fault hit nothing in a job that ended, or whose clock stopped, at `now_ns`, in words."""
    return why_never_due(fault, job, now_ns) or why_nothing_was_hit(fault, job)


def why_never_due(fault: Fault, job: JobState, now_ns: int) -> str:
    """Return why the moment of the fault did not come before `now_ns`, in words; empty if it came."""
    when = fault.when
    first_ns = when.every_ns if when.at_ns is None else when.at_ns
    if first_ns is not None and first_ns + fault.offset_ns > now_ns:
        after = format_duration(now_ns - now_ns % SECOND or now_ns)
        return f"{'the job was over' if job.outcome else 'the clock stopped'} after {after}"
    if when.event is None:
        return ""
    role, worlds = job.roles[when.role].spec, job.worlds_of(job.roles[when.role])
    generations = max(world.generation for world in worlds)
    saved = sum(world.checkpoints for world in worlds)
    step = max(world.step for world in worlds)
    match when.event:
        case "ready" if not role.has_readiness:
            return f"{role.name} has no ready_when=: it starts without a check of its readiness"
        case "start" | "ready" | "generation" if generations < max(when.number, 1):
            many = f"{generations} generation{'s' * (generations != 1)}"
            return f"{role.name} had {many}" if generations else f"{role.name} never started"
        case "step" if step < when.number:
            return f"{role.name} came to step {max(step, 0)}"
        case "checkpoint" if saved < when.number:
            return f"{role.name} saved {saved or 'no'} checkpoint{'s' * (saved != 1)}"
    return ""


def why_nothing_was_hit(fault: Fault, job: JobState) -> str:
    """Return why a fault whose moment came hit nothing, in words: its target did not exist or run at that moment."""
    nodes = {node.name for node in job.graph.cluster.nodes} | set(job.nodes)
    if fault.kind.endswith("-checkpoint"):
        return f"there was no checkpoint of {fault.target} then"
    if fault.kind == "xid":
        return f"{fault.target} had no GPU {fault.xid[1]} then"
    if fault.kind == "broken-copy":
        return f"{fault.target} held no copies then"
    if fault.target == "controller":
        return "no controller ran then"
    if fault.target in nodes or fault.label is not None:
        return f"{fault.target} was not there then"
    return f"{fault.target} did not run then"
