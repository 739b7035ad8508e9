"""Orderly departure from a node that the operator drains, or that is preempted with a notice (R14).

Before anything stops, each world with a member on the node asks its members for their step (`AskStep`). A worker that
has been asked waits in its next `should_stop(step)` for the answer. The controller chooses the step after the furthest
one (`StopAtStep`): `should_stop` turns true at that step on every rank, so that a checkpoint taken then is complete. No
worker can be past it, because each waits. When every member has left that step, or the deadline of the notice has
passed, the world re-forms without the node, in one incident.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flowdist.control.job.deadlines import Due
from flowdist.control.job.facts import Change, Failure, Loss
from flowdist.control.job.parts import NoticeKind
from flowdist.control.job.state import JobState, Notice, Replica, World
from flowdist.control.membership.formation import abandon_openings
from flowdist.control.placement.bad_nodes import is_needed
from flowdist.control.placement.placement import explain, unplace, update_free
from flowdist.control.protocol.effects import AskStep, StopAtStep
from flowdist.control.protocol.events import DrainRequested, NodePreempted, StepTold
from flowdist.control.protocol.ids import NodeName
from flowdist.graph import SECOND, RoleSpec, format_duration

SAME_NS = SECOND  # notices that differ by less are the same one, which took a different time to arrive


def drain(job: JobState, event: DrainRequested) -> None:
    """Begin to drain a node for the operator (R14), or refuse if it is not up, or the minimum of a role needs it."""
    node = job.nodes.get(event.node)
    if node is None or not node.usable or job.ending is not None:
        job.decided("drain_refused", event.node, f"drain {event.node} is refused: no such node is up", "refused")
        return
    if needed := is_needed(job, event.node):
        text = f"drain {event.node} is refused: without it, {explain(job, job.roles[needed], event.node)}"
        job.decided("drain_refused", event.node, text, "refused")
        return
    _leave(job, event.node, f"{event.node} is drained by the operator", None)


def preempt(job: JobState, event: NodePreempted) -> None:
    """Begin to leave a node that will be taken away after `event.notice_ns` (R14). Ignore a node that is not up.

    A notice is ignored as well if a present one says the same: an agent repeats it after each connection.
    """
    node, until = job.nodes.get(event.node), job.now + event.notice_ns
    if node is None or not node.usable or job.ending is not None or job.now < node.taken_at_ns <= until + SAME_NS:
        return
    node.taken_at_ns = until
    because = f"{event.node} is taken away in {format_duration(event.notice_ns)}"
    _leave(job, event.node, because, event.notice_ns)


def _leave(job: JobState, name: NodeName, because: str, notice_ns: int | None) -> None:
    """Cordon the node, give notice to each running world with a member there, and free the seats of waiting worlds.

    Waiting and opening worlds choose seats elsewhere. A closing world stays until it has finished or the node is gone
    (R17). A drain of a node that is drained or preempted already changes nothing; a preemption shortens the deadlines.
    `because` is a sentence for the user. `notice_ns` is the time until the node is taken away; None: the node is
    drained, in the time that `drain` of the roles sets.
    """
    node = job.nodes[name]
    if node.is_leaving and notice_ns is None:
        return
    node.is_leaving, node.cordoned = True, node.cordoned or because
    job.leaving[name] = None
    update_free(job, name)
    job.decided("node_leaves", name, because, "warning")
    for world_name in job.in_order({job.replicas[replica].world for replica in node.replicas}):
        world = job.worlds[world_name]
        if world.phase == "running" and not world.is_closing:
            _give_notice(job, world, name, because, notice_ns)
        elif world.phase in ("waiting", "opening"):
            abandon_openings(job, [world_name])
            for member in world.pool:
                if job.replicas[member].node == name:
                    unplace(job, job.replicas[member])


def patience_ns(roles: Iterable[RoleSpec], notice_ns: int | None) -> int:
    """Return the time (ns) to leave in order: the longest `drain`, or the notice less what stopping takes."""
    specs = list(roles)
    if notice_ns is None:
        return max(spec.drain_ns for spec in specs)
    return max(0, notice_ns - max(spec.grace_ns for spec in specs))


def agreed_step(answers: Sequence[int | None]) -> int | None:
    """Return the step after the furthest answer, for all to stop at; None if one is None, or there is none."""
    told = [step for step in answers if step is not None]
    return max(told) + 1 if len(told) == len(answers) and told else None


def _give_notice(job: JobState, world: World, name: NodeName, because: str, notice_ns: int | None) -> None:
    """Ask every member of a running world for its step, and set the deadline by which the world has to leave the node.

    A world under notice gets the node added to it; the earlier deadline holds. A drained node may yet be taken away.
    """
    until, due = job.now + patience_ns((role.spec for role in job.roles_of(world)), notice_ns), Due("drain", world.name)
    until = min(until, job.due.at(due) or until)
    job.due.set(due, until)
    kind: NoticeKind = "drained" if notice_ns is None else "preempted"
    if world.notice is not None:
        world.notice.nodes[name] = kind
        if kind == "preempted":
            world.notice.because = because
        return
    up = [replica for replica in job.members_of(world) if replica.is_up]
    asked = {replica.id: None for replica in up}
    world.notice = Notice({name: kind}, because, asked)
    for replica in up:
        assert replica.node is not None
        job.emit(AskStep(replica.node, replica.id, replica.attempt))


def note_step(job: JobState, replica: Replica, event: StepTold) -> None:
    """Record the step with which a member that was asked answers AskStep, once."""
    notice = job.worlds[replica.world].notice
    if notice is not None and replica.id in notice.asked:
        del notice.asked[replica.id]
        notice.steps.append(event.step)
        job.facts.append(event)


def note_left(job: JobState, replica: Replica, *, has_ended: bool = False) -> None:
    """Record that a member of a world under a notice has left the agreed step. Nothing happens without a notice.

    Its attempt may have ended instead (`has_ended`), so that its answer is not waited for, either.
    """
    notice = job.worlds[replica.world].notice
    if notice is not None:
        notice.staying.pop(replica.id, None)
        if has_ended:
            notice.asked.pop(replica.id, None)


def follow_notice(job: JobState, world: World) -> None:
    """Go on with the notice of a world, if it has one: name the step after the last answer, end it when all have left.

    A member that answered None leaves no agreed step: a drain ends its notice at once, a preemption waits for its end.
    """
    notice = world.notice
    if notice is None:
        return
    if not notice.asked and not notice.is_answered:
        notice.is_answered = True
        up = [replica for replica in job.members_of(world) if replica.is_up]
        step = notice.stop_at = agreed_step(notice.steps)
        if step is not None:
            notice.staying = {replica.id: None for replica in up}
            job.decided("step_agreed", world.name, f"{world.name}: every rank stops at step {step} ({notice.because})")
        for replica in up:
            assert replica.node is not None
            job.emit(StopAtStep(replica.node, replica.id, replica.attempt, step))
    waits = notice.staying if notice.stop_at is not None else notice.asked or notice.preempted
    if not waits or not world.live:
        finish_notice(job, world)


def finish_notice(job: JobState, world: World) -> None:
    """End the world's notice, which it must have, and record the fact that makes it stop and re-form elsewhere.

    That is a Change after a drain, and a Loss of the members on the nodes after a preemption.
    """
    notice = world.notice
    assert notice is not None
    world.notice = None
    job.due.clear(Due("drain", world.name))
    if preempted := notice.preempted:
        leaving = [replica for replica in job.members_of(world) if replica.node in preempted]
        lost = tuple(Failure(replica.id, "preempted", notice.because, at_ns=job.now) for replica in leaving)
        job.facts.append(Loss(preempted[-1], notice.because, lost, also=(world.name,)))
        return
    job.facts.append(Change("drained", next(iter(notice.nodes)), notice.because, (world.name,)))
