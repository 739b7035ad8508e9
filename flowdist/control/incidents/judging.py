"""The one place where recorded facts are judged, each once, in the order in which they were recorded."""

from __future__ import annotations

from typing import assert_never

from flowdist.control.incidents.recovery import fail, lose, open_incident
from flowdist.control.incidents.suspects import clear_node, excuse_peers, note_answer
from flowdist.control.job.facts import Change, Ended, Failure, Heard, Loss
from flowdist.control.job.state import JobState
from flowdist.control.placement.bad_nodes import note_loss


def judge_recorded(job: JobState) -> None:
    """Judge what events and deadlines have recorded."""
    facts, job.facts = job.facts, []
    for fact in facts:
        match fact:
            case Loss():
                _judge_loss(job, fact)
            case _ if job.ending is not None:
                pass
            case Failure():
                fail(job, fact, was_told=fact.was_told)
            case Change():
                open_incident(
                    job,
                    kind=fact.kind,
                    root=fact.root,
                    root_role=None,
                    reason=fact.reason,
                    because=fact.because,
                    counted=False,
                    seeds=list(fact.worlds),
                )
            case Heard():
                clear_node(job, fact.node)
            case Ended():
                note_answer(job, job.replicas[fact.replica])
            case _:
                assert_never(fact)


def _judge_loss(job: JobState, loss: Loss) -> None:
    """Replicas that were told to stop are lost in vain where their peers failed because of the node."""
    peers = excuse_peers(job, loss.node, loss) if loss.node is not None else []
    lost = [each for each in loss.lost if not each.was_told or job.replicas[each.replica].world in peers]
    if lost and loss.node is not None and loss.is_blamed:
        note_loss(job, loss.node)
    if loss.is_told:
        names = ", ".join(str(each.replica) for each in lost)
        job.notify(f"{loss.cause}, and with it {names}" if lost else loss.cause, "warning")
    if job.ending is None and (lost or peers or loss.also):
        lose(job, lost, loss.root, loss.cause, [*peers, *loss.also])
