"""Whether the fast path of macro mode (`steady_state`) may compute a job, and which of its faults."""

from __future__ import annotations

from flowdist.faults.grammar import Rate
from flowdist.faults.repairs import is_drawn
from flowdist.sim.macro.job import Job
from flowdist.sim.macro.result import FAILED, NEVER

# What the faults of an entity of `Arrivals` hit: a node (its number), a replica (-2 - its index), or this, for faults
# that are left to `gang`.
OTHER = -1


def may_become_steady(job: Job) -> bool:
    """Return whether `SteadyState` is of use in this job at all.

    A rate has to kill nodes or replicas, no node may have room for several replicas, and the loss of a node may not be
    charged to a budget.
    """
    verdict = job.policy.judge("node_lost", 0)
    is_free = verdict.action == "restart" and not verdict.counted
    known = any(_ends_a_node(rate, job) or _ends_a_replica(rate, job) for rate in job.plan.rates)
    return is_free and max(job.scope.seats) == 1 and known and not _is_left_out(job)


def _is_left_out(job: Job) -> bool:
    """Return whether the job has steps that depend on the size of the gang, or nodes whose repairs are drawn."""
    return job.role.workload.depends_on_size or any(map(is_drawn, job.plan.rates))


def _ends_a_node(rate: Rate, job: Job) -> bool:
    return rate.kind == "kill" and rate.subject in ("node", *job.scope.nodes)


def _ends_a_replica(rate: Rate, job: Job) -> bool:
    return rate.kind in FAILED and rate.subject in ("replica", job.role.name)


def is_steady(job: Job) -> bool:
    """Return whether `SteadyState` may compute the job from here on.

    The gang has to run or wait for nodes. No dead node may be unknown to the controller, no node be cut off or avoided,
    and no back-off be in progress. The job may have no `tell`, which needs each change, since changes are only counted.
    """
    if job.death_known_at or job.cut_off_since or job.seats.wary or job.tell is not None:
        return False
    if job.phase == "waiting":
        return job.books.bucket == "waiting" and not job.is_counted
    return job.phase == "running" and job.formed != NEVER and job.due != NEVER


def target_of(rate: Rate, target: str, job: Job) -> int:
    """Return what a fault of the rate on this target hits: a node, -2 - replica, or OTHER."""
    if _ends_a_node(rate, job):
        return job.names[target]
    if _ends_a_replica(rate, job):
        return -2 - int(target.rpartition("/")[2])
    return OTHER
