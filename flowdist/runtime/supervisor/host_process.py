"""The part of the foreground process that is the same on the controller's host and on a host that has joined.

It owns all processes below it, the lock and the sockets of the run's folder, and the terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import traceback
from asyncio.subprocess import Process
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flowdist.control.job.state import JobState
from flowdist.control.protocol.effects import FinishJob
from flowdist.control.protocol.events import CancelRequested
from flowdist.control.protocol.ids import NodeName
from flowdist.errors import FlowdistError, RunBroken
from flowdist.faults.grammar import Fault
from flowdist.graph import SECOND, RoleGraph
from flowdist.record.journal import Header, Line
from flowdist.record.replay import Replay
from flowdist.record.timesheet import Timesheet
from flowdist.runtime.last_words import in_words
from flowdist.runtime.processes.owned_processes import OwnedProcesses
from flowdist.runtime.processes.reaper import become_subreaper, kill_descendants
from flowdist.runtime.processes.unexpected import start_task, watch_loop
from flowdist.runtime.run_folder.cleanup import remove_sockets
from flowdist.runtime.run_folder.folder import socket_dir
from flowdist.runtime.run_folder.logs import Follower, OpenSink
from flowdist.runtime.run_folder.runs import resume_help
from flowdist.runtime.supervisor.event_printer import Show
from flowdist.text.queued_output import is_behind

LOOK_S = 0.1  # between two times that the workers' output is read
REST_S = 3.0  # of printing the rest of the output, before the user learns how to end that
WIND_DOWN_S = 5.0  # for processes to end by themselves, before they are killed
NOTICE_NS = 60 * SECOND  # from SIGUSR1 until the machine is taken away, unless the command line says otherwise
EARLY = "interrupted before it began"
LOG = "supervisor.log"  # tracebacks of this process; a run in the background prints all there


@dataclass(slots=True)
class RunResult:
    """The end of a run: outcome and reason, the last state of the job, and what the summary needs besides."""

    outcome: str
    reason: str
    run_dir: str
    job: JobState
    faults: list[Line]  # the journal's lines about faults
    unfired: list[Fault]  # faults of the plan that were never injected
    sheet: Timesheet  # how the time was spent


def cancelled_before_start(run_dir: Path, graph: RoleGraph) -> RunResult:
    """Return the result of a run that was interrupted before any of its processes had started.

    There is no journal: cancellation is the first and only event of a fresh controller.
    """
    replay = Replay(Header(graph, tuple(node.name for node in graph.cluster.nodes)))
    replay.decide(CancelRequested(EARLY, now=True), now=0)
    assert replay.job.outcome is not None  # nothing runs whose end it would have to wait for
    return RunResult(replay.job.outcome, EARLY, str(run_dir), replay.job, [], [], replay.sheet)


class HostProcess:
    """The parts of a foreground process that do not depend on its host: processes, terminal, signals, lock.

    Call `begin` first, in the event loop, and `close` last, which closes `lock`, the descriptor of the folder's lock.
    """

    def __init__(
        self,
        run_dir: Path,
        lock: int,
        nodes: Sequence[NodeName],
        show: Show,
        open_sink: OpenSink | None,
    ) -> None:
        self.run_dir, self.lock, self.show = run_dir, lock, show
        self.sockets = socket_dir(run_dir, list(nodes))
        self.processes = OwnedProcesses(run_dir)
        self.follower = Follower(run_dir, show, open_sink, lambda: is_behind(sys.stdout, sys.stderr))
        self._is_closing = self._shows_no_rest = self._was_interrupted = False
        self.finished: FinishJob | None = None  # the end of the job, once it is known
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken_by: BaseException | None = None  # the first unexpected exception of this process

    @property
    def is_over(self) -> bool:
        """Return whether the job has ended, or this host has to stop its part of it."""
        return self.finished is not None or self.over.is_set()

    def begin(self, interrupted: Callable[[], None], noticed: Callable[[], None]) -> None:
        """Open the lifeline; from now on adopt orphaned descendants, and call `interrupted` at each interrupt.

        Every process of flowdist here ends when this one closes its end of the pipe, or dies. `noticed` is called at
        SIGUSR1, which a batch system sends before it takes the machine. SIGHUP is no second interrupt, which would stop
        the job at once: it may come from the kernel and the shell, and after a Ctrl-C. With nohup it stays ignored.
        """
        become_subreaper()
        self.over = asyncio.Event()
        watch_loop(self.fail)
        self._handle_interrupt = interrupted
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.interrupt)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        loop.add_signal_handler(signal.SIGUSR1, noticed)
        self.lifeline, self._lifeline_end = os.pipe()

    def interrupt(self) -> None:
        """Handle an interrupt; while the rest of the output is printed, it ends that and nothing else."""
        self._was_interrupted = True
        if self._is_closing:
            self._shows_no_rest = True
        else:
            self._handle_interrupt()

    def _hang_up(self) -> None:
        """Handle the end of the terminal: it is an interrupt, unless there was one already."""
        if self._is_closing or not self._was_interrupted:
            self.interrupt()

    def background(self, job: Coroutine[None, None, None]) -> None:
        """Run a coroutine until it returns or `cancel_tasks` is called; an exception ends this process (`fail`)."""
        task = start_task(job, self.fail)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def fail(self, error: BaseException) -> None:
        """End this process because of an unexpected exception, which `result` raises; the first one counts.

        What the coroutine did no longer happens: to go on would be to wait for ever. The traceback is added to LOG.
        """
        if self._broken_by is None:
            self._broken_by = error
            with contextlib.suppress(OSError), (self.run_dir / LOG).open("a") as log:
                traceback.print_exception(error, file=log)
        self.over.set()

    def warn(self, text: str) -> None:
        """Show a warning on the terminal."""
        self.show("warning", text)

    async def wait(self, timeout_s: float = LOOK_S) -> None:
        """Wait until `over` is set, at most for `timeout_s` seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.over.wait(), timeout_s)

    def end(self, failure: BaseException) -> FinishJob:
        """Return the end of the job; RunBroken after an unexpected exception, else `failure` is raised."""
        if self.finished is not None:
            return self.finished
        if self._broken_by is not None:
            text = f"flowdist itself has failed: {in_words(self._broken_by)}; everything was stopped"
            raise self.broken(f"{text} (see {self.run_dir / LOG})") from self._broken_by
        raise failure

    def broken(self, text: str) -> FlowdistError:
        """Return the error for a run that flowdist could not continue, with the command that resumes it."""
        return RunBroken(text, help=resume_help(self.run_dir))

    async def end_processes(self) -> None:
        """Close the lifeline, and wait WIND_DOWN_S for the ends of all processes; `close` does the rest."""
        os.close(self._lifeline_end)
        await wait_for_ends(self.processes.running())

    def cancel_tasks(self) -> None:
        """Cancel the coroutines that `background` has started and that still run, without waiting for them."""
        for task in list(self._tasks):
            task.cancel()

    async def close(self) -> None:
        """Kill every descendant, release the run's folder, and print the rest of the workers' output.

        A terminal that takes no output is waited for, until the user interrupts.
        """
        self.cancel_tasks()
        if left := kill_descendants():
            self.show("error", f"these processes survived SIGKILL: {left}")
        os.close(self.lifeline)
        os.close(self.lock)
        remove_sockets(self.sockets, self.run_dir)
        self._is_closing = True
        text = "the rest of the output follows; an interrupt leaves it out, and all of it is in the logs"
        says_so = asyncio.get_running_loop().call_later(REST_S, self.warn, text)
        while not self.follower.read_rest() and not self._shows_no_rest:
            await asyncio.sleep(LOOK_S if is_behind(sys.stdout, sys.stderr) else 0)
        says_so.cancel()


async def wait_for_ends(processes: Iterable[Process], timeout_s: float = WIND_DOWN_S) -> None:
    """Wait until the processes have ended, at most `timeout_s` seconds; those that still run then are left running."""
    waits = [asyncio.create_task(process.wait()) for process in processes]
    if waits:
        await asyncio.wait(waits, timeout=timeout_s)
