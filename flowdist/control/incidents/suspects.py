"""Suspicion and attribution: which nodes may have caused a failure that was reported before their own end (R7, R8).

A process that loses a peer fails within milliseconds: its connections break. The controller often learns of that
failure before it learns that the peer's node died, because the failure is reported by a healthy agent, and the death
has to be proven first. A judgement by the order of arrival would charge a healthy role for a lost node, or fail a job
that only had to re-form. So a failure is recorded, what it blocks is stopped at once, and its judgement waits
until its *suspects* are resolved. Suspects are the nodes that ran a peer of the failed replica, or something that the
replica depends on, and may have died before it. Each of them is resolved in one of four ways:

* it *answers*: everything of the incident on that node has ended. A dead node reports nothing;
* it is *heard*: the agent connects again, or a suspected node sends a heartbeat with an answer that the controller
  gave after the failure. An older one may have been sent before the node fenced, and have been on its way since;
* the *answer deadline* passes, and the node is not suspected: it has sent a heartbeat after the failure;
* it is *lost*. Then the failure follows from that loss. It costs nothing, and its worlds restart with the lost ones.

Two timelines for a gang of trainer/0 on node0, trainer/1 on node1 and trainer/2 on node2, where node1 is the cause:

    node1 dies, and a guardian proves it            node1 is cut off, and nothing proves anything
    0 ms    node1 dies                              0 s      last heartbeat of node1 that arrives
    3 ms    trainer/0 fails: its peers stop,        1.75 s   node1 is suspected
            suspects are node1 and node2            3 s      agent of node1 fences: it kills its workers
    9 ms    trainer/2 has stopped: node2 answers    3.01 s   trainer/0 fails: its peers stop, and wait
    30 ms   node1 lost: the failure is dropped      5 s      node1 lost: the failure is dropped

If trainer/0 had failed by itself, trainer/1 would have stopped at 10 ms: node1 answers, and the failure is judged. Then
nothing was delayed, because a restart set starts only when all of it is gone (R6).

Constants (`JobOptions`; the defaults are in brackets):

* `suspect_after_ns` (1.75 s) is half-way from the next heartbeat (0.5 s after the last) to the fence (3 s). Earlier,
  one late heartbeat would make a suspect of a healthy node. Later, peers of a fenced node could fail before the node is
  suspected, and be charged.
* The answer deadline is a failure plus `suspect_after_ns`, by construction: a node whose last heartbeat is older than
  the failure is suspected by then.
* The fence comes `lease_margin_ns` (1 s) before the end of the lease (4 s), the loss as long after it, so that nothing
  of a lost node still runs (R19).
* `cause_window_ns` (2 s) bounds the time between a failure and that of an upstream role that caused it. Upstream roles
  need not stop when a dependent fails, so that their nodes may never answer. A failure that would end the job waits for
  the window. A restart does not: it is charged, and `causes.refund_dependents` takes the charge back if the upstream is
  reported in time.

Three kinds of failures wait for less. A failure that charges no budget, and ends neither replica nor job, is not
deferred at all. Out of memory, or a command that cannot start, has no suspects where a rule decides about that kind: it
would decide after a loss, too (R9). A failure of another kind than an exit or a signal, such as a hang, has only
suspected nodes as suspects, because a peer that dies does not cause it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from itertools import islice

from flowdist.control.incidents.causes import OWN_KINDS
from flowdist.control.incidents.restart_set import closure, scope_worlds
from flowdist.control.job.deadlines import Due
from flowdist.control.job.facts import Deferred
from flowdist.control.job.state import Failure, Incident, JobState, Replica
from flowdist.control.protocol.events import NodeHeard
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.control.rules import PEER_KINDS, Verdict, matching_rule


def note_suspected(job: JobState, name: NodeName) -> None:
    """Record that the heartbeats of a usable node are overdue; ignore a node that is unknown or lost."""
    node = job.nodes.get(name)
    if node is not None and node.usable:
        job.suspected[name] = None


def note_heard(job: JobState, event: NodeHeard) -> None:
    """Record a sign that a node is not lost, a heartbeat or a join: the node is not suspected any more."""
    job.suspected.pop(event.node, None)
    job.facts.append(event)


def clear(job: JobState, incident: Incident, name: NodeName, up_ns: int) -> bool:
    """Clear a node, which ran what it ran at the time `up_ns`, of suspicion in the incident; return whether it is.

    It is not if a failure came later than that: the node may have fenced in between, and this sign of it was on its way
    since. Then the answer deadline decides.
    """
    if name not in incident.suspects:
        return False
    last = incident.deferred[-1].failure.at_ns
    if last > up_ns:
        job.due.set_once(Due("answer", str(incident.number)), max(job.now, last + job.graph.options.suspect_after_ns))
        return False
    del incident.suspects[name]
    return True


def suspects_of(job: JobState, failure: Failure, verdict: Verdict, part_of: Incident | None) -> list[NodeName]:
    """Return the nodes that may have caused the failure by their loss, while it is not known whether they are lost.

    Without any, the failure can be judged at once. The state has the failure already; `verdict` is what follows if none
    of them is lost. Nodes of the open incident `part_of`, if any, are suspects already.
    """
    replica = job.replicas[failure.replica]
    rule = matching_rule(job.role_of(failure.replica).spec.restart, failure)
    if failure.kind in OWN_KINDS and rule is not None and rule.do != "restart":
        return []  # the rule would decide after the loss of a node, too (R9)
    found = dict.fromkeys(_suspected_nodes(job, replica))
    if failure.kind in PEER_KINDS:
        if verdict.action == "restart":  # a node of which nothing stops would not answer
            stopping = closure(job, scope_worlds(job, replica.id, verdict.scope))
            members = (other for name in stopping for other in job.members_of(job.worlds[name]))
            others = [other for other in members if may_follow(job, replica, [other.id])]
        else:
            others = _died_first(job, replica, part_of)
        found |= {other.node: None for other in others if other.is_live and other.node is not None}
        found.pop(replica.node or "", None)
    if not found and part_of is not None:
        return list(islice(awaited_nodes(job, part_of), 1))  # one is enough: `part_of` waits for all of them already
    return list(found)


def awaited_nodes(job: JobState, incident: Incident) -> list[NodeName]:
    """Return the suspects of the incident that have to be resolved before it may restart its worlds.

    These are all of them if a deferred failure would end the job or its replica. Otherwise only the suspected ones
    count: the others answer while the restart set stops.
    """
    if any(each.is_final for each in incident.deferred):
        return list(incident.suspects)
    return [name for name in incident.suspects if name in job.suspected]


def _suspected_nodes(job: JobState, replica: Replica) -> list[NodeName]:
    """Return the suspected nodes, except its own, that run a peer of the replica, or something that it depends on."""
    return [
        name
        for name in job.suspected
        if name != replica.node
        and may_follow(job, replica, [each for each in job.nodes[name].replicas if job.replicas[each].is_live])
    ]


def may_follow(job: JobState, replica: Replica, lost: Iterable[ReplicaId]) -> bool:
    """Return whether the replica may fail because of one of the `lost`: of its world, or of an upstream role."""
    upstream = job.role_of(replica.id).upstream
    return any(job.replicas[other].world == replica.world or other.role in upstream for other in lost)


def _died_first(job: JobState, replica: Replica, part_of: Incident | None) -> list[Replica]:
    """Return the peers and upstream replicas whose end, before that of `replica`, may be the cause of its failure.

    All of a large world may fail at once. Its first failure in the incident makes suspects of the nodes of all others;
    for a later failure only the replicas on the node of that first one are returned, the others being suspects already.
    """
    world = job.worlds[replica.world]
    upstream = {name: None for role in job.roles_of(world) for name in role.upstream}
    first = part_of.first_failed.get(world.name) if part_of is not None else None
    if first is None:
        return job.members_of(world) + [other for name in upstream for other in job.replicas_of(job.roles[name])]
    others = (job.replicas[name] for name in job.nodes[first].replicas)
    return [other for other in others if other.world == world.name or other.id.role in upstream]


def defer(job: JobState, incident: Incident, deferred: Deferred, nodes: Iterable[NodeName]) -> None:
    """Add a failure to the deferred ones of the incident, and these nodes to its suspects; set the answer deadline.

    A node that is a suspect already keeps the time since which it is one. No deadline is set while every suspect is
    suspected: such a node is heard or lost in the end.
    """
    failure = deferred.failure
    insort(incident.deferred, deferred, key=lambda each: each.failure.at_ns)
    if deferred.is_final and failure.kind in PEER_KINDS and failure.node is not None:
        incident.first_failed.setdefault(job.replicas[failure.replica].world, failure.node)
    for name in nodes:
        incident.suspects.setdefault(name, job.now)
    if deferred.awaits_upstream or not incident.suspects.keys() <= job.suspected.keys():
        job.due.set_once(Due("answer", str(incident.number)), _due(job, incident, deferred))


def take_over(job: JobState, incident: Incident, other: Incident) -> None:
    """Add the other incident's deferred failures, if any, its suspects and its answer deadline to this one (R7, R8)."""
    if not other.deferred:
        return
    since = sorted([*other.suspects.items(), *incident.suspects.items()], key=lambda item: item[1])
    incident.suspects = {}
    for name, ns in since:
        incident.suspects.setdefault(name, ns)
    for deferred in other.deferred:
        defer(job, incident, deferred, ())
    dues = [job.due.at(Due("answer", str(each.number))) for each in (incident, other)]
    if known := [due for due in dues if due is not None]:
        job.due.set(Due("answer", str(incident.number)), min(known))


def drop(job: JobState, incident: Incident, deferred: Deferred, cause: str) -> None:
    """Remove a deferred failure that `cause` has caused; notify the user if it opened an incident."""
    incident.deferred.remove(deferred)
    if deferred.own is not None:
        own = job.incident(deferred.own)
        job.decided(
            "incident_excused", own.root, f"incident {own.number} was caused by {cause}: not counted", incident=own
        )
    if not incident.deferred:
        forget_suspects(job, incident)


def has_answered(job: JobState, incident: Incident, replica: Replica) -> bool:
    """Return whether the end of a replica's attempt is the answer of its node: nothing else of the incident runs there.

    The report of the end shows that the node was not lost. From a suspected node it does not: the report may have been
    on its way for long, so that a heartbeat is needed.
    """
    if replica.node is None or replica.node in job.suspected:
        return False
    others = [job.replicas[other] for other in job.nodes[replica.node].replicas]
    return not any(other.is_live and other.world in incident.worlds for other in others)


def is_resolved(job: JobState, incident: Incident, deferred: Deferred) -> bool:
    """Return whether a deferred failure can be judged: no node that was a suspect when it happened is in question.

    If a peer may be the culprit, all of the world has to stop first (R15).

    Before the answer deadline each of these nodes has to answer, or be heard or lost. After it, only nodes that are
    still suspected are in question.
    """
    at_ns = deferred.failure.at_ns
    if deferred.awaits_steps and job.worlds[job.replicas[deferred.failure.replica].world].live:
        return False
    if job.now < at_ns + job.graph.options.suspect_after_ns:
        first = next(iter(incident.suspects.values()), None)
        return first is None or first > at_ns
    return not any(incident.suspects.get(name, job.now) <= at_ns for name in job.suspected)


def renew_deadline(job: JobState, incident: Incident) -> None:
    """Set the next answer deadline of the incident, after one has passed.

    Once the deadlines of all its failures have passed, clear every suspect that is not suspected: that node has sent a
    heartbeat since.
    """
    dues = [due for each in incident.deferred if (due := _due(job, incident, each)) > job.now]
    if dues:
        job.due.set(Due("answer", str(incident.number)), min(dues))
    if not any(each.failure.at_ns + job.graph.options.suspect_after_ns > job.now for each in incident.deferred):
        for name in [name for name in incident.suspects if name not in job.suspected]:
            del incident.suspects[name]


def _due(job: JobState, incident: Incident, deferred: Deferred) -> int:
    """Return the time (ns) at which a deferred failure is judged, unless a suspected node is still in question then."""
    options, at_ns = job.graph.options, deferred.failure.at_ns
    if deferred.awaits_upstream and is_resolved(job, incident, deferred):
        return at_ns + options.cause_window_ns
    return at_ns + options.suspect_after_ns


def forget_suspects(job: JobState, incident: Incident) -> None:
    """Clear the suspects of the incident, its deferred failures and its answer deadline."""
    incident.suspects.clear()
    incident.deferred.clear()
    incident.first_failed.clear()
    job.due.clear(Due("answer", str(incident.number)))
