"""Entries in the accounts of a job (`record.accounts`) that only the simulator can make.

It knows what is lost. Steps that were booked as kept may be lost after all, when a later generation resumes from an
older checkpoint; steps that were booked as lost may be in the memory of a survivor. Either is booked for the members
that did these steps, however many there are now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from flowdist.control.job.state import JobState
from flowdist.record.accounts import Accounts, Bucket
from flowdist.sim.user_code.workload import Done, WorldModel


def begin_work(accounts: Accounts, model: WorldModel, now: int) -> None:
    """Book the start of the work of a world; the reading of its checkpoint is booked apart from the start-up."""
    _count_up_to(accounts, model, model.first_step)
    model.done = [Done(one.first, min(one.last, model.first_step), one.by) for one in model.done]
    model.done = [one for one in model.done if one.first < one.last]
    for name, role in model.roles.items():
        members = [member for member in model.members if member.role == name]
        accounts.begin_work(members, now, role.workload.restore_ns if model.durable else 0)


def end_work(accounts: Accounts, job: JobState, model: WorldModel, now: int) -> None:
    """Book the work of a generation that ends, before its model forgets it."""
    assert model.begun_ns is not None
    members = [member for member in model.members if accounts.bucket_of(member) == "work"]
    if not members:
        return  # the user code failed as it began
    warmed, worked, checkpoint = model.split(now)
    kept = min(worked, max(0, model.durable - model.first_step) * model.pace.workload.step_ns)
    checkpoint += now - model.left_ns if model.left_ns is not None else 0
    stalled = now - model.begun_ns - warmed - worked - checkpoint
    parts: dict[Bucket, int] = {"productive": kept, "lost work": worked - kept, "start-up": warmed}
    accounts.end_work(job, members, parts | {"checkpoint": checkpoint, "stalled": stalled}, now)
    _count_up_to(accounts, model, min(model.durable, model.first_step))
    done = Done(model.first_step, model.step_at(now), dict(Counter(member.role for member in members)))
    before = model.done.pop() if model.done and model.done[-1][1:] == (done.first, done.by) else done
    model.done.append(done._replace(first=before.first))  # a gang that fails again and again at one step has one entry
    model.counted = max(model.counted, min(model.durable, model.step_at(now)))


def _count_up_to(accounts: Accounts, model: WorldModel, step: int) -> None:
    """Book the steps up to `step` as kept, and those after it as lost."""
    low, high = sorted((step, model.counted))
    for one in model.done:
        ns = max(0, min(high, one.last) - max(low, one.first)) * model.pace.workload.step_ns
        for role, members in one.by.items():
            accounts.transfer(role, "lost work", "productive", ns * members * (1 if step > model.counted else -1))
    model.counted = step


def close(accounts: Accounts, job: JobState, models: Iterable[WorldModel], now: int) -> None:
    """Book everything up to the end of the simulation."""
    for model in models:
        if model.begun_ns is not None:
            end_work(accounts, job, model, now)
    accounts.close(now)
