"""One failure in a rehearsal of the job: what the controller judges, stops, restarts, ends and charges."""

from __future__ import annotations

from typing import NamedTuple, cast

from flowdist.control.incidents.applied_rules import judge
from flowdist.control.incidents.causes import upstream_incident
from flowdist.control.job.facts import Failure
from flowdist.control.job.state import JobState, Replica
from flowdist.control.membership.formation import is_lost
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import StartReplica, StopReplica
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.rules import Verdict, matching_rule
from flowdist.graph import MINUTE, FailureKind, Rule
from flowdist.report.static.failing import Failing
from flowdist.report.static.rehearsal import Rehearsal, Running, by_role


class Hit(NamedTuple):
    """Replica that fails or is lost, the controller's verdict on it, and the rule of the user that it rests on."""

    replica: ReplicaId
    verdict: Verdict
    rule: Rule | None


class Seen(NamedTuple):
    """Consequences of a failure in one rehearsal."""

    before: Running  # what runs before the failure
    hits: list[Hit]
    kept: Running  # these go on with the same attempt
    restarted: Running  # these start again, or will as soon as they find room
    ended: Running  # for good, by the controller; those included that have never run
    stops: list[StopReplica]  # in order
    waves: list[list[StartReplica]]  # of what finds no room, those that follow when the nodes are back
    charges: list[tuple[str, int]]  # the role and the level of the budget of each incident that is charged
    refused: list[str]  # the controller's reasons for refusing to drain nodes
    failed_for: str  # the reason for which the job fails; empty: it does not
    job: JobState  # afterwards

    def is_over(self, role: str) -> bool:
        """Return whether the role can open no gate any more: it has ended for good, or too few of it are left."""
        return is_lost(self.job.roles[role])

    def count(self, role: str) -> int:
        """Return how many replicas of the role run in the end."""
        return sum(replica.is_up for replica in self.job.replicas_of(self.job.roles[role]))


def happen(rehearsal: Rehearsal, failing: Failing) -> Seen:
    """Let the failure happen in a rehearsal, which is changed, and return what it leads to."""
    job, before = rehearsal.job, rehearsal.running()
    attempts = {name: replica.attempt for name, replica in job.replicas.items()}
    known = len(job.incidents)
    rehearsal.forget()
    hits = _fail_nodes(rehearsal, failing) if failing.nodes else _fail_replicas(rehearsal, failing, before)
    rehearsal.settle()
    ran = [job.replicas[ReplicaId(role, index)] for role, indices in before.items() for index in indices]
    again = [each for each in ran if each.attempt > attempts[each.id] or not (each.is_up or each.phase == "ended")]
    return Seen(
        before,
        hits,
        by_role(replica for replica in ran if replica.is_up and replica.attempt == attempts[replica.id]),
        by_role(again),
        by_role(replica for replica in job.replicas.values() if replica.phase == "ended"),
        rehearsal.stops,
        _waves(rehearsal, failing, hits),
        [(each.root_role, each.level) for each in job.incidents[known:] if each.counted and each.root_role],
        rehearsal.refusals,
        job.ending_reason if job.ending == "failed" else "",
        job,
    )


def _waves(rehearsal: Rehearsal, failing: Failing, hits: list[Hit]) -> list[list[StartReplica]]:
    """Return the orders to start, by wave. What finds no room without the nodes follows in waves when they are back."""
    waves = rehearsal.waves
    if not failing.nodes or rehearsal.job.ending or all(rehearsal.job.replicas[hit.replica].is_up for hit in hits):
        return waves
    started = {start.replica.role for wave in waves for start in wave}
    back = rehearsal.copy()
    back.rejoin(*failing.nodes)
    back.settle()
    more = back.waves[len(waves) :]
    return waves + [[start for start in wave if start.replica.role not in started] for wave in more]


def _fail_replicas(rehearsal: Rehearsal, failing: Failing, before: Running) -> list[Hit]:
    """Let each replica that is meant fail, all at one moment; return them with the verdicts, which come one by one."""
    job, hits = rehearsal.job, []
    for index in [index for index in before.get(failing.role, []) if failing.number in (None, index)]:
        replica = job.replicas[ReplicaId(failing.role, index)]
        hits.append(_hit(job, replica, failing, was_told=not replica.is_up and job.ending is None))
        if failing.kind == "unready":
            rehearsal.miss_readiness(replica.id, failing.how)
        else:
            rehearsal.tell(_end_of(job, replica, failing))
    return hits


def _end_of(job: JobState, replica: Replica, failing: Failing) -> ev.Event:
    """Return the event of the failure of one replica: it ends, or nothing is seen of it any more."""
    spec = job.role_of(replica.id).spec
    if failing.kind != "hang":
        kind = cast(FailureKind, failing.kind)
        return ev.ReplicaExited(replica.id, replica.attempt, kind, failing.exit, failing.signal)
    if spec.hang_after_ns is not None:
        return ev.ReplicaStalled(replica.id, replica.attempt, "progress", spec.hang_after_ns, replica.step)
    return ev.ReplicaStalled(replica.id, replica.attempt, "start", spec.start_timeout_ns or 0, replica.step)


def _fail_nodes(rehearsal: Rehearsal, failing: Failing) -> list[Hit]:
    """Let the nodes be lost or preempted at one moment, or drained in turn; return the hits, without refused drains."""
    job = rehearsal.job
    hits: dict[ReplicaId, Hit] = {}
    placed = {node: [job.replicas[name] for name in job.nodes[node].replicas] for node in failing.nodes}
    found = {node: [_hit(job, each, failing) for each in placed[node] if each.is_up] for node in placed}
    for node in failing.nodes:
        refusals = len(rehearsal.refusals)
        rehearsal.tell(_event(failing, node))
        if failing.kind == "drained":
            rehearsal.settle()
        if len(rehearsal.refusals) == refusals:
            hits |= {hit.replica: hit for hit in found[node]}
    return [hits[replica] for replica in job.replicas if replica in hits]


def _event(failing: Failing, node: str) -> ev.Event:
    """Return the event of the failure of one node."""
    if failing.kind == "drained":
        return ev.DrainRequested(node)
    if failing.kind == "preempted":
        return ev.NodePreempted(node, MINUTE)
    if failing.spec.endswith(":lost"):
        return ev.NodeSilent(node)
    return ev.NodeLeft(node) if failing.spec.endswith(":leave") else ev.NodeGone(node)


def _hit(job: JobState, replica: Replica, failing: Failing, *, was_told: bool = False) -> Hit:
    """Return the replica with the controller's verdict, as it is before the failure. A drain is judged by no policy."""
    if failing.kind == "drained":
        return Hit(replica.id, Verdict("restart", False, "role", ""), None)
    kind = cast(FailureKind, failing.kind)
    failure = Failure(replica.id, kind, "", failing.exit, failing.signal, replica.node, job.now, was_told)
    is_part = job.worlds[replica.world].incident is not None or upstream_incident(job, replica) is not None
    verdict = judge(job, failure, caused=is_part and not failing.nodes)
    return Hit(replica.id, verdict, matching_rule(job.role_of(replica.id).spec.restart, failure))
