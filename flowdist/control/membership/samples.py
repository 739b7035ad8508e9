"""The ledger of samples (R25): which steps are in the latest checkpoint of a world, and who took their samples.

`worker.samples()` makes the samples of a step a function of its number, and each worker reports from which step on it
takes them. So the ledger needs no list of samples. A step counts once a checkpoint that contains it is committed, or a
generation goes on from a state in memory that contains it. A
generation that goes on from an older step takes that of later steps back, which are done again.
"""

from __future__ import annotations

from itertools import pairwise

from flowdist.control.job.parts import Counted, Drawing
from flowdist.control.job.state import JobState, Replica, World
from flowdist.control.protocol import events as ev


def note_sampling(job: JobState, replica: Replica, event: ev.ReplicaSampling) -> None:
    """Record that a worker takes the samples of the steps from `event.begin` on, and say what is wrong with that.

    All workers of a generation have to take them from the same step on, by the same rule.
    """
    world = job.worlds[replica.world]
    of = world.drawing
    if of is None or of.generation != world.generation:
        if of is not None and world.has_state:
            count_samples(world, of.generation, event.begin)
        world.drawing = Drawing(
            world.generation, event.begin, event.sampling, event.ranks, replica.id, {event.rank: None}
        )
        _judge_begin(job, world, event)
        return
    of.seen[event.rank] = None
    if (event.begin, event.sampling, event.ranks) == (of.begin, of.sampling, of.ranks) or of.differs:
        return
    of.differs = True
    job.note(
        "samples_differ", replica.id,
        f"the ranks of {world.name} do not take the same samples: {replica.id} takes {_words(event)}, and {of.first} "
        f"{_words(of)}", "error",
    )  # fmt: skip


def count_samples(world: World, generation: int, step: int) -> None:
    """Record that the steps of a generation below `step` are in a state from which the world goes on.

    That is a committed checkpoint, the snapshot in memory that a later generation reads (R24), or what workers that
    stay in place have in their own memory.
    """
    world.states[step] = None
    of = world.drawing
    if of is None or of.generation != generation or step < of.begin:
        return
    ledger = world.ledger
    if not ledger or ledger[-1].generation != of.generation:
        ledger[:] = _until(ledger, of.begin)
        ledger.append(
            Counted(of.generation, of.begin, step, of.sampling, len(of.seen), of.ranks, of.differs, of.is_unknown)
        )
        return
    ledger[-1] = ledger[-1]._replace(end=step, seen=len(of.seen), differs=of.differs)


def why_not_once(ledger: list[Counted]) -> list[str]:
    """Return why a ledger does not show that each sample was used once in each epoch; empty if it does."""
    found = []
    for each in ledger:
        of = f"generation {each.generation}"
        if each.is_unknown:
            found.append(f"{of} began at step {each.begin}, of which no state was committed: it has repeated samples")
        if each.differs:
            found.append(f"the ranks of {of} did not take the same samples")
        if each.seen < each.ranks:
            found.append(f"{each.seen} of the {each.ranks} ranks of {of} have reported which samples they took")
    for before, after in pairwise(ledger):
        if after.begin > before.end:
            found.append(f"no committed checkpoint contains the steps from {before.end} to {after.begin}")
        if rule_of(before.sampling) != rule_of(after.sampling):
            found.append(f"generation {after.generation} took other samples than generation {before.generation}")
    return found


def rule_of(sampling: ev.Sampling) -> tuple[object, ...]:
    """Return what decides which samples a step takes. The size of its micro-batches does not."""
    return (sampling.dataset_size, sampling.global_batch, sampling.seed, sampling.shuffle)


def _judge_begin(job: JobState, world: World, event: ev.ReplicaSampling) -> None:
    """Say once that a generation begins at a step of which there was no state: it repeats steps, or leaves some out.

    The first states of a run are those of another one, of which nothing is known.
    """
    committed = world.ledger[-1].end if world.ledger else None
    if committed is None or event.begin in world.states or event.begin == 0 or world.has_state:
        return
    assert world.drawing is not None
    if event.begin < committed:
        world.drawing.is_unknown = True
        job.note(
            "samples_repeated", world.name,
            f"{world.name} takes samples from step {event.begin} on, of which no state was committed: what it goes on "
            "from contains samples that it takes again", "error",
        )  # fmt: skip
    else:
        job.note(
            "samples_left_out", world.name,
            f"{world.name} takes samples from step {event.begin} on, and the last committed checkpoint has step "
            f"{committed}: the steps between them are in no committed checkpoint", "error",
        )  # fmt: skip


def _until(ledger: list[Counted], step: int) -> list[Counted]:
    """Return what counts of a ledger below a step."""
    return [each._replace(end=min(each.end, step)) for each in ledger if each.begin < step]


def _words(event: ev.ReplicaSampling | Drawing) -> str:
    of = event.sampling
    order = f"with seed {of.seed}" if of.shuffle else "without shuffling"
    return (
        f"{of.global_batch} of {of.dataset_size} a step, {of.micro_batch} at once, {order}, from step {event.begin} on "
        f"as one of {event.ranks} ranks"
    )
