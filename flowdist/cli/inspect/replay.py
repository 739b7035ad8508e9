"""`flowdist replay`: the journal of a run, fed to a fresh controller, event by event."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import click

from flowdist.cli.inspect.whatif import answer, read_question
from flowdist.cli.shared.common import guarded, print_json
from flowdist.cli.shared.records import find_record, read_journal, refuse_macro
from flowdist.control.invariants.invariants import check_job
from flowdist.errors import FlowdistError
from flowdist.graph import parse_duration
from flowdist.record.journal import Header, Line, Record, digest
from flowdist.record.replay import Replay
from flowdist.report.record.spending import time_of_run
from flowdist.report.record.summary import summary_of, summary_text
from flowdist.report.record.trace import event_lines, event_text

__all__ = ["command", "read_journal"]


@click.command(name="replay")
@click.argument("journal", default="latest")
@click.option("--step", type=click.IntRange(min=0), metavar="N", help="Show the state after event N; 0: before any.")
@click.option("--until", metavar="TIME", help="Only what happened until then: 3m10s.")
@click.option("--state", "wants_state", is_flag=True, help="Show the state at the end, with --until the one then.")
@click.option("--log", "as_log", is_flag=True, help="One line an event: a mark, generation, steps, members.")
@click.option("--fail", "fails", multiple=True, metavar="FAULT", help="What if this had failed, too: node2@30s.")
@click.option("--scale", "scales", multiple=True, metavar="ROLE=N@TIME", help="What if the role had been scaled.")
@click.option("--add", "adds", multiple=True, metavar="NODE@TIME", help="What if a node had joined.")
@click.option("--drain", "drains", multiple=True, metavar="NODE@TIME", help="What if a node had been drained.")
@click.option("--with", "topology", metavar="TOPOLOGY", help="What if its policies had been those of this file.")
@click.option("-p", "params", multiple=True, metavar="NAME=VALUE", help="A parameter of that topology.")
@click.option("--set", "sets", multiple=True, metavar="[ROLE.]FIELD=VALUE", help="Override a field of that topology.")
@click.option("--trace", "trace_file", type=click.Path(dir_okay=False), help="Write the trace of what would have been.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@guarded
def command(
    journal: str,
    step: int | None,
    until: str | None,
    wants_state: bool,
    as_log: bool,
    fails: tuple[str, ...],
    scales: tuple[str, ...],
    adds: tuple[str, ...],
    drains: tuple[str, ...],
    topology: str | None,
    params: tuple[str, ...],
    sets: tuple[str, ...],
    trace_file: str | None,
    as_json: bool,
) -> None:
    """Feed the journal of a run (or a trace) to a fresh controller and show it event by event.

    \b
    flowdist replay runs/latest                    every event, and what was decided
    flowdist replay runs/latest --log              one line an event, to be read by eye
    flowdist replay runs/latest --step 20          all that the controller knew after event 20
    flowdist replay runs/latest --until 3m --state
    flowdist replay runs/latest --fail node1@3m    what if: the same faults and one more, simulated
    flowdist replay runs/latest --with topology.py --set trainer.restart.max_restarts=5

    JOURNAL is a run, by its name in runs/ or its folder, or a trace; without it the newest run. Exit code 3 if the
    controller decides otherwise than it did then; of a what-if, that of flowdist simulate.
    """
    _refuse_mixtures(step, until, wants_state, as_log, as_json)
    question = read_question(fails, scales, adds, drains, topology, params, sets, trace_file)
    if question is not None and (step is not None or until is not None or wants_state or as_log):
        raise FlowdistError("a what-if goes with --json only", help="leave out --step, --until, --state and --log")
    header, lines, raw = read_journal(find_record(journal))
    refuse_macro(header, journal)
    if question is not None:
        answer(header, lines, journal, question, as_json)
    lines = list(_chosen(lines, step, until))
    raw = raw[: len(lines) + 1]  # with the header
    play = Replay(header)
    if step is not None or wants_state:
        for line in lines:
            _hear(play, line)
        _show_state(play, as_json)
    elif as_log:
        _show_log(play, lines)
    else:
        _show_all(play, lines, raw, as_json)
    if play.difference is not None:
        click.echo(f"the first difference is at event {play.n_different}: {event_text(play.difference.line)}", err=True)
        click.echo(play.difference.text, err=True)
    sys.exit(3 if play.difference is not None else 0)


def _hear(play: Replay, line: Line) -> None:
    """Feed one line, and check the state while it means something."""
    play.hear(line)
    if play.difference is None and isinstance(line, Record):
        check_job(play.job)


def _refuse_mixtures(step: int | None, until: str | None, wants_state: bool, as_log: bool, as_json: bool) -> None:
    if step is not None and until is not None:
        raise FlowdistError(
            "--step does not go with --until", help="leave out one; --until TIME --state is a state, too"
        )
    if as_log and (step is not None or wants_state or as_json):
        raise FlowdistError("--log does not go with --step, --state or --json", help="leave out one or the other")


def _chosen(lines: list[Line], step: int | None, until: str | None) -> Iterator[Line]:
    """Those up to the event or the time that is asked for; FlowdistError where there is none."""
    last = max((line.n for line in lines if isinstance(line, Record)), default=0)
    if step is not None and step > last:
        raise FlowdistError(f"--step {step}: there are {last} events", help=f"name a number from 0 to {last}")
    try:
        end_ns = parse_duration(until) if until is not None else None
    except ValueError:
        raise FlowdistError(f"--until {until}: no duration", help="write 30s, 1m30s or 2h") from None
    for line in lines:
        if step is not None and isinstance(line, Record) and line.n > step:
            return
        if end_ns is not None and not isinstance(line, Header) and line.t_ns > end_ns:
            return
        yield line


def _show_state(play: Replay, as_json: bool) -> None:
    from flowdist.report.record.state import state_of, state_text

    if as_json:
        print_json("state", format=2, differs_at=play.n_different, **state_of(play.job, play.last))
    else:
        click.echo(state_text(play.job, play.last), nl=False)


def _show_log(play: Replay, lines: Iterable[Line]) -> None:
    from flowdist.report.record.statuslog import LEGEND, log_heading, log_line

    click.echo(f"{LEGEND}\n{log_heading(play.job)}")
    for line in lines:
        _hear(play, line)
        for text in log_line(play.job, line):
            click.echo(text)


def _show_all(play: Replay, lines: list[Line], raw: list[bytes], as_json: bool) -> None:
    for line in lines:
        _hear(play, line)
        for text in () if as_json else event_lines(line):
            click.echo(text)
    summary = {**summary_of(play.job, lines), **time_of_run(play.job.graph, play.sheet)}
    if as_json:
        print_json("replay", events=play.n, differs_at=play.n_different, digest=digest(raw), **summary)
        return
    click.echo("\n" + summary_text(summary), nl=False)
    click.echo(f"\ndigest {digest(raw)}")
    same = "the same effects at each" if play.difference is None else "NOT the same"
    click.echo(f"{play.n} events replayed: {same}")
