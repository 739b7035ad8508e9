"""`flowdist run --detach`: the supervisor runs in a session of its own, and the shell gets its prompt back.

Problems of the topology are reported before, in the foreground. Then this process, which has one thread and no event
loop yet, forks. The child leaves the terminal and writes to supervisor.log. The parent waits for a message that the job
has started, or why it did not.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from flowdist.cli.run.console import Console, Shown
from flowdist.cli.shared.common import print_json
from flowdist.control.job.state import JobState, ReplicaPhase
from flowdist.control.membership.waiting import held_up_by
from flowdist.errors import FlowdistError, JobFailed
from flowdist.graph import SECOND
from flowdist.record.journal import Record

if TYPE_CHECKING:
    from flowdist.runtime.supervisor.startup_signals import StartupSignals
    from flowdist.runtime.supervisor.supervisor import Observer

LOG = "supervisor.log"
IDLE_NS = 3 * SECOND  # after this time without a start, the job is reported as waiting
STARTED: tuple[ReplicaPhase, ...] = ("running", "ready", "succeeded")


class _Starting(Console):
    """Console that reports to the parent, once, that the first replica runs, or that the job waits for something.

    The console is its own observer of the job.
    """

    def __init__(self, shown: Shown, mask: Callable[[str], str], tell: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(shown, mask)
        self._tell = tell
        self._idle_since_ns: int | None = None

    def onlooker(self, run_id: str) -> Observer:
        """Return this console: in the background there is no picture."""
        return self

    def hear(self, record: Record) -> None:
        pass  # `look` reports by the state of the job alone

    def look(self, job: JobState, now: int) -> None:
        """Report that a replica runs, or what the job waits for.

        The job counts as waiting if for `IDLE_NS` no replica has begun to start, although a node is there.
        """
        if any(role.count(phase) for role in job.roles.values() for phase in STARTED):
            self._tell({"started": True})
        elif not job.nodes or any(role.count("starting") for role in job.roles.values()):
            self._idle_since_ns = None  # there is no node yet, or a replica is starting
        elif self._idle_since_ns is None:
            self._idle_since_ns = now
        elif now - self._idle_since_ns > IDLE_NS and (waits := held_up_by(job)):
            self._tell({"waits_for": waits[0]})


def detached(
    run_dir: Path,
    base: Path,
    shown: Shown,
    mask: Callable[[str], str],
    supervise: Callable[[Console], int],
    early: StartupSignals,
) -> NoReturn:
    """Run the job in a background process, and exit when the job has started or could not start.

    The exit code is 0 if the job has started or waits; that of the job if it is over already; 130 for an interrupt.

    Args:
        run_dir: Folder of the run.
        base: Folder with the folders of runs, as the user has named it.
        shown: Whether the name of the run is printed as JSON.
        mask: Return a text with the values of secrets hidden.
        supervise: Runs the job to its end and returns the exit code.
        early: Interrupts so far. The background process handles those before the fork.

    Raises:
        FlowdistError: The job could not start.
        JobFailed: The background process died before the job had started.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    before_fork = early.count
    if os.fork() == 0:
        os.close(reading)
        _be_supervisor(run_dir, mask, supervise, writing)
    os.close(writing)
    try:
        early.end()
        if early.count > before_fork:
            raise KeyboardInterrupt
        with os.fdopen(reading) as pipe:
            message = json.loads(pipe.readline() or "{}")
    except KeyboardInterrupt:
        click.echo(f"\nthe run goes on in the background; flowdist cancel {run_dir.name} ends it", err=True)
        sys.exit(130)
    if "error" in message:
        failed = FlowdistError(message["error"], help=message["help"])
        failed.exit_code = message["exit_code"]
        raise failed
    if not message:
        raise JobFailed("the supervisor died before the job had started", help=f"see {run_dir / LOG}")
    _show(run_dir, base, shown, message)
    sys.exit(message.get("exit_code", 0))


def _be_supervisor(
    run_dir: Path, mask: Callable[[str], str], supervise: Callable[[Console], int], writing: int
) -> NoReturn:
    """Run the job as the child, report to the parent by the pipe `writing`, and end the process.

    This never returns to the code of the parent.
    """
    code = 1
    try:
        _leave_terminal(run_dir / LOG)
        pipe = os.fdopen(writing, "w")

        def tell(what: dict[str, Any]) -> None:
            if not pipe.closed:
                with contextlib.suppress(BrokenPipeError):  # the parent was interrupted and has gone
                    json.dump(what, pipe)
                    pipe.close()

        try:
            code = supervise(_Starting(Shown(quiet=True), mask, tell))
            tell({"ended": True, "exit_code": code})
        except FlowdistError as error:
            code = error.exit_code
            click.echo(f"error: {error.message}", err=True)
            tell({"error": error.message, "help": error.help, "exit_code": code})
        except KeyboardInterrupt:
            code = 130
            tell({"error": "the run was interrupted before it had started", "help": "", "exit_code": code})
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _leave_terminal(log: Path) -> None:
    """Start a session of its own, so that signals of the terminal do not reach this process, and write to the log."""
    os.setsid()
    null, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(output)


def _show(run_dir: Path, base: Path, shown: Shown, message: dict[str, Any]) -> None:
    """Print the name of the run on stdout, for scripts, and the verbs that take it on stderr."""
    name = run_dir.name
    if shown.as_json:
        waits = message.get("waits_for")
        print_json("detached", run=name, run_dir=str(run_dir), ended="ended" in message, waits_for=waits)
        return
    click.echo(name)
    more = "" if base == Path("runs") else f" --runs {base}"
    if "ended" in message:
        click.echo(f"the run is over already: flowdist report {name}{more}", err=True)
        return
    verbs = (("status", f"{name}{more}"), ("logs -f", f"--run {name}{more}"), ("cancel", f"{name}{more}"))
    waits = f", and waits for {message['waits_for']}" if "waits_for" in message else ""
    click.echo(f"the run is in the background{waits}:", err=True)
    for verb, arguments in verbs:
        click.echo(f"  flowdist {verb} {arguments}", err=True)
