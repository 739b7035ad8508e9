"""Why a fault of the plan has hit nothing: its moment never came, or nothing that it could hit was there then."""

from __future__ import annotations

from flowdist.faults import Fault
from flowdist.graph import SECOND, RoleSpec, format_duration
from flowdist.sim.result import SimResult


def unfired_texts(result: SimResult) -> list[str]:
    """A line for each fault that never fired, with the reason; none where a violation broke the run off before."""
    texts = []
    for fault in result.unfired:
        not_yet = _too_late(fault, result) or _never_came(fault, result)
        if not (not_yet and result.violation is not None):
            texts.append(f"fault {fault.spec} never fired: {not_yet or _nothing_there(fault, result)}")
    return texts


def _too_late(fault: Fault, result: SimResult) -> str:
    when = fault.when
    first_ns = when.every_ns if when.at_ns is None else when.at_ns
    if first_ns is None or first_ns + fault.offset_ns <= result.now:
        return ""
    after = format_duration(result.now - result.now % SECOND or result.now)
    return f"{'the job was over' if result.job.outcome else 'the clock stopped'} after {after}"


def _never_came(fault: Fault, result: SimResult) -> str:
    """The event that it waits for."""
    when, job = fault.when, result.job
    if when.event is None:
        return ""
    role, worlds = job.roles[when.role].spec, job.worlds_of(job.roles[when.role])
    generations = max(world.generation for world in worlds)
    saved = sum(world.checkpoints for world in worlds)
    step = max(world.step for world in worlds)
    match when.event:
        case "ready" if role.ready is None:
            return f"{role.name} has no ready_when=: it starts, and nobody asks whether it is ready"
        case "start" | "ready" | "generation" if generations < max(when.number, 1):
            return _had(role, generations)
        case "step" | "checkpoint" if role.kind == "service":
            return f"{role.name} is a service: it counts no steps, and saves nothing that is simulated"
        case "step" if step < when.number:
            return f"{role.name} came to step {max(step, 0)}"
        case "checkpoint" if saved < when.number:
            return f"{role.name} saved {saved or 'no'} checkpoint{'s' * (saved != 1)}"
    return ""


def _had(role: RoleSpec, generations: int) -> str:
    if not generations:
        return f"{role.name} never started"
    return f"{role.name} had {generations} generation{'s' * (generations != 1)}"


def _nothing_there(fault: Fault, result: SimResult) -> str:
    """Its moment came."""
    nodes = {node.name for node in result.job.graph.cluster.nodes} | set(result.job.nodes)
    role = fault.target.partition("/")[0]
    is_service = role in result.job.roles and result.job.roles[role].spec.kind == "service"
    if fault.kind == "slow" and is_service:
        return f"{role} is a service: what a slow one costs those who call it is not simulated"
    if fault.kind in ("disk-full", "slow-checkpoint") and is_service:
        return f"{role} is a service: it saves nothing that is simulated, unless simulate= names a model of its worker"
    if fault.kind.endswith("-checkpoint"):
        return f"there was no checkpoint of {fault.target} then"
    if fault.kind == "xid":
        return f"{fault.target} had no GPU {fault.xid[1]} then"
    if fault.target == "controller":
        return "no controller ran then"
    if fault.target in nodes or fault.label is not None:
        return f"{fault.target} was not there then"
    return f"{fault.target} did not run then"
