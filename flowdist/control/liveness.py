"""Who is heard. Heartbeats in, NodeSilent and NodeHeard out; only these enter the controller and the record.

The controller counts from the arrival of a heartbeat, the agent from its sending (R19), and the two keep a margin on
either side of the lease: an agent has always fenced before its node is called silent.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from flowdist.control.events import NodeHeard, NodeSilent
from flowdist.control.ids import NodeName


class Liveness:
    """`lease_ns` and `margin_ns` as in JobOptions. Times are the controller's.

    A heartbeat only writes a time down. The heap may hold an earlier one, which is looked up again when it comes up.
    """

    def __init__(self, lease_ns: int, margin_ns: int) -> None:
        self._silent_after_ns = lease_ns + margin_ns
        self._until_ns: dict[NodeName, int] = {}
        self._silent: dict[NodeName, None] = {}
        self._heap: list[tuple[int, NodeName]] = []

    def watch(self, node: NodeName, now: int, patience_ns: int = 0) -> None:
        """The node joined: it is heard, whatever was before. With a patience it may be silent for so long first."""
        self._silent.pop(node, None)
        self._until_ns[node] = now + max(self._silent_after_ns, patience_ns)
        heapq.heappush(self._heap, (self._until_ns[node], node))

    def forget(self, node: NodeName) -> None:
        """The node left or is gone: its silence means nothing."""
        self._until_ns.pop(node, None)
        self._silent.pop(node, None)

    def heard(self, node: NodeName, now: int) -> list[NodeHeard]:
        """A heartbeat arrived. Of a node that is not watched it says nothing: it has to join first."""
        if node in self._silent:
            return [NodeHeard(node)]
        if node in self._until_ns:
            self._until_ns[node] = max(now + self._silent_after_ns, self._until_ns[node])
        return []

    def is_watched(self, node: NodeName) -> bool:
        return node in self._until_ns

    def expire(self, now: int) -> list[NodeSilent]:
        """The nodes whose silence has become too long, in the order of time."""
        silent = []
        while (due := self.deadline()) is not None and due <= now:
            _, node = heapq.heappop(self._heap)
            del self._until_ns[node]
            self._silent[node] = None
            silent.append(NodeSilent(node))
        return silent

    def deadline(self) -> int | None:
        """When `expire` is to be called next."""
        while self._heap:
            recorded, node = self._heap[0]
            until = self._until_ns.get(node)
            if until == recorded:
                return until
            heapq.heappop(self._heap)
            if until is not None and until > recorded:
                heapq.heappush(self._heap, (until, node))
        return None

    def deadline_of(self, nodes: Iterable[NodeName]) -> int | None:
        """The same for these nodes alone, however long the others have not been heard."""
        times = [self._until_ns[node] for node in nodes if node in self._until_ns]
        return min(times, default=None)
