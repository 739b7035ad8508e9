"""What the accounts of a job (`control.accounts`) are told in simulation, where it is known how a world works."""

from __future__ import annotations

from collections.abc import Iterable

from flowdist.control.accounts import Accounts, Bucket
from flowdist.control.state import JobState
from flowdist.sim.workload import WorldModel


def begins(accounts: Accounts, model: WorldModel, now: int) -> None:
    """A world begins to step; the end of its start-up was the reading of its checkpoint.

    Steps that were lost with the last generation, and are in the memory of a survivor, were not lost.
    """
    for replica in model.left if model.regained else ():
        accounts.transfer(replica.role, "lost work", "productive", model.regained * model.pace.workload.step_ns)
    accounts.begins(model.members, now, model.pace.workload.restore_ns if model.durable else 0)


def halts(accounts: Accounts, job: JobState, model: WorldModel, now: int) -> None:
    """A stretch of work is over; called before the model forgets it."""
    assert model.begun_ns is not None
    productive, lost, checkpoint = model.split(now)
    stalled = now - model.begun_ns - productive - lost - checkpoint
    parts: dict[Bucket, int] = {
        "productive": productive,
        "lost work": lost,
        "checkpoint": checkpoint,
        "stalled": stalled,
    }
    members = [
        member for member in model.members if accounts.bucket_of(member) == "work"
    ]  # not if its code fails as it begins
    accounts.halts(job, members, parts, now)


def close(accounts: Accounts, job: JobState, models: Iterable[WorldModel], now: int) -> None:
    """The end of the simulation: everything is booked up to now."""
    for model in models:
        if model.begun_ns is not None:
            halts(accounts, job, model, now)
    accounts.close(now)
