"""Failure detector: heartbeats in; NodeSuspected, NodeSilent and NodeHeard out.

A node is in one of three states. Only a change of state is an event and enters the record; a heartbeat is none.

    heard  -- no heartbeat for suspect_after (1.75 s) -->  suspected  -- for silent_after (5 s) -->  silent
       <------------- fresh heartbeat: NodeHeard ----------------'

* *Silent* means lost. The detector counts from the arrival of the last heartbeat, the agent from its sending, and each
  keeps a margin of its own, so the agent has fenced by then (R19; the timeline is in `agent.lease`). A silent node that
  is heard again has to join anew.
* A heartbeat is *fresh* if its agent had a recent answer when it sent it. One that is not may have been on its way for
  long: after an outage, heartbeats from before a fence arrive together with the connections that the fence has closed.
  Such a heartbeat keeps the node from being silent, which errs on the safe side, and clears it of no suspicion. It is
  answered, so that the next heartbeat of a node that still runs is fresh. Each answer names its time on the
  controller's clock, and the heartbeat returns it: the node was up then, so it counts as heard a heartbeat later.
* *Suspected* is earlier, and decides nothing by itself. When a node dies, workers on other nodes fail too, and their
  failures are often reported first: their connections close at once, while the silence takes 5 s. While a node is
  suspected, the controller waits before it blames a replica for a failure, because the node may be the cause. So the
  suspicion has to come after a heartbeat that is merely late (0.5 s), and before the agent fences (3 s) and makes
  healthy workers on other nodes fail: halfway.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from flowdist.control.protocol.events import NodeHeard, NodeSilent, NodeSuspected
from flowdist.control.protocol.ids import NodeName


class FailureDetector:
    """Failure detector of all nodes of a job. Times are on the controller's clock, in ns.

    A heartbeat only writes down a time. The heap may hold an earlier deadline of the node, which is corrected when it
    comes to the top: heartbeats are frequent, deadlines that matter are rare. The arguments are those of `JobOptions`.
    """

    def __init__(self, silent_after_ns: int, suspect_after_ns: int, heartbeat_ns: int) -> None:
        self._silent_after_ns = silent_after_ns
        self._suspect_after_ns, self._heartbeat_ns = suspect_after_ns, heartbeat_ns
        self._until_ns: dict[NodeName, int] = {}  # when each node will be silent
        self._suspect_at_ns: dict[NodeName, int] = {}  # when each of them will be suspected, if it is not yet
        self._suspected: dict[NodeName, None] = {}
        self._silent: dict[NodeName, None] = {}
        self._heap: list[tuple[int, NodeName]] = []
        self._scheduled: dict[NodeName, int] = {}  # the deadline of each node in the heap; others of it there are stale

    def watch(self, node: NodeName, now: int, patience_ns: int = 0) -> None:
        """Begin to watch a node, or begin anew, as if it had sent a heartbeat now.

        `patience_ns` is 0 for a node that has joined. A controller that takes over passes the time that it waits for
        the first heartbeat of a node, if that is longer than usual. Such a node is suspected from the beginning,
        without an event.
        """
        self._silent.pop(node, None)
        self._suspected.pop(node, None)
        if patience_ns:
            self._suspected[node] = None
        self._until_ns[node] = now + max(self._silent_after_ns, patience_ns)
        self._suspect_at_ns[node] = now + self._suspect_after_ns
        self._schedule(node)

    def forget(self, node: NodeName) -> None:
        """Stop watching a node that has left or is lost; its next heartbeat is no event. No error if it is unknown."""
        self._until_ns.pop(node, None)
        self._suspect_at_ns.pop(node, None)
        self._suspected.pop(node, None)
        self._silent.pop(node, None)

    def heard(self, node: NodeName, now: int, answered_ns: int) -> list[NodeHeard]:
        """Record a heartbeat that arrives at `now`. Return NodeHeard if the node was suspected or silent, else nothing.

        A silent node stays silent, and a node that was never watched stays so: both have to join first. A suspected one
        stays so if the heartbeat is not fresh: `answered_ns` is the time of the last answer that the node had when it
        sent it.
        """
        if node in self._silent:
            return [NodeHeard(node)]
        until = now + self._silent_after_ns
        if until >= self._until_ns.get(node, until + 1):
            self._until_ns[node] = until
            fresh_ns = answered_ns + self._heartbeat_ns
            suspect_at = (fresh_ns if fresh_ns < now else now) + self._suspect_after_ns
            before = self._suspect_at_ns[node]
            suspect_at = self._suspect_at_ns[node] = suspect_at if suspect_at > before else before
            if node in self._suspected and suspect_at > now:
                del self._suspected[node]
                self._schedule(node)
                return [NodeHeard(node, min(now, answered_ns))]
        return []

    def is_watched(self, node: NodeName) -> bool:
        """Return whether the node is watched: it has joined, and is not silent or forgotten since."""
        return node in self._until_ns

    def is_heard(self, node: NodeName) -> bool:
        """Return whether the node is watched and not suspected, so that its next heartbeat leads to no event."""
        return node in self._until_ns and node not in self._suspected

    def expire(self, now: int) -> list[NodeSuspected | NodeSilent]:
        """Record each node whose deadline has come as suspected or silent; return one event for each, by time."""
        found: list[NodeSuspected | NodeSilent] = []
        while (due := self.deadline()) is not None and due <= now:
            _, node = heapq.heappop(self._heap)
            del self._scheduled[node]
            if node not in self._suspected:
                self._suspected[node] = None
                self._schedule(node)
                found.append(NodeSuspected(node))
                continue
            del self._until_ns[node], self._suspect_at_ns[node], self._suspected[node]
            self._silent[node] = None
            found.append(NodeSilent(node))
        return found

    def _schedule(self, node: NodeName) -> None:
        """Put the deadline of a node in the heap, unless an earlier one is there, which is corrected at the top.

        Else each join would leave one more entry, for as long as the node is heard.
        """
        due = self._due(node)
        if due < self._scheduled.get(node, due + 1):
            self._scheduled[node] = due
            heapq.heappush(self._heap, (due, node))

    def _due(self, node: NodeName) -> int:
        """Return when the watched node will be suspected, or silent if it is suspected already."""
        return (self._until_ns if node in self._suspected else self._suspect_at_ns)[node]

    def deadline(self) -> int | None:
        """Return when to call `expire` next; None if no node is watched."""
        while self._heap:
            recorded, node = self._heap[0]
            is_stale = recorded != self._scheduled.get(node)
            if not is_stale and node in self._until_ns and self._due(node) == recorded:
                return recorded
            heapq.heappop(self._heap)
            if not is_stale:
                del self._scheduled[node]
                if node in self._until_ns:
                    self._schedule(node)
        return None

    def deadline_of(self, nodes: Iterable[NodeName]) -> int | None:
        """Return when to call `expire` for these nodes alone, for a simulator; None if none is watched."""
        times = [self._due(node) for node in nodes if node in self._until_ns]
        return min(times, default=None)
