"""How user code is played: start-up, steps, checkpoints, the end. Computed, not stepped.

All members of a world advance in lock step from the moment that the last of them is up. Between two moments that
matter (a checkpoint is complete, a step that somebody waits for, the last step) nothing is planned: the step at any
time follows from the time alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flowdist.control.effects import StartReplica
from flowdist.control.ids import ReplicaId
from flowdist.graph import RoleSpec


@dataclass(slots=True)
class WorldModel:
    """One world of a task. `durable` is the step of the checkpoint that a restart resumes from."""

    pace: RoleSpec  # whose workload says how the world steps
    durable: int = 0
    generation: int = 0
    members: dict[ReplicaId, StartReplica] = field(default_factory=dict)
    up: dict[ReplicaId, None] = field(default_factory=dict)
    begun_ns: int | None = None  # when the present generation began to step
    first_step: int = 0  # from which it began
    offered: int = 0  # checkpoints of this generation that were complete
    lost_ns: int = 0  # work that was done and has to be done again, per worker
    lost_steps: int = 0
    begins: list[int] = field(default_factory=list)  # when stepping began, generation by generation

    def start(self, start: StartReplica) -> None:
        """A member's processes run; those of an earlier generation are forgotten."""
        if start.generation != self.generation:
            self.generation = start.generation
            self.members.clear()
            self.up.clear()
            self.begun_ns, self.offered = None, 0
        self.members[start.replica] = start

    def is_up(self, replica: ReplicaId, now: int) -> bool:
        """A member has started up. Returns whether it was the last: the world begins to step."""
        if replica not in self.members:
            return False
        self.up[replica] = None
        size = next(iter(self.members.values())).group_world_size
        if len(self.up) < size or self.begun_ns is not None:
            return False
        self.begun_ns, self.first_step = now, self.durable
        self.begins.append(now)
        return True

    def halt(self, now: int) -> None:
        """A member is gone: the others wait for it in vain. What was done since the last checkpoint is lost."""
        if self.begun_ns is None:
            return
        done = self.step_at(now)
        self.lost_steps += max(0, done - self.durable)
        self.lost_ns += max(0, done - self.durable) * self.pace.workload.step_ns
        self.begun_ns = None
        self.up.clear()

    def step_at(self, now: int) -> int:
        """The number of steps that are done."""
        if self.begun_ns is None:
            return self.durable
        load = self.pace.workload
        cycle = load.checkpoint_every_ns + load.checkpoint_ns
        cycles, rest = divmod(now - self.begun_ns, cycle)
        worked = cycles * load.checkpoint_every_ns + min(rest, load.checkpoint_every_ns)
        return min(load.steps, self.first_step + worked // load.step_ns)

    def time_of_step(self, step: int) -> int:
        """When that step will be done, if nothing comes in between."""
        assert self.begun_ns is not None
        load = self.pace.workload
        work = (step - self.first_step) * load.step_ns
        checkpoints = max(0, work - 1) // load.checkpoint_every_ns
        return self.begun_ns + work + checkpoints * load.checkpoint_ns

    def next_checkpoint(self) -> int | None:
        """When the next checkpoint will be complete; None when the work is done before."""
        assert self.begun_ns is not None
        load = self.pace.workload
        done = self.begun_ns + (self.offered + 1) * (load.checkpoint_every_ns + load.checkpoint_ns)
        return done if done < self.time_of_step(load.steps) else None
