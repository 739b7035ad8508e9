"""Nodes that are no good: for a replica, which then runs elsewhere, or for all, which then is a cordon (R22).

What runs on a cordoned node goes on; whatever of it restarts does so elsewhere, if there is room. A node is never
cordoned where the job could not go on without it.
"""

from __future__ import annotations

from flowdist.control.job.state import JobState, PastFailure, Replica
from flowdist.control.placement.placement import Chooser, avoided, short_of_room, update_free
from flowdist.control.protocol.ids import NodeName
from flowdist.graph import format_duration


def blame(job: JobState, replica: Replica, kind: str, at_ns: int) -> None:
    """A replica failed by itself, then: it tells against its node, and with others of its kind may cordon it."""
    options = job.graph.options
    assert replica.node is not None
    node = job.nodes[replica.node]
    failure = PastFailure(at_ns, kind, replica.id, replica.node)
    since = job.now - options.bad_node_window_ns
    replica.failures = [past for past in replica.failures if past.at_ns > since] + [failure]
    node.failures = [past for past in node.failures if past.at_ns > since] + [failure]
    same = [past for past in node.failures if past.kind == kind]
    if len(same) < options.cordon_after or node.cordoned or not node.usable:
        return
    why = f"{len(same)} failures of kind {kind} on it within {format_duration(options.bad_node_window_ns)}"
    if is_needed(job, replica.node):
        if len(same) == options.cordon_after:
            text = f"{replica.node} is suspect: {why}; it is not cordoned, as there is no room for the job without it"
            job.notify(text, "warning")
        return
    cordon(job, replica.node, why)
    node.cordon_cause = kind


def forget_failure(job: JobState, replica: Replica, at_ns: int) -> None:
    """It was no fault of its own: the failure of then tells against nothing."""
    gone = [past for past in replica.failures if past.at_ns == at_ns]
    replica.failures = [past for past in replica.failures if past not in gone]
    for past in gone:
        node = job.nodes[past.node]
        node.failures = [other for other in node.failures if other != past]
        same = [other for other in node.failures if other.kind == past.kind]
        if node.cordon_cause == past.kind and not node.is_leaving and len(same) < job.graph.options.cordon_after:
            node.cordoned = node.cordon_cause = ""
            update_free(job, past.node)
            job.notify(f"{past.node} is used again: {replica.id} did not fail by itself")


def note_loss(job: JobState, name: NodeName) -> None:
    """The node was lost with what ran on it, and nobody had asked for that."""
    node = job.nodes[name]
    since = job.now - job.graph.options.bad_node_window_ns
    loss = PastFailure(job.now, "node_lost", None, name)
    node.failures = [past for past in node.failures if past.at_ns > since] + [loss]


def cordon_flapping(job: JobState, name: NodeName) -> None:
    """A node that comes back again and again is used no more: each of its losses costs all that run with it."""
    options, node = job.graph.options, job.nodes[name]
    since = job.now - options.bad_node_window_ns
    losses = sum(past.kind == "node_lost" and past.at_ns > since for past in node.failures)
    if losses >= options.cordon_after and not node.cordoned and job.admitted and not is_needed(job, name):
        cordon(job, name, f"it was lost {losses} times within {format_duration(options.bad_node_window_ns)}")


def is_needed(job: JobState, name: NodeName) -> str:
    """The first role whose minimum has no room without the node; empty when all have.

    Nor are those counted that still run on a node which is being left: they need a seat, too.
    """
    roles = [role for role in job.roles.values() if role.outcome is None]
    nodes = [job.nodes[each] for each in {**job.leaving, name: None}]
    leaving = [replica for node in nodes for replica in node.replicas if job.role_of(replica).outcome is None]
    short = short_of_room(job, roles, without=[name], leaving=leaving)
    return short.spec.name if short is not None else ""


def cordon(job: JobState, name: NodeName, why: str) -> None:
    job.nodes[name].cordoned = why
    update_free(job, name)
    job.notify(f"{name} is cordoned: {why}; `uncordon` takes it back", "warning")


def uncordon(job: JobState, name: NodeName) -> None:
    """Whatever it was cordoned for is forgotten."""
    node = job.nodes[name]
    node.cordoned, node.cordon_cause, node.is_leaving = "", "", False
    job.leaving.pop(name, None)
    for failed in {past.replica: None for past in node.failures if past.replica is not None}:
        replica = job.replicas[failed]
        replica.failures = [past for past in replica.failures if past.node != name]
    node.failures.clear()
    update_free(job, name)
    job.notify(f"{name} is used again")


def moves_away(job: JobState, replica: Replica, name: NodeName) -> bool:
    """Whether a replica that is to start again had better leave its node, and has somewhere to go."""
    bad = avoided(job, replica)
    if name not in bad and not job.nodes[name].cordoned:
        return False
    role = job.role_of(replica.id)
    return Chooser(job, role, dict.fromkeys([name, *bad])).take() is not None
