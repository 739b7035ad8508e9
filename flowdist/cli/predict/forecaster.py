"""Predictions while a run lasts: asked for when an incident opens, and shown when the simulator has answered.

The simulator plays in a process of its own, one prediction after the other. A node that is lost may take that process
with it, as everything below the supervisor that belongs to no node is killed then. Such a prediction is made again at
the end of the run, from what was known at its time.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from flowdist.cli.predict.helper import Request
from flowdist.cli.predict.saved import Predictions, read_predictions, write_predictions
from flowdist.cli.predict.texts import incident_text, job_text
from flowdist.cli.predict.times import Times
from flowdist.control.job.state import JobState
from flowdist.errors import FlowdistError
from flowdist.faults.grammar import Plan
from flowdist.record.journal import Record

if TYPE_CHECKING:
    from flowdist.runtime.supervisor.event_printer import Show
    from flowdist.runtime.supervisor.supervisor import Observer

MODULE = "flowdist.cli.predict.helper"
LOG = "prediction.log"  # tracebacks of the simulator
NAMED = 5  # predictions that are missing
FINISH_S = 30.0  # at the end of the run, for predictions that are not there yet


class _Asked(NamedTuple):
    """Prediction that is wanted: the number of the incident (0: the whole job), and the last event that counts."""

    number: int
    until_n: int


class Forecaster:
    """Observer of a run that has its incidents predicted. A second observer is served with it.

    Args:
        run_dir: Folder of the run.
        times: Times of the workers, from `find_times`.
        plan: Announced faults and orders.
        show: Prints a line on the terminal.
        beside: The second observer; None: there is none.
    """

    def __init__(self, run_dir: Path, times: Times, plan: Plan, show: Show, beside: Observer | None = None) -> None:
        self._run_dir, self._times, self._plan = run_dir, times, plan
        self._show, self._beside = show, beside
        self._since_ns = self._seen = self._n = 0
        self._queue: list[_Asked] = []
        self._missed: list[_Asked] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._current = _Asked(0, 0)

    def start(self, now: int) -> None:
        """Ask for the prediction of the whole job, unless the run is resumed: it has begun, and keeps its predictions.

        Args:
            now: Time of the job in ns, later than 0 in a run that is resumed. Incidents from then on are new.
        """
        self._since_ns = now
        if not now or self._saved() is None:
            with contextlib.suppress(OSError):  # as in `_advance`; the process writes the file, too
                write_predictions(self._run_dir, Predictions(self._times.name))
        if not now:
            self._queue.append(_Asked(0, 0))
            self._advance()

    def hear(self, record: Record) -> None:
        """Note the number of the last event."""
        self._n = record.n
        if self._beside is not None:
            self._beside.hear(record)

    def look(self, job: JobState, now: int) -> None:
        """Ask for the predictions of new incidents, and show those that have come. This never waits."""
        if self._beside is not None:
            self._beside.look(job, now)
        self._note(job, is_over=False)
        self._advance()

    def finish(self, job: JobState) -> None:
        """Wait until all incidents of the job are predicted, at most FINISH_S seconds. Called when the run is over."""
        self._note(job, is_over=True)
        until_s = time.monotonic() + FINISH_S
        for _ in range(2):  # a second time for those whose process was killed
            self._wait(until_s)
            self._queue, self._missed = [*self._queue, *self._missed], []
        if self._queue:
            names = [f"incident {asked.number}" if asked.number else "the job" for asked in self._queue]
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            log = self._run_dir / LOG
            self._show(
                "warning", f"not predicted: {', '.join(names[:NAMED])}{more}: no answer of the simulator ({log})"
            )

    def close(self) -> None:
        """End the process of the simulator, if it runs. A prediction that it printed before its end is shown."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._show_answer()

    def _note(self, job: JobState, *, is_over: bool) -> None:
        """Ask for the prediction of each new incident whose cause is known by now."""
        while self._seen < len(job.incidents) and (is_over or not job.incidents[self._seen].deferred):
            incident = job.incidents[self._seen]
            self._seen += 1
            if incident.opened_ns >= self._since_ns:
                self._queue.append(_Asked(incident.number, self._n))

    def _wait(self, until_s: float) -> None:
        while (self._process is not None or self._queue) and time.monotonic() < until_s:
            self._advance()
            if self._process is not None:
                try:
                    self._process.wait(max(0.0, until_s - time.monotonic()))
                except subprocess.TimeoutExpired:
                    self.close()

    def _advance(self) -> None:
        """Show the prediction whose process has ended, and start the next."""
        if self._process is not None:
            if self._process.poll() is None:
                return
            self._process = None
            self._show_answer()
        if self._queue:
            self._current = self._queue.pop(0)
            try:
                self._process = self._started(self._current)
            except OSError:  # a full disk, or a limit on processes: the run must not end because of it
                self._missed.append(self._current)

    def _started(self, asked: _Asked) -> subprocess.Popen[bytes]:
        options = tuple(self._plan.options)
        request = Request(str(self._run_dir), self._times.file, self._times.sets, options, *asked, os.getpid())
        command = [sys.executable, "-P", "-m", MODULE, msgspec.json.encode(request).decode()]
        with (self._run_dir / LOG).open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def _show_answer(self) -> None:
        """Show the prediction that has come, or note that its process has ended without one."""
        saved, asked = self._saved(), self._current
        expected = saved.incident(asked.number) if saved is not None else None
        if saved is not None and asked.number == 0 and (saved.job is not None or saved.problem):
            self._show("event" if saved.job is not None else "warning", job_text(saved))
        elif expected is not None:
            self._show("event", incident_text(expected))
        else:
            self._missed.append(asked)

    def _saved(self) -> Predictions | None:
        try:
            return read_predictions(self._run_dir)
        except FlowdistError:
            return None
