"""The logs that a command line asks for: those in the folder of the run, and those of other hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from flowdist.cli.logs.printing import LinePrinter, Origin
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.graph import RoleGraph
from flowdist.graph.units import format_memory
from flowdist.runtime.remote_logs.log_client import HostLogs, NotFetched, RemoteLog, asker
from flowdist.runtime.remote_logs.placements import Placements, local_nodes
from flowdist.runtime.run_folder.folder import JOURNAL
from flowdist.runtime.run_folder.log_reader import Log, Target, find_logs, latest_attempts, lines_of
from flowdist.runtime.run_folder.logs import Stream
from flowdist.runtime.run_folder.resume import LISTENS
from flowdist.runtime.run_folder.runs import ControllerLink
from flowdist.runtime.wire.log_messages import Attempt, LogName

AT_ONCE = 16  # hosts that are asked at one time

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
    """The logs of one run, here and on other hosts.

    Args:
        run_dir: The folder of the run.
        graph: The job.
        wanted: The logs that are wanted.
        bytes_max: How much of one log of another host is fetched at most.
        printer: Prints what cannot be fetched.
    """

    def __init__(self, run_dir: Path, graph: RoleGraph, wanted: Wanted, bytes_max: int, printer: LinePrinter) -> None:
        self.run_dir, self.graph, self.wanted = run_dir, graph, wanted
        self._bytes_max, self._printer = bytes_max, printer
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
        wanted, local = self.wanted, local_nodes(self.graph)
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
                self._report(node, attempts[node], logs.message)
                continue
            found += logs
            listed = {log.name.attempt for log in logs}
            if absent := [each for each in attempts[node] if each not in listed]:
                self._report(node, absent, f"{node} has no such logs in its folder")
        return found

    def local(self, remote: Iterable[RemoteLog]) -> list[Log]:
        """Return the wanted logs in the folder of the run, without copies of those in `remote`.

        The folder has the last lines of workers that have failed on other hosts.
        """
        wanted = self.wanted
        logs = find_logs(self.run_dir, self.graph, wanted.targets, wanted.streams, wanted.attempt)
        if wanted.latest:
            logs = latest_attempts(logs)
        if self.placements is None:
            return logs
        last = self.placements.latest() if wanted.latest else {}
        copies = {log.place for log in remote}
        return [log for log in logs if log.place not in copies and log.attempt >= last.get(self._replica(log), 0)]

    def _replica(self, log: Log) -> ReplicaId:
        return ReplicaId(self.graph.roles[log.place[0]].name, log.place[1])

    def lines(self, log: Log | RemoteLog, last: int | None) -> Iterator[str]:
        """Yield the wanted lines of a log. If those of another host end early, that is printed."""
        if isinstance(log, Log):
            yield from lines_of(log.path, last)
            return
        if log.start and last is None:
            size, part = format_memory(log.size), format_memory(log.size - log.start)
            text = f"{log.text} on {log.node}: its {log.name.stream} has {size}, of which these are the last {part}"
            self._printer.missing(text, log.node, help="--fetch-max 1GiB fetches more of each log")
        count = 0
        try:
            for line in self.host(log.node).lines(log):
                count += 1
                if last is not None and count > last:
                    break  # the log has grown meanwhile, or the host does not count
                yield line
        except NotFetched as error:
            self._printer.missing(f"the rest of {log.text}: {error.message}", log.node)

    def _report(self, node: NodeName, attempts: Sequence[Attempt], why: str) -> None:
        names = list(dict.fromkeys(f"{each.replica} attempt {each.number}" for each in attempts))
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        help = f"on that host: flowdist logs --run {self.run_dir.name}.{node}"
        self._printer.missing(f"{', '.join(names[:5])}{more}: {why}", node, help)


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
