"""The state of one attempt of one replica on the node of an agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import Activity
from flowdist.graph import FailureKind, RoleSpec
from flowdist.graph.policies import SIGNAL_NAMES

Phase = Literal["starting", "running", "ready", "suspended", "stopped", "exited"]
Missed = Literal["progress", "output", "start"]


@dataclass(slots=True)
class Attempt:
    """One attempt of one replica on this node. Times are on the agent's own clock, in ns."""

    order: StartReplica
    role: RoleSpec
    alive: dict[int, None]  # local ranks that have not ended
    elastic_ranks: dict[int, None] = field(default_factory=dict)  # local ranks inside elastic code
    phase: Phase = "starting"
    ports: tuple[tuple[str, int], ...] = ()
    stop_grace_ns: int | None = None  # of the order to stop; None: there was none
    first_signal: Literal["TERM", "ABRT"] = "TERM"  # of that order
    term_due: bool = False  # the first signal has to wait until the workers run
    kill_at_ns: int | None = None  # when SIGKILL is due; None: it is not, or is sent already
    unkillable_at_ns: int | None = None  # when a worker that still lives counts as unkillable
    is_unkillable: bool = False
    failure: io.WorkerExited | None = None  # of the first worker that failed, as far as is known
    ready_ranks: dict[int, None] = field(default_factory=dict)  # local ranks that have called ready()
    is_elastic_reported: bool = False  # the controller knows that all workers are inside elastic code
    is_leaving: bool = False  # the workers were ordered to leave their generation
    suspended_ranks: dict[int, None] = field(default_factory=dict)  # local ranks that have left it
    is_dismissed: bool = False  # suspended workers that are to end: until then nothing starts on the node
    is_probed: bool = False  # the driver's readiness check has passed
    steps: dict[int, int] = field(default_factory=dict)  # the last step of each local rank
    signs: dict[int, int] = field(default_factory=dict)  # when each rank last made progress
    counts: dict[int, int] = field(default_factory=dict)  # optimizer steps of each local rank; empty if `steps` is not
    counted_ns: dict[int, int] = field(default_factory=dict)  # when each rank took the last of these
    step_reported: int = -1  # the last step that was reported to the controller; -1: none
    count_reported: int = 0  # the number of optimizer steps that was reported to the controller
    spent: dict[Activity, int] = field(default_factory=dict)  # ns, of the worker that spent most on it
    spent_reported: dict[Activity, int] = field(default_factory=dict)  # the same, as the controller knows it
    reported_ns: int | None = None  # when `step_reported` or `count_reported` was reported
    report_at_ns: int | None = None  # when a newer step, or time spent, is due to be reported
    published: int = -1  # the highest version that a worker has published (R23); -1: none
    published_reported: int = -1  # the same, as the controller knows it
    acknowledged: dict[int, int] = field(default_factory=dict)  # the version that each local rank has
    acknowledged_reported: int = -1  # the version of the whole replica, as the controller knows it
    versions_reported_ns: int | None = None  # when a version was reported last
    versions_at_ns: int | None = None  # when another version is due to be reported
    samplings: dict[int, ev.ReplicaSampling] = field(default_factory=dict)  # by local rank: its last report (R25)
    started_ns: int = 0  # when the attempt was ordered, then when its workers ran
    look_at_ns: int | None = None  # when the driver has to look for signs of life
    stalled: ev.ReplicaStalled | None = None  # the report of a stall that has not ended; None: there is none
    is_noticed: bool = False  # its world is to stop soon (R14)
    has_obeyed: bool = False  # a worker has ended well after should_stop() had told it to: it was not done (R16)
    offers: dict[str, ev.CheckpointOffered] = field(default_factory=dict)  # by path: not answered by the controller yet
    left_ranks: dict[int, None] = field(default_factory=dict)  # local ranks that have left the agreed step
    exited: ev.ReplicaExited | None = None  # the report that it ended without an order; None: it did not

    @property
    def is_over(self) -> bool:
        """Return whether the attempt has ended: nothing of it runs, and it is not suspended."""
        return self.phase in ("stopped", "exited")

    @property
    def holds_up(self) -> bool:
        """Return whether dismissed workers, which may hold GPU memory that a start needs, hold up all starts here."""
        return self.is_dismissed and not self.is_over and not self.is_unkillable

    @property
    def may_leave(self) -> bool:
        """Return whether the attempt may be stopped in place: all live workers are elastic, and none has to end."""
        return (
            self.phase in ("running", "ready")
            and all(rank in self.elastic_ranks for rank in self.alive)
            and (self.stop_grace_ns is None or self.is_leaving)
        )

    @property
    def is_suspended(self) -> bool:
        """Return whether every live worker has left its generation, as it was ordered to."""
        return self.is_leaving and all(rank in self.suspended_ranks for rank in self.alive)

    @property
    def is_undisturbed(self) -> bool:
        """Return whether the attempt runs or is ready, and nothing about it waits to be answered or reported."""
        busy = self.stalled is not None or self.is_noticed or self.stop_grace_ns is not None
        busy = busy or self.versions_at_ns is not None
        return self.phase in ("running", "ready") and not busy and self.report_at_ns is None and not self.offers

    @property
    def version(self) -> int:
        """Return the lowest version that a worker has acknowledged last; -1 until all workers have acknowledged one."""
        return min(self.acknowledged.values()) if len(self.acknowledged) == self.role.procs else -1

    @property
    def step(self) -> int:
        """Return the step of the least advanced worker; -1 until all workers have reported one."""
        return min(self.steps.values()) if len(self.steps) == self.role.procs else -1

    def concerns(self, event: io.WorkerInput) -> bool:
        """Return whether the event of a worker matters: the attempt is not over, and has a worker of that rank.

        The rank is what a process says of itself. Of a suspended attempt only the exits of workers matter.
        """
        if self.is_over or (self.phase == "suspended" and type(event) is not io.WorkerExited):
            return False
        return 0 <= getattr(event, "local_rank", 0) < self.role.procs

    @property
    def count(self) -> int:
        """Return the number of optimizer steps of the most advanced worker; 0 if none was counted."""
        return max(self.counts.values(), default=0)

    @property
    def has_news(self) -> bool:
        """Return whether the workers are further than the controller knows."""
        return self.step > self.step_reported or self.count > self.count_reported

    def note_step(self, local_rank: int, step: int, now: int) -> None:
        """Record the step of a worker, and `now` as the time of its last progress; ignore a step that is not higher.

        Counted steps are dropped at the first one: they are not the script's own numbers.
        """
        if step <= self.steps.get(local_rank, -1):
            return
        if self.counts:
            self.counts.clear()
            self.counted_ns.clear()
            self.reported_ns = self.report_at_ns = None
        self.steps[local_rank] = step
        self.signs[local_rank] = now

    def note_count(self, local_rank: int, count: int, now: int) -> None:
        """Record how many optimizer steps a worker has taken, and when, unless workers report steps by themselves.

        A lower count is ignored. An equal one is a sign of life: another optimizer than the counting one has stepped.
        """
        if not self.steps and count >= max(1, self.counts.get(local_rank, 1)):
            self.counts[local_rank] = count
            self.counted_ns[local_rank] = now

    def note_spent(self, on: Activity, ns: int, now: int) -> None:
        """Record that a worker has spent `ns` on saving or restoring, at most the time that the attempt has lived.

        The longest time of a worker counts, not their sum: they save at the same time, or wait for the one that does.
        """
        ns = min(ns, now - self.started_ns)
        if ns > self.spent.get(on, 0):
            self.spent[on] = ns

    def item(self) -> ev.InventoryItem:
        """Return what the agent's inventory says about this attempt."""
        return ev.InventoryItem(self.order.replica, self.order.attempt, self.phase, self.ports, self.exited)

    def note_stop(self, grace_ns: int, now: int, *, dump: bool, in_place: bool) -> bool:
        """Record an order to stop, and when SIGKILL is due; return whether it is the first. The caller sends signals.

        An order to end after one to leave in place is a first one, too. Any other can only bring SIGKILL forward.
        """
        first = self.stop_grace_ns is None or (self.is_leaving and not in_place)
        self.is_leaving, self.is_dismissed = in_place, self.phase == "suspended"
        self.look_at_ns = None
        self.first_signal = "ABRT" if dump else "TERM"
        if first or grace_ns < (self.stop_grace_ns or 0):
            self.stop_grace_ns = grace_ns
            if self.unkillable_at_ns is None:
                self.kill_at_ns = min(now + grace_ns, self.kill_at_ns or now + grace_ns)
        return first

    def never_ran(self, detail: str) -> None:
        """Record that no worker could be started, and why: a failure, unless a stop was ordered before (R16)."""
        self.alive.clear()
        if self.stop_grace_ns is None:
            key = (self.order.replica, self.order.attempt)
            self.failure = io.WorkerExited(*key, 0, 1, kind="start_failed", detail=detail)

    def note_failure(self, event: io.WorkerExited) -> None:
        """Record that another worker has failed; it is the attempt's failure if it raised before the first.

        The connections of a worker that raises close before it ends, so that peers may end earlier. Its exit code and
        signal may come from the stop that follows; the error that it wrote down counts.
        """
        first = self.failure
        if first is None or first.raised_ns is None or event.raised_ns is None or first.raised_ns <= event.raised_ns:
            return
        if event.signal is not None:
            event = msgspec.structs.replace(event, exit_code=first.exit_code, signal=first.signal)
        self.failure = event

    def has_left(self) -> bool:
        """Return whether every live worker has left the agreed step."""
        return all(rank in self.left_ranks for rank in self.alive)

    def next_look(self, output_ns: int | None = None, now: int = 0) -> int | None:
        """Return when (ns) to look whether the attempt hangs (R15); None if it is not watched, or does not run.

        The last output was at `output_ns`. `now` is the time of a look that has found nothing missing; 0: none.
        """
        if self.role.hang_after_ns is None and self.role.start_timeout_ns is None:
            return None
        if self.phase not in ("running", "ready") or self.stop_grace_ns is not None:
            return None
        times = []
        if self.role.start_timeout_ns is not None and not self.signs and not self.counted_ns:
            times.append(self.started_ns + self.role.start_timeout_ns)
        if self.role.hang_after_ns is not None:
            hang_at = self.last_sign(output_ns) + self.role.hang_after_ns
            times.append(hang_at if hang_at > now else now + self.role.hang_after_ns)  # the latter: see `missed`
        return min(times, default=None)

    def missed(self, now: int, output_ns: int | None) -> Missed | None:
        """Return which sign of life has been missing for too long (R15); None if none has.

        That is "start" without any progress or counted step within `start_timeout`, "progress" if a worker has made
        none for `hang_after`, or "output", while no worker has ever reported progress, if there was neither output
        (last at `output_ns`) nor a counted step for `hang_after`. As long as nothing at all was seen of it,
        `start_timeout` alone counts, if the role has one.
        """
        role = self.role
        has_begun = self.signs or self.counted_ns
        if not has_begun and role.start_timeout_ns is not None and self.started_ns + role.start_timeout_ns <= now:
            return "start"
        if not has_begun and output_ns is None and role.start_timeout_ns is not None:
            return None
        if role.hang_after_ns is None or self.last_sign(output_ns) + role.hang_after_ns > now:
            return None
        return "progress" if self.signs else "output"

    def last_sign(self, output_ns: int | None) -> int:
        """Return the time (ns) of the last sign of life that counts (R15).

        That is the oldest last report; without any, the last output or, if later, the oldest last counted step: a
        script may evaluate for long and print all the while, or step and print nothing.
        """
        if self.signs:
            return min(self.signs.values())
        return max(self.started_ns, output_ns or 0, min(self.counted_ns.values(), default=0))


def first_date(attempts: Iterable[Attempt]) -> int | None:
    """Return the earliest deadline (ns) of these attempts; None if there is none.

    SIGKILL for workers that do not run yet is no deadline: nothing can be done before they run.
    """
    first = None
    for attempt in attempts:
        kill_at = attempt.kill_at_ns if attempt.phase != "starting" else None
        unkillable_at = attempt.unkillable_at_ns
        report_at, look_at, versions_at = attempt.report_at_ns, attempt.look_at_ns, attempt.versions_at_ns
        if kill_at is None and unkillable_at is None and report_at is None and look_at is None and versions_at is None:
            continue
        for date in (kill_at, unkillable_at, report_at, look_at, versions_at):
            if date is not None and (first is None or date < first):
                first = date
    return first


def exit_event(order: StartReplica, failure: io.WorkerExited | None, suspended: bool = False) -> ev.ReplicaExited:
    """Return the event that reports how an attempt ended: with the first `failure`, or None if all succeeded."""
    if failure is None:
        return ev.ReplicaExited(order.replica, order.attempt)
    signal = failure.signal
    if signal is None and failure.exit_code > 128:
        signal = SIGNAL_NAMES.get(failure.exit_code - 128)  # a shell reports signal n as exit code 128 + n (R16)
    kind: FailureKind = failure.kind or ("signal" if signal else "exit")
    code = failure.exit_code
    rank, detail = failure.local_rank, failure.detail
    return ev.ReplicaExited(order.replica, order.attempt, kind, code, signal, rank, detail, suspended, failure.cause)


def name_culprit(failure: io.WorkerExited | None, steps: Mapping[int, int]) -> io.WorkerExited | None:
    """Return the failure of an attempt, in the name of the worker that hangs, if a worker's collective timed out (R15).

    That is the worker that is furthest behind by `steps` (of each local rank), if it is behind the one that failed. Any
    other failure is returned as it is.
    """
    if failure is None or failure.cause != "collective_timeout" or failure.local_rank not in steps:
        return failure
    behind = min(steps, key=lambda rank: (steps[rank], rank))
    if steps[behind] == steps[failure.local_rank]:
        return failure
    found = f"worker {behind} is furthest behind, after step {steps[behind]}: a collective of worker "
    detail = f"{found}{failure.local_rank} timed out after step {steps[failure.local_rank]}: {failure.detail}"
    return msgspec.structs.replace(failure, local_rank=behind, detail=detail.removesuffix(": "))
