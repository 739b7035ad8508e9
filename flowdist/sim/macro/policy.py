"""Restart policy of one gang in macro mode: what its failures mean, and how long its restarts wait.

Every rule is control's own, called with the numbers that are kept here: what the budgets have paid for (R7, R9, R11),
the step of the back-off (R10) and the membership changes in a row (R8, R13).
"""

from __future__ import annotations

from flowdist.control.incidents.backoff import Backoff, next_backoff, step_without_last
from flowdist.control.incidents.health import exceeds_row, growth_wait_ns, next_free_row, row_text
from flowdist.control.incidents.judge import Verdict, judge_failure
from flowdist.control.job.state import Failure
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import FailureKind, JobOptions, RoleSpec


class Policy:
    """Past of one gang, as far as the rules ask for it.

    Attributes:
        charged: Incidents that a budget has paid for.
        free_row: Membership changes in a row without progress or health between them.
        last_counted_ns: When the last counted incident closed; None: there was none.
    """

    def __init__(self, role: RoleSpec, options: JobOptions) -> None:
        self._role, self._options = role, options
        self._charges: dict[int, list[int]] = {}
        self._backoff_step = 0
        self.last_counted_ns: int | None = None
        self.charged = 0
        self.free_row = 0

    def judge(self, kind: FailureKind, now: int, exit_code: int = 0, signal: str | None = None) -> Verdict:
        """Return what a failure of a member means, as `judge_failure`."""
        failure = Failure(ReplicaId(self._role.name, 0), kind, "", exit_code, signal)
        return judge_failure(self._role, self._charges, failure, now)

    def charge(self, level: int, now: int) -> int:
        """Charge an incident that opens now to the budget of the level, and return its back-off in ns."""
        self._charges.setdefault(level, []).append(now)
        self.charged += 1
        wait, self._backoff_step = self._next_backoff(level, now)
        return wait

    def backoff_ns(self, level: int, now: int) -> int:
        """Return the back-off of an incident that would be charged to the level now (R10)."""
        return self._next_backoff(level, now).wait_ns

    def _next_backoff(self, level: int, now: int) -> Backoff:
        assert self._role.restart is not None
        policy = self._role.restart.chain()[level]
        return next_backoff(policy, self._backoff_step, self.last_counted_ns, now)

    def excuse(self, opened_ns: int) -> None:
        """Drop the charge of the last counted incident, which opened then: it has another cause (R7)."""
        for charges in self._charges.values():
            if opened_ns in charges:
                charges.remove(opened_ns)
                self.charged -= 1
                self._backoff_step = step_without_last(self._backoff_step)

    def note_change(self, kind: str, reason: str, *, healthy: bool) -> str:
        """Count a membership change. Return why it fails the job; empty: it does not (R8)."""
        self.free_row = next_free_row(self.free_row, healthy)
        if not exceeds_row(self.free_row, kind, self._options):
            return ""
        return row_text(self._role.name, self.free_row, self._options, reason)

    def growth_wait_ns(self, *, healthy: bool, is_first: bool) -> int:
        """Return how long a generation has to have run before it grows, as `growth_wait_ns` of control."""
        cooldown_ns = self._role.cooldown_ns
        return growth_wait_ns(cooldown_ns, self.free_row, self._options, healthy=healthy, is_first=is_first)
