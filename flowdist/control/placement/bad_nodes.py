"""Nodes with repeated failures: one replica avoids such a node, or the node is cordoned for all replicas (R22).

Replicas there keep running. A node that the minimum of a role needs is never cordoned automatically.
"""

from __future__ import annotations

from flowdist.control.job.state import JobState, PastFailure, Replica
from flowdist.control.placement.chooser import Chooser
from flowdist.control.placement.placement import avoided, recent, short_roles, update_free, without_room
from flowdist.control.protocol.ids import NodeName
from flowdist.control.rules import no_better
from flowdist.graph import format_duration


def blame(job: JobState, replica: Replica, kind: str, at_ns: int) -> None:
    """Count a failure against the replica and its node; cordon the node after `cordon_after` of one kind (R22).

    The user is warned instead if a minimum needs the node. No other replica and no lost node has caused it.
    """
    options = job.graph.options
    assert replica.node is not None
    node = job.nodes[replica.node]
    failure = PastFailure(at_ns, kind, replica.id, replica.node)
    replica.failures = [*recent(replica.failures, job.now, options), failure]
    node.failures = [*recent(node.failures, job.now, options), failure]
    same = sum(past.kind == kind for past in node.failures)
    if same < options.cordon_after or node.cordoned or not node.usable:
        return
    why = f"{same} failures of kind {kind} on it within {format_duration(options.bad_node_window_ns)}"
    if is_needed(job, replica.node):
        if same == options.cordon_after:
            text = f"{replica.node} is suspect: {why}; it is not cordoned, as there is no room for the job without it"
            job.decided("node_suspect", replica.node, text, "warning")
        return
    cordon(job, replica.node, why)
    node.cordon_cause = kind


def forget_failure(job: JobState, replica: Replica, at_ns: int) -> None:
    """Take back what `blame` counted at `at_ns` for a failure that turned out to have another cause (R7, R22).

    The node is uncordoned if its remaining failures would not have led to the cordon.
    """
    gone = [past for past in replica.failures if past.at_ns == at_ns]
    replica.failures = [past for past in replica.failures if past not in gone]
    for past in gone:
        node = job.nodes[past.node]
        node.failures = [other for other in node.failures if other != past]
        same = [other for other in node.failures if other.kind == past.kind]
        if node.cordon_cause == past.kind and not node.is_leaving and len(same) < job.graph.options.cordon_after:
            node.cordoned = node.cordon_cause = ""
            update_free(job, past.node)
            job.decided("node_used_again", past.node, f"{past.node} is used again: {replica.id} did not fail by itself")


def note_loss(job: JobState, name: NodeName) -> None:
    """Count a loss of the node that was not requested; `cordon_flapping` reads the count when the node joins again."""
    node = job.nodes[name]
    loss = PastFailure(job.now, "node_lost", None, name)
    node.failures = [*recent(node.failures, job.now, job.graph.options), loss]


def cordon_flapping(job: JobState, name: NodeName) -> None:
    """Cordon a node that joins again if it was lost `cordon_after` times within the window (R22).

    Each further loss would restart every world with a member there. Not before admission, or if a minimum needs it.
    """
    options, node = job.graph.options, job.nodes[name]
    losses = sum(past.kind == "node_lost" for past in recent(node.failures, job.now, options))
    if losses >= options.cordon_after and not node.cordoned and job.admitted and not is_needed(job, name):
        cordon(job, name, f"it was lost {losses} times within {format_duration(options.bad_node_window_ns)}")


def is_needed(job: JobState, name: NodeName) -> str:
    """Return the first role whose minimum lacks room without the node, or empty. Leaving nodes do not count."""
    return without_room(job, short_roles(job, {**job.leaving, name: None}), without=[name])


def cordon(job: JobState, name: NodeName, why: str) -> None:
    """Mark the node as cordoned, so that no more replicas are placed there, and notify the user of the reason `why`."""
    job.nodes[name].cordoned = why
    update_free(job, name)
    job.decided("node_cordoned", name, f"{name} is cordoned: {why}; `uncordon` takes it back", "warning")


def uncordon(job: JobState, name: NodeName) -> None:
    """Allow replicas on the node again, and forget all failures that were counted there, also those of replicas."""
    node = job.nodes[name]
    node.cordoned, node.cordon_cause, node.is_leaving = "", "", False
    job.leaving.pop(name, None)
    for failed in {past.replica: None for past in node.failures if past.replica is not None}:
        replica = job.replicas[failed]
        replica.failures = [past for past in replica.failures if past.node != name]
    node.failures.clear()
    update_free(job, name)
    job.decided("node_used_again", name, f"{name} is used again")


def moves_away(job: JobState, replica: Replica, name: NodeName) -> bool:
    """Return whether a replica has to leave its bad or cordoned node when it restarts, and another has room (R22)."""
    others = no_better(name, avoided(job, replica), is_closed=job.nodes[name].is_avoided)
    return bool(others) and Chooser(job, job.role_of(replica.id), dict.fromkeys(others)).take() is not None
