"""`flowdist logs`: the output of workers on all hosts, or the journal of a run, also while the run lasts."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from flowdist.cli.logs.printing import LinePrinter, Search, compiled
from flowdist.cli.logs.sources import Sources, Wanted, follow, origin_of, rounds
from flowdist.cli.shared.common import verb
from flowdist.cli.shared.options import gathered, runs_option
from flowdist.cli.shared.records import help_for
from flowdist.cli.shared.runs import complete_target, run_option
from flowdist.errors import FlowdistError
from flowdist.graph.units import parse_memory
from flowdist.record.reader import BadLine, RecordReader
from flowdist.runtime.run_folder.folder import find_run, run_dirs
from flowdist.runtime.run_folder.log_reader import Log, Target, find_logs, parse_target
from flowdist.runtime.run_folder.logs import LogFile, Stream
from flowdist.runtime.run_folder.runs import known_mask, not_hidden

if TYPE_CHECKING:
    from flowdist.graph import RoleGraph
    from flowdist.runtime.remote_logs.log_client import RemoteLog


class LogOptions(NamedTuple):
    """Choice of attempts, streams and lines, and how they are printed."""

    follow: bool
    attempt: int | None
    all_attempts: bool
    tail: int | None
    only_out: bool
    only_err: bool
    no_prefix: bool
    events: bool
    fetch_max: str
    as_json: bool

    def streams(self) -> list[Stream]:
        """Return the chosen streams: both, unless exactly one of --stdout and --stderr is given."""
        if self.only_out == self.only_err:
            return ["stdout", "stderr"]
        return ["stdout"] if self.only_out else ["stderr"]

    def check(self, targets: Sequence[str], *, searches: bool) -> None:
        """Refuse options that do not go together."""
        if self.events:
            if targets or self.attempt is not None or self.all_attempts or self.only_out or self.only_err or searches:
                raise FlowdistError("--events is about the whole run", help="leave the other options out")
        elif self.attempt is not None and (self.all_attempts or self.follow):
            other = "-f" if self.follow else "--all-attempts"
            help = "leave --attempt out" if self.follow else "leave out one or the other"
            raise FlowdistError(f"--attempt {self.attempt} does not go with {other}", help=help)

    def fetch_bytes(self) -> int:
        """Return --fetch-max in bytes."""
        try:
            return parse_memory(self.fetch_max)
        except ValueError as error:
            raise FlowdistError(f"--fetch-max {self.fetch_max}: {error}", help="write it like 64MiB") from None


class SearchOptions(NamedTuple):
    """Patterns to search for in the lines, and how."""

    patterns: tuple[str, ...]
    ignore_case: bool
    is_text: bool
    after: int | None
    before: int | None
    around: int | None

    def search(self) -> Search | None:
        """Return the search; None if there is no --grep."""
        if not self.patterns:
            given = {"-i": self.ignore_case, "-F": self.is_text, "-A": self.after, "-B": self.before, "-C": self.around}
            if names := [name for name, value in given.items() if value is not None and value is not False]:
                help = f"name what to search for, or leave {names[0]} out"
                raise FlowdistError(f"{names[0]} goes with --grep", help=help)
            return None
        around = self.around or 0
        before = around if self.before is None else self.before
        after = around if self.after is None else self.after
        return Search(compiled(self.patterns, is_text=self.is_text, ignore_case=self.ignore_case), before, after)


COUNT = click.IntRange(min=0)


@verb("logs")
@click.argument("targets", nargs=-1, metavar="[ROLE[/REPLICA[.WORKER]]]...", shell_complete=complete_target)
@gathered(
    "options",
    LogOptions,
    click.option("--follow", "-f", is_flag=True, help="Print new lines, of later attempts too, until the run is over."),
    click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Print this attempt (default: the last)."),
    click.option("--all-attempts", is_flag=True, help="Print all attempts, one after the other."),
    click.option("--tail", "-n", type=COUNT, metavar="N", help="Print, or search, the last N lines of each file."),
    click.option("--stdout", "only_out", is_flag=True, help="Leave out stderr."),
    click.option("--stderr", "only_err", is_flag=True, help="Leave out stdout."),
    click.option("--no-prefix", is_flag=True, help="Leave out the name of the worker before each line."),
    click.option("--events", is_flag=True, help="Print the journal: events and decisions as JSON lines."),
    click.option(
        "--fetch-max",
        default="16MiB",
        metavar="SIZE",
        help="Fetch at most the last SIZE of each file of another host (default: 16MiB).",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print each line as a JSON object."),
)
@gathered(
    "searching",
    SearchOptions,
    click.option(
        "--grep",
        "patterns",
        multiple=True,
        metavar="PATTERN",
        help="Print lines that match a regular expression, of all attempts unless one is named; exit code 1: none.",
    ),
    click.option("-i", "--ignore-case", is_flag=True, help="With --grep: upper and lower case are the same."),
    click.option("-F", "--fixed-strings", "is_text", is_flag=True, help="With --grep: PATTERN is a text as it is."),
    click.option("-A", "--after-context", "after", type=COUNT, metavar="N", help="With --grep: and N lines after."),
    click.option("-B", "--before-context", "before", type=COUNT, metavar="N", help="With --grep: and N lines before."),
    click.option("-C", "--context", "around", type=COUNT, metavar="N", help="With --grep: N lines before and after."),
)
@run_option
@runs_option
def command(targets: tuple[str, ...], options: LogOptions, searching: SearchOptions, run: str, base: str) -> None:
    """Print the logs of workers, with the name of the worker before each line.

    \b
    flowdist logs -f                    all workers of the newest run, as they print
    flowdist logs trainer/0 trainer/1   two replicas; trainer/0.1 is one worker
    flowdist logs ps --attempt 1        an earlier attempt
    flowdist logs --grep 'loss.*nan' -i -C 3
                                        a regular expression, in all replicas and attempts
    flowdist logs --events -f           events and decisions, as JSON lines

    On the host with the controller, logs of other hosts are fetched from there while the run lasts, and what cannot be
    fetched is named on stderr.

    On a terminal, colours stay, and what would move the cursor or set the title is removed; a file or a pipe gets the
    bytes as the workers wrote them. Values of secrets that can be read here are masked. A warning names those that
    cannot be read.
    """
    search, fetch_bytes = searching.search(), options.fetch_bytes()
    run_dir, graph = find_run(Path(base), run, of_one_host=True)
    mask = known_mask(graph, os.environ)
    if warning := not_hidden(graph, os.environ):
        click.echo(f"warning: {warning}", err=True)
    options.check(targets, searches=search is not None)
    if options.events:
        _print_events(run_dir, options.follow, options.tail, mask)
        return
    printer = LinePrinter(mask, search, as_json=options.as_json, no_prefix=options.no_prefix)

    latest = options.attempt is None and not options.all_attempts and search is None
    wanted = Wanted(_chosen_targets(targets, graph, Path(base)), options.streams(), options.attempt, latest)
    with contextlib.closing(Sources(run_dir, graph, wanted, fetch_bytes, printer)) as sources:
        _print_logs(sources, options, printer)
    if search is not None and not printer.found:
        click.echo(f"no line matches, of {printer.searched:,} lines", err=True)
        sys.exit(1)


def _print_logs(sources: Sources, options: LogOptions, printer: LinePrinter) -> None:
    """Print the lines of the wanted logs, in order, or follow them."""
    remote = sources.remote(options.tail)
    local = sources.local(remote)
    if options.attempt is not None and not local and not remote:
        _refuse_attempt(sources, options)
    if options.follow:
        follow(sources, local, remote, options.tail)
        return
    logs: list[Log | RemoteLog] = sorted([*local, *remote], key=lambda log: log.place)
    for log in logs:
        for line in sources.lines(log, options.tail):
            printer.show(origin_of(log), line)


def _refuse_attempt(sources: Sources, options: LogOptions) -> None:
    """Raise FlowdistError if no host has had the attempt that is asked for."""
    wanted = sources.wanted
    here = find_logs(sources.run_dir, sources.graph, wanted.targets, wanted.streams)
    last = max((log.attempt for log in here), default=0)
    if sources.placements is not None:
        if sources.attempts():
            return  # that they cannot be fetched was printed
        numbers = [number for replica, number in sources.placements.latest().items() if wanted.has_replica(replica)]
        last = max(last, *numbers, 0)
    help = f"the last one is {last}" if last else "none has started"
    raise FlowdistError(f"there is no attempt {options.attempt}", help=help)


def _chosen_targets(targets: Sequence[str], graph: RoleGraph, base: Path) -> list[Target]:
    """Return the roles, replicas and workers that the command line names; empty for all."""
    roles = {role.name for role in graph.roles}
    for text in targets:
        if text not in roles and any(path.name == text for path in run_dirs(base)):
            raise FlowdistError(f"{text} is a run, and logs takes roles", help=f"write flowdist logs --run {text}")
    return [parse_target(text, graph) for text in targets]


def _print_events(run_dir: Path, follow: bool, tail: int | None, mask: Callable[[str], str]) -> None:
    """Print the last `tail` lines of the journal, and with `follow` new ones; earlier lines are checked as well."""
    path = run_dir / "journal.jsonl"
    file, reader = LogFile(path), RecordReader(str(path))
    bad: BadLine | None = None
    for _ in rounds(run_dir) if follow else [True]:
        lines = deque[str](maxlen=tail)
        for line in file.new_lines(final=False):
            try:
                reader.read(f"{line}\n".encode(errors="surrogateescape"))
            except BadLine as error:
                bad = error.with_help(help_for(error, path))
                break
            lines.append(line)
        tail = None  # new lines are printed all
        for line in lines:
            click.echo(mask(line))
        if bad is not None:
            raise bad
