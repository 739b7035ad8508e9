"""Following the logs of a run, those of other hosts too, until the run is over."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from flowdist.cli.logs.printing import LinePrinter
from flowdist.cli.logs.sources import Sources, in_parallel, origin_of
from flowdist.control.protocol.ids import NodeName
from flowdist.runtime.remote_logs.log_client import HostTail, NotFetched, Place, RemoteLog
from flowdist.runtime.run_folder.folder import is_locked
from flowdist.runtime.run_folder.log_reader import Log, LogTail

POLL_S = 0.1  # interval at which followed files are read
NEW_S = 0.5  # interval at which new files are looked for
REMOTE_S = 0.5  # interval at which other hosts are asked
PUT_ASIDE_S = 30.0  # until a host is asked again that has not answered


def rounds(run_dir: Path) -> Iterator[bool]:
    """Yield False at intervals while the run lasts, and True once when it is over and no file of it grows any more."""
    while is_locked(run_dir):
        yield False
        time.sleep(POLL_S)
    yield True


def follow(
    sources: Sources, local: Sequence[Log], remote: Sequence[RemoteLog], tail: int | None, show: LinePrinter
) -> None:
    """Print lines of these logs, then new ones of all wanted logs, until the run is over.

    Args:
        sources: The logs of the run.
        local: Logs of this host of which old lines are wanted.
        remote: Logs of other hosts of which old lines are wanted.
        tail: How many of them; None: all.
        show: Prints lines.
    """
    wanted = sources.wanted
    files = LogTail(sources.run_dir, sources.graph, wanted.targets, wanted.streams)
    files.start(local, tail)
    hosts = HostTails(sources, show)
    hosts.start(remote)
    look_at = ask_at = 0.0
    for over in rounds(sources.run_dir):
        if over or time.monotonic() >= look_at:
            files.find_new_files()
            look_at = time.monotonic() + NEW_S
        for log, line in files.new_lines(final=over):
            if log.place not in hosts.places:
                show.show(origin_of(log), line)
        if time.monotonic() >= ask_at or hosts.is_last:
            hosts.look()
            ask_at = time.monotonic() + REMOTE_S
    hosts.end()


class HostTails:
    """The logs of other hosts while they are followed.

    Args:
        sources: The logs of the run.
        printer: Prints lines, and which cannot be fetched.
    """

    def __init__(self, sources: Sources, printer: LinePrinter) -> None:
        self._sources, self._printer = sources, printer
        self._tails: dict[NodeName, HostTail] = {}
        self._aside_until: dict[NodeName, float] = {}
        self.places: set[Place] = set()  # of all logs that were followed: there may be copies of their last lines here
        self._complete: set[NodeName] = set()  # hosts that have answered after the end of the job

    @property
    def is_last(self) -> bool:
        """Return whether the job has ended, so that the hosts may be gone any moment."""
        placements = self._sources.placements
        if placements is not None and not placements.is_over:
            placements.update()
        return placements is not None and placements.is_over and len(self._complete) < len(self._tails)

    def start(self, logs: Sequence[RemoteLog]) -> None:
        """Begin with these logs, at their `start`."""
        for log in logs:
            self._tail(log.node).start([log])
        self.places |= {log.place for log in logs}

    def look(self) -> None:
        """Print new lines of all hosts, and which hosts do not answer."""
        attempts = self._sources.attempts()
        placements = self._sources.placements
        if placements is None:
            return
        is_over, latest = placements.is_over, placements.latest()

        def ask(node: NodeName) -> list[tuple[RemoteLog, str]]:
            tail = self._tail(node)
            self.places |= tail.find_new(attempts.get(node, []), latest)
            return list(tail.new_lines(final=is_over))

        now = time.monotonic()
        nodes = [node for node in {**attempts, **self._tails} if self._aside_until.get(node, 0.0) <= now]
        for node, found in in_parallel([node for node in nodes if node not in self._complete], ask):
            if isinstance(found, NotFetched):
                self._put_aside(node, found, is_over=is_over)
                continue
            self._aside_until.pop(node, None)
            if is_over:
                self._complete.add(node)
            for log, line in found:
                self._printer.show(origin_of(log), line)

    def end(self) -> None:
        """Print which hosts may have printed more than was fetched: the run is over, and they are gone."""
        placements = self._sources.placements
        latest = placements.latest() if placements is not None else {}
        for node in sorted(node for node, tail in self._tails.items() if tail.follows(latest)):
            if node in self._complete:
                continue
            text = f"what {node} printed last, if anything: the run is over"
            help = f"on that host: flowdist logs --run {self._sources.run_dir.name}.{node}"
            self._printer.missing(text, node, help)

    def _tail(self, node: NodeName) -> HostTail:
        if node not in self._tails:
            self._tails[node] = HostTail(self._sources.host(node))
        return self._tails[node]

    def _put_aside(self, node: NodeName, error: NotFetched, *, is_over: bool) -> None:
        if node not in self._aside_until and not is_over:
            self._printer.missing(f"{error.message}; asking again every {PUT_ASIDE_S:g} s", node)
        self._aside_until[node] = time.monotonic() + PUT_ASIDE_S
