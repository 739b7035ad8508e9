"""Where the time of one gang goes in macro mode, in the buckets of protocol mode, closing to the nanosecond.

At any time `active` replicas are in one bucket together, and all others of the role wait.
"""

from __future__ import annotations

from flowdist.graph import WorkloadSpec
from flowdist.record.accounts import BUCKETS, Bucket
from flowdist.sim.engine.network import LATENCY_NS
from flowdist.sim.macro.result import NEVER, MacroResult

ANSWER_NS = 2 * LATENCY_NS  # a checkpoint counts when the answer is there


class Books:
    """`lost_ns` and `lost_steps` are of one worker, `durable` is the step that a restart resumes from."""

    def __init__(self, load: WorkloadSpec, replicas: int) -> None:
        self._load, self._all = load, replicas
        self._cycle_ns = load.checkpoint_every_ns + load.checkpoint_ns
        self.spent: dict[Bucket, int] = dict.fromkeys(BUCKETS, 0)
        self.active = 0
        self.bucket: Bucket = "waiting"
        self.since = 0
        self.durable = self._first = 0
        self.begun: int | None = None  # when the present generation began to step
        self._stalls: list[list[int]] = []  # of the present generation: from when to when; NEVER: until it goes on
        self.progressed = False  # a checkpoint of it was heard of
        self.lost_ns = self.lost_steps = 0

    def move(self, bucket: Bucket, active: int, now: int) -> None:
        """So many are in that bucket from now on."""
        dt = now - self.since
        self.spent[self.bucket] += self.active * dt
        self.spent["waiting"] += (self._all - self.active) * dt
        self.bucket, self.active, self.since = bucket, active, now

    def start(self, members: int, backoff_ns: int, now: int) -> None:
        """A generation starts up; a part of the time since its incident was asked for, of whoever starts again."""
        if backoff_ns and self.bucket == "re-formation":
            part = min(backoff_ns, now - self.since) * min(self.active, members)
            self.spent["back-off"] += part
            self.spent["re-formation"] -= part
        self.move("start-up", members, now)
        self.progressed = False

    def give_up(self, now: int) -> None:
        """The job will fail: whoever was to work again will not."""
        if self.begun is None and self.bucket != "waiting":
            self.move("done", self.active, now)

    def finish(self, now: int) -> None:
        """All have done their work, or are not needed for it any more."""
        self.move("done", self._all, now)

    def begin(self, now: int, *, is_stalled: bool = False) -> int:
        """It begins to step: the end of its start-up was the reading of its checkpoint. Returns when all is done."""
        if self.durable:
            part = min(self._load.restore_ns, now - self.since) * self.active
            self.spent["restore"] += part
            self.spent["start-up"] -= part
        self.move("productive", self.active, now)
        self.begun, self._first = now, self.durable
        self._stalls = [[now, NEVER]] if is_stalled else []
        return NEVER if is_stalled else self.end(now)

    def end(self, begun: int) -> int:
        """When all will be done, if nothing goes wrong."""
        work = (self._load.steps - (self.durable if self.begun is None else self._first)) * self._load.step_ns
        return begun + work + max(0, work - 1) // self._load.checkpoint_every_ns * self._load.checkpoint_ns

    @property
    def has_stalled(self) -> bool:
        """In the present generation."""
        return bool(self._stalls)

    def stall(self, now: int) -> None:
        """Who steps waits from now on, in the middle of the work."""
        self._stalls.append([now, NEVER])

    def resume(self, now: int) -> int:
        """They step again. Returns when all is done."""
        assert self.begun is not None
        self._stalls[-1][1] = now
        return self.end(now - self._position(now))

    def _position(self, time: int) -> int:
        """Of work and checkpoints, in ns, since the present generation began to step."""
        assert self.begun is not None
        return time - self.begun - sum(min(end, time) - start for start, end in self._stalls if start < time)

    def halt(self, now: int, *, done: bool = False, answered_until: int | None = None, is_known: bool = False) -> None:
        """A member is gone: what was done since the last checkpoint is lost. Or all is done, and nothing is.

        A checkpoint counts that was answered by `answered_until`, or by now. `is_known`: control had them stopped.
        """
        if self.begun is None:
            return
        load, position = self._load, self._position(now)
        cycles, rest = divmod(position, self._cycle_ns)
        within = rest if rest < load.checkpoint_every_ns else load.checkpoint_every_ns
        worked = cycles * load.checkpoint_every_ns + within
        step = min(load.steps, self._first + worked // load.step_ns)
        answered = now if answered_until is None else answered_until
        saved = max(0, self._position(answered - ANSWER_NS) // self._cycle_ns)
        if done:
            self.durable = load.steps
        elif saved:
            self.durable = self._first + saved * load.checkpoint_every_ns // load.step_ns
            self.progressed = True
        kept = min(worked, (self.durable - self._first) * load.step_ns)
        spent, active = self.spent, self.active
        spent["productive"] += active * kept
        spent["lost work"] += active * (worked - kept)
        spent["checkpoint"] += active * (position - worked)
        spent["stalled"] += active * (now - self.begun - position)
        if active != self._all:
            spent["waiting"] += (self._all - active) * (now - self.since)
        self.lost_steps += step - self.durable
        self.lost_ns += (step - self.durable) * load.step_ns
        self.begun, self.bucket, self.since = None, "re-formation" if is_known else "detection", now

    def has_progressed(self, now: int) -> bool:
        """The controller has heard of a checkpoint of the present generation."""
        if self.progressed or self.begun is None:
            return self.progressed
        return self._position(now - LATENCY_NS) >= self._cycle_ns

    def reported(self, time: int) -> int:
        """How many checkpoints of this generation are complete by then."""
        return max(0, self._position(time) // self._cycle_ns) if self.begun is not None else 0

    def step_at(self, now: int) -> int:
        if self.begun is None:
            return self.durable
        cycles, rest = divmod(self._position(now), self._cycle_ns)
        worked = cycles * self._load.checkpoint_every_ns + min(rest, self._load.checkpoint_every_ns)
        return min(self._load.steps, self._first + worked // self._load.step_ns)

    def close(self, result: MacroResult, halts: int | None, now: int) -> None:
        """Everything is booked up to now. Who is told to stop does so at `halts`."""
        if self.begun is not None and halts is not None:
            self.halt(min(halts, now))
        result.step = max(self.durable, self.step_at(now))
        result.now, result.lost_ns, result.lost_steps = now, self.lost_ns, self.lost_steps
        self.halt(now)  # what is not saved by now is booked as lost, but nobody has lost it yet
        self.move("done", 0, now)
