"""Which checkpoint a generation has restored, as far as its first step tells: an older one than the latest is named.

Nothing is decided by it. Who picks a checkpoint by himself, such as the newest name as text, does the same steps again
after every restart, and nothing else in the job looks wrong.
"""

from __future__ import annotations

from flowdist.control.job.facts import OldRestore
from flowdist.control.job.state import JobState, Replica


def note_restore(job: JobState, replica: Replica, step: int) -> None:
    """Record that the first step of an attempt is older than the latest checkpoint that an earlier generation has made.

    The user gets a notice, once for a generation of a world. A role whose mate in a joint world makes the checkpoints
    may count its steps in another way, and a checkpoint without a step says nothing.

    Args:
        job: The state.
        replica: The replica.
        step: The first step above 0 that its present attempt has reported as done.
    """
    world = job.worlds[replica.world]
    latest = world.checkpoint
    if latest is None or latest.generation >= world.generation or latest.replica.role != replica.id.role:
        return
    if step >= latest.step or (world.name, world.generation) in ((old.world, old.generation) for old in job.restores):
        return
    found = OldRestore(job.now, world.name, world.generation, replica.id, step, latest.step)
    job.restores.append(found)
    job.note("old_restore", replica.id, found.text, "warning")
