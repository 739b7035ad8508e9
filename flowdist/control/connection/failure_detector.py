"""Failure detector: heartbeats in, NodeSuspected, NodeSilent and NodeHeard out. Only these enter the record.

The controller counts from the arrival of a heartbeat, the agent from its sending (R19), and the two keep a margin on
either side of the lease: an agent has always fenced before its node is called silent. It is called quiet halfway from
when a heartbeat was due to when the agent fences: before those fail who were connected with what it ran.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from flowdist.control.protocol.events import NodeHeard, NodeSilent, NodeSuspected
from flowdist.control.protocol.ids import NodeName


class FailureDetector:
    """`silent_after_ns` and `suspect_after_ns` as in JobOptions. Times are the controller's.

    A heartbeat only writes a time down. The heap may hold an earlier one, which is looked up again when it comes up.
    """

    def __init__(self, silent_after_ns: int, suspect_after_ns: int) -> None:
        self._silent_after_ns = silent_after_ns
        self._quiet_before_ns = silent_after_ns - suspect_after_ns
        self._until_ns: dict[NodeName, int] = {}  # when it will have been silent for too long
        self._quiet: dict[NodeName, None] = {}  # of these: are overdue
        self._silent: dict[NodeName, None] = {}
        self._heap: list[tuple[int, NodeName]] = []

    def watch(self, node: NodeName, now: int, patience_ns: int = 0) -> None:
        """The node joined: it is heard, whatever was before. With a patience it may be silent for so long first.

        Then it is overdue from the beginning, which whoever is that patient knows.
        """
        self._silent.pop(node, None)
        self._quiet.pop(node, None)
        if patience_ns:
            self._quiet[node] = None
        self._until_ns[node] = now + max(self._silent_after_ns, patience_ns)
        self._look_again(node)

    def forget(self, node: NodeName) -> None:
        """The node left or is gone: its silence means nothing."""
        self._until_ns.pop(node, None)
        self._quiet.pop(node, None)
        self._silent.pop(node, None)

    def heard(self, node: NodeName, now: int) -> list[NodeHeard]:
        """A heartbeat arrived. Of a node that is not watched it says nothing: it has to join first."""
        if node in self._silent:
            return [NodeHeard(node)]
        until = now + self._silent_after_ns
        if until > self._until_ns.get(node, until):
            self._until_ns[node] = until
            if node in self._quiet:
                del self._quiet[node]
                self._look_again(node)
                return [NodeHeard(node)]
        return []

    def is_watched(self, node: NodeName) -> bool:
        return node in self._until_ns

    def is_heard(self, node: NodeName) -> bool:
        """It is watched and not overdue: the next heartbeat is no news."""
        return node in self._until_ns and node not in self._quiet

    def expire(self, now: int) -> list[NodeSuspected | NodeSilent]:
        """The nodes that are overdue by now, and those whose silence has become too long, in the order of time."""
        found: list[NodeSuspected | NodeSilent] = []
        while (due := self.deadline()) is not None and due <= now:
            _, node = heapq.heappop(self._heap)
            if node not in self._quiet:
                self._quiet[node] = None
                self._look_again(node)
                found.append(NodeSuspected(node))
                continue
            del self._until_ns[node], self._quiet[node]
            self._silent[node] = None
            found.append(NodeSilent(node))
        return found

    def _look_again(self, node: NodeName) -> None:
        heapq.heappush(self._heap, (self._due(node), node))

    def _due(self, node: NodeName) -> int:
        """When it will be overdue, or silent if it is that already."""
        return self._until_ns[node] - (0 if node in self._quiet else self._quiet_before_ns)

    def deadline(self) -> int | None:
        """When `expire` is to be called next."""
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
        """The same for these nodes alone, however long the others have not been heard."""
        times = [self._due(node) for node in nodes if node in self._until_ns]
        return min(times, default=None)
