"""Leaving in order: a node is drained by the operator, or will be taken away (R14).

The worlds that have a member there are told before anything stops. Where every worker asks `should_stop(step)`, the
controller learns how far each is, and names the step after the furthest: the answer turns true there, on every rank,
so that a checkpoint taken then is whole. A worker that has been asked waits at its next should_stop() for that name, so
nobody can be past it. When the world has left that step, or its time is over, it re-forms without the node, in one
incident.
"""

from __future__ import annotations

from flowdist.control.job.deadlines import Due
from flowdist.control.job.facts import Change, Failure, Loss
from flowdist.control.job.state import JobState, Notice, Replica, World
from flowdist.control.membership.formation import abandon_opening
from flowdist.control.placement.bad_nodes import is_needed
from flowdist.control.placement.placement import explain, unplace, update_free
from flowdist.control.protocol.effects import AskStep, StopAtStep
from flowdist.control.protocol.events import DrainRequested, NodePreempted, ReplicaLeftStep, StepTold
from flowdist.control.protocol.ids import NodeName
from flowdist.graph import format_duration


def drain(job: JobState, event: DrainRequested) -> None:
    """Refused where a role would fall below its minimum: the operator would get a dead job for an empty node."""
    node = job.nodes.get(event.node)
    if node is None or not node.usable or job.ending is not None:
        job.notify(f"drain {event.node} is refused: no such node is up", "refused")
        return
    if needed := is_needed(job, event.node):
        was, node.cordoned = node.cordoned, node.cordoned or "to be drained"
        text = f"drain {event.node} is refused: without it, {explain(job, job.roles[needed])}"
        node.cordoned = was
        job.notify(text, "refused")
        return
    _leave(job, event.node, "drained", f"{event.node} is drained by the operator", None)


def preempt(job: JobState, event: NodePreempted) -> None:
    node = job.nodes.get(event.node)
    if node is None or not node.usable or job.ending is not None:
        return
    because = f"{event.node} is taken away in {format_duration(event.notice_ns)}"
    _leave(job, event.node, "preempted", because, event.notice_ns)


def _leave(job: JobState, name: NodeName, kind: str, because: str, notice_ns: int | None) -> None:
    node = job.nodes[name]
    if node.is_leaving and notice_ns is None:
        return
    node.is_leaving, node.cordoned = True, node.cordoned or because
    job.leaving[name] = None
    update_free(job, name)
    job.notify(because, "warning")
    for world_name in job.in_order({job.replicas[replica].world for replica in node.replicas}):
        world = job.worlds[world_name]
        if world.phase == "running" and not world.is_closing:
            _give_notice(job, world, name, kind, because, notice_ns)
        elif world.phase in ("waiting", "opening"):
            if world.phase == "opening":
                abandon_opening(job, world)
            for member in world.pool:
                if job.replicas[member].node == name:
                    unplace(job, job.replicas[member])


def _give_notice(job: JobState, world: World, name: NodeName, kind: str, because: str, notice_ns: int | None) -> None:
    """Ask every member how far it is. With a notice, all has to be over when the last moment to stop comes."""
    specs = [role.spec for role in job.roles_of(world)]
    grace = max(spec.grace_ns for spec in specs)
    patience = max(spec.drain_ns for spec in specs)
    if notice_ns is not None:
        patience = max(0, notice_ns - grace)
    due = Due("drain", world.name)
    until = min(job.now + patience, job.due.at(due) or job.now + patience)
    job.due.set(due, until)
    if world.notice is not None:
        world.notice.nodes[name] = None
        return
    up = [replica for replica in job.members_of(world) if replica.is_up]
    asked = {replica.id: None for replica in up}
    world.notice = Notice("drained" if kind == "drained" else "preempted", {name: None}, because, asked)
    for replica in up:
        assert replica.node is not None
        job.emit(AskStep(replica.node, replica.id, replica.attempt))


def note_step(job: JobState, replica: Replica, event: StepTold) -> None:
    """An answer; with the last of them the step is named."""
    world = job.worlds[replica.world]
    notice = world.notice
    if notice is None or replica.id not in notice.asked:
        return
    del notice.asked[replica.id]
    notice.steps.append(event.step)
    if not notice.asked:
        _name_step(job, world, notice)


def _name_step(job: JobState, world: World, notice: Notice) -> None:
    told = [step for step in notice.steps if step is not None]
    up = [replica for replica in job.members_of(world) if replica.is_up]
    step = max(told) + 1 if len(told) == len(notice.steps) and told else None
    notice.stop_at = step
    if step is not None:
        notice.staying = {replica.id: None for replica in up}
        job.notify(f"{world.name}: every rank stops at step {step} ({notice.because})")
    for replica in up:
        assert replica.node is not None
        job.emit(StopAtStep(replica.node, replica.id, replica.attempt, step))
    if step is None and notice.kind == "drained":
        finish_notice(job, world)  # nobody asks: there is nothing to wait for


def note_left(job: JobState, replica: Replica, event: ReplicaLeftStep | None = None) -> None:
    """A member has left the agreed step, or has ended under the notice; the last one to do so lets all go."""
    world = job.worlds[replica.world]
    notice = world.notice
    if notice is None:
        return
    notice.staying.pop(replica.id, None)
    if event is None and replica.id in notice.asked:
        del notice.asked[replica.id]
        if not notice.asked:
            _name_step(job, world, notice)
    if world.notice is not None and ((notice.stop_at is not None and not notice.staying) or not world.live):
        finish_notice(job, world)


def finish_notice(job: JobState, world: World) -> None:
    """The world stops in order, and re-forms elsewhere, in one incident."""
    notice = world.notice
    assert notice is not None
    world.notice = None
    job.due.clear(Due("drain", world.name))
    leaving = [replica for replica in job.members_of(world) if replica.node in notice.nodes]
    if notice.kind == "preempted":
        lost = tuple(Failure(replica.id, "preempted", notice.because) for replica in leaving)
        job.facts.append(Loss(next(iter(notice.nodes)), notice.because, lost, also=(world.name,)))
        return
    job.facts.append(Change("drained", next(iter(notice.nodes)), notice.because, (world.name,)))
