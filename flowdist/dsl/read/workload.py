"""Reading of `workload=`: the timing of a simulated worker, checked for contradictions."""

from __future__ import annotations

from flowdist.dsl.read.fields import Fields
from flowdist.dsl.read.step_times import number_up_to, read_step_times
from flowdist.dsl.words import Workload
from flowdist.graph import MINUTE, MS, SECOND, WorkloadSpec, format_duration

MOST_SPREAD = 100  # a worker that is a hundred times slower than others hangs
STEP_SPREAD_HELP = "write step_spread=0.1: a worker takes up to a tenth longer"
STARTUP_SPREAD_HELP = "write startup_spread=0.2: a start-up takes up to a fifth less or more time"
COLLECTIVES = ("wait", "fail", "hang")


def read_workload(fields: Fields, kind: str, least: int, most: int) -> WorkloadSpec:
    """Return the workload of a role. Without one, a service starts up in 2 s and a task in 5 s.

    Args:
        fields: The arguments of the role.
        kind: Task or service.
        least: The number of workers in the smallest size of the role, and `most` in the largest.
    """
    given = fields.values["workload"]
    startup = 2 * SECOND if kind == "service" else 5 * SECOND
    if given is None:
        return WorkloadSpec(startup_ns=startup)
    if not isinstance(given, Workload):
        fields.error("FD134", "workload", "workload= must be a Workload", "write workload=Workload(steps=600)")
        return WorkloadSpec(startup_ns=startup)
    work = fields.nested("workload", given)
    step_ns, step_times, batch_workers = read_step_times(work, least, most)
    spec = WorkloadSpec(
        steps=work.whole("steps", least=1),
        step_ns=step_ns,
        step_times=step_times,
        batch_workers=batch_workers,
        startup_ns=work.duration("startup", startup),
        checkpoint_every_ns=work.duration("checkpoint_every", MINUTE, zero=False),
        checkpoint_ns=work.duration("checkpoint_time", SECOND),
        restore_ns=work.duration("restore_time", 0),
        rejoin_ns=None if given.rejoin_time is None else work.duration("rejoin_time", 0),
        collective="" if given.collective is None else work.choice("collective", COLLECTIVES),
        collective_timeout_ns=work.optional_duration("collective_timeout"),
        step_spread=number_up_to(work, "step_spread", 0, MOST_SPREAD, STEP_SPREAD_HELP),
        warmup_ns=work.duration("warmup", 0),
        warm_startup_ns=None if given.warm_startup is None else work.duration("warm_startup", 0),
        import_ns=work.duration("import_time", 0),
        finish_ns=work.duration("finish_time", 0),
        startup_spread=number_up_to(work, "startup_spread", 0.2, 1, STARTUP_SPREAD_HELP),
        peer_restore_ns=None if given.peer_restore is None else work.duration("peer_restore", 0),
        stop_ns=work.duration("stop_time", 100 * MS),
        checkpoint_blocks_ns=None if given.checkpoint_blocks is None else work.duration("checkpoint_blocks", 0),
    )
    _check_checkpoints(work, spec)
    return spec


def _check_checkpoints(work: Fields, spec: WorkloadSpec) -> None:
    """Add an error if a checkpoint blocks for longer than it takes, or is not complete before the next begins."""
    if spec.checkpoint_blocks_ns is None or work.is_wrong("checkpoint_blocks", "checkpoint_time", "checkpoint_every"):
        return
    time, blocks = format_duration(spec.checkpoint_ns), format_duration(spec.checkpoint_blocks_ns)
    if spec.lag_ns < 0:
        message = f"checkpoint_blocks={blocks} is longer than checkpoint_time={time}, the time of a whole checkpoint"
        work.error("FD157", "checkpoint_blocks", message, f"write checkpoint_time={blocks!r} or more")
    elif spec.lag_ns > spec.checkpoint_every_ns:
        least = format_duration(spec.lag_ns)
        message = f"the next checkpoint begins {format_duration(spec.checkpoint_every_ns)} after one has blocked, but"
        message += f" that one is complete only after {least}"
        work.error("FD157", "checkpoint_every", message, f"write checkpoint_every={least!r} or more")
