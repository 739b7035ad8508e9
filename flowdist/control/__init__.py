"""Every decision about a job, in one place: events in, effects out. No I/O, no clock, no randomness."""

from flowdist.control.protocol.ids import ReplicaId

__all__ = ["ReplicaId"]
