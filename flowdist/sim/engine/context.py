"""The part of a simulation that every other part shares: the job, the clock, the seed and the trace."""

from __future__ import annotations

from dataclasses import dataclass

from flowdist.control.controller import Controller
from flowdist.control.job.state import JobState
from flowdist.graph import RoleGraph
from flowdist.record.journal import UnsavedLine
from flowdist.sim.engine.queue import Queue
from flowdist.sim.engine.trace import Trace


@dataclass(slots=True)
class Context:
    """Shared state of one simulation. Only `SimController` replaces `controller` and sets `is_down`."""

    graph: RoleGraph  # the job, with the nodes of its cluster
    queue: Queue  # virtual time
    trace: Trace  # the record of the job as it grows
    controller: Controller  # the present one; if it is killed another one takes its place later (R21)
    seed: int = 0  # the source of everything that is drawn; 0: every duration is nominal
    schedule: int = 0  # draws the order of events that happen at the same time; 0: as they were planned
    plays_heartbeats: bool = False  # each heartbeat is played instead of computing those that cannot matter
    fast_forward: bool = False  # quiet times are computed; see `workers.fast_forward`
    arrival_ns: int = 0  # time from the start of a node until its agent connects
    is_down: bool = False  # no controller runs: the last one was killed, and the next one has not taken over
    until_ns: int | None = None  # when the simulation stops, in ns, even if the job has not ended; None: never

    @property
    def job(self) -> JobState:
        """The state of the job as the present controller sees it."""
        return self.controller.state

    def note_unsaved(self, world: str, step: int, role: str) -> None:
        """Append a line to the trace: a checkpoint was not completed, because the disk of `role` is full."""
        self.trace.append(UnsavedLine(self.queue.now, world, step, f"the disk of {role} is full"))
