"""`flowdist why`: the faults that cost a run most, found by playing it again without each of them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from flowdist.cli.inspect.whatif import doubts_of
from flowdist.cli.shared.common import print_json, verb
from flowdist.cli.shared.options import json_option, times_of, workload_option
from flowdist.cli.shared.records import is_record, open_record
from flowdist.cli.shared.runs import complete_run
from flowdist.cli.shared.simulated import ProgressLine
from flowdist.errors import FlowdistError
from flowdist.record.reader import JOURNAL
from flowdist.report.record.summary import in_seconds
from flowdist.sim.calibration.counted import CURE
from flowdist.sim.experiment import outcome, record
from flowdist.sim.experiment.compare import compare
from flowdist.sim.experiment.experiment import Experiment
from flowdist.sim.experiment.outcome import Outcome
from flowdist.sim.faults.injector import check_faults
from flowdist.sim.why.played import Counterfactuals, IncidentCost
from flowdist.sim.why.search import PLAYS_MAX, Answer, Cause, Counterfactual, causes_of, search
from flowdist.sim.why.words import cause_words, end_words, options_of, sentence

SHOWN_MAX = 10  # causes in the text; --json has all
JUDGED = ("succeeded", "failed")  # a record with another outcome, or with none, is no measure for its simulation


class _Run(NamedTuple):
    """A recorded run under the name that commands give it, its outcome, and the experiment that plays it again."""

    name: str
    workload_file: str | None
    was: Outcome
    job: Experiment

    def command(self, removed: Sequence[Cause]) -> str:
        """Return the command line that shows the run without some causes beside the run."""
        words = ["flowdist", "replay", self.name, *options_of(removed)]
        words += ["--workload", self.workload_file] if self.workload_file is not None else []
        return shlex.join(words)


@verb("why")
@click.argument("run", default="latest", shell_complete=complete_run)
@click.argument("incident", type=click.IntRange(min=1), required=False)
@click.option(
    "--simulations", type=click.IntRange(min=2), metavar="N", help="Play at most so many simulations (default: 240)."
)
@workload_option
@json_option
def command(run: str, incident: int | None, simulations: int | None, workload_file: str | None, as_json: bool) -> None:
    """Find which faults cost a run most, by playing it again in the simulator without each of them.

    \b
    flowdist why                   the newest run
    flowdist why 2                 what incident 2 of the newest run cost, by itself
    flowdist why runs/x 2          the same of another run
    flowdist why trace.jsonl       a trace of flowdist simulate --trace

    RUN is a run, by its name in runs/ or its folder, or a trace. Faults are left out one at a time, and in pairs where
    no single one explains the end. A job that would have succeeded comes first, then the time that it would have taken.
    Each answer has the command that shows it. At most --simulations are played, and the answer says what was left out
    for that. A warning says if the simulation of the run itself is not what the run was.
    """
    most = simulations or PLAYS_MAX
    if incident is None and run.isdecimal() and int(run) and not is_record(run):
        run, incident = "latest", int(run)
    asked = _read(run, workload_file)
    with ProgressLine(quiet=as_json) as progress:
        played = Counterfactuals(asked.job, asked.was.lasted_ns, progress.tell)

        def play(removed: Sequence[Cause]) -> Outcome:
            progress.label = f"simulation {played.n_played + 1} of at most {most}"
            return played.play(removed)

        found: IncidentCost | Answer
        found = search(played.causes, play, most) if incident is None else played.cost_of(incident, asked.was)
    doubts: list[str] = []
    if asked.was.outcome in JUDGED:
        doubts = doubts_of(asked.was, found.again, "these answers", has_times=workload_file is not None)
    if isinstance(found, IncidentCost):
        _show_incident(asked, found, doubts, as_json)
    else:
        _show(asked, found, played.n_played, doubts, as_json)
    for text in () if as_json else doubts:
        click.echo(f"warning: {text}", err=True)
    sys.exit(0)


def _read(name: str, workload_file: str | None) -> _Run:
    """Read a record, and prepare its simulation."""
    if name.endswith((".py", ".toml")) and Path(name).is_file():
        help = f"record it first: flowdist simulate {name} --trace trace.jsonl; then flowdist why trace.jsonl"
        raise FlowdistError(f"{name} is no record of a run", help=help)
    file = open_record(name)
    lines = file.whole()
    was, job = outcome.of_record(file.header, lines, strict=True), record.of_record(file.header, lines)
    if workload_file is not None:
        job = job.with_times(times_of(workload_file, job.graph))
    if job.gaps.endless:
        roles = ", ".join(job.gaps.endless)
        message = f"it is not known how many steps the job has: the workers of {roles} reported no step numbers, and"
        help = f"{CURE}, or name the times of a run that succeeded without failures: flowdist calibrate RUN"
        help += " -o workload.toml, and --workload workload.toml"
        raise FlowdistError(f"{message} no attempt shows all of them", help=help)
    check_faults(job.plan, job.graph)
    path = file.path
    if path.name == JOURNAL:  # a later command names the folder of the run, not a link such as `latest`
        path = path.parent.with_name(path.parent.resolve().name) if path.parent.is_symlink() else path.parent
    return _Run(str(path), workload_file, was, job)


def _show(asked: _Run, answer: Answer, n_played: int, doubts: list[str], as_json: bool) -> None:
    """Print the causes that explain the end of a run, the most costly first."""
    if as_json:
        print_json("why", **_as_values(asked, answer, doubts))
        return
    _show_head(asked, answer.again)
    if answer.n_causes:
        click.echo(f"Played again {n_played} times, with everything that happened and without parts of it.\n")
    for number, one in enumerate(answer.causes[:SHOWN_MAX], 1):
        click.echo(f"{number}. {sentence(answer.again, one)}")
        click.echo(f"   {asked.command(one.removed)}")
    for text in _rest(answer, bool(asked.job.gaps.omitted)):
        click.echo(text)
    harm = [cause for cause in causes_of(asked.job.plan) if cause.is_harm]
    if len(harm) > 1:
        click.echo(f"\nWithout any of the {len(harm)} faults and drains: {end_words(answer.calm)}.")


def _show_head(asked: _Run, again: Outcome) -> None:
    """Print how the run ended, how its simulation did, and what that does not repeat."""
    click.echo(f"{asked.name}: {end_words(asked.was)}")
    if asked.was.outcome not in JUDGED:
        click.echo("The job did not end by itself in this record: from there on it is simulated without faults.")
    click.echo(f"Its simulation, with the same faults: {end_words(again)}")
    for text in asked.job.gaps.omitted:
        click.echo(f"Not repeated: {text}")


def _rest(answer: Answer, has_more: bool) -> list[str]:
    """Return what else there is to say about a search, in sentences: causes that are not shown, and pairs.

    `has_more`: something else happened, and is not repeated.
    """
    found = []
    if len(answer.causes) > SHOWN_MAX:
        found.append(f"{len(answer.causes) - SHOWN_MAX} more: see --json")
    named = {one.removed[0] for one in answer.causes if len(one.removed) == 1}
    cheap = answer.n_causes - len(named)
    if not answer.n_causes and not answer.n_alone:
        what = "Nothing else" if has_more else "Nothing"
        found.append(f"{what} happened to this run from outside: there is no fault to leave out.")
    elif not answer.causes:
        found.append("No fault, and no pair or larger set of them, made a difference to the end.")
    elif cheap:
        others = f"{cheap} other cause{'s' * (cheap > 1)}" if named else f"Each of the {cheap} causes"
        found.append(f"{others} made no difference alone.")
    left_out = [f"{answer.n_alone:,} later causes by themselves"] * bool(answer.n_alone)
    left_out += [f"{answer.n_untried:,} pairs of causes that lie farther apart"] * bool(answer.n_untried)
    left_out += [f"{answer.n_kept:,} sets with one cause fewer"] * bool(answer.n_kept)
    if left_out:
        found.append(f"Not tried: {', '.join(left_out)}. --simulations plays more.")
    return found


def _as_values(asked: _Run, answer: Answer, doubts: list[str]) -> dict[str, Any]:
    """Return the answer as plain values, for --json."""
    again = answer.again
    causes = [
        {
            "without": [_cause_values(cause) for cause in one.removed],
            **_end_values(one.end),
            "saved_s": compare(again, one.end).saved_ns / 1e9 if again.is_good else None,
            "is_enough": one.is_enough,
            "incidents_gone": [each.number for each in compare(again, one.end).gone],
            "text": sentence(again, one),
            "command": asked.command(one.removed),
        }
        for one in answer.causes
    ]
    pairs = {"pairs_tried": answer.n_pairs, "pairs_not_tried": answer.n_untried}
    pairs |= {"not_tried_alone": answer.n_alone, "sets_not_tried": answer.n_kept}
    ends = {"again": _end_values(again), "without_faults": _end_values(answer.calm)}
    return _head_values(asked, doubts) | ends | {"causes": causes, "tried": answer.n_causes} | pairs


def _head_values(asked: _Run, doubts: list[str]) -> dict[str, Any]:
    """Return what both forms of the answer begin with."""
    not_repeated = list(asked.job.gaps.omitted)
    return {"run": asked.name, "as_it_was": _end_values(asked.was), "not_repeated": not_repeated, "doubts": doubts}


def _cause_values(cause: Cause) -> dict[str, Any]:
    return {"option": cause.flag, "fault": cause.text, "at_s": in_seconds(cause.at_ns), "text": cause_words(cause)}


def _end_values(end: Outcome) -> dict[str, Any]:
    return {"outcome": end.outcome, "lasted_s": end.lasted_ns / 1e9, "reason": end.reason}


def _show_incident(asked: _Run, cost: IncidentCost, doubts: list[str], as_json: bool) -> None:
    """Print what one incident cost."""
    text = sentence(cost.again, Counterfactual((cost.cause,), cost.end))
    shown_by = asked.command([cost.cause])
    if as_json:
        incident = {"number": cost.incident.number, "kind": cost.incident.kind, "root": cost.incident.root}
        is_good = cost.again.is_good and cost.end.is_good
        saved_s = compare(cost.again, cost.end).saved_ns / 1e9 if is_good else None
        values = {"incident": incident, "without": [_cause_values(cost.cause)], **_end_values(cost.end)}
        also = [{"kind": one.kind, "root": one.root} for one in cost.others]
        more = {"again": _end_values(cost.again), "saved_s": saved_s, "also_gone": also}
        print_json("why", **_head_values(asked, doubts), **values, **more, text=text, command=shown_by)
        return
    _show_head(asked, cost.again)
    click.echo(f"\nIncident {cost.incident.number}: {cost.incident.kind} of {cost.incident.root}\n")
    click.echo(text)
    if cost.others:
        listed = ", ".join(f"{one.kind} of {one.root}" for one in cost.others)
        click.echo(f"These incidents would not have happened either: {listed}.")
    click.echo(f"   {shown_by}")
