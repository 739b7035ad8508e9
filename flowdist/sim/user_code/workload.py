"""Worlds of tasks as their workloads describe them: start-up, steps, checkpoints, the end.

Computed, not stepped. All members step together once the last has started up. Between moments that matter nothing is
scheduled: the step at any time follows from the time, the slowest member, and what makes the world wait. In a joint
world, of several roles, the one with most work sets the number of steps and the times of checkpoints. A role with half
as much work waits for the rest of each step, and delays the world only when it becomes more than twice as slow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from msgspec.structs import replace

from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import SECOND, RoleGraph, RoleSpec, WorkloadSpec

EVEN = Fraction(1)  # the factor of a member or a disk that takes as long as its workload says
COPIED_BYTES = 4 << 30  # a second: from the workers of a node to its vault
USUAL_SIZE = 1 << 30  # bytes of a shard of which the size is not known
PACES = 1_000_000  # a drawn slow-down is rounded to one part in so many


class Done(NamedTuple):
    """Steps `first` + 1 to `last`, which a generation did, with the number of members of each role that did them."""

    first: int
    last: int
    by: dict[str, int]
    step_ns: int  # the time of one of them


class Steps(NamedTuple):
    """Steps of a generation, by *position*: nominal time in ns since the first, of work and what checkpoints block.

    The copies of snapshots count as a part of each step, the same of all.
    """

    load: WorkloadSpec
    first: int  # the step from which the generation began
    ns: int  # the time of a step in its size
    copy_ns: int = 0  # the part of it that copies snapshots

    def position_of(self, step: int) -> int:
        """Return the position at which so many steps of the task are done."""
        work = (step - self.first) * self.ns
        return work + max(0, work - 1) // self.load.checkpoint_every_ns * self.load.blocking_ns

    @property
    def end(self) -> int:
        """Return the position at which all steps of the task are done."""
        return self.position_of(self.load.steps)

    def at(self, position: int) -> int:
        """Return how many steps of the task are done at a position; below 0 it is as many as at 0."""
        return min(self.load.steps, self.first + self.worked(position) // self.ns)

    def begun_ns_at(self, position: int) -> int:
        """Return for how long (ns) the workers have been in the step that they do at a position; 0 after the last."""
        return self.worked(position) % self.ns if self.at(position) < self.load.steps else 0

    def worked(self, position: int) -> int:
        """Return the time of work (ns) up to a position, without what checkpoints block; 0 below 0."""
        load = self.load
        every_ns = load.checkpoint_every_ns
        cycles, rest = divmod(max(0, position), every_ns + load.blocking_ns)
        return cycles * every_ns + min(rest, every_ns)

    def of_checkpoint(self, number: int) -> int:
        """Return how many steps checkpoint `number` (from 1) of the generation has."""
        return min(self.load.steps, self.first + number * self.load.checkpoint_every_ns // self.ns)


class Loss(NamedTuple):
    """Work of a generation that has to be done again, in ns, and when it was lost; negative: it is kept after all."""

    at_ns: int
    ns: int
    generation: int


def with_workloads(graph: RoleGraph, fields: Callable[[RoleSpec], Mapping[str, Any]]) -> RoleGraph:
    """Return a copy of the graph in which the workload of each role has these fields."""
    roles = [replace(role, workload=replace(role.workload, **fields(role))) for role in graph.roles]
    return replace(graph, roles=tuple(roles))


def world_model(roles: Sequence[RoleSpec]) -> WorldModel:
    """Return a new model of a world of these roles, in which nothing has started yet."""
    return WorldModel(max(roles, key=_work_ns), {role.name: role for role in roles})


def pace_of(load: WorkloadSpec, drawn: float) -> Fraction:
    """Return how many times longer than nominal a worker takes for a step that has drawn a number from 0 to 1."""
    return 1 + Fraction(round(load.step_spread * drawn * PACES), PACES)


def copy_ns(role: RoleSpec) -> int:
    """Return how long (ns) the workers of a role wait in each step, on average, while their snapshots are copied."""
    if role.snapshots is None:
        return 0
    return role.procs * (role.snapshots.size or USUAL_SIZE) * SECOND // COPIED_BYTES // role.snapshots.every


def advanced(base: int, passed: int, warm: Fraction, step: Fraction) -> int:
    """Return the way of a world `passed` ns after it was `base`, which it covers by these factors slower than time.

    The factor is `warm` below 0, where the world warms up, and `step` above.
    """
    if base < 0:  # rounded such that the warm-up ends at a whole ns
        warms_ns = -(base * warm.numerator // warm.denominator)
        if passed < warms_ns:
            return base + passed * warm.denominator // warm.numerator
        base, passed = 0, passed - warms_ns
    return base + passed * step.denominator // step.numerator


def takes_ns(base: int, way: int, warm: Fraction, step: Fraction) -> int:
    """Return in how many ns a world gets from `base` to `way`: the inverse of `advanced`, rounded up."""
    begun = min(way, 0) if base < 0 else base  # to where the world warms up
    return -((base - begun) * warm.numerator // warm.denominator) - (begun - way) * step.numerator // step.denominator


def _work_ns(role: RoleSpec) -> int:
    return role.workload.steps * role.workload.step_ns


@dataclass(slots=True)
class WorldModel:
    """State of one world of tasks, from which its step at any time is computed.

    All times are virtual, in ns. Parts of `sim.workers` tell it what happens; it schedules and sends nothing. While the
    world steps two clocks run, both 0 when the generation has warmed up, and negative before. The *position* is nominal
    time (work, and what checkpoints block): steps follow from it. The *way* is the position plus the wait for slow
    disks. It was `_base_ns` at `_since_ns`, advances slower than time by the factor of the slowest member (`_factors`),
    and stops while the world waits. Each change (a wait, a slow member) makes the way so far the new base (`_rebase`).
    """

    pace: RoleSpec  # the role whose workload says how the world steps
    roles: dict[str, RoleSpec]  # the roles of the world, by name
    saved: list[int] = field(default_factory=list)  # steps of the complete checkpoints, oldest first
    generation: int = 0
    members: dict[ReplicaId, StartReplica] = field(default_factory=dict)  # of this generation, with their start orders
    up: dict[ReplicaId, None] = field(default_factory=dict)  # members that have started up
    begun_ns: int | None = None  # when the last member of this generation had started up; None: not yet, or halted
    losses: list[Loss] = field(default_factory=list)  # time of `lost_steps`, and of steps that were begun and not done
    offered: int = 0  # complete checkpoints of this generation
    lost_steps: int = 0  # steps that were done and have to be done again, by all generations so far
    unsaved_steps: int = 0  # steps that no checkpoint had at the end of the job, or of the simulation
    unsaved_ns: int = 0  # their nominal time, for one worker, and that of a step that was begun and not done
    ended_ns: int = 0  # when the work of the last generation ended
    ended: int = 0  # that generation
    in_memory: int = 0  # the step that the members of the last generation had reached
    has_memory: bool = False  # a worker of this generation was suspended, and has that step in memory
    from_memory: int | None = None  # the step of the snapshot that this generation goes on from; None: the checkpoint
    cold: dict[ReplicaId, None] = field(default_factory=dict)  # members of this generation in which a process is new
    warmup_ns: int = 0  # nominal time from `begun_ns` to the first step of this generation
    left_ns: int | None = None  # when this generation stopped at an agreed step (a drain); None: it has not
    begins: list[int] = field(default_factory=list)  # when stepping began, generation by generation
    begun: list[int] = field(default_factory=list)  # these generations
    done: list[Done] = field(default_factory=list)  # steps of earlier generations, in order
    counted: int = 0  # the step up to which the accounts have the steps of `done` as kept
    reads: dict[ReplicaId, tuple[int, int]] = field(default_factory=dict)  # when members read the checkpoint: from, to
    skipped: list[tuple[int, int]] = field(default_factory=list)  # times of skipped checkpoints: first and last of each
    version: int = 0  # grows with each change: entries of the queue with an earlier version do nothing
    stalls: dict[str, None] = field(default_factory=dict)  # reasons to wait in any generation
    holds: dict[str, None] = field(default_factory=dict)  # reasons to wait for a member of this generation
    own: dict[ReplicaId, Fraction] = field(default_factory=dict)  # drawn factor on the time of a member's steps; not 1
    slow: dict[ReplicaId, Fraction] = field(default_factory=dict)  # factor on that time by a fault; not 1
    late_ns: int = 0  # how much longer than usual the present checkpoint takes, on a slow disk
    unreported: int = -1  # the step that some members did not report; -1: all have reported
    saves_begun: int = 0  # number of the last checkpoint of this generation whose beginning was played
    steps: Steps = field(init=False)  # of this generation
    _since_ns: int = 0
    _base_ns: int = 0
    _waited_ns: int = 0  # how long this generation has waited for slow disks
    _cycle_ns: int = 0  # `pace.workload.cycle_ns`, copied for speed
    _shares: dict[str, Fraction] = field(default_factory=dict)  # the part of a step in which each role works
    _kept: int = 0  # the step of the last generation up to which its steps do not count as lost
    _slowest: tuple[Fraction, Fraction] | None = None  # what `_factors` returns; None: it has to be computed

    def __post_init__(self) -> None:
        load = self.pace.workload
        self._shares = {self.pace.name: EVEN}
        for name, role in self.roles.items() if len(self.roles) > 1 else ():
            self._shares[name] = Fraction(_work_ns(role), _work_ns(self.pace))
        self._cycle_ns = load.cycle_ns
        copied_ns = copy_ns(self.pace)
        self.steps = Steps(load, 0, load.step_ns + copied_ns, copied_ns)

    @property
    def durable(self) -> int:
        """Return the step of the newest complete checkpoint, from which a restart resumes; 0 if there is none."""
        return self.saved[-1] if self.saved else 0

    @property
    def lost_ns(self) -> int:
        """Return the nominal time, in ns, that one worker lost: of `lost_steps`, and of steps that it had begun."""
        return sum(loss.ns for loss in self.losses)

    @property
    def first_step(self) -> int:
        """Return the step from which this generation began."""
        return self.steps.first

    def save(self, step: int) -> bool:
        """Add a complete checkpoint, if newer than the newest, and return whether steps are not lost after all.

        The answer may arrive when another member has ended the generation, so that the steps were counted as lost.
        """
        if step <= self.durable:
            return False
        found = min(self.in_memory, step) - self._kept if self.begun_ns is None else 0
        if found > 0:
            self._kept += found
            self.lost_steps -= found
            self.losses[-1] = self.losses[-1]._replace(ns=self.losses[-1].ns - found * self.steps.ns)
        self.saved.append(step)
        return found > 0

    def skip(self, last: int) -> None:
        """Add the checkpoints of this generation up to number `last` as complete, because fast-forward skips them."""
        durable = self.durable
        steps = [self.steps.of_checkpoint(number) for number in range(self.offered + 1, last + 1)]
        self.saved += [step for step in steps if step > durable]
        self.offered = last

    def tear(self) -> None:
        """Remove the newest checkpoint, which a fault made unreadable; a restart resumes from the one before."""
        if self.saved:
            self.saved.pop()

    def start(self, start: StartReplica, *, kept: int = 0, procs: int = 1, own: Fraction = EVEN) -> None:
        """Add a member whose processes run; the first one of a generation removes those of the last.

        Of its `procs` workers, `kept` were suspended and keep their state. The slowest takes `own` times as long for a
        step as nominal.
        """
        if start.generation != self.generation:
            self.generation = start.generation
            self.begun_ns, self.unreported, self.offered, self.saves_begun = None, -1, 0, 0
            self.has_memory = False
            self.from_memory = None if start.snapshot is None else start.snapshot.step
            for of_last in (self.members, self.up, self.slow, self.own, self.reads, self.cold, self.holds):
                of_last.clear()
        self.has_memory |= kept > 0
        if kept < procs:
            self.cold[start.replica] = None
        self._slowest = None
        if own != 1:
            self.own[start.replica] = own
        self.members[start.replica] = start

    def is_restoring(self, now: int) -> bool:
        """Return whether a member reads its checkpoint now, before the generation steps."""
        return self.begun_ns is None and any(start <= now < end for start, end in self.reads.values())

    def restore_took_ns(self, member: ReplicaId) -> int:
        """Return how long a member of this generation has read its checkpoint, in ns; 0 without a checkpoint."""
        since, until = self.reads.get(member, (0, self.roles[member.role].workload.restore_ns))
        return until - since if self.durable or self.from_memory is not None else 0

    def is_saving(self, now: int) -> bool:
        """Return whether the world writes a checkpoint now, in the background or not. False before it steps."""
        load = self.pace.workload
        position = self._position(now)
        if self.begun_ns is None or not 0 <= position < self.steps.end:
            return False
        if self.late_ns:
            return True
        cycles, rest = divmod(position, self._cycle_ns)
        return rest >= load.checkpoint_every_ns or (cycles > 0 and rest < load.lag_ns)

    def is_warming(self, now: int) -> bool:
        """Return whether all members have started up, and the generation warms up before its first step."""
        return self.begun_ns is not None and self._position(now) < 0

    def is_up(self, replica: ReplicaId, now: int) -> bool:
        """Note that a member has started up.

        If it is the last one, begin the work of the generation and return True: warm-up, then steps from the newest
        checkpoint, or from the step in memory if a suspended worker, or the snapshot that was chosen, has it.
        """
        if replica not in self.members:
            return False
        self.up[replica] = None
        size = next(iter(self.members.values())).group_world_size
        if len(self.up) < size or self.begun_ns is not None:
            return False
        first = self.durable if self.from_memory is None else self.from_memory
        if self.has_memory:  # lost, but a survivor has them
            first = max(self.durable, self.in_memory)
        self.begun_ns, self._slowest = now, None
        self._keep_up_to(first, now)
        self.steps = self.steps._replace(first=first, ns=self._step_ns() + self.steps.copy_ns)
        names = dict.fromkeys([member.role for member in self.cold])
        self.warmup_ns = max([self.roles[name].workload.warmup_ns for name in names], default=0)
        self._since_ns, self._base_ns = now, -self.warmup_ns
        self._waited_ns = self.late_ns = 0
        self.version += 1
        if not self.warmup_ns:
            self.warmed_up(now)
        return True

    def warmed_up(self, now: int) -> None:
        """Add `now` to `begins`, as the generation has warmed up; a second call for a generation changes nothing."""
        if not self.has_begun:
            self.begins.append(now)
            self.begun.append(self.generation)

    @property
    def has_begun(self) -> bool:
        """Return whether the present generation has warmed up, and the beginning of its steps stands in `begins`."""
        return self.begun_ns is not None and bool(self.begins) and self.begins[-1] >= self.begun_ns

    def leave(self, now: int) -> None:
        """Stop the world at the agreed step of a drain, so that it can save there; `halt` ends that."""
        self._rebase(now)
        self.left_ns = now

    def split(self, now: int) -> tuple[int, int, int]:
        """Return how long (ns) this generation has warmed up and done steps, both nominal, and waited for checkpoints.

        The copies of snapshots count as waiting for checkpoints. What slow members, stalls, a stop at an agreed step
        and `finishing_ns` add is in none of the three.
        """
        ending = self.finishing_ns(now)
        position = self._position(now) - ending
        if position < 0:
            return self.warmup_ns + position, 0, 0
        work = self.steps.worked(position)
        copied = work * self.steps.copy_ns // self.steps.ns
        return self.warmup_ns, work - copied, self._way(now) - ending - work + copied

    def finishing_ns(self, now: int) -> int:
        """Return the nominal time, in ns, for which workers have been ending since the last step."""
        load = self.pace.workload
        return max(0, self._position(now) - self.steps.end) if load.finish_ns else 0

    def halt(self, now: int, *, is_over: bool = False) -> None:
        """End the work of this generation.

        A member is gone, the world has saved to leave a node, or the job ends (`is_over`). Steps since the newest
        checkpoint and the time of the present one are lost; with `is_over` they are unsaved.
        """
        self.up.clear()  # so that a member whose node was paused, and starts up later, does not begin the work
        if self.begun_ns is None:
            return
        self.in_memory = self._kept = self.step_at(now)
        self.ended_ns, self.ended = now, self.generation
        if is_over:
            self.note_unsaved(now)
        else:
            self._lose(self.steps.begun_ns_at(self._position(now)), now)
            self._keep_up_to(self.durable, now)
        self.begun_ns = self.left_ns = None
        self.version += 1

    def _keep_up_to(self, step: int, now: int) -> None:
        """Count steps of the last generation after `step` as lost, those before as kept.

        This happens at its end, and once the next one has begun: a survivor may have more in memory than the
        checkpoint, and user code may read an older one.
        """
        steps, self._kept = self._kept - min(step, self.in_memory), min(step, self.in_memory)
        self.lost_steps += steps
        self._lose(steps * self.steps.ns, now)

    def _lose(self, ns: int, now: int) -> None:
        if ns:
            self.losses.append(Loss(now, ns, self.ended))

    def _step_ns(self) -> int:
        """Return the time of a step, in ns, in the size that this generation has. It has members."""
        load = self.pace.workload
        sizes = (member.role_world_size for replica, member in self.members.items() if replica.role == self.pace.name)
        return load.step_ns_at(next(sizes)) if load.depends_on_size else load.step_ns

    def note_unsaved(self, now: int) -> None:
        """Record how many steps no checkpoint has at the end of the work; nothing if no generation works."""
        if self.begun_ns is not None:
            self.unsaved_steps = max(0, self.step_at(now) - self.durable)
            begun_ns = self.steps.begun_ns_at(self._position(now))
            self.unsaved_ns = self.unsaved_steps * self.steps.ns + begun_ns
            self.ended_ns, self.ended = now, self.generation

    def stall(self, why: str, now: int, *, for_member: bool = False) -> None:
        """Add a reason to wait (`why`) until `resume` removes it; `for_member`: or until this generation ends."""
        self._rebase(now)
        (self.holds if for_member else self.stalls)[why] = None

    def resume(self, why: str, now: int) -> bool:
        """Remove a reason to wait, if the world has it. Return whether it was the last one, so that it steps again."""
        if why not in self.stalls and why not in self.holds:
            return False  # no `_rebase`: it would outdate what is scheduled
        self._rebase(now)
        was = self.stalls.pop(why, why) is None or self.holds.pop(why, why) is None
        return was and not self.is_stalled

    @property
    def is_stalled(self) -> bool:
        """Return whether the world has a reason to wait, or has stopped at an agreed step."""
        return bool(self.stalls or self.holds or self.left_ns is not None)

    def slow_down(self, replica: ReplicaId, factor: Fraction, now: int) -> None:
        """Make the steps of a member, and so of its world, take `factor` times as long from now on; 1 ends that."""
        self._rebase(now)
        self._slowest = None
        self.slow.pop(replica, None)
        if factor != 1:
            self.slow[replica] = factor

    def resume_from(self, step: int, now: int) -> None:
        """Make this generation begin at `step`, from which user code has resumed: it is the newest checkpoint now."""
        self._keep_up_to(step, now)
        self.steps = self.steps._replace(first=step)
        self.saved = [saved for saved in self.saved if saved < step] + ([step] if step else [])

    def begin_save(self, slow: Fraction = EVEN) -> None:
        """Note that the next checkpoint begins now, on a disk that is `slow` times slower than the workload says."""
        self.saves_begun = self.offered + 1
        if slow != 1:
            self.late_ns = round(self.pace.workload.checkpoint_ns * (slow - 1))
            self.version += 1

    def note_save(self, now: int) -> None:
        """Note a checkpoint in progress as begun: without a slow disk, beginnings are not played."""
        if self._position(now) > self.offered * self._cycle_ns + self.pace.workload.checkpoint_every_ns:
            self.saves_begun = self.offered + 1

    def end_save(self) -> None:
        """Count the checkpoint in progress as complete, and the time that the workers have waited for its slow disk."""
        self.offered += 1
        if self.late_ns:
            self._waited_ns += self._wait_ns()
            self.late_ns = 0

    def _wait_ns(self) -> int:
        """Return for how many ns workers wait at `_waits_at`: those that save in the background, for what is left."""
        load = self.pace.workload
        spare_ns = load.checkpoint_every_ns - load.lag_ns if load.lag_ns else 0
        return max(0, self.late_ns - spare_ns)

    def _waits_at(self) -> int:
        """Return the position (nominal time, see the class) at which workers wait for the checkpoint in progress."""
        load = self.pace.workload
        return (self.offered + 1) * self._cycle_ns + (load.checkpoint_every_ns if load.lag_ns else 0)

    def _rebase(self, now: int) -> None:
        """Make the way at `now` (see the class) the new base before a change, and outdate what is scheduled."""
        self._base_ns, self._since_ns = self._way(now), now
        self.version += 1

    def _factors(self) -> tuple[Fraction, Fraction]:
        """Return two factors by which the slowest member prolongs, first, the warm-up, and second, steps and saves."""
        if self._slowest is None:
            warm = step = EVEN
            for member in self.own | self.slow:
                pace = self.own.get(member, EVEN) * self.slow.get(member, EVEN)
                step = max(step, pace * self._shares[member.role])
                if member in self.cold and self.warmup_ns:
                    warm = max(warm, pace * Fraction(self.roles[member.role].workload.warmup_ns, self.warmup_ns))
            self._slowest = warm, step
        return self._slowest

    def _way(self, now: int) -> int:
        """Return the way at `now`, in ns, which may not be before the last change, `_since_ns` (see the class)."""
        if self.is_stalled or self.begun_ns is None:
            return self._base_ns
        passed = now - self._since_ns
        if not (self.own or self.slow):
            return self._base_ns + passed
        return advanced(self._base_ns, passed, *self._factors())

    def _position(self, now: int) -> int:
        """Return the position at `now` (ns), which stays at `_waits_at` while the workers wait for a slow disk."""
        position = self._way(now) - self._waited_ns
        if self.late_ns and position > (waits_at := self._waits_at()):
            return max(waits_at, position - self._wait_ns())
        return position

    def _time_of(self, position: int) -> int | None:
        """Return when, in ns, the world reaches a position (nominal time) if nothing changes; None while it waits."""
        return self._time_at(self._way_to(position) if self.late_ns or self._waited_ns else position)

    def _way_to(self, position: int) -> int:
        """Return the way (see the class) that belongs to a position, given what slow disks have cost and will cost."""
        waits = self.late_ns and position > self._waits_at()
        return position + self._waited_ns + (self._wait_ns() if waits else 0)

    def _time_at(self, way: int) -> int | None:
        """Return when, in ns, the world reaches a way (see the class) if nothing changes; None while it waits."""
        if self.is_stalled:
            return None
        if not (self.own or self.slow):
            return self._since_ns + way - self._base_ns
        return self._since_ns + takes_ns(self._base_ns, way, *self._factors())

    def step_at(self, now: int) -> int:
        """Return how many steps of the task are done at `now`; before the work begins, those that a checkpoint has."""
        if self.begun_ns is None:
            return self.durable
        return self.steps.at(self._position(now))

    def time_of_step(self, step: int) -> int | None:
        """Return when, in ns, so many steps are (or, roughly, were) done; None while the world waits."""
        return self._time_of(self.steps.position_of(step))

    def next_save(self) -> int | None:
        """Return when, in ns, the next checkpoint begins if nothing changes, and the world writes none and goes on."""
        load = self.pace.workload
        position = self.offered * self._cycle_ns + load.checkpoint_every_ns
        if self.saves_begun > self.offered or position >= self.steps.end:
            return None
        return self._time_of(position)

    def save_takes(self, slow: Fraction = EVEN) -> int:
        """Return how long, in ns, a checkpoint takes that begins now on a disk `slow` times slower than usual."""
        factor = self._factors()[1] * slow
        return self.pace.workload.checkpoint_ns * factor.numerator // factor.denominator

    def next_moment(self) -> tuple[int | None, bool]:
        """Return when (ns) the next checkpoint is complete (True), or the workers exit; None while the world waits."""
        load = self.pace.workload
        whole = (self.offered + 1) * self._cycle_ns + load.lag_ns + self.late_ns + self._waited_ns
        end = self._way_to(self.steps.end)
        is_checkpoint = whole < end
        return self._time_at(whole if is_checkpoint else end + load.finish_ns), is_checkpoint

    def checkpoints_by(self, time: int) -> int:
        """Return how many checkpoints of this generation are complete by a time (ns), and before the work is done."""
        load = self.pace.workload
        return (min(self._position(time), self.steps.end - 1) - load.lag_ns) // self._cycle_ns

    def time_of_checkpoint(self, number: int) -> int | None:
        """Return when, in ns, checkpoint `number` (from 1) of this generation is complete; None while it waits."""
        load = self.pace.workload
        return self._time_of(number * self._cycle_ns + load.lag_ns)
