"""The logs that a command line asks for, in the folder of the run and on other hosts, and those that are followed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from flowdist.cli.logs.printing import LinePrinter, Origin
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.graph import RoleGraph
from flowdist.graph.units import format_memory
from flowdist.runtime.remote_logs.log_client import HostLogs, HostTail, NotFetched, Place, RemoteLog, asker
from flowdist.runtime.remote_logs.placements import Placements
from flowdist.runtime.run_folder.folder import JOURNAL, is_locked
from flowdist.runtime.run_folder.log_reader import Log, LogTail, Target, find_logs, latest_attempts, lines_of
from flowdist.runtime.run_folder.logs import Stream
from flowdist.runtime.run_folder.resume import LISTENS
from flowdist.runtime.run_folder.runs import ControllerLink
from flowdist.runtime.wire.log_messages import Attempt, LogName

AT_ONCE = 16  # hosts that are asked at one time
POLL_S = 0.1  # interval at which followed files are read
NEW_S = 0.5  # interval at which new files are looked for
REMOTE_S = 0.5  # interval at which other hosts are asked
PUT_ASIDE_S = 30.0  # until a host is asked again that has not answered

T = TypeVar("T")


class Wanted(NamedTuple):
    """The logs that are wanted."""

    targets: Sequence[Target]  # empty: all workers
    streams: Sequence[Stream]
    attempt: int | None  # None: the last of each replica, or all
    latest: bool  # only the last attempt of each replica

    def has_replica(self, replica: ReplicaId) -> bool:
        """Return whether any worker of the replica is wanted."""
        return not self.targets or any(_names(target, replica) for target in self.targets)

    def has(self, name: LogName) -> bool:
        """Return whether the log of another host is wanted, apart from the number of its attempt."""
        targets = [target for target in self.targets if _names(target, name.attempt.replica)]
        is_worker = not self.targets or any(target.worker in (None, name.worker) for target in targets)
        return is_worker and name.stream in self.streams


def _names(target: Target, replica: ReplicaId) -> bool:
    return target.role == replica.role and target.replica in (None, replica.index)


class Sources:
    """The logs of one run, here and on other hosts."""

    def __init__(self, run_dir: Path, graph: RoleGraph, wanted: Wanted, bytes_max: int, printer: LinePrinter) -> None:
        self.run_dir, self.graph, self.wanted = run_dir, graph, wanted
        self._bytes_max, self.printer = bytes_max, printer
        has_hosts = (run_dir / LISTENS).exists()
        self.placements = Placements(run_dir / JOURNAL) if has_hosts else None
        self._hosts: dict[NodeName, HostLogs] = {}
        self._links: dict[NodeName, ControllerLink] = {}

    def close(self) -> None:
        """Close all connections to the controller."""
        for link in self._links.values():
            link.close()

    def attempts(self) -> dict[NodeName, list[Attempt]]:
        """Return the wanted attempts that ran on other hosts, by node, as the journal says now."""
        if self.placements is None:
            return {}
        self.placements.update()
        wanted, local = self.wanted, [node.name for node in self.graph.cluster.nodes]  # others join later
        found = self.placements.of_nodes(local, wanted.attempt, latest=wanted.latest)
        found = {node: [each for each in all if wanted.has_replica(each.replica)] for node, all in found.items()}
        return {node: attempts for node, attempts in sorted(found.items()) if attempts}

    def host(self, node: NodeName) -> HostLogs:
        """Return the host of a node."""
        if node not in self._hosts:
            link = self._links[node] = ControllerLink(self.run_dir)
            self._hosts[node] = HostLogs(asker(link), self.graph, node, self._bytes_max, self.wanted.has)
        return self._hosts[node]

    def remote(self, last: int | None) -> list[RemoteLog]:
        """Return the wanted logs of other hosts, and print which cannot be fetched."""
        attempts = self.attempts()
        found: list[RemoteLog] = []
        for node, logs in in_parallel(attempts, lambda node: self.host(node).find(attempts[node], last)):
            if isinstance(logs, NotFetched):
                self._report_attempts(node, attempts[node], logs.message)
                continue
            found += logs
            listed = {log.name.attempt for log in logs}
            if absent := [each for each in attempts[node] if each not in listed]:
                self._report_attempts(node, absent, f"{node} has no such logs in its folder")
        return found

    def local(self, remote: Iterable[RemoteLog]) -> list[Log]:
        """Return the wanted logs in the folder of the run, which has ends of other hosts' logs, but for `remote`."""
        wanted = self.wanted
        logs = find_logs(self.run_dir, self.graph, wanted.targets, wanted.streams, wanted.attempt)
        if wanted.latest:
            logs = latest_attempts(logs)
        if self.placements is None:
            return logs
        last = self.placements.latest() if wanted.latest else {}
        copies = {log.place for log in remote}
        replicas = [ReplicaId(self.graph.roles[log.place[0]].name, log.place[1]) for log in logs]
        pairs = zip(logs, replicas, strict=True)
        return [log for log, of in pairs if log.place not in copies and log.attempt >= last.get(of, 0)]

    def lines(self, log: Log | RemoteLog, last: int | None) -> Iterator[str]:
        """Yield the wanted lines of a log. If those of another host end early, that is printed."""
        if isinstance(log, Log):
            yield from lines_of(log.path, last)
            return
        if log.start and last is None:
            size, part = format_memory(log.size), format_memory(log.size - log.start)
            text = f"{log.text} on {log.node}: its {log.name.stream} has {size}, of which these are the last {part}"
            self.printer.missing(text, log.node, help="--fetch-max 1GiB fetches more of each log")
        count = 0
        try:
            for line in self.host(log.node).lines(log):
                count += 1
                if last is not None and count > last:
                    break  # the log has grown meanwhile, or the host does not count
                yield line
        except NotFetched as error:
            self.printer.missing(f"the rest of {log.text}: {error.message}", log.node)

    def _report_attempts(self, node: NodeName, attempts: Sequence[Attempt], why: str) -> None:
        names = list(dict.fromkeys(f"{each.replica} attempt {each.number}" for each in attempts))
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        self.report(node, f"{', '.join(names[:5])}{more}: {why}")

    def report(self, node: NodeName, text: str) -> None:
        """Print what could not be fetched from a host, and the command that shows it there."""
        self.printer.missing(text, node, f"on that host: flowdist logs --run {self.run_dir.name}.{node}")


def in_parallel(nodes: Iterable[NodeName], ask: Callable[[NodeName], T]) -> list[tuple[NodeName, T | NotFetched]]:
    """Ask hosts at one time, and return what each has answered, or why it has not."""

    def answer_of(node: NodeName) -> T | NotFetched:
        try:
            return ask(node)
        except NotFetched as error:
            return error

    names = list(nodes)
    if not names:
        return []
    with ThreadPoolExecutor(min(AT_ONCE, len(names))) as pool:
        return list(zip(names, pool.map(answer_of, names), strict=True))


def origin_of(log: Log | RemoteLog) -> Origin:
    """Return where the lines of a log come from."""
    if isinstance(log, Log):
        return Origin(log.name, log.attempt, log.stream, "")
    return Origin(log.text, log.name.attempt.number, log.name.stream, log.node)


def rounds(run_dir: Path) -> Iterator[bool]:
    """Yield False at intervals while the run lasts, and True once when it is over and no file of it grows any more."""
    while is_locked(run_dir):
        yield False
        time.sleep(POLL_S)
    yield True


def follow(sources: Sources, local: Sequence[Log], remote: Sequence[RemoteLog], tail: int | None) -> None:
    """Print lines of these logs, then new ones of all wanted logs, until the run is over."""
    wanted = sources.wanted
    files = LogTail(sources.run_dir, sources.graph, wanted.targets, wanted.streams)
    files.start(local, tail)
    hosts = _HostTails(sources, remote)
    look_at = ask_at = 0.0
    for over in rounds(sources.run_dir):
        if over or time.monotonic() >= look_at:
            files.find_new_files()
            look_at = time.monotonic() + NEW_S
        for log, line in files.new_lines(final=over):
            if log.place not in hosts.places:
                sources.printer.show(origin_of(log), line)
        if time.monotonic() >= ask_at or hosts.is_last:
            hosts.look()
            ask_at = time.monotonic() + REMOTE_S
    hosts.end()


class _HostTails:
    """The logs of other hosts while they are followed."""

    def __init__(self, sources: Sources, logs: Sequence[RemoteLog]) -> None:
        self._sources = sources
        self._tails: dict[NodeName, HostTail] = {}
        self._aside_until: dict[NodeName, float] = {}
        self._complete: set[NodeName] = set()  # hosts that have answered after the end of the job
        for log in logs:
            self._tail(log.node).start([log])
        # of all logs that were followed: there may be copies of their last lines here
        self.places: set[Place] = {log.place for log in logs}

    @property
    def is_last(self) -> bool:
        """Return whether the job has ended, so that the hosts may be gone any moment."""
        placements = self._sources.placements
        if placements is not None and not placements.is_over:
            placements.update()
        return placements is not None and placements.is_over and len(self._complete) < len(self._tails)

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
                if node not in self._aside_until and not is_over:
                    self._sources.printer.missing(f"{found.message}; asking again every {PUT_ASIDE_S:g} s", node)
                self._aside_until[node] = time.monotonic() + PUT_ASIDE_S
                continue
            self._aside_until.pop(node, None)
            if is_over:
                self._complete.add(node)
            for log, line in found:
                self._sources.printer.show(origin_of(log), line)

    def end(self) -> None:
        """Print which hosts may have printed more than was fetched: the run is over, and they are gone."""
        placements = self._sources.placements
        latest = placements.latest() if placements is not None else {}
        for node in sorted(node for node, tail in self._tails.items() if tail.follows(latest)):
            if node not in self._complete:
                self._sources.report(node, f"what {node} printed last, if anything: the run is over")

    def _tail(self, node: NodeName) -> HostTail:
        if node not in self._tails:
            self._tails[node] = HostTail(self._sources.host(node))
        return self._tails[node]
