"""Options of the job as a whole."""

from __future__ import annotations

import msgspec

from flowdist.graph.units import MINUTE, MS, SECOND


class JobOptions(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Timeouts and limits that belong to the job rather than to a role."""

    heartbeat_ns: int = 500 * MS
    lease_ns: int = 4 * SECOND
    lease_margin_ns: int = 1 * SECOND  # agents fence this long before a lease ends, nodes are lost after (R19)
    cause_window_ns: int = 2 * SECOND  # R7
    min_uptime_ns: int = 60 * SECOND  # R8
    free_incidents_max: int = 5  # R8
    unkillable_after_ns: int = 30 * SECOND  # R6
    controller_outage_ns: int = 10 * MINUTE  # how long agents keep their workers without a controller (R21)
    bad_node_window_ns: int = 60 * MINUTE  # R22
    move_after: int = 2  # failures of one kind of a replica on one node before it runs elsewhere (R22)
    cordon_after: int = 3  # failures of one kind on one node before the node is cordoned (R22)

    @property
    def silent_after_ns(self) -> int:
        """Silence after which a node is lost, in ns: by then its agent has fenced its workers (R19)."""
        return self.lease_ns + self.lease_margin_ns

    @property
    def suspect_after_ns(self) -> int:
        """Silence after which a node is suspected, in ns: halfway between a late heartbeat and the agent's fencing."""
        return min(self.silent_after_ns, (self.heartbeat_ns + self.lease_ns - self.lease_margin_ns) // 2)
