"""The what-if of `flowdist replay`: a recorded run, simulated again with other policies or more faults."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click
import msgspec

from flowdist.cli.shared.common import load, print_json, write_trace
from flowdist.cli.shared.options import FaultOptions, TopologyOptions, fields_set, times_of
from flowdist.cli.shared.simulated import ProgressLine, exit_code, simulated_summary
from flowdist.errors import FlowdistError
from flowdist.faults.files import join_plans
from flowdist.faults.grammar import FaultError
from flowdist.graph import RoleGraph, format_duration
from flowdist.record.journal import Header, Line
from flowdist.record.reader import WholeRecord
from flowdist.record.replay import Replay
from flowdist.report.record.alike import as_in_record, count_alike, silent_roles, without_saving
from flowdist.report.record.divergence import divergence, divergence_text
from flowdist.report.record.spending import not_reported_lines, time_of, time_of_run
from flowdist.report.record.summary import rounded, summary_of, summary_text
from flowdist.text.printable import table

if TYPE_CHECKING:
    from flowdist.sim.experiment.experiment import Experiment
    from flowdist.sim.experiment.outcome import Outcome
    from flowdist.sim.result import SimResult

OFF_MAX = 0.1  # the share by which the simulation of the run itself may be off before a warning says so


class Question(NamedTuple):
    """Differences of the what-if from the recorded run: more faults, and a topology with other policies."""

    faults: FaultOptions
    named: TopologyOptions  # of --with, -p and --set; without --with the policies of the record stay
    trace_file: str | None  # for the trace of the what-if
    workload_file: str | None  # times of the workers, for both simulations; None: they are measured in the record
    without: tuple[str, ...]  # faults and orders of the run that the what-if leaves out

    @property
    def words(self) -> list[str]:
        """Return the differences from the recorded run in words, one each; empty if there is none."""
        options = {"--without": self.without, "--fail": self.faults.fails, "--scale": self.faults.scales}
        options |= {"--add": self.faults.adds, "--drain": self.faults.drains}
        words = [f"{option} {text}" for option, texts in options.items() for text in texts]
        if self.named.target is not None:
            sets = [f"--set {text}" for text in self.named.sets] + [f"-p {text}" for text in self.named.params]
            words.append(" ".join([f"the policies of {self.named.target}", *sets]))
        return words

    def is_asked(self) -> bool:
        """Return whether there is a question; refuse an option that lacks the option that it belongs to."""
        named = self.named
        if named.target is None and (named.params or named.sets):
            option = f"--set {named.sets[0]}" if named.sets else f"-p {named.params[0]}"
            help = "a record knows the compiled graph only: add --with topology.py"
            raise FlowdistError(f"{option}: of which topology?", help=help)
        if not self.words and (self.trace_file is not None or self.workload_file is not None):
            option = "--trace" if self.trace_file is not None else "--workload"
            help = "add --fail, --without, --scale, --add, --drain or --with"
            raise FlowdistError(f"{option} goes with a question", help=help)
        return bool(self.words)


def answer(header: Header, lines: list[Line], name: str, question: Question, as_json: bool) -> NoReturn:
    """Simulate the recorded run, and again with the differences, show both beside the record, and exit."""
    from flowdist.sim.experiment.play import play  # the simulator: a replay without a what-if needs none
    from flowdist.sim.experiment.record import of_record
    from flowdist.sim.faults.injector import check_faults
    from flowdist.sim.why.search import causes_of, named, without

    job = of_record(header, lines)
    if question.workload_file is not None:
        job = job.with_times(times_of(question.workload_file, job.graph))
    more, left = question.faults.plan(), without(job.plan, named(causes_of(job.plan), question.without))
    variant = job._replace(graph=_other(job.graph, question), plan=join_plans([left, more]))
    check_faults(job.plan, job.graph)
    try:
        check_faults(left, variant.graph)
    except FaultError as error:
        message = f"{question.named.target} is not the topology of this run, which had this fault: {error.message}"
        raise FlowdistError(message, help="name one with the same nodes and roles") from None
    check_faults(variant.plan, variant.graph)
    with ProgressLine(quiet=as_json) as progress:
        again, found = (play(one, tell=progress.tell) for one in (job, variant))
    result, untold = found.exact, job.gaps.untold
    recorded, was = _recorded(header, lines, untold)
    summaries = [was, *(_comparable_summary(one.exact, was, untold) for one in (again, found))]
    doubts = doubts_of(recorded, again, "the column 'what if'", has_times=question.workload_file is not None)
    warm = unknown_restarts(job.gaps.unrestarted, result) if question.workload_file is None else []
    write_trace(question.trace_file, result.lines)
    if as_json:
        content: dict[str, Any] = {
            "faults": [" ".join(option) for option in job.plan.options],
            "untold": list(job.gaps.omitted),
        }
        content |= dict(zip(("as_it_was", "again", "what_if"), summaries, strict=True))
        content["unfired"] = [fault.spec for fault in result.unfired]
        content |= {"doubts": doubts, "unknown": warm}
        content["violation"] = str(result.violation) if result.violation is not None else None
        print_json("what-if", asked=question.words, digest=result.digest, **content)
    else:
        _show(name, question, job, summaries, again.exact, result)
        for text in (*doubts, *warm):
            click.echo(f"warning: {text}", err=True)
    sys.exit(exit_code(result.job.outcome, is_broken=result.violation is not None))


def _other(same: RoleGraph, question: Question) -> RoleGraph:
    """Return the graph of the record, or the topology of --with with its workloads, but for fields that --set names."""
    from flowdist.sim.simulation import with_nodes  # as above

    if question.named.target is None:
        return same
    graph, roles = load(question.named._replace(as_json=False)).graph, []  # its warnings are told on stderr anyway
    workloads = {role.name: role.workload for role in same.roles}
    for role in graph.roles:
        words = [text.partition(".")[2] for text in fields_set(question.named.sets) if text.startswith(f"{role.name}.")]
        by_hand = {*words, *(f"{word}_ns" for word in words)}
        changed = {name: value for name, value in msgspec.structs.asdict(role.workload).items() if name in by_hand}
        work = msgspec.structs.replace(workloads.get(role.name, role.workload), **changed)
        roles.append(msgspec.structs.replace(role, workload=work))
        if work.lag_ns > work.checkpoint_every_ns:
            every, lag = format_duration(work.checkpoint_every_ns), format_duration(work.lag_ns)
            message = f"the next checkpoint would begin after {every}, and one is complete only after {lag}"
            raise FlowdistError(f"{role.name}: {message}", help=f"name an interval of at least {lag}")
    cluster = graph.cluster if graph.cluster.given else same.cluster
    return with_nodes(msgspec.structs.replace(graph, roles=tuple(roles), cluster=cluster))


def doubts_of(was: Outcome, again: Outcome, what: str, *, has_times: bool) -> list[str]:
    """Return why `what`, which comes from simulations of a run, is not to be trusted, in words; empty if it may be.

    That is so if the simulation of the run itself is not what the run was. With `has_times`, no text advises to measure
    times.
    """
    found = []
    off = abs(again.lasted_ns - was.lasted_ns) / max(was.lasted_ns, 1)
    if off > OFF_MAX:
        lasted = [rounded(one.lasted_ns / 1e9) for one in (was, again)]
        times = f"the run lasted {lasted[0]}, and its simulation {lasted[1]}"
        found.append(f"{times}: {100 * off:.0f} % off, so do not trust {what}")
    counts = [len(one.incidents) for one in (was, again)]
    for figure, one, other in (("outcome", was.outcome, again.outcome), ("incidents", *counts)):
        if one != other:
            found.append(f"{figure}: {one} in the run, {other} in its simulation, so do not trust {what}")
    help = "; times of several runs may help: flowdist calibrate RUN RUN -o workload.toml, and --workload workload.toml"
    return [*found[:-1], found[-1] + help] if found and not has_times else found


def unknown_restarts(unrestarted: Collection[str], result: SimResult) -> list[str]:
    """Return a text for each role that a simulation restarts, although no record shows how long that takes."""
    texts = []
    for role in result.job.graph.roles:
        again = any(each.attempt > 1 for each in result.job.replicas_of(result.job.roles[role.name]))
        if role.name in unrestarted and again and role.workload.warm_startup_ns is None:
            takes = format_duration(role.workload.startup_ns)
            texts.append(
                f"how long a restart of {role.name} takes is unknown: each start in the run was the first on its node, "
                f"and restarts are played to be as long ({takes}), though warm ones are shorter; name it with --with "
                f"topology.py --set {role.name}.workload.warm_startup=1s, or measure a run with a restart"
            )
    return texts


def _comparable_summary(run: SimResult, was: dict[str, Any], untold: Collection[str]) -> dict[str, Any]:
    """Return the summary of a simulation, without what the record `was` does not report: columns can be compared."""
    unsaved = [name for name, kinds in was["not_reported"].items() if "checkpoints" in kinds]
    spent = as_in_record(run.spent, untold, unsaved)
    summary = {**simulated_summary(run), **time_of(run.job.graph, spent)}
    count_alike(summary, _header(run), run.lines[1:], spent, was["not_reported"])
    return summary


def _recorded(header: Header, lines: list[Line], untold: Collection[str]) -> tuple[Outcome, dict[str, Any]]:
    """Return outcome and summary of the record, with time accounts in which saving counts as in its simulation."""
    from flowdist.sim.experiment.outcome import of_replay  # as above

    replay = Replay(header, strict=True)
    for line in lines:
        replay.hear(line, counted_as=without_saving(line, untold))
    return of_replay(replay), {**summary_of(replay.job, lines), **time_of_run(header.graph, replay.sheet)}


def _show(
    name: str, question: Question, job: Experiment, summaries: list[dict[str, Any]], again: SimResult, result: SimResult
) -> None:
    """Print the faults of the run, the three columns, the summary of the what-if, and where it departs from `again`."""
    from flowdist.sim.result import unfired_texts  # as above

    click.echo(f"{name}, with {', '.join(question.words)}\n")
    click.echo(f"Faults of the run: {', '.join(map(' '.join, job.plan.options)) or 'nothing'}")
    for text in job.gaps.omitted:
        click.echo(f"Not repeated: {text}")
    click.echo("")
    click.echo("\n".join(table(_rows(summaries))))
    not_reported = summaries[0]["not_reported"]
    if silent := silent_roles(not_reported):
        click.echo("\nThe work that restarts cost is not known, and goodput is counted alike in each column:")
        for text in not_reported_lines({"not_reported": {name: not_reported[name] for name in silent}}):
            click.echo(f"  {text}")
    click.echo("\nThe what-if in full\n\n" + summary_text(summaries[2]), nl=False)
    one, other = (WholeRecord(side, _header(r), r.lines[1:]) for side, r in (("again", again), ("what if", result)))
    click.echo("\n" + divergence_text(divergence(one, other, times=False), 1, is_kept=False), nl=False)
    click.echo(f"\ndigest {result.digest}")
    for text in unfired_texts(result):
        click.echo(f"warning: {text}", err=True)
    if result.violation is not None:
        click.echo(f"\nviolated: {result.violation}", err=True)


def _header(result: SimResult) -> Header:
    """Return the header of a simulation's trace."""
    assert isinstance(result.lines[0], Header)
    return result.lines[0]


def _rows(summaries: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the rows of the table that compares summaries: a row of headings, then one for each figure."""

    def row(label: str, pick: Any) -> tuple[str, ...]:
        return (label, *(str(pick(summary)) for summary in summaries))

    rows: list[tuple[str, ...]] = [
        ("", "as it was", "again", "what if"),
        row("outcome", lambda s: s["outcome"] or "unfinished"),
        row("lasted", lambda s: rounded(s["lasted_s"])),
        row("goodput", lambda s: "-" if s["goodput"] is None else f"{100 * s['goodput']:.1f} %"),
        row("incidents", lambda s: len(s["incidents"])),
    ]
    for name in dict.fromkeys(role for summary in summaries for role in summary["roles"]):
        for key in ("generations", "restarts", "charged"):
            rows.append(row(f"{name}: {key}", lambda s, k=key, n=name: s["roles"].get(n, {}).get(k, "-")))
    return rows
