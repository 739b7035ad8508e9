"""`flowdist replay`: the journal of a run, replayed with a fresh controller event by event."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

import click

from flowdist.cli.inspect.whatif import Question, answer
from flowdist.cli.shared.common import print_json, until_ns, verb
from flowdist.cli.shared.options import (
    FaultOptions,
    TopologyOptions,
    gathered,
    json_option,
    param_option,
    set_option,
    workload_option,
)
from flowdist.cli.shared.records import help_for, open_record
from flowdist.cli.shared.runs import complete_run
from flowdist.control.invariants import check_job
from flowdist.errors import FlowdistError
from flowdist.record.journal import Header, Line, Record, digest, encode_line
from flowdist.record.reader import BadLine
from flowdist.record.replay import Replay
from flowdist.report.record.spending import time_of_run
from flowdist.report.record.state import state_of, state_text
from flowdist.report.record.summary import summary_of, summary_text
from flowdist.report.record.trace import event_lines, event_text


class ReplayOptions(NamedTuple):
    """Part of the journal that is replayed, and the form in which it is shown."""

    step: int | None
    until: str | None
    wants_state: bool

    def check(self, *, is_what_if: bool) -> None:
        """Refuse options that do not go together."""
        if self.step is not None and self.until is not None:
            help = "leave out one; --until TIME --state is a state, too"
            raise FlowdistError("--step does not go with --until", help=help)
        if is_what_if and self != ReplayOptions(None, None, wants_state=False):
            raise FlowdistError("a what-if goes with --json only", help="leave out --step, --until and --state")


@verb("replay")
@click.argument("journal", default="latest", shell_complete=complete_run)
@gathered(
    "options",
    ReplayOptions,
    click.option("--step", type=click.IntRange(min=0), metavar="N", help="Show the state after N events."),
    click.option("--until", metavar="TIME", help="Replay what happened up to this time: 3m10s."),
    click.option("--state", "wants_state", is_flag=True, help="Show the state at the end, or at the time of --until."),
)
@gathered(
    "faults",
    FaultOptions,
    click.option("--fail", "fails", multiple=True, metavar="FAULT", help="What if this had also failed: node2@30s."),
    click.option("--scale", "scales", multiple=True, metavar="ROLE=N@TIME", help="What if the role had been scaled."),
    click.option("--add", "adds", multiple=True, metavar="NODE@TIME", help="What if a node had joined."),
    click.option("--drain", "drains", multiple=True, metavar="NODE@TIME", help="What if a node had been drained."),
)
@click.option("--without", multiple=True, metavar="FAULT", help="What if this fault of the run had not happened.")
@gathered(
    "named",
    TopologyOptions,
    click.option("--with", "target", metavar="TOPOLOGY", help="What if the policies had been those of this file."),
    param_option,
    set_option,
)
@gathered(
    "question",
    Question,
    click.option("--trace", "trace_file", type=click.Path(dir_okay=False), help="Write the trace of the what-if."),
    workload_option,
    json_option,
)
def command(journal: str, options: ReplayOptions, question: Question) -> None:
    """Replay the journal of a run (or a trace) with a fresh controller, event by event.

    \b
    flowdist replay runs/latest                    every event, and what was decided
    flowdist replay runs/latest --step 20          the state of the controller after event 20
    flowdist replay runs/latest --until 3m --state
    flowdist replay runs/latest --fail node1@3m    what if: the same faults and one more, simulated
    flowdist replay runs/latest --without node2@180s   the same without one of its faults: flowdist why names them
    flowdist replay runs/latest --with topology.py --set trainer.restart.max_restarts=5

    JOURNAL is a run, by its name in runs/ or its folder, or a trace (default: the newest run). Exit code 3 if the
    controller decides differently from the record; a what-if has the exit codes of flowdist simulate.
    """
    is_what_if, as_json = question.is_asked(), question.named.as_json
    options.check(is_what_if=is_what_if)
    record = open_record(journal)
    if is_what_if:
        answer(record.header, record.whole(), journal, question, as_json)
    every = list(record)
    lines = list(_chosen(every, options))
    play = Replay(record.header, source=str(record.path))
    try:
        _show(play, lines, options, as_json)
    except BadLine as bad:
        raise bad.with_help(help_for(bad, record.path)) from bad
    if play.difference is not None:
        click.echo(f"the first difference is at event {play.n_different}: {event_text(play.difference.line)}", err=True)
        click.echo(play.difference.text, err=True)
    if len(lines) == len(every):  # a part that was asked for may end before the bad line
        record.finish()
    sys.exit(3 if play.difference is not None else 0)


def _show(play: Replay, lines: list[Line], options: ReplayOptions, as_json: bool) -> None:
    """Replay the lines, and show the events, or the state at the end."""
    if options.step is not None or options.wants_state:
        for line in lines:
            _hear(play, line)
        if as_json:
            print_json("state", differs_at=play.n_different, **state_of(play.job, play.last))
        else:
            click.echo(state_text(play.job, play.last), nl=False)
    else:
        _show_all(play, lines, as_json)


def _hear(play: Replay, line: Line) -> None:
    """Replay one line, and check the invariants of the state, unless the replay differs from the record by now."""
    play.hear(line)
    if play.difference is None and isinstance(line, Record):
        try:
            check_job(play.job)
        except AssertionError as error:
            text = f"event {line.n} ({type(line.event).__name__}) breaks an invariant: {error}"
            raise FlowdistError(text, help="please report this as a bug, with the record") from error


def _chosen(lines: list[Line], options: ReplayOptions) -> Iterator[Line]:
    """Yield the lines up to the event of --step or the time of --until; without either, all lines."""
    step, end_ns = options.step, until_ns(options.until)
    last = max((line.n for line in lines if isinstance(line, Record)), default=0)
    if step is not None and step > last:
        raise FlowdistError(f"--step {step}: there are {last} events", help=f"name a number from 0 to {last}")
    for line in lines:
        if step is not None and isinstance(line, Record) and line.n > step:
            return
        if end_ns is not None and not isinstance(line, Header) and line.t_ns > end_ns:
            return
        yield line


def _show_all(play: Replay, lines: list[Line], as_json: bool) -> None:
    """Replay the lines, and print every event with its decisions, summary and digest; with --json the summary alone."""
    for line in lines:
        _hear(play, line)
        for text in () if as_json else event_lines(line):
            click.echo(text)
    found = digest([b"", *map(encode_line, lines)])
    summary = {**summary_of(play.job, lines), **time_of_run(play.job.graph, play.sheet)}
    if as_json:
        print_json("replay", events=play.n, differs_at=play.n_different, digest=found, **summary)
        return
    click.echo("\n" + summary_text(summary), nl=False)
    click.echo(f"\ndigest {found}")
    same = "the same effects at each" if play.difference is None else "NOT the same"
    click.echo(f"{play.n} events replayed: {same}")
