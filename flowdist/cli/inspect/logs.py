"""`flowdist logs`: the output of workers, or the journal of a run, also while the run lasts."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from flowdist.cli.shared.common import verb
from flowdist.cli.shared.options import gathered, runs_option
from flowdist.cli.shared.runs import run_option
from flowdist.errors import FlowdistError
from flowdist.text.streams import print_worker_line

if TYPE_CHECKING:
    from flowdist.graph import RoleGraph
    from flowdist.runtime.run_folder.log_reader import Log, LogTail, Target
    from flowdist.runtime.run_folder.logs import Stream

POLL_S = 0.1  # interval at which followed files are read
NEW_S = 0.5  # interval at which new files are looked for


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

    def streams(self) -> list[Stream]:
        """Return the chosen streams: both, unless exactly one of --stdout and --stderr is given."""
        if self.only_out == self.only_err:
            return ["stdout", "stderr"]
        return ["stdout"] if self.only_out else ["stderr"]

    def check(self, targets: Sequence[str]) -> None:
        """Refuse options that do not go together.

        Raises:
            FlowdistError: Two options do not go together, or targets are named beside --events.
        """
        if self.events:
            if targets or self.attempt is not None or self.all_attempts or self.only_out or self.only_err:
                raise FlowdistError("--events is about the whole run", help="leave the other options out")
        elif self.attempt is not None and (self.all_attempts or self.follow):
            other = "-f" if self.follow else "--all-attempts"
            help = "leave --attempt out" if self.follow else "leave out one or the other"
            raise FlowdistError(f"--attempt {self.attempt} does not go with {other}", help=help)


@verb("logs")
@click.argument("targets", nargs=-1, metavar="[ROLE[/REPLICA[.WORKER]]]...")
@gathered(
    "options",
    LogOptions,
    click.option("--follow", "-f", is_flag=True, help="Print new lines, of later attempts too, until the run is over."),
    click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Print this attempt (default: the last)."),
    click.option("--all-attempts", is_flag=True, help="Print all attempts, one after the other."),
    click.option("--tail", "-n", type=click.IntRange(min=0), metavar="N", help="Print the last N lines of each file."),
    click.option("--stdout", "only_out", is_flag=True, help="Leave out stderr."),
    click.option("--stderr", "only_err", is_flag=True, help="Leave out stdout."),
    click.option("--no-prefix", is_flag=True, help="Leave out the name of the worker before each line."),
    click.option("--events", is_flag=True, help="Print the journal: events and decisions as JSON lines."),
)
@run_option
@runs_option
def command(targets: tuple[str, ...], options: LogOptions, run: str, base: str) -> None:
    """Print the logs of workers, with the name of the worker before each line.

    \b
    flowdist logs -f                    all workers of the newest run, as they print
    flowdist logs trainer/0 trainer/1   two replicas; trainer/0.1 is one worker
    flowdist logs ps --attempt 1        an earlier attempt
    flowdist logs --events -f           events and decisions, as JSON lines

    On a terminal, colours stay, and what would move the cursor or set the title is removed; a file or a pipe gets the
    bytes as the workers wrote them. Values of secrets that can be read here are masked. A warning names those that
    cannot be read.
    """
    from flowdist.runtime.run_folder.folder import find_run  # msgspec and the runtime: not needed by --help
    from flowdist.runtime.run_folder.log_reader import LogTail, latest_attempts, lines_of
    from flowdist.runtime.run_folder.runs import known_mask, not_hidden

    run_dir, graph = find_run(Path(base), run, of_one_host=True)
    mask = known_mask(graph, os.environ)
    if warning := not_hidden(graph, os.environ):
        click.echo(f"warning: {warning}", err=True)
    options.check(targets)
    if options.events:
        _print_events(run_dir, options.follow, options.tail, mask)
        return
    chosen = _chosen_targets(targets, graph, Path(base))
    logs = _find(run_dir, graph, chosen, options)
    if options.attempt is None and not options.all_attempts:
        logs = latest_attempts(logs)

    def show(name: str, line: str) -> None:
        print_worker_line(mask(line if options.no_prefix else f"[{name}] {line}"), sys.stdout)

    if options.follow:
        follower = LogTail(run_dir, graph, chosen, options.streams())
        follower.start(logs, options.tail)
        _follow(run_dir, follower, show)
        return
    for log in logs:
        for line in lines_of(log.path, options.tail):
            show(log.name, line)


def _chosen_targets(targets: Sequence[str], graph: RoleGraph, base: Path) -> list[Target]:
    """Return the roles, replicas and workers that the command line names; empty for all.

    Raises:
        FlowdistError: The topology has no such target, or it is the name of a run.
    """
    from flowdist.runtime.run_folder.folder import run_dirs
    from flowdist.runtime.run_folder.log_reader import parse_target

    roles = {role.name for role in graph.roles}
    for text in targets:
        if text not in roles and any(path.name == text for path in run_dirs(base)):
            raise FlowdistError(f"{text} is a run, and logs takes roles", help=f"write flowdist logs --run {text}")
    return [parse_target(text, graph) for text in targets]


def _find(run_dir: Path, graph: RoleGraph, chosen: list[Target], options: LogOptions) -> list[Log]:
    """Return the log files of the chosen workers and streams.

    Raises:
        FlowdistError: None of them has the attempt that is asked for.
    """
    from flowdist.runtime.run_folder.log_reader import find_logs

    logs = find_logs(run_dir, graph, chosen, options.streams(), options.attempt)
    if options.attempt is not None and not logs:
        last = max((log.attempt for log in find_logs(run_dir, graph, chosen, options.streams())), default=0)
        help = f"the last one is {last}" if last else "none has started"
        raise FlowdistError(f"there is no attempt {options.attempt}", help=help)
    return logs


def _follow(run_dir: Path, follower: LogTail, show: Callable[[str, str], None]) -> None:
    """Pass new lines of the logs, with the name of the worker, to `show` until the run is over."""
    look_at = 0.0
    for over in _rounds(run_dir):
        if over or time.monotonic() >= look_at:
            follower.find_new_files()
            look_at = time.monotonic() + NEW_S
        for log, line in follower.new_lines(final=over):
            show(log.name, line)


def _rounds(run_dir: Path) -> Iterator[bool]:
    """Yield False at intervals while the run lasts, and True once when it is over and no file of it grows any more."""
    from flowdist.runtime.run_folder.folder import is_locked

    while is_locked(run_dir):
        yield False
        time.sleep(POLL_S)
    yield True


def _print_events(run_dir: Path, follow: bool, tail: int | None, mask: Callable[[str], str]) -> None:
    """Print the lines of the journal: the last `tail` (None: all), and with `follow` new ones until the run is over.

    All lines are checked, those before the last `tail` too.

    Raises:
        BadLine: A line cannot be used; those before it have been printed.
    """
    from flowdist.cli.shared.records import help_for  # msgspec: not needed by --help
    from flowdist.record.reader import BadLine, RecordReader
    from flowdist.runtime.run_folder.logs import LogFile

    path = run_dir / "journal.jsonl"
    file, reader = LogFile(path), RecordReader(str(path))
    bad: BadLine | None = None
    for _ in _rounds(run_dir) if follow else [True]:
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
