"""Failure detector: heartbeats in; NodeSuspected, NodeSilent and NodeHeard out.

A node is in one of three states. Only a change of state is an event and enters the record; a heartbeat is none.

    heard  -- no heartbeat for suspect_after (1.75 s) -->  suspected  -- for silent_after (5 s) -->  silent
       <------------------- heartbeat: NodeHeard ----------------'

* *Silent* means lost. The detector counts from the arrival of the last heartbeat, the agent from its sending, and each
  keeps a margin of its own, so the agent has fenced by then (R19; the timeline is in `agent.lease`). A silent node that
  is heard again has to join anew.
* *Suspected* is earlier, and decides nothing by itself. When a node dies its peers fail too, and often first: their
  connections close at once, while the silence takes 5 s. With the suspicion the controller knows that a failure may
  have its cause elsewhere, and waits before it blames a replica. So the suspicion has to come after a heartbeat that is
  merely late (0.5 s), and before the agent fences (3 s) and makes healthy workers on other nodes fail: halfway.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from flowdist.control.protocol.events import NodeHeard, NodeSilent, NodeSuspected
from flowdist.control.protocol.ids import NodeName


class FailureDetector:
    """Failure detector of all nodes of a job. Times are on the controller's clock, in ns.

    A heartbeat only writes down a time. The heap may hold an earlier deadline of the node, which is corrected when it
    comes to the top: heartbeats are frequent, deadlines that matter are rare.

    Args:
        silent_after_ns: As in JobOptions.
        suspect_after_ns: As in JobOptions.
    """

    def __init__(self, silent_after_ns: int, suspect_after_ns: int) -> None:
        self._silent_after_ns = silent_after_ns
        self._suspected_before_ns = silent_after_ns - suspect_after_ns
        self._until_ns: dict[NodeName, int] = {}  # when each node will be silent
        self._suspected: dict[NodeName, None] = {}
        self._silent: dict[NodeName, None] = {}
        self._heap: list[tuple[int, NodeName]] = []

    def watch(self, node: NodeName, now: int, patience_ns: int = 0) -> None:
        """Begin to watch a node that has joined, whatever its state was.

        Args:
            node: The node.
            now: The present time.
            patience_ns: How long the node may be silent at first, if that is longer than usual. Such a node is
                suspected from the beginning, without an event: a controller that takes over knows that it has not heard
                it yet.
        """
        self._silent.pop(node, None)
        self._suspected.pop(node, None)
        if patience_ns:
            self._suspected[node] = None
        self._until_ns[node] = now + max(self._silent_after_ns, patience_ns)
        self._schedule(node)

    def forget(self, node: NodeName) -> None:
        """Stop watching a node that has left or is lost."""
        self._until_ns.pop(node, None)
        self._suspected.pop(node, None)
        self._silent.pop(node, None)

    def heard(self, node: NodeName, now: int) -> list[NodeHeard]:
        """Note a heartbeat, and return NodeHeard if the node was suspected or silent.

        A node that is not watched has to join first.
        """
        if node in self._silent:
            return [NodeHeard(node)]
        until = now + self._silent_after_ns
        if until > self._until_ns.get(node, until):
            self._until_ns[node] = until
            if node in self._suspected:
                del self._suspected[node]
                self._schedule(node)
                return [NodeHeard(node)]
        return []

    def is_watched(self, node: NodeName) -> bool:
        """Return whether the node has joined, so that its silence would be noticed."""
        return node in self._until_ns

    def is_heard(self, node: NodeName) -> bool:
        """Return whether the node is watched and not suspected, so that its next heartbeat is no event."""
        return node in self._until_ns and node not in self._suspected

    def expire(self, now: int) -> list[NodeSuspected | NodeSilent]:
        """Return an event for each node that is suspected or silent by now, in the order of time."""
        found: list[NodeSuspected | NodeSilent] = []
        while (due := self.deadline()) is not None and due <= now:
            _, node = heapq.heappop(self._heap)
            if node not in self._suspected:
                self._suspected[node] = None
                self._schedule(node)
                found.append(NodeSuspected(node))
                continue
            del self._until_ns[node], self._suspected[node]
            self._silent[node] = None
            found.append(NodeSilent(node))
        return found

    def _schedule(self, node: NodeName) -> None:
        heapq.heappush(self._heap, (self._due(node), node))

    def _due(self, node: NodeName) -> int:
        """Return when the node will be suspected, or silent if it is suspected already."""
        return self._until_ns[node] - (0 if node in self._suspected else self._suspected_before_ns)

    def deadline(self) -> int | None:
        """Return when to call `expire` next; None if no node is watched."""
        while self._heap:
            recorded, node = self._heap[0]
            due = self._due(node) if node in self._until_ns else None
            if due == recorded:
                return due
            heapq.heappop(self._heap)
            if due is not None and due > recorded:
                heapq.heappush(self._heap, (due, node))
        return None

    def deadline_of(self, nodes: Iterable[NodeName]) -> int | None:
        """Return the deadline for these nodes alone; for a simulator that knows that all others are heard."""
        times = [self._due(node) for node in nodes if node in self._until_ns]
        return min(times, default=None)
