"""Accounts of the gang's time in macro mode, in the buckets of protocol mode, which add up to the nanosecond.

At any time `active` replicas are in one bucket together, and all others of the role are in the bucket "waiting".

The *position* in the course of a generation is nominal time since the first step, in ns: work, and what checkpoints
block. It is negative while the generation warms up. It advances with time, slower by the pace of the slowest member.
`WorldModel` of the simulator computes the same one by one: tests compare the two.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, NamedTuple

from flowdist.graph import WorkloadSpec
from flowdist.record.accounts import BUCKETS, Bucket, productive_share
from flowdist.sim.engine.network import LATENCY_NS
from flowdist.sim.user_code.workload import EVEN, Steps, advanced, takes_ns

ANSWER_NS = 2 * LATENCY_NS  # from the end of a checkpoint until its worker has the answer that it is accepted


class Halted(NamedTuple):
    """Generation that was halted, to take back checkpoints whose answers were still on their way then."""

    at: int  # when it was halted, in ns
    before: int  # the step of the last checkpoint that counted before it
    active: int  # its members


class Books:
    """Time, steps and checkpoints of the gang, of `replicas` replicas with `procs` workers each. All times are ns."""

    def __init__(self, load: WorkloadSpec, replicas: int, procs: int = 1) -> None:
        self._load, self._all, self._procs = load, replicas, procs
        self._cycle_ns = load.cycle_ns
        self.restore_ns = load.restore_ns_after(0)  # in which this generation reads its checkpoint, if there is one
        self.result = MacroResult(dict.fromkeys(BUCKETS, 0))  # of the run; it gets time, steps and lost work
        self.spent = self.result.spent
        self.active, self.since = 0, 0  # how many replicas have been in the bucket, and since when
        self.bucket: Bucket = "waiting"
        self.durable = 0  # the step of the last checkpoint that counts, from which a restart resumes
        self._steps = Steps(load, 0, load.step_ns)  # of the present generation
        # When the last member of this generation had started up, so that its warm-up or its steps began; None: no
        # generation works.
        self.begun: int | None = None
        self._course = Course(0, 0, EVEN)  # of the present generation, if one works
        self._end_ns = 0  # the position at which that generation has done all steps
        self.progressed = False  # the generation that stepped last has reported a step that is further than ever
        # Members that have done all work while another one's node is silent: how many, and when the controller learns
        # of it; None: there is no such node.
        self.finished: tuple[int, int] | None = None
        # The generation that was halted last, if all checkpoints that it had completed count; None: no restart resumes
        # from them, or only those count whose answer had arrived.
        self.halted: Halted | None = None
        self._step_known = 0  # the highest step that earlier generations have reported

    def move(self, bucket: Bucket, active: int, now: int) -> None:
        """Book the time since the last change, and put `active` replicas into `bucket` from `now` on."""
        dt = now - self.since
        self.spent[self.bucket] += self.active * dt
        self.spent["waiting"] += (self._all - self.active) * dt
        if self.finished is not None:
            members, done_at = self.finished
            done = members * max(0, now - max(done_at, self.since))
            self.spent[self.bucket] -= done
            self.spent["done"] += done
        self.bucket, self.active, self.since = bucket, active, now

    def start(self, members: int, backoff_ns: int, now: int, *, new: int = 0) -> None:
        """Begin the start-up of a generation of so many members, at the order to start.

        `backoff_ns` of the time before was back-off. It is moved to its bucket for the replicas that start again: all
        but `new` ones.
        """
        if backoff_ns and self.bucket == "re-formation":
            part = min(backoff_ns, now - self.since) * min(self.active, members - new)
            self.spent["back-off"] += part
            self.spent["re-formation"] -= part
        self.move("start-up", members, now)
        self.progressed, self.finished = False, None
        self._steps = Steps(self._load, self._steps.first, self._load.step_ns_at(members * self._procs))

    def begin(self, now: int, pace: Fraction = EVEN) -> int:
        """Begin to work at the end of the start-up, and return when all workers have exited if nothing goes wrong.

        The work is the warm-up, all steps that are left, and the exit. The last part of the start-up is booked as the
        restore, if there is a checkpoint. The slowest worker takes `pace` times as long for a step as nominal.
        """
        load = self._load
        if self.durable and self.bucket == "start-up":
            part = min(self.restore_ns, now - self.since) * self.active
            self.spent["restore"] += part
            self.spent["start-up"] -= part
        self.move("productive", self.active, now)
        self.begun, self._steps = now, Steps(load, self.durable, self._steps.ns)
        self._course = Course(now, load.warmup_ns, pace)
        self._end_ns = self._steps.end
        return self._exits()

    def _exits(self) -> int:
        """Return when the workers exit after their last step, in ns, if nothing changes."""
        return self._course.time_of(self._end_ns + self._load.finish_ns)

    def set_pace(self, pace: Fraction, now: int) -> int:
        """Make all steps from `now` on take `pace` times as long; return when all workers exit if all goes well."""
        self._course.set_pace(pace, now)
        return self._exits()

    def _reported_step(self, time: int) -> int:
        """Return the furthest step that the workers of the generation, which works, have reported by `time`."""
        saved = self.reported(time)
        # Workers that save in the background have done more steps by the end of a checkpoint.
        return self._steps.at(saved * self._cycle_ns + self._load.lag_ns) if saved else 0

    def _split(self, position: int) -> tuple[int, int, int, int]:
        """Return how long, nominally, the generation has warmed up, worked, saved and ended its workers by then."""
        load = self._load
        if position < 0:
            return load.warmup_ns + position, 0, 0, 0
        ending = max(0, position - self._end_ns)
        position -= ending
        worked = self._steps.worked(position)
        return load.warmup_ns, worked, position - worked, ending

    def halt(
        self,
        now: int,
        *,
        done: bool = False,
        answered_until: int | None = None,
        others_report: bool = False,
        is_known: bool = False,
        is_over: bool = False,
    ) -> None:
        """End the stepping of the generation, if any steps, and book its work.

        Steps after the last checkpoint that counts are lost, or unsaved at the end of the job (`is_over`); none if all
        work is `done`. `answered_until` is when the node that offers checkpoints died or was cut off: only those count
        whose answer has arrived before. None: it gets the answers. A checkpoint that is complete now is not.
        `others_report`: members on other nodes report their steps all the same. `is_known`: the controller has stopped
        the members, so they are in "re-formation" from now on, else in "detection" until it learns of the failure.
        """
        if self.begun is None:
            return
        load, position, step_ns = self._load, self._course.position(now), self._steps.ns
        step, (warmed, worked, saving, ending) = self._steps.at(position), self._split(position)
        gets_answers = answered_until is None and not is_over
        reports = (now if answered_until is None else answered_until) - 1
        saved = self.reported(reports if gets_answers else reports - ANSWER_NS)
        known = load.steps if done else self._reported_step(now - 1 if others_report else reports)
        if known > self._step_known:
            self._step_known, self.progressed = known, True
        self.halted = Halted(now, self.durable, self.active) if gets_answers and not done else None
        if done:
            self.durable = load.steps
        else:
            self.durable = max(self.durable, self._steps.of_checkpoint(saved))
        kept = min(worked, (self.durable - self._steps.first) * step_ns)
        spent, active, passed = self.spent, self.active, now - self.begun
        spent["productive"] -= active * (passed - kept - ending)  # `move` books all of the time there
        spent["start-up"] += active * warmed
        spent["unsaved at the end" if is_over else "lost work"] += active * (worked - kept)
        spent["checkpoint"] += active * saving
        spent["stalled"] += active * (passed - warmed - worked - saving - ending)
        # with the step that the workers are in
        unkept_ns = worked - (self.durable - self._steps.first) * step_ns
        if is_over:
            self.result.unsaved_steps, self.result.unsaved_ns = step - self.durable, unkept_ns
        else:
            self.result.lost_steps += step - self.durable
            self.result.lost_ns += unkept_ns
        self.begun = None
        self.move("re-formation" if is_known else "detection", active, now)

    def take_back(self, now: int) -> None:
        """Drop checkpoints of the last generation whose answer had not arrived when the node that offered them died."""
        halted = self.halted
        if halted is None or self.begun is not None or now - ANSWER_NS > halted.at:
            return
        position = min(self._course.position(now - ANSWER_NS - 1), self._end_ns - 1)
        durable = max(halted.before, self._steps.of_checkpoint(self._checkpoints(position)))
        steps, self.durable = self.durable - durable, durable
        self.spent["productive"] -= halted.active * steps * self._steps.ns
        self.spent["lost work"] += halted.active * steps * self._steps.ns
        self.result.lost_steps += steps
        self.result.lost_ns += steps * self._steps.ns

    def has_progressed(self, now: int) -> bool:
        """Return whether the controller knows at `now` of new steps of the generation that steps or stepped last."""
        return self.progressed or (self.begun is not None and self._reported_step(now - LATENCY_NS) > self._step_known)

    def reported(self, time: int) -> int:
        """Return how many checkpoints of the generation are complete by a time, and before the work is done."""
        if self.begun is None:
            return 0
        return self._checkpoints(min(self._course.position(time), self._end_ns - 1))

    def _checkpoints(self, position: int) -> int:
        """Return how many checkpoints of the present generation are complete at a position of its course."""
        return max(0, (position - self._load.lag_ns) // self._cycle_ns)

    def step_at(self, now: int) -> int:
        """Return the step that the gang has reached, saved or not; if it does not work, the saved one."""
        if self.begun is None:
            return self.durable
        return self._steps.at(self._course.position(now))

    def close(self, halts: int | None, now: int) -> None:
        """Book everything up to now. `halts`: when members that were ordered to stop do their last step, if they do."""
        if halts is not None and halts <= now:
            self.halt(halts)
        self.result.now, self.result.step = now, max(self.durable, self._step_known, self.step_at(now))
        self.take_back(now)
        self.halt(now, is_over=True)
        self.move("done", 0, now)


class Change(NamedTuple):
    """State of a course from one change to the next."""

    since: int  # time of the change, in ns
    base: int  # the position at that time, in ns
    pace: Fraction  # how many times longer than nominal everything takes

    def position(self, time: int) -> int:
        """Return the position at a time, in ns, if nothing else changes. `time` is not before `since`."""
        passed = time - self.since
        if self.pace is EVEN or self.pace == 1:  # the comparison of fractions is slow
            return self.base + passed
        return advanced(self.base, passed, self.pace, self.pace)

    def time_of(self, position: int) -> int:
        """Return when the position, which is not before `base` nor below 0, is reached, in ns, if nothing changes."""
        if self.pace is EVEN or self.pace == 1:
            return self.since + position - self.base
        return self.since + takes_ns(self.base, position, self.pace, self.pace)


class Course:
    """Course of a generation whose last member had started up at `begun` (ns), at the pace of the slowest member.

    `warmup_ns` is the nominal time from then to the first step.
    """

    def __init__(self, begun: int, warmup_ns: int, pace: Fraction) -> None:
        self._changes = [Change(begun, -warmup_ns, pace)]

    def position(self, time: int) -> int:
        """Return the position at a time, in ns. Before the beginning it is below that of the beginning."""
        for change in reversed(self._changes):
            if change.since <= time:
                return change.position(time)
        first = self._changes[0]
        return first.base + time - first.since

    def time_of(self, position: int) -> int:
        """Return when a position that lies ahead is reached, in ns, if nothing changes."""
        return self._changes[-1].time_of(position)

    def set_pace(self, pace: Fraction, now: int) -> None:
        """Advance with this pace from now on. The position is rounded, even if the pace is the same as before."""
        self._changes.append(Change(now, self.position(now), pace))


Phase = Literal["opening", "running", "stopping", "back-off", "waiting", "over"]
NEVER = 1 << 62  # later than every time


@dataclass(slots=True)
class MacroResult:
    """Result of a run in macro mode, filled in as the run goes on. Times are ns."""

    spent: dict[Bucket, int]  # time by bucket, summed over all replicas of the gang: wall time times replicas
    outcome: str | None = None  # "succeeded" or "failed"; None: the job has not ended
    reason: str = ""  # why the job ended; empty while it has not
    now: int = 0  # when the run ended
    step: int = 0  # the step that the gang has reached, saved or not
    lost_ns: int = 0  # work of one worker of the gang that had to be done again
    lost_steps: int = 0
    unsaved_ns: int = 0  # work of one worker that was not saved when the job, or the run, ended
    unsaved_steps: int = 0
    generations: int = 0  # how many the gang has formed
    faults: int = 0  # how many hit something
    by_rate: Counter[str] = field(default_factory=Counter)  # how many of these each rate has brought, by its name
    causes: Counter[str] = field(default_factory=Counter)  # number of incidents by kind
    charged: int = 0  # how many incidents are charged to a budget
    cordoned: list[str] = field(default_factory=list)  # names of the cordoned nodes

    @property
    def goodput(self) -> float | None:
        """Return the productive share of the gang's time before it was done, from 0 to 1; None if there is none."""
        return productive_share(["gang"], {"gang": self.spent})
