"""`flowdist logs`: what workers have printed, or what the controller has decided, also while it goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowdist.cli.shared.common import guarded
from flowdist.cli.shared.operating import run_option, runs_option
from flowdist.errors import FlowdistError

if TYPE_CHECKING:
    from flowdist.runtime.run_folder.logs import Stream
    from flowdist.runtime.run_folder.reading import LogTail

LOOK_S = 0.1  # how often a file that is followed is looked at
NEW_S = 0.5  # how often there may be new files


@click.command(name="logs")
@click.argument("targets", nargs=-1, metavar="[ROLE[/REPLICA[.WORKER]]]...")
@click.option(
    "--follow", "-f", is_flag=True, help="Go on with what comes, attempt after attempt, until the run is over."
)
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Of that attempt; default: the last one.")
@click.option("--all-attempts", is_flag=True, help="Of all attempts, one after the other.")
@click.option("--tail", "-n", type=click.IntRange(min=0), metavar="N", help="The last N lines of each file.")
@click.option("--stdout", "only_out", is_flag=True, help="Not stderr.")
@click.option("--stderr", "only_err", is_flag=True, help="Not stdout.")
@click.option("--no-prefix", is_flag=True, help="Not the name of the worker before each line.")
@click.option("--events", is_flag=True, help="The journal instead, as JSON lines: events, decisions, reasons.")
@run_option
@runs_option
@guarded
def command(
    targets: tuple[str, ...],
    follow: bool,
    attempt: int | None,
    all_attempts: bool,
    tail: int | None,
    only_out: bool,
    only_err: bool,
    no_prefix: bool,
    events: bool,
    run: str,
    base: str,
) -> None:
    """Print the logs of workers, each line behind the name of who wrote it.

    \b
    flowdist logs -f                    all of the newest run, as it comes
    flowdist logs trainer/0 trainer/1   of two replicas; trainer/0.1 is one worker
    flowdist logs ps --attempt 1        of an earlier attempt
    flowdist logs --events -f           what happens and is decided, as JSON lines

    Values of secrets that can be read here are masked; of others it is said that they are not.
    """
    from flowdist.runtime.run_folder.folder import find_run, run_dirs  # msgspec and the runtime: not for --help
    from flowdist.runtime.run_folder.reading import LogTail, find_logs, latest_attempts, lines_of, parse_target
    from flowdist.runtime.run_folder.runs import known_mask, not_hidden

    run_dir, graph = find_run(Path(base), run, of_one_host=True)
    mask = known_mask(graph, os.environ)
    if said := not_hidden(graph, os.environ):
        click.echo(f"warning: {said}", err=True)
    if events:
        if targets or attempt is not None or all_attempts or only_out or only_err:
            raise FlowdistError("--events is about the whole run", help="leave the other options out")
        _events(run_dir, follow, tail, mask)
        return
    if attempt is not None and (all_attempts or follow):
        help = "leave --attempt out" if follow else "leave out one or the other"
        raise FlowdistError(f"--attempt {attempt} does not go with {'-f' if follow else '--all-attempts'}", help=help)
    streams: list[Stream] = ["stdout", "stderr"]
    if only_out != only_err:
        streams = ["stdout"] if only_out else ["stderr"]
    for text in targets:
        if text not in {role.name for role in graph.roles} and any(path.name == text for path in run_dirs(Path(base))):
            raise FlowdistError(f"{text} is a run, and logs takes roles", help=f"write flowdist logs --run {text}")
    meant = [parse_target(text, graph) for text in targets]
    logs = find_logs(run_dir, graph, meant, streams, attempt)
    if attempt is not None and not logs:
        last = max((log.attempt for log in find_logs(run_dir, graph, meant, streams)), default=0)
        raise FlowdistError(
            f"there is no attempt {attempt}", help=f"the last one is {last}" if last else "none has started"
        )
    if attempt is None and not all_attempts:
        logs = latest_attempts(logs)

    def show(name: str, line: str) -> None:
        click.echo(mask(line if no_prefix else f"[{name}] {line}"))

    if follow:
        follower = LogTail(run_dir, graph, meant, streams)
        follower.start(logs, tail)
        _follow(run_dir, follower, show)
        return
    for log in logs:
        for line in lines_of(log.path, tail):
            show(log.name, line)


def _follow(run_dir: Path, follower: LogTail, show: Callable[[str, str], None]) -> None:
    from flowdist.runtime.run_folder.folder import is_locked

    look_at = 0.0
    while True:
        over = not is_locked(run_dir)  # before it is read: nothing is written after that
        if over or time.monotonic() >= look_at:
            follower.find_new_files()
            look_at = time.monotonic() + NEW_S
        for log, line in follower.new_lines(final=over):
            show(log.name, line)
        if over:
            return
        time.sleep(LOOK_S)


def _events(run_dir: Path, follow: bool, tail: int | None, mask: Callable[[str], str]) -> None:
    from flowdist.runtime.run_folder.folder import is_locked
    from flowdist.runtime.run_folder.logs import LogFile
    from flowdist.runtime.run_folder.reading import lines_of, start_of_last

    path = run_dir / "journal.jsonl"
    if not follow:
        for line in lines_of(path, tail):
            click.echo(mask(line))
        return
    file = LogFile(path, lambda line: None)
    file.skip(start_of_last(path, tail) if tail is not None and path.exists() else 0)
    while True:
        over = not is_locked(run_dir)
        for line in file.new_lines(final=False):
            click.echo(mask(line))
        if over:
            return
        time.sleep(LOOK_S)
