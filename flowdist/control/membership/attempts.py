"""Records of the starts and ends of attempts that agents report: what an exit means (R16), worlds that finish (R17)."""

from __future__ import annotations

from flowdist.control.incidents.ending import close_store
from flowdist.control.incidents.recovery import drop_notice, leave_incident
from flowdist.control.incidents.restart_set import end_suspended, note_suspended
from flowdist.control.job.deadlines import Due
from flowdist.control.job.facts import Failure, Loss, OfEnd
from flowdist.control.job.state import JobState, Replica
from flowdist.control.membership.drain import follow_notice, note_left
from flowdist.control.membership.formation import note_formed
from flowdist.control.membership.versions import await_readiness
from flowdist.control.placement.placement import unplace
from flowdist.control.protocol import events as ev


def note_started(job: JobState, replica: Replica, event: ev.ReplicaStarted) -> None:
    """Record that all workers of an attempt run, with its ports; unless it is `starting`, it keeps its phase."""
    world, role = job.worlds[replica.world], job.role_of(replica.id)
    if event.ports != replica.ports or replica.ports_node != replica.node:
        replica.ports, replica.ports_node = event.ports, replica.node
        role.stale = True
        role.portless.pop(replica.id, None)
        job.touch(world)
    if replica.phase == "starting":
        job.set_phase(replica, "running")
        await_readiness(job, replica)
        if role.spec.versions is not None:
            job.facts.append(event)  # its workers may have acknowledged a version already
        note_formed(job, world)


def note_exited(job: JobState, replica: Replica, event: ev.ReplicaExited) -> None:
    """Record the end of an attempt that the controller did not order: success of a task, or a failure (R16).

    A service that exits with 0 has failed. While the job ends, no failure is recorded: the attempt is just over.
    """
    role, world = job.role_of(replica.id), job.worlds[replica.world]
    was_up, may_succeed = replica.is_up, event.kind is None and role.spec.kind == "task"
    if event.suspended:
        note_suspended(job, replica)
    job.facts.append(event)
    if job.ending is not None:
        job.end_attempt(replica, "succeeded" if may_succeed and was_up else "gone")
    elif may_succeed:
        job.end_attempt(replica, "succeeded")
        if world.phase == "running" and world.counts["succeeded"] < len(world.members):
            patience = max(role.spec.finish_timeout_ns for role in job.roles_of(world))
            job.due.set_once(Due("finish", world.name), job.now + patience)
        note_left(job, replica, has_ended=True)
    else:
        job.end_attempt(replica)
        replica.exited = event
        why = _why(event)
        kind = event.kind or "exit"
        job.note_failure(
            replica,
            kind,
            why,
            exit_code=event.exit_code,
            signal=event.signal,
            was_told=not was_up,
            has_timed_out=event.cause == "collective_timeout",
        )


def _why(event: ev.ReplicaExited) -> str:
    """Return why a replica failed, as torchrun says it: `exit code 3: ValueError: bad shape`."""
    if event.kind is None:
        return f"a service must not end, but it exited with {event.exit_code}"
    what = f"signal SIG{event.signal}" if event.signal else f"exit code {event.exit_code}"
    words = {
        "oom": "out of memory",
        "start_failed": "its command could not be started",
        "hang": "it hangs",
        "unready": "it did not get ready in time",
    }
    what = words.get(event.kind, what)
    return f"{what}: {event.detail}" if event.detail else what


def note_stopped(job: JobState, replica: Replica, event: ev.ReplicaStopped) -> None:
    """Record that the workers of an attempt were stopped: all have ended or are suspended (R16).

    If the controller neither ordered the stop nor gave a notice, the node has stopped the replica: it is lost.
    """
    was_up = replica.is_up
    job.end_attempt(replica)
    job.facts.append(event)
    if event.suspended:
        note_suspended(job, replica)
    elif replica.in_place and job.ending is None:
        text = f"{replica.id} has not left its generation in place: it is restarted"
        job.note("not_left", replica.id, text, "warning")
    if not was_up or job.ending is not None:
        return
    if job.worlds[replica.world].notice is not None:
        note_left(job, replica, has_ended=True)
        return
    replica.member_since = 0
    cause = f"{replica.id} was stopped by its node"
    job.facts.append(Loss(str(replica.id), cause, (Failure(replica.id, "node_lost", cause, at_ns=job.now),)))


def judge_end(job: JobState, event: OfEnd) -> None:
    """Decide what follows from the end of an attempt beside its failure: for its mates, its world and its notice."""
    replica = job.replicas[event.replica]
    world = job.worlds[replica.world]
    if event.suspended:
        end_suspended(job, replica)
    if job.ending is not None or (isinstance(event, ev.ReplicaExited) and replica.phase != "succeeded"):
        return
    if world.counts["succeeded"] == len(world.members):
        job.due.clear(Due("finish", world.name))
        drop_notice(job, world)
        job.turn(world, "succeeded")
        leave_incident(job, world)
        close_store(job, world)
        for member in job.members_of(world):
            unplace(job, member)
    follow_notice(job, world)
