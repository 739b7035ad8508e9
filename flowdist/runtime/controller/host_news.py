"""News of the job that the controller sends to joined hosts, behind everything that is urgent.

A host gets a few bytes for each change at its node, and nothing about others: with the journal for each, N hosts cost N
times N lines. News are gathered for NEWS_S and sent to a few hosts at a time, so that heartbeats are answered in
between. Hosts that show the job's progress get a digest, once in DIGEST_S, the same bytes for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from itertools import islice

from flowdist.control.job.state import JobState
from flowdist.control.protocol.effects import Decided, FinishJob, Order, StartReplica, is_order
from flowdist.control.protocol.ids import NodeName
from flowdist.record.journal import Record
from flowdist.record.status import Decision
from flowdist.runtime.last_words import die_of
from flowdist.runtime.processes.unexpected import start_task
from flowdist.runtime.wire.frames import Digest, Farewell, JobOver, NodeNews, Place
from flowdist.runtime.wire.framing import encode

NEWS_S = 0.1
DIGEST_S = 1.0
DIGEST_MAX = 20  # messages of a digest
EXITS_MAX = 20  # failed replicas that the end of the job names
HOSTS_AT_ONCE = 50  # get their news in one pass of the event loop


class HostNews:
    """The joined hosts that get news, by the connection of their foreground process.

    `place` returns the place behind the journal's last line; `write` drops a frame if the connection has ended.
    """

    def __init__(
        self, job: JobState, place: Callable[[], Place], write: Callable[[asyncio.StreamWriter, bytes], None]
    ) -> None:
        self._job, self._place, self._write = job, place, write
        self._hosts: dict[NodeName, asyncio.StreamWriter] = {}
        self._nodes: dict[asyncio.StreamWriter, NodeName] = {}
        self._show_progress: dict[asyncio.StreamWriter, None] = {}
        self._starts: dict[NodeName, list[StartReplica]] = {}  # the news that are not sent yet
        self._said: list[Decision] = []  # the messages that are not sent yet
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def add(self, node: NodeName, writer: asyncio.StreamWriter, *, shows_progress: bool) -> None:
        """Send a host the news of its node from now on: first the present attempts there, and the end of the job."""
        self._nodes.pop(self._hosts.get(node, writer), None)
        self._hosts[node], self._nodes[writer] = writer, node
        if shows_progress:
            self._show_progress[writer] = None
        known = self._job.nodes.get(node)
        orders = [self._job.replicas[replica].order for replica in known.replicas] if known is not None else []
        self._starts[node] = [order for order in orders if order is not None and order.node == node]
        self._begin("news", self._send_news)
        if self._job.outcome is not None:
            self._write(writer, encode(job_over(self._job)))

    def remove(self, writer: asyncio.StreamWriter) -> None:
        """Send nothing more over a connection. No error if it gets no news."""
        self._show_progress.pop(writer, None)
        node = self._nodes.pop(writer, None)
        if node is not None:
            del self._hosts[node]
            self._starts.pop(node, None)

    def note(self, line: Record) -> None:
        """Take the news from a line that is in the journal, and whose effects were carried out."""
        for effect in line.effects:
            if is_order(effect):
                self._note_order(effect)
            elif isinstance(effect, Decided) and self._show_progress:
                self._said.append(Decision.of(line.t_ns, effect))
            elif isinstance(effect, FinishJob):
                self.send_all(job_over(self._job))
        if self._starts:
            self._begin("news", self._send_news)
        if self._said:
            self._begin("digest", self._send_digest)

    def _note_order(self, order: Order) -> None:
        if order.node not in self._hosts:
            return
        starts = self._starts.setdefault(order.node, [])
        if isinstance(order, StartReplica):
            starts.append(order)

    def send_now(self, node: NodeName) -> None:
        """Send a host at once the news that it has not got yet: what follows may be about an attempt there."""
        if node in self._starts:
            self._send_news_of([node])

    def send_all(self, message: JobOver | Farewell) -> None:
        """Send every host at once the news that it has not got yet, and then a message."""
        self._send_news_of(list(self._starts))
        frame = encode(message)
        for writer in list(self._nodes):
            self._write(writer, frame)

    def _begin(self, name: str, job: Callable[[], Coroutine[None, None, None]]) -> None:
        """Start a task, unless one of this name runs."""
        if name not in self._tasks:
            self._tasks[name] = start_task(job(), die_of)

    async def _send_news(self) -> None:
        await asyncio.sleep(NEWS_S)
        while self._starts:
            self._send_news_of(list(islice(self._starts, HOSTS_AT_ONCE)))
            await asyncio.sleep(0)  # heartbeats that have arrived are answered in between
        del self._tasks["news"]

    def _send_news_of(self, nodes: Iterable[NodeName]) -> None:
        place = self._place()
        for node in nodes:
            starts = self._starts.pop(node)
            self._write(self._hosts[node], encode(NodeNews(place, tuple(starts))))

    async def _send_digest(self) -> None:
        await asyncio.sleep(DIGEST_S)
        frame = encode(digest(self._said))
        self._said.clear()
        for writer in list(self._show_progress):
            self._write(writer, frame)
        del self._tasks["digest"]


def digest(said: list[Decision]) -> Digest:
    """Return a digest of some messages: DIGEST_MAX of them in their order; warnings and errors are left out last."""
    by_weight = sorted(range(len(said)), key=lambda index: (said[index].level == "info", index))
    kept = sorted(by_weight[:DIGEST_MAX])
    return Digest(tuple(said[index] for index in kept), len(said) - len(kept))


def job_over(job: JobState) -> JobOver:
    """Return the end of a job that is over, with the reports of the failures that ended it."""
    assert job.outcome is not None
    failed = job.ending_failed[:EXITS_MAX]
    exits = [exited for each in failed if (exited := job.replicas[each].exited) is not None]
    return JobOver(job.now, job.outcome, job.ending_reason, failed, tuple(exits))
