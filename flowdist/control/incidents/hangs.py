"""Hangs: a replica without a sign of life fails, and its world restarts (R15).

Agents measure and report; this module decides. In a gang one rank that hangs stalls all others, so the first report
does not decide: `cause_window` later, the least advanced of the stalled replicas is judged to hang. A world has stalled
by output only when none of its members prints any more, because many programs print on one rank alone. That holds from
the start: a world that is silent before its first step hangs as well. A role with a longer start that is silent has a
`start_timeout`, and until something is seen of a replica of it, that alone counts.

Where ranks wait for each other after the last report of a step, all are at the same step. Then the state of their
processes tells: one that is stopped (SIGSTOP, a debugger) or a zombie cannot go on, wherever the others are, and of
equals it is one in uninterruptible sleep, as on a file server that does not answer. If that leaves more than one, the
world has failed, and nobody is blamed: neither a replica nor its node (R22). The budget of the role pays, because
something of it hangs.

A process group may notice a hang first. It gives up the collective for which the rank that hangs never came, and so a
healthy peer fails. Such a failure is judged when all of its world has stopped, because agents report the last step of
an attempt with its end:

    0 s      trainer/1 hangs at step 7; the others do step 8, and wait for it in a collective
    600 s    the collective of trainer/0 times out: trainer/0 fails, and all of trainer is ordered to stop
    602 s    trainer/1 has been killed: it is behind trainer/0, so it has failed, of kind "hang", at 600 s
"""

from __future__ import annotations

from flowdist.control.incidents.causes import note_lost
from flowdist.control.job.deadlines import Due
from flowdist.control.job.facts import Deferred
from flowdist.control.job.state import Failure, Incident, JobState, Replica, World
from flowdist.control.protocol.events import ReplicaStalled
from flowdist.control.protocol.ids import ProcessState
from flowdist.graph import format_duration

STATES: dict[ProcessState, str] = {
    "stopped": "a process of it is stopped (SIGSTOP, or a debugger)",
    "zombie": "a process of it has ended, and its parent does not take notice",
    "uninterruptible": "a process of it is in uninterruptible sleep, as on a disk or a file server",
}
NAMES_MAX = 4  # of replicas, in one line


def note_stalled(job: JobState, replica: Replica, event: ReplicaStalled) -> None:
    """Record the report that a replica has stalled. If its world counts as stalled, set the deadline for `judge_hang`.

    The deadline comes `cause_window` later, so that the other members have time to report as well. A replica that does
    not run, or has an order to stop, is ignored.
    """
    if not replica.is_up:
        return
    world = job.worlds[replica.world]
    job.set_stalled(replica, event.by)
    replica.stalled_ns, replica.stalled_as = job.now, event.state
    replica.step = max(replica.step, event.step)
    if world.phase == "running" and _has_stalled(world):
        job.due.set_once(Due("hang", world.name), job.now + job.graph.options.cause_window_ns)


def note_revived(job: JobState, replica: Replica) -> None:
    """Record that a stalled replica shows a sign of life; drop its world's hang deadline if it is stalled no more."""
    job.set_stalled(replica, "")
    if not _has_stalled(job.worlds[replica.world]):
        job.due.clear(Due("hang", replica.world))


def _has_stalled(world: World) -> bool:
    """Return whether the world counts as stalled: a member by progress or start, or all running members by output."""
    return bool(world.stalls["progress"] or world.stalls["start"]) or world.stalls["output"] == world.up


def judge_hang(job: JobState, world: World) -> None:
    """Record that the world's least advanced stalled replica failed, of kind "hang", at the hang deadline of the world.

    The world is marked, so that its members write their stacks when they are stopped. Nothing happens if the world does
    not count as stalled any more. If the node of a member has not joined since a controller took over, the deadline is
    put off.
    """
    if not _has_stalled(world):
        return
    if any(replica.node is not None and job.nodes[replica.node].awaits_inventory for replica in job.members_of(world)):
        # A member on a node that has not connected yet may have fenced long ago, and stalls those that report.
        options = job.graph.options
        job.due.set(Due("hang", world.name), job.now + options.silent_after_ns)
        return
    stalled = [replica for replica in job.members_of(world) if replica.is_up and replica.stalled]
    first = min(map(_suspicion, stalled))
    suspects = [replica for replica in stalled if _suspicion(replica) == first]
    suspect = suspects[0]
    spec = job.role_of(suspect.id).spec
    if suspect.stalled == "start":
        limit, what = spec.start_timeout_ns, "it reported no progress within"
    else:
        limit, what = spec.hang_after_ns, f"no {suspect.stalled} for"
    at = f" after step {suspect.step}" if suspect.step >= 0 else ""
    state = f"; {STATES[suspect.stalled_as]}" if suspect.stalled_as else ""
    world.hangs = True
    unknown = world.name if len(suspects) > 1 else ""
    why = f"it hangs: {what} {format_duration(limit or 0)}{at}{state}{_undecided(suspects)}"
    job.note_failure(suspect, "hang", why, world=unknown)


def _suspicion(replica: Replica) -> tuple[bool, bool, int, bool]:
    """Return a sort key of a stalled replica: the one with the least hangs most likely, one without output last."""
    stands = replica.stalled_as in ("stopped", "zombie")
    return not stands, replica.stalled == "output", replica.step, replica.stalled_as != "uninterruptible"


def _undecided(suspects: list[Replica]) -> str:
    """Return, in words, that any of these may be the one that hangs; empty if there is only one."""
    if len(suspects) == 1:
        return ""
    names = ", ".join(str(replica.id) for replica in suspects[:NAMES_MAX])
    rest = len(suspects) - NAMES_MAX
    also = f" and {rest} more" if rest > 0 else ""
    return f"; nothing tells {names}{also} apart, so that none is blamed"


def awaits_steps(job: JobState, failure: Failure) -> bool:
    """Return whether the culprit of a failure has to be found first: a collective timed out, and a peer may hang.

    That needs the steps of the failed replica and of a peer that is live. A replica that had an order to stop when it
    failed does not count.
    """
    replica = job.replicas[failure.replica]
    if not failure.has_timed_out or failure.was_told or replica.step < 0:
        return False
    return any(other.is_live and other.step >= 0 for other in job.members_of(job.worlds[replica.world]))


def name_culprit(job: JobState, incident: Incident, deferred: Deferred) -> Failure:
    """Return the failure to judge for a deferred one: that of the rank that hangs, if a collective timed out (R15).

    The culprit is the member that is furthest behind, if it is behind the one that failed. Of equals it is one that had
    to be stopped; of several such, none is blamed. A member that reported no step, or has succeeded, is not considered.
    The incident that the failure has opened gets the name of the culprit; any other failure is returned as it is.
    Nothing of the world is live by then.
    """
    failure = deferred.failure
    replica = job.replicas[failure.replica]
    members = job.members_of(job.worlds[replica.world])
    known = [other for other in members if other.step >= 0 and other.phase != "succeeded"]
    if not deferred.awaits_steps or not known:
        return failure
    culprit = min(known, key=lambda other: (other.step, other.id in incident.lost))
    if culprit.step >= replica.step:
        return failure
    timed_out = f"a collective of {replica.id} timed out after step {replica.step}"
    also = [each for each in known if each.step == culprit.step and each.id not in incident.lost]
    if len(also) > 1:
        behind, unknown = f"others are behind, after step {culprit.step}{_undecided(also)}", replica.world
    else:
        behind, unknown = f"{culprit.id} is furthest behind, after step {culprit.step}", ""
    why = f"it hangs: {timed_out}, and {behind}"
    culprit.member_since = 0
    found = Failure(culprit.id, "hang", why, node=culprit.node, at_ns=failure.at_ns, world=unknown)
    note_lost(job, incident, {culprit.id: why})
    assert deferred.own is not None  # a failure that is part of another incident does not wait for steps
    own = job.incident(deferred.own)
    own.kind, own.root, own.reason = found.kind, found.root, found.reason
    return found
