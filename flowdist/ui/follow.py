"""A run's journal as it grows, as the data of the timeline page, and the logs of its attempts."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from flowdist.record.journal import Header, Line
from flowdist.record.reader import JOURNAL, BadLine, RecordReader
from flowdist.report.record.page import page_data, timeline_page
from flowdist.report.record.timeline import Timeline, timeline_of
from flowdist.runtime.left_files import read_from, size_of
from flowdist.runtime.run_folder.log_reader import find_logs, parse_target
from flowdist.runtime.run_folder.runs import known_mask, state_of
from flowdist.runtime.worker_env.secret_values import Mask
from flowdist.text.printable import printable_values

LOOK_S = 0.1  # between two looks at the size of the journal
WAIT_S = 20.0  # how long an answer may wait for the journal to grow
REST = 4  # the page is made anew after at least so many times the time that it took to make
LOG_BYTES = 16 << 10  # the end of a log file that is shown


class FollowedRun:
    """A run that may still go on. Several threads may use it. A journal without a header is a FlowdistError."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._reader = RecordReader(str(folder / JOURNAL))
        self._read, self._lines = 0, list[Line]()
        self._header: Header | None = None
        self._timeline: Timeline | None = None
        self._mask = Mask()
        self._made_at, self._took = 0.0, 0.0
        self.timeline()

    def page(self) -> str:
        """Return the HTML page of the run as it is now, which then asks for its data by itself."""
        timeline = self.timeline()
        return timeline_page(timeline, is_live=True, mask=self._mask)

    def data_after(self, size: int) -> dict[str, object]:
        """Return data, size and state of the run once its journal is longer than `size` bytes, or after WAIT_S."""
        end = time.monotonic() + WAIT_S
        while size_of(self._folder / JOURNAL) <= size and time.monotonic() < end and self.state() == "running":
            time.sleep(LOOK_S)
        state = self.state()  # before the journal is read: what the browser gets with the end is the whole run
        timeline = self.timeline(at_once=state != "running")
        return {"size": self._read, "state": state, "data": printable_values(page_data(timeline), self._mask)}

    def state(self) -> str:
        """Return the state of the run: running, succeeded, failed, cancelled or died."""
        return state_of(self._folder).state

    def logs(self, replica: str, attempt: int) -> str:
        """Return the ends of the logs of an attempt, each below its name, with the values of secrets hidden.

        A line of which only the end would be shown is left out: a part of a secret could not be told from other text.
        """
        graph = self.timeline().header.graph
        parts = []
        for log in find_logs(self._folder, graph, [parse_target(replica, graph)], ("stdout", "stderr"), attempt):
            size = size_of(log.path)
            data = read_from(log.path, max(0, size - LOG_BYTES), LOG_BYTES) if size else None
            text = self._mask((data or b"").decode(errors="replace"))
            if size > LOG_BYTES:
                text = text.partition("\n")[2]
            if text:
                parts.append(f"{log.name} {log.stream}\n{text}")
        return "\n".join(parts)

    def timeline(self, *, at_once: bool = False) -> Timeline:
        """Return the timeline of the journal up to a damaged line; `at_once`: also if REST does not allow a new one."""
        with self._lock:
            began = time.monotonic()
            is_rested = at_once or began - self._made_at >= REST * self._took
            if self._timeline is None or (is_rested and size_of(self._folder / JOURNAL) > self._read):
                self._read_more()
                assert self._header is not None
                try:
                    self._timeline = timeline_of(self._header, self._lines, str(self._folder / JOURNAL))
                except BadLine as bad:
                    self._timeline = timeline_of(self._header, self._lines[: bad.number - 2])
                self._made_at = time.monotonic()
                self._took = self._made_at - began
            return self._timeline

    def _read_more(self) -> None:
        """Read the lines that are new and whole."""
        path = self._folder / JOURNAL
        data = read_from(path, self._read, max(size_of(path) - self._read, 0)) or b""
        for raw in data.splitlines(keepends=True):
            if not raw.endswith(b"\n"):
                break
            try:
                line = self._reader.read(raw)
            except BadLine:
                if self._header is None:
                    raise
                break
            self._read += len(raw)
            if isinstance(line, Header):
                self._header, self._mask = line, known_mask(line.graph, os.environ)
            else:
                self._lines.append(line)
        if self._header is None:
            raise self._reader.error("the file has no header")
