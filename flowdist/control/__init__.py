"""Every decision about a job, in one place: events in, effects out. No I/O, no clock, no randomness.

effects = controller.handle(event, now)      # now: integer nanoseconds since the start of the job
controller.deadline()                        # when to call handle(TimePassed(), now), or None
"""

from flowdist.control.protocol.ids import ReplicaId

__all__ = ["ReplicaId"]
