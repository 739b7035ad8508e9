"""Orderly departure of the gang from a node that is drained or will be taken away, in macro mode (R14).

Agents and workers answer as in protocol mode, and control's rules decide. For a gang that steps:

    order    heard    answered   told         the step    saved      incident
      |        |          |        |             |          |           |
      +--------+----------+--------+---- work ---+- saves --+-----------+-- stops, and forms again
     drain    the agents ask     step + 1     all members             all members
              their workers      is chosen    have left it            have said so

While the members start up there is no step: a drain stops them at once, a preemption at its deadline. At the deadline,
which is `Notice.due`, the gang stops wherever it is. Any other incident of the gang ends the notice.

All functions act on a `Job` at the virtual time `now` in ns.
"""

from __future__ import annotations

from functools import partial

from flowdist.control.membership.drain import agreed_step, patience_ns
from flowdist.graph import format_duration
from flowdist.sim.engine.node import BIND_NS
from flowdist.sim.macro.gang import form, open_incident, restart, take_room
from flowdist.sim.macro.job import Job
from flowdist.sim.macro.orders.notice import Notice
from flowdist.sim.macro.result import NEVER


def drain(job: Job, node: int, now: int) -> None:
    """Begin to drain a node for the operator. The order is refused if the node is not up, or a minimum needs it."""
    has_joined = now >= job.times.message and job.seats.usable[node]
    if has_joined and not job.seats.is_needed(node) and node not in job.seats.leaving:
        _leave(job, node, f"{job.scope.nodes[node]} is drained by the operator", None, now)


def preempt(job: Job, node: int, notice_ns: int, now: int) -> None:
    """Begin to leave a node that will be taken away after `notice_ns`. Nothing happens if the node is not up."""
    if job.seats.usable[node]:
        because = f"{job.scope.nodes[node]} is taken away in {format_duration(notice_ns)}"
        _leave(job, node, because, notice_ns, now)


def _leave(job: Job, node: int, because: str, notice_ns: int | None, now: int) -> None:
    """Cordon the node, and let the gang leave it: by a notice if it runs, by other seats if nothing has started.

    A gang that is stopping leaves the node when it has stopped.
    """
    seats = job.seats
    seats.leave(node)
    if not seats.on[node]:
        take_room(job, now)  # a gang may grow earlier by now, because it has progressed
    elif job.phase == "running":
        _give_notice(job, node, because, notice_ns, now)
    elif job.phase in ("waiting", "opening", "back-off"):
        seats.vacate(node)
        if job.phase != "back-off":
            form(job, now)


def _give_notice(job: Job, node: int, because: str, notice_ns: int | None, now: int) -> None:
    """Ask the members for their step, and set the deadline. If they have been asked, the earlier deadline holds."""
    until, notice = now + patience_ns([job.role], notice_ns), job.notice
    if notice is None:
        notice = job.notice = Notice(
            "drained" if notice_ns is None else "preempted",
            because,
            {},
            heard=now + job.times.message,
            due=until,
            finish=lambda at: _finish(job, notice, at),
            drop=lambda: _drop(job, notice),
        )
        job.at(notice.heard, partial(_ask, job, notice))
    notice.nodes[node] = None
    if until <= notice.due:
        notice.due = until
        job.at(until, notice.finish)


def _ask(job: Job, notice: Notice, now: int) -> None:
    """Let the agents answer the controller, which has asked for the step of their workers.

    The workers take a moment to answer. An agent whose workers are not there yet answers at once that there is no step.
    Nothing happens if the node of a member is dead: the incident of that ends the notice.
    """
    message = job.times.message
    if job.notice is not notice or _has_dead_members(job, now):
        return
    are_there = now >= job.formed - message
    step = job.books.step_at(now) if job.books.begun is not None else None
    told = now + message + (BIND_NS if are_there else 0)
    job.at(told, partial(_choose_step, job, notice, agreed_step([step])))


def _has_dead_members(job: Job, before: int) -> bool:
    """Return whether a node with a member has died before that time (ns), and the controller does not know of it."""
    return any(job.members_on(node) and job.dead_since[node] < before for node in job.death_known_at)


def _choose_step(job: Job, notice: Notice, step: int | None, now: int) -> None:
    """Order the members to stop at the agreed step. Without one a drain stops them now, a preemption does later."""
    if job.notice is not notice or _has_dead_members(job, now - job.times.message):
        return
    if step is not None:
        job.at(now + job.times.message, partial(_plan_stop, job, notice, step))
    elif notice.kind == "drained":
        notice.finish(now)


def _plan_stop(job: Job, notice: Notice, step: int, now: int) -> None:
    """Let the work of the gang end at the agreed step, or now if it is further.

    Nothing happens if the gang does not work any more, or if its work is done with that step.
    """
    load = job.role.workload
    if job.notice is not notice or job.books.begun is None or (step >= load.steps and not load.finish_ns):
        return
    notice.step, notice.told, job.on_due = step, now, _reach_step
    job.plan_work(NEVER)


def _reach_step(job: Job, now: int) -> None:
    """Let all members, which have reached the agreed step, save there."""
    notice = job.notice
    assert notice is not None
    notice.has_left, job.due = True, NEVER
    _save_there(job, notice, now)


def _save_there(job: Job, notice: Notice, now: int) -> None:
    """Let all members save at the agreed step, where they are, as slow as the slowest of them."""
    pace = job.slowest
    job.books.leave(now)
    takes = job.role.workload.checkpoint_ns * pace.numerator // pace.denominator
    job.at(now + takes, partial(_save, job, notice, job.result.generations))


def _save(job: Job, notice: Notice, generation: int, now: int) -> None:
    """Complete the checkpoint, unless a member has ended meanwhile. The members that are left leave the step.

    The notice ends when all members have said so. A member on a dead node never does.
    """
    if job.books.has_left and _still_runs(job, generation, now):
        job.books.save_where_it_left()
        job.halt(now)
    if job.notice is notice and not _has_dead_members(job, now):
        job.at(now + job.times.message, lambda at: _finish(job, notice, at))


def _drop(job: Job, notice: Notice | None) -> None:
    """End the notice because an incident stops the gang. If it gets to the agreed step before, it still saves there."""
    assert notice is not None
    job.notice = None
    if notice.step is not None and not notice.has_left and job.books.begun is not None:
        at, generation = max(notice.told, job.books.time_of_step(notice.step)), job.result.generations
        job.at(at, lambda now: _save_late(job, notice, generation, now))


def _save_late(job: Job, notice: Notice, generation: int, now: int) -> None:
    """Let members that have reached the agreed step while they are stopped save there, if they have not ended."""
    if job.books.begun is not None and _still_runs(job, generation, now):
        _save_there(job, notice, now)


def _still_runs(job: Job, generation: int, now: int) -> bool:
    """Return whether that generation is the present one, and its members have not been stopped."""
    return generation == job.result.generations and (job.halt_at is None or now < job.halt_at)


def _finish(job: Job, notice: Notice | None, now: int) -> None:
    """End the notice, if it has not ended and its time has come: an incident stops the gang, which forms elsewhere."""
    if notice is None or job.notice is not notice:
        return
    if notice.kind == "drained":
        open_incident(job, "drained", notice.because, now, steps_on=True)
    elif not any(job.seats.on[node] for node in notice.nodes):  # their members had ended, and then they were lost
        open_incident(job, "node_lost", notice.because, now, steps_on=True)
    else:
        restart(job, "preempted", notice.because, job.policy.judge("preempted", now), now, steps_on=True)
