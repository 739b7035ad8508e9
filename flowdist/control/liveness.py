"""Who is heard. Heartbeats in, NodeSilent and NodeHeard out; only these enter the controller and the record.

The controller counts from the arrival of a heartbeat, the agent from its sending (R19), and the two keep a margin on
either side of the lease: an agent has always fenced before its node is called silent.
"""

from __future__ import annotations

from flowdist.control.events import NodeHeard, NodeSilent
from flowdist.control.ids import NodeName


class Liveness:
    """`lease_ns` and `margin_ns` as in JobOptions. Times are the controller's."""

    def __init__(self, lease_ns: int, margin_ns: int) -> None:
        self._silent_after_ns = lease_ns + margin_ns
        self._heard_ns: dict[NodeName, int] = {}
        self._silent: dict[NodeName, None] = {}

    def watch(self, node: NodeName, now: int) -> None:
        """The node joined: it is heard, whatever was before."""
        self._silent.pop(node, None)
        self._heard_ns[node] = now

    def forget(self, node: NodeName) -> None:
        """The node left or is gone: its silence means nothing."""
        self._heard_ns.pop(node, None)
        self._silent.pop(node, None)

    def heard(self, node: NodeName, now: int) -> list[NodeHeard]:
        """A heartbeat arrived. Of a node that is not watched it says nothing: it has to join first."""
        if node in self._silent:
            return [NodeHeard(node)]
        if node in self._heard_ns:
            self._heard_ns[node] = max(now, self._heard_ns[node])
        return []

    def is_watched(self, node: NodeName) -> bool:
        return node in self._heard_ns and node not in self._silent

    def expire(self, now: int) -> list[NodeSilent]:
        """The nodes whose silence has become too long, in the order in which they joined."""
        gone = [node for node, heard in self._heard_ns.items() if heard + self._silent_after_ns <= now]
        for node in gone:
            del self._heard_ns[node]
            self._silent[node] = None
        return [NodeSilent(node) for node in gone]

    def deadline(self) -> int | None:
        """When `expire` is to be called next."""
        if not self._heard_ns:
            return None
        return min(self._heard_ns.values()) + self._silent_after_ns
