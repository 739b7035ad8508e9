"""Reading of `workload=`: the timing of a simulated worker, checked for contradictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowdist.dsl.read.fields import Fields
from flowdist.dsl.words import Workload
from flowdist.graph import MINUTE, MS, SECOND, WorkloadSpec, format_duration
from flowdist.graph.sizes import StepTimes, scaled, step_time_at

MOST_SPREAD = 100  # a worker that is a hundred times slower than others hangs
STEP_SPREAD_HELP = "write step_spread=0.1: a worker takes up to a tenth longer"
STARTUP_SPREAD_HELP = "write startup_spread=0.2: a start-up takes up to a fifth less or more time"
SCALING_HELP = "write scaling=0.9: nine tenths of the speed are proportional to the number of workers"
EXAMPLE = 'write step_time={1: "2s", 4: "600ms"}: the time of a step by the number of workers'
COLLECTIVES = ("wait", "fail", "hang")


def read_workload(fields: Fields, kind: str, least: int, most: int) -> WorkloadSpec:
    """Return the workload of a role of `least` to `most` workers; the default starts up in 2 s, a task in 5 s."""
    given = fields.values["workload"]
    startup = 2 * SECOND if kind == "service" else 5 * SECOND
    if given is None:
        return WorkloadSpec(startup_ns=startup)
    if not isinstance(given, Workload):
        fields.error("FD134", "workload", "workload= must be a Workload", "write workload=Workload(steps=600)")
        return WorkloadSpec(startup_ns=startup)
    work = fields.nested("workload", given)
    step_ns, step_times, batch_workers = _step_times(work, least, most)
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
        step_spread=_number_up_to(work, "step_spread", 0, MOST_SPREAD, STEP_SPREAD_HELP),
        warmup_ns=work.duration("warmup", 0),
        warm_startup_ns=None if given.warm_startup is None else work.duration("warm_startup", 0),
        import_ns=work.duration("import_time", 0),
        finish_ns=work.duration("finish_time", 0),
        startup_spread=_number_up_to(work, "startup_spread", 0.2, 1, STARTUP_SPREAD_HELP),
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


def _step_times(work: Fields, least: int, most: int) -> tuple[int, StepTimes, int]:
    """Return the time of a step in the largest size (ns), the times by size, and the workers that share a batch.

    The times are empty if a step takes as long in each size. The last number is 0 if the global batch is held. `least`
    and `most` are the numbers of workers in the smallest and the largest size of the role.
    """
    given = work.values["step_time"]
    scaling = _number_up_to(work, "scaling", 0, 1, SCALING_HELP)
    if isinstance(given, Mapping):
        table = _table(work, given)
        _check_table(work, table, scaling, least, most)
        step_ns = step_time_at(table, most) if table else SECOND
    else:
        step_ns = work.duration("step_time", SECOND, zero=False)
        table = scaled(step_ns, most, scaling)
    batch_workers = most if work.choice("batch", ("global", "worker")) == "worker" else 0
    return step_ns, table if len(table) > 1 else (), batch_workers


def _number_up_to(work: Fields, name: str, default: float, most: float, help: str) -> float:
    """Return the number of a field of a workload; the default, with an error (FD105), if it is more than `most`."""
    found = work.number(name, default)
    if found <= most:
        return found
    work.error("FD105", name, f"{name}={found:g} is more than {most:g}", help)
    return default


def _table(work: Fields, given: Mapping[Any, Any]) -> StepTimes:
    """Return the entries of a dict that can be read, the smallest number of workers first."""
    table = dict[int, int]()
    for workers, value in given.items():
        name = f"step_time.{workers}"
        if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
            work.error("FD134", name, f"step_time has {workers!r} as a number of workers", EXAMPLE)
        else:
            table[workers] = work.part(name, value).duration(name, SECOND, zero=False)
    if not given:
        work.error("FD134", "step_time", "step_time={} has no entry", EXAMPLE)
    return tuple(sorted(table.items()))


def _check_table(work: Fields, table: StepTimes, scaling: float, least: int, most: int) -> None:
    """Add an error for a table that lacks a size of the role, or that says twice how the speed depends on the size."""
    if work.is_wrong("step_time") or not table:
        return
    if scaling:
        help = "leave scaling= out: the table says how long a step takes in each size"
        work.error("FD169", "scaling", "scaling= and a step_time= for several sizes say the same thing twice", help)
    lacking = least if least < table[0][0] else most if most > table[-1][0] else None
    if lacking is not None:
        sizes = f"{least} to {most}" if least < most else f"{most}"
        message = f"step_time has no entry for {lacking} worker{'s' * (lacking != 1)}, and the role has {sizes}"
        work.error("FD169", "step_time", message, f"add {lacking}: the time of a step of that many workers")
