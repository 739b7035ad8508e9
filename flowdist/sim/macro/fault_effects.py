"""Effects of faults in macro mode: nodes die, are cut off and come back, processes end, members become slow.

The effect is immediate. What the controller learns of it, and when, is scheduled in the job.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial

from flowdist.faults.grammar import Fault, Rate
from flowdist.faults.rates import fault_of
from flowdist.sim.engine.node import NOTICES_NS
from flowdist.sim.macro.books import NEVER
from flowdist.sim.macro.gang import Failed, add_node, fail_replica, lose_node, lose_silent
from flowdist.sim.macro.job import Job

FAILED = {"kill": Failed("signal", signal="KILL"), "oom": Failed("oom", signal="KILL")}  # by kind of fault on a replica


def apply_fault(job: Job, target: str, what: Fault | Rate, now: int) -> None:
    """Apply a fault, or one that a rate brings, to everything that its target names.

    The target is a node, a label of nodes (`zone=a`), a replica of the gang, or the gang or "all" for all its replicas.
    A dead node, or a replica that does not run, is not hit: nothing happens. A node that is cut off can only be killed.
    """
    node = job.names.get(target)
    if node is not None:
        if what.kind == "add":
            job.at(now + job.times.message, partial(add_node, job, node))
        elif job.alive[node]:
            _note_fault(job, target, what, now)
            _kill_node(job, node, what, now)
        elif what.kind == "kill" and node in job.cut_off:
            _note_fault(job, target, what, now)
            _kill_cut_off(job, node, what, now)
    elif "=" in target:
        specs = job.scope.graph.cluster.nodes
        for place, name in enumerate(job.scope.nodes):
            spec = specs[place] if place < len(specs) else specs[0]  # an added node is like the first
            if tuple(target.split("=", 1)) in spec.labels:
                apply_fault(job, name, what, now)
    else:
        _, _, index = target.partition("/")
        for replica in [int(index)] if index else range(job.role.max_replicas):
            _hit_replica(job, replica, what, now)


def _note_fault(job: Job, target: str, what: Fault | Rate, now: int) -> None:
    """Count a fault that hits its target, and pass it to `tell`."""
    job.result.faults += 1
    if isinstance(what, Rate):
        job.result.by_rate[what.name] += 1
    if job.tell is not None:
        spec = what.spec if isinstance(what, Fault) else fault_of(what, target, now).spec
        job.tell(now, "fault", target, spec)


def _kill_node(job: Job, node: int, what: Fault | Rate, now: int) -> None:
    """Switch a node off or, for a fault `lost`, cut it off: its workers then run until its agent fences them."""
    times = job.times
    job.last_beat[node] = _last_beat(job, node, now - 1)  # a fault comes before a heartbeat of the same time
    back = now + what.duration_ns if what.duration_ns is not None else NEVER
    dies, known, lose = now, now + times.proof, partial(lose_node, job, node, "killed")
    if what.kind == "lost":
        heard = _last_beat(job, node, now - 2 * times.message)  # the last one whose answer it received
        dies, known, lose = heard + times.fence, job.last_beat[node] + times.silent, partial(lose_silent, job)
        job.cut_off[node] = known
        job.memory.cut_off(node, back)
    else:
        job.memory.forget(node)
    if node == job.offered_by:
        job.books.take_back(now)
    job.alive[node] = False
    job.workers_end_at[node], job.dead_since[node] = dies, now
    if back + times.message < known:
        known, lose = back + times.message, partial(lose_node, job, node, "not heard")
    job.at(known, lose)
    if back < NEVER:
        job.connected_at[node] = back
        returns = partial(_mend, job, node, now) if what.kind == "lost" else partial(add_node, job, node)
        job.at(back + times.message, returns)
    job.death_known_at[node] = known
    if job.phase == "opening" and node == job.first_node() and now < job.due - times.message:
        job.due = NEVER  # it opens no store; `lose_node` forms again
    if job.members_on(node):
        if job.phase == "running" and now < job.started_at + times.up:
            _miss_start(job, node, now)
        _kill_members(job, node, dies, known, now)


def _miss_start(job: Job, node: int, now: int) -> None:
    """Note that a node died or was cut off before it could report that its members run: the gang never forms.

    The incident before stays open. If the node has not even got the order to start, the gang does not work either.
    """
    job.formed = NEVER
    job.is_counted, job.policy.last_counted_ns = job.before_start
    if now < job.started_at + job.times.message:
        job.due = NEVER
        job.memory.take_back(node, job.started_at + job.times.up)


def _mend(job: Job, node: int, since: int, now: int) -> None:
    """End the cut that began at `since`: the node joins, unless it was killed meanwhile."""
    if node in job.cut_off and job.dead_since[node] == since:
        add_node(job, node, now)


def _kill_cut_off(job: Job, node: int, what: Fault | Rate, now: int) -> None:
    """Switch off a node that is cut off: what runs on it ends now, and the end of the cut does not bring it back."""
    known = min(now + job.times.proof, job.cut_off.pop(node))
    job.memory.forget(node)
    job.connected_at[node] = back = now + what.duration_ns if what.duration_ns is not None else NEVER
    if back < NEVER:
        job.at(back + job.times.message, partial(add_node, job, node))
    if now < job.workers_end_at[node]:
        job.workers_end_at[node] = now
        if job.members_on(node):
            _stop_short(job, now)
    if node in job.death_known_at:
        job.death_known_at[node] = known
        job.at(known, partial(lose_node, job, node, "killed" if known == now + job.times.proof else "not heard"))
        if job.phase == "stopping" and job.awaited_on(node):
            job.await_stop()


def _last_beat(job: Job, node: int, now: int) -> int:
    period, connected = job.options.heartbeat_ns, job.connected_at.get(node, 0)
    return connected + (now - connected) // period * period


def _kill_members(job: Job, node: int, dies: int, known: int, now: int) -> None:
    """Stop the gang's progress, since a node died or was cut off: its workers end at `dies`, it is lost at `known`."""
    if dies > now:
        job.at(dies, partial(_fence, job, node))
    else:
        _stop_short(job, now)
    if job.phase == "stopping" and now < job.stopped_at and job.awaited_on(node):  # a dead agent does not report that
        is_cleared = bool(job.deferred) and job.is_cleared(node)
        job.due = max(job.due, min(known, job.answer_due) if is_cleared else known)


def _fence(job: Job, node: int, now: int) -> None:
    """End the members on a node that is cut off; nothing if they have moved away, or were killed, since."""
    if job.members_on(node) and job.workers_end_at[node] == now:
        _stop_short(job, now)


def _hit_replica(job: Job, replica: int, what: Fault | Rate, now: int) -> None:
    """End a member that runs, and report it unless its agent is cut off; or slow the member down."""
    node = job.seats.node_of[replica]
    runs_from = job.started_at + job.times.started  # on a live node, also if the generation never forms
    if node is None or job.phase != "running" or now < runs_from or job.books.finished:
        return
    if not job.alive[node] and not runs_from <= job.dead_since[node] <= now < job.workers_end_at[node]:
        return
    if what.kind == "slow" and replica in job.exited:
        return
    _note_fault(job, f"{job.role.name}/{replica}", what, now)
    generation = job.result.generations
    if what.kind == "slow":
        _slow_down(job, replica, generation, Fraction(what.arg.rstrip("x")), now)
        if what.duration_ns is not None:
            job.at(now + what.duration_ns, partial(_slow_down, job, replica, generation, Fraction(1)))
        return
    job.exited[replica] = None
    _stop_short(job, now)
    if not job.alive[node]:  # not fenced yet, but it is going to
        job.unheard.add(replica)
        return
    how = Failed("exit", int(what.arg)) if what.kind == "exit" else FAILED[what.kind]
    job.at(now + job.times.message, partial(fail_replica, job, replica, generation, how))


def _slow_down(job: Job, replica: int, generation: int, factor: Fraction, now: int) -> None:
    """Let a member of the present generation, and the gang, take `factor` times as long for a step; 1 ends that."""
    if generation != job.result.generations or job.phase not in ("running", "stopping"):
        return
    job.slow.pop(replica, None)
    if factor != 1:
        job.slow[replica] = factor
    if job.books.begun is not None:
        done = job.books.set_pace(job.slowest, now)
        if job.phase == "running":
            job.due = done


# Peers of a member that has ended.


def _stop_short(job: Job, now: int) -> None:
    """End the stepping of the gang, of which a member has ended: the others wait for it until they are stopped.

    Called before the controller knows. What the others do is said by `collective` of the workload: those that step are
    inside a collective, but not while they start up, nor when they have done all steps. Nothing changes in phases in
    which no member steps.
    """
    books, load = job.books, job.role.workload
    collective = load.collective if books.begun is not None and books.step_at(now) < load.steps else ""
    if collective == "fail":
        generation, job.peers_end_at = job.result.generations, now + NOTICES_NS
        job.at(job.peers_end_at, partial(_fail_peers, job, generation))
    if job.phase == "running":
        job.is_deaf = job.is_deaf or collective == "hang"
        job.halt(now)
        job.due = NEVER
    elif job.phase == "stopping":
        job.halt(min(now, job.halt_at or now))


def _fail_peers(job: Job, generation: int, now: int) -> None:
    """End the members that are left: their process group has lost a member, so they exit with code 1.

    The failure is reported unless they are being stopped: then they have stopped earlier than SIGTERM would end them.
    Nothing happens if another generation runs by now.
    """
    if generation != job.result.generations or job.phase not in ("running", "stopping"):
        return
    alive = [replica for replica, node in job.seats.seated if job.alive[node]]
    left = [replica for replica in alive if replica not in job.exited and replica not in job.newcomers]
    job.exited.update(dict.fromkeys(left))
    if job.phase == "running" and left:
        job.at(now + job.times.message, partial(fail_replica, job, left[0], generation, Failed("exit", 1)))
    elif left:
        job.stopped_at = min(job.stopped_at, now)
        job.await_stop()
