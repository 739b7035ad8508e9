"""Outcomes of jobs: the end, the incidents and the cost, of an experiment that was played or of a recorded run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from flowdist.control.job.facts import Incident
from flowdist.control.job.state import JobState
from flowdist.control.protocol.ids import WorldName
from flowdist.graph import RoleSpec
from flowdist.record.accounts import Bucket, goodput_of
from flowdist.record.journal import Header, Line
from flowdist.record.replay import Replay
from flowdist.sim.macro.books import MacroResult
from flowdist.sim.result import SimResult, worlds_of

NONE: Mapping[Any, Any] = MappingProxyType({})


class IncidentOutcome(NamedTuple):
    """One incident, what was decided about it, and how long it took. Times are ns."""

    number: int
    kind: str
    root: str
    opened_ns: int = 0
    restarted: tuple[str, ...] = ()
    stayed: tuple[str, ...] = ()
    charged_to: str | None = None
    result: str = ""
    # From its opening until its worlds step again, or where no step is known, until their workers run again or get
    # ready; None if that never came. It contains the back-off.
    next_step_ns: int | None = None
    re_formed_ns: int | None = None  # until all workers of its worlds ran again
    lost_ns: Mapping[str, int] = NONE  # the work that it cost by role, which only predictions know

    @property
    def cause(self) -> tuple[str, str]:
        """Return kind and root, by which the same incident of another outcome is known."""
        return self.kind, self.root

    @property
    def decision(self) -> dict[str, object]:
        """Return what the controller decided, by its name in words."""
        names = ("cause", "root", "restarted", "stayed in place", "charged to", "result")
        values = (self.kind, self.root, self.restarted, self.stayed, self.charged_to, self.result)
        return dict(zip(names, values, strict=True))


class Outcome(NamedTuple):
    """End of a job and its cost. Times are ns; what is by role has all tasks, or all roles."""

    outcome: str | None  # "succeeded", "failed" or "cancelled"; None: the job had not ended
    lasted_ns: int  # length of the job, or up to the end of the record or of the experiment
    reason: str = ""  # why it ended so, what it waits for, or which property of the simulation is violated
    incidents: tuple[IncidentOutcome, ...] = ()  # in their order; fast mode only counts them in `causes`
    # Members of each generation in the order of their ranks; of records and predictions alone.
    worlds: Mapping[WorldName, tuple[tuple[str, ...], ...]] = NONE
    causes: Mapping[str, int] = NONE  # number of incidents by kind
    generations: Mapping[str, int] = NONE  # number of the last generation, by role
    steps: Mapping[str, int] = NONE  # furthest step that was reached, by task
    kept_steps: Mapping[str, int] = NONE  # steps at the end that a checkpoint has, by task; those of its worlds add up
    lost_ns: Mapping[str, int] = NONE  # work that was done again by task: of its worlds, however many members each has
    spent: Mapping[str, Mapping[Bucket, int]] = NONE  # time by role and bucket
    goodput: float | None = None  # productive share of the time of tasks; None: unknown
    hits: Mapping[str, int] = NONE  # how often each rate of faults has hit, by its name
    seed: int = 0  # of the experiment
    result: SimResult | MacroResult | None = None  # what the simulator has besides; None for a record, or if dropped

    @property
    def is_good(self) -> bool:
        """Return whether the job succeeded."""
        return self.outcome == "succeeded"

    @property
    def has_failed(self) -> bool:
        """Return whether the job failed."""
        return self.outcome == "failed"

    @property
    def exact(self) -> SimResult:
        """Return the result of the simulation; only for an experiment that was played exactly."""
        assert isinstance(self.result, SimResult)
        return self.result


def of_record(header: Header, lines: Iterable[Line], *, strict: bool = False) -> Outcome:
    """Return the outcome of a recorded job, up to the end of its record.

    Raises BadLine if a line cannot be replayed; with `strict`, ReplayError if this version decides otherwise.
    """
    replay = Replay(header, strict=strict)
    worlds = worlds_of(_heard(replay, lines))
    return of_replay(replay)._replace(worlds=worlds)


def _heard(replay: Replay, lines: Iterable[Line]) -> Iterator[Line]:
    for line in lines:
        replay.hear(line)
        yield line


def of_replay(replay: Replay) -> Outcome:
    """Return the outcome of a record that was replayed up to its last line; without members of worlds."""
    job, sheet = replay.job, replay.sheet
    spent = sheet.spent()
    return _of_job(job)._replace(
        lasted_ns=sheet.lasted(), lost_ns=sheet.lost(), spent=spent, goodput=goodput_of(job.graph, spent)
    )


def of_simulation(result: SimResult) -> Outcome:
    """Return the outcome of a simulation, without members of worlds; not ended if a check of the simulator failed."""
    job, header = result.job, result.lines[0]
    assert isinstance(header, Header)
    found = _of_job(job)
    outcome, reason = job.outcome, job.ending_reason
    if result.violation is not None:
        outcome, reason = None, result.violation.waits or str(result.violation)
    elif not reason and result.waiting:
        reason = f"waiting for {', '.join(result.waiting)}"
    steps, kept, lost = dict(found.steps), dict(found.kept_steps), dict(found.lost_ns)
    for name, model in result.worlds_of_roles():
        step = model.step_at(result.now)
        steps[name] = max(steps[name], step)
        kept[name] += step - model.unsaved_steps
        lost[name] += model.lost_ns
    return found._replace(
        outcome=outcome,
        lasted_ns=result.now,
        reason=reason,
        steps=steps,
        kept_steps=kept,
        lost_ns=lost,
        spent=result.spent,
        goodput=goodput_of(job.graph, result.spent),
        hits=result.by_rate,
        seed=header.seed,
        result=result,
    )


def of_macro(result: MacroResult, role: RoleSpec, seed: int) -> Outcome:
    """Return the outcome of a run in macro mode, whose only role is a gang."""
    name = role.name
    return Outcome(
        result.outcome,
        result.now,
        result.reason,
        causes=dict(sorted(result.causes.items())),
        generations={name: result.generations},
        steps={name: result.step},
        kept_steps={name: result.step - result.unsaved_steps},
        lost_ns={name: result.lost_ns},
        spent={name: result.spent},
        goodput=result.goodput,
        hits=result.by_rate,
        seed=seed,
        result=result,
    )


def _of_job(job: JobState) -> Outcome:
    """Return what the last state of a job says; its tasks have kept and lost nothing yet."""
    tasks = [role.name for role in job.graph.roles if role.kind == "task"]
    worlds = {name: list(job.worlds_of(job.roles[name])) for name in job.roles}
    return Outcome(
        job.outcome,
        job.now,
        job.ending_reason,
        tuple(map(_incident, job.incidents)),
        causes=dict(sorted(Counter(incident.kind for incident in job.incidents).items())),
        generations={name: max(world.generation for world in each) for name, each in worlds.items()},
        steps={name: max(0, *(world.step for world in worlds[name])) for name in tasks},
        kept_steps=dict.fromkeys(tasks, 0),
        lost_ns=dict.fromkeys(tasks, 0),
    )


def _incident(incident: Incident) -> IncidentOutcome:
    return IncidentOutcome(
        incident.number,
        incident.kind,
        incident.root,
        incident.opened_ns,
        tuple(sorted(str(replica) for replica in incident.restarted if replica not in incident.stayed)),
        tuple(sorted(map(str, incident.stayed))),
        incident.charged_to,
        incident.result,
        incident.recovered_ns,
        incident.took_ns,
    )
