"""What an agent knows of one attempt of one replica on its node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import StartReplica
from flowdist.graph import FailureKind, RoleSpec

# Linux numbers, for exit codes of 128 + n (R16); `signal` is not imported: control runs anywhere.
SIGNALS = {1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL", 11: "SEGV", 13: "PIPE"}
SIGNALS |= {14: "ALRM", 15: "TERM", 10: "USR1", 12: "USR2", 24: "XCPU", 31: "SYS"}

Phase = Literal["starting", "running", "ready", "suspended", "stopped", "exited"]
Missed = Literal["progress", "output", "start"]


@dataclass(slots=True)
class Attempt:
    """One attempt of one replica on this node. `alive` are the local ranks that have not ended."""

    order: StartReplica
    role: RoleSpec
    alive: dict[int, None]
    elastic_ranks: dict[int, None] = field(default_factory=dict)  # are in elastic code
    phase: Phase = "starting"
    ports: tuple[tuple[str, int], ...] = ()
    stop_grace_ns: int | None = None  # of the stop that it was told; None: nobody asked
    first_signal: Literal["TERM", "ABRT"] = "TERM"  # of that stop
    term_due: bool = False  # it has to wait until the workers run
    kill_at_ns: int | None = None
    unkillable_at_ns: int | None = None
    is_unkillable: bool = False
    failure: io.WorkerExited | None = None  # of the first worker that failed, as far as is known
    ready_ranks: dict[int, None] = field(default_factory=dict)
    is_elastic_told: bool = False  # the controller knows that all are
    is_leaving: bool = False  # they were told to leave their generation
    suspended_ranks: dict[int, None] = field(default_factory=dict)  # have done so
    is_dismissed: bool = False  # they are to end all the same: until then nothing starts on the node
    is_probed: bool = False
    steps: dict[int, int] = field(default_factory=dict)
    signs: dict[int, int] = field(default_factory=dict)  # when each rank last got further
    step_told: int = -1
    told_ns: int | None = None  # when it was told
    tell_at_ns: int | None = None  # when a newer one is to be told
    started_ns: int = 0  # when it was ordered, then when its workers ran
    look_at_ns: int | None = None  # when it is to be seen whether it hangs
    stalled: ev.ReplicaStalled | None = None
    is_noticed: bool = False  # it was asked how far it is: whatever ends from now on has stopped (R16)
    offers: dict[str, ev.CheckpointOffered] = field(default_factory=dict)  # that nobody has answered
    left_ranks: dict[int, None] = field(default_factory=dict)  # have left the agreed step
    exited: ev.ReplicaExited | None = None

    @property
    def is_over(self) -> bool:
        return self.phase in ("stopped", "exited")

    @property
    def holds_up(self) -> bool:
        """Its workers were suspended, and are about to end: what they hold may be wanted by whatever starts next."""
        return self.is_dismissed and not self.is_over and not self.is_unkillable

    @property
    def may_leave(self) -> bool:
        """All its workers are in elastic code, and nobody has told them to end."""
        return (
            self.phase in ("running", "ready")
            and all(rank in self.elastic_ranks for rank in self.alive)
            and (self.stop_grace_ns is None or self.is_leaving)
        )

    @property
    def is_suspended(self) -> bool:
        """Whoever of it runs has left its generation, as it was told."""
        return self.is_leaving and all(rank in self.suspended_ranks for rank in self.alive)

    @property
    def is_undisturbed(self) -> bool:
        """The attempt runs, and waits for nothing: no stop, no answer, no report that is due, no stall."""
        busy = self.stalled is not None or self.is_noticed or self.stop_grace_ns is not None
        return self.phase in ("running", "ready") and not busy and self.tell_at_ns is None and not self.offers

    @property
    def step(self) -> int:
        """A replica is as far as its least advanced worker; -1 until all have reported."""
        return min(self.steps.values()) if len(self.steps) == self.role.procs else -1

    def note_step(self, local_rank: int, step: int, now: int) -> None:
        """A worker reported progress. Saying the same step again is none."""
        if step > self.steps.get(local_rank, -1):
            self.steps[local_rank] = step
            self.signs[local_rank] = now

    def item(self) -> ev.InventoryItem:
        return ev.InventoryItem(self.order.replica, self.order.attempt, self.phase, self.ports, self.exited)

    def told_to_stop(self, grace_ns: int, now: int, *, dump: bool, stays: bool) -> bool:
        """Write down what it was told. Returns whether that is news: told again, only an earlier date counts.

        `stays`: its workers are to leave their generation instead of ending.
        """
        first = self.stop_grace_ns is None or (self.is_leaving and not stays)
        self.is_leaving, self.is_dismissed = stays, self.phase == "suspended"
        self.look_at_ns = None
        self.first_signal = "ABRT" if dump else "TERM"
        if first or grace_ns < (self.stop_grace_ns or 0):
            self.stop_grace_ns = grace_ns
            if self.unkillable_at_ns is None:
                self.kill_at_ns = min(now + grace_ns, self.kill_at_ns or now + grace_ns)
        return first

    def never_ran(self, detail: str) -> None:
        """No worker of it could be started. That is a failure unless it was told to stop before (R16)."""
        self.alive.clear()
        if self.stop_grace_ns is None:
            key = (self.order.replica, self.order.attempt)
            self.failure = io.WorkerExited(*key, 0, 1, kind="start_failed", detail=detail)

    def note_failure(self, event: io.WorkerExited) -> None:
        """Another worker has failed, perhaps earlier than the one that ended first.

        The connections of a worker that raises close before it has ended, and its peers may be quicker to fail of that.
        Then it may have been stopped for their sake: how it ended says nothing any more, and what it wrote down does.
        """
        first = self.failure
        if first is None or first.raised_ns is None or event.raised_ns is None or first.raised_ns <= event.raised_ns:
            return
        if event.signal is not None:
            event = msgspec.structs.replace(event, exit_code=first.exit_code, signal=first.signal)
        self.failure = event

    def has_left(self) -> bool:
        return all(rank in self.left_ranks for rank in self.alive)

    def next_look(self) -> int | None:
        """When it is to be seen whether it hangs, if nothing comes before (R15).

        Once progress is reported only that counts, by the rank that has been quiet for longest; else output does.
        """
        if self.role.hang_after_ns is None and self.role.start_timeout_ns is None:
            return None
        if self.phase not in ("running", "ready") or self.stop_grace_ns is not None:
            return None
        times = []
        if self.role.start_timeout_ns is not None and not self.signs:
            times.append(self.started_ns + self.role.start_timeout_ns)
        if self.role.hang_after_ns is not None:
            last = min(self.signs.values()) if self.signs else self.started_ns
            times.append(last + self.role.hang_after_ns)
        return min(times, default=None)

    def missed(self, now: int, output_ns: int | None) -> Missed | None:
        """What has been missed for too long by now; `output_ns` is when there was output last, None: never."""
        role = self.role
        if not self.signs and role.start_timeout_ns is not None and self.started_ns + role.start_timeout_ns <= now:
            return "start"
        if role.hang_after_ns is None:
            return None
        if self.signs:
            return "progress" if min(self.signs.values()) + role.hang_after_ns <= now else None
        last = self.started_ns if output_ns is None else max(output_ns, self.started_ns)
        return "output" if last + role.hang_after_ns <= now else None


def first_date(attempts: Iterable[Attempt]) -> int | None:
    """When the first thing is due that one of them has to do; None when nothing is."""
    first = None
    for attempt in attempts:
        kill_at, unkillable_at = attempt.kill_at_ns, attempt.unkillable_at_ns
        tell_at, look_at = attempt.tell_at_ns, attempt.look_at_ns
        if kill_at is None and unkillable_at is None and tell_at is None and look_at is None:
            continue
        for date in (kill_at, unkillable_at, tell_at, look_at):
            if date is not None and (first is None or date < first):
                first = date
    return first


def exit_event(order: StartReplica, failure: io.WorkerExited | None, suspended: bool = False) -> ev.ReplicaExited:
    """How the attempt ended, by its first failing worker. `suspended`: others of it wait in place."""
    if failure is None:
        return ev.ReplicaExited(order.replica, order.attempt)
    signal = failure.signal
    if signal is None and failure.exit_code > 128:
        signal = SIGNALS.get(failure.exit_code - 128)  # a shell says it this way (R16)
    kind: FailureKind = failure.kind or ("signal" if signal else "exit")
    code = failure.exit_code
    rank, detail = failure.local_rank, failure.detail
    return ev.ReplicaExited(order.replica, order.attempt, kind, code, signal, rank, detail, suspended)
