"""The end of the job in macro mode: decided once, complete when nothing runs any more (R18).

All functions act on a `Job` at the virtual time `now` in ns. What ends is the whole job, with all gangs of `Job.gangs`
and the roles beside them.
"""

from __future__ import annotations

from flowdist.sim.macro.job import Job
from flowdist.sim.macro.result import NEVER


def complete(job: Job, now: int) -> None:
    """Note that the work of the gang is done. The controller learns of it later, see `_succeed`.

    Members that were asked to leave a node have stopped, not succeeded (R16): they start again, and find all done.
    """
    job.books.halt(now, done=True)
    if job.notice is not None and now >= job.notice.heard:
        job.due = NEVER
        job.exited.update(dict.fromkeys(replica for replica, node in enumerate(job.seats.node_of) if node is not None))
        job.at(now + job.times.message, job.notice.finish)
        return
    told, away = now + job.times.message, job.away_members()
    silent = [node for node in job.death_known_at if job.members_on(node)]
    if away or silent:
        unheard = sum(map(job.members_on, (*away, *silent)))
        late = [(job.members_on(node), job.reported_at(node, now)) for node in away]
        job.books.finished = [(job.books.active - unheard, told), *late]
    if silent:  # their agents fence before they can report; `lose_node` follows, and all start again
        lost = {replica for node in silent for replica in job.seats.on[node]}
        seated = (replica for replica, node in enumerate(job.seats.node_of) if node is not None)
        job.exited.update(dict.fromkeys(replica for replica in seated if replica not in lost))
        job.due = NEVER
        return
    job.phase, job.on_due = "over", _succeed
    job.due = max([told, *(job.reported_at(node, now) for node in away)])


def _succeed(job: Job, now: int) -> None:
    """Handle the reports that the work of the gang is done. After the last primary task the job ends with success.

    Then the roles that are left are stopped one layer after the other, dependents first.
    """
    job.due = NEVER
    job.books.move("done", job.role.max_replicas, now)
    for replica, node in enumerate(job.seats.node_of):
        if node is not None:
            job.seats.release(replica)
    primaries = [each for each in job.gangs if each.role.primary]
    if not all(each.has_succeeded for each in primaries):
        job.companions.settle(now)
        return
    names = [role.name for role in job.scope.graph.roles if any(role in each.parts for each in primaries)]
    ends = now
    for each in job.gangs:
        _note_ending(each, now)
    for depth in sorted(set(job.depths.values()), reverse=True):
        at = ends
        for each in job.gangs:
            ends = max(ends, each.companions.end(at, depth))
            if each.depths[each.parts[0].name] == depth:
                _halt(each, at, each.role.drain_ns)
                ends = max(ends, _gang_ends(each, at, each.role.drain_ns))
    _end(job, "succeeded", f"every primary task has succeeded ({', '.join(names)})", ends)


def fail(job: Job, reason: str, now: int) -> None:
    """End the job with failure, and stop everything that runs. Nothing happens if the job has an outcome already."""
    if job.result.outcome is not None:
        return
    ends = now
    for each in job.gangs:
        grace_ns = each.role.stop_grace_ns
        _halt(each, now, grace_ns, each.companions.serve_until(now))
        _note_ending(each, now)
        ends = max(ends, _gang_ends(each, now, grace_ns), each.companions.end(now))
    _end(job, "failed", reason, ends)


def _halt(job: Job, now: int, grace_ns: int, served_until: int = NEVER) -> None:
    """End the work of a gang whose members are ordered to stop now: they step until they are stopped.

    They may be done before. From `served_until` (ns) on they wait for a service that has stopped as well.
    """
    books = job.books
    if books.begun is None:
        return
    stops = job.halt_at or now + job.stops_within(grace_ns) - job.times.message
    if job.phase == "running" and job.due <= min(stops, served_until):
        stops = job.due
        books.halt(stops, done=True)
        job.phase, job.due = "over", stops + job.times.message
    else:
        if served_until < stops and not job.away:
            books.stall(served_until)
        job.halt(stops, is_over=stops > now)
    books.move("done", books.active, stops)  # they have nothing more to do


def _note_ending(job: Job, now: int) -> None:
    """Book the decision that the job ends for a gang that does not work, as `Accounts` does."""
    books = job.books
    if books.begun is not None:
        return
    if job.phase in ("waiting", "gated") and books.bucket == "waiting":
        books.move("re-formation", job.size_max, now)  # the gang waits for nodes no longer
    elif books.bucket not in ("waiting", "done"):
        books.move("done", books.active, now)


def _gang_ends(job: Job, now: int, grace_ns: int) -> int:
    """Return when, in ns, the last member of the gang has ended if all are ordered to stop now, with this grace."""
    if job.phase == "stopping":
        return max(now, job.due, job.gone_at)
    if job.phase == "over":
        return now if job.due == NEVER else job.due
    if job.phase != "running" or not job.seats.taken:
        return now
    times, stop_ns = job.times, job.stops_within(grace_ns)
    dead = {node: known for node, known in job.death_known_at.items() if job.seats.on[node]}
    ends = [now, *dead.values()]
    away = sum(map(job.running_on, job.away_members()))
    if len(job.exited) + sum(len(job.seats.on[node]) for node in dead) + away < job.seats.taken:
        ends.append(min(now + stop_ns, max(now, job.peers_end_at + times.message)))
        if not dead and job.formed < NEVER:  # members that are still being spawned are stopped once they run
            ends.append(job.started_at + times.up + stop_ns - 2 * times.message)
    ends += [job.gone_on(node, job.told(node, now), grace_ns) for node in job.away_members()]
    return max(ends)


def _end(job: Job, outcome: str, reason: str, now: int) -> None:
    """Record the outcome of the job, which is complete at `now`, and complete the results of all gangs."""
    for each in job.gangs:  # the result of the first gang is that of the job
        own = "succeeded" if each.has_succeeded else "stopped"
        each.result.outcome, each.result.reason = outcome if each is job.gangs[0] else own, reason
    job.say(now, "ends", outcome, reason)
    for each in job.gangs:
        close(each, now)


def close(job: Job, now: int) -> None:
    """Write what the gang's result still lacks, up to now: time in buckets, charges, cordoned nodes, auxiliary roles.

    Called at the end of the job, or of the run if the job is not over by then.
    """
    result = job.result
    job.books.close(result, job.halt_at, now)
    result.charged = sum(policy.charged for policy in job.policies)
    result.cordoned = [job.scope.nodes[node] for node in job.seats.cordoned]
    job.companions.close(now)
