"""Restart policy of the gang in macro mode: what its failures mean, and how long its restarts wait.

Every rule is a function of `flowdist.control`, called with the numbers that are kept here: the charges of the budgets
(R7, R9, R11), the step of the back-off (R10) and the membership changes in a row (R8, R13).
"""

from __future__ import annotations

from flowdist.control.job.state import Failure
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.rules.backoff import next_backoff, step_without_last
from flowdist.control.rules.changes import exceeds_row, growth_wait_ns, next_free_row, row_text
from flowdist.control.rules.verdict import Verdict, judge_failure
from flowdist.graph import FailureKind, JobOptions, RoleSpec


class Policy:
    """Restart policy of the gang, with the part of its history that the rules depend on. All times are ns.

    Attributes:
        charged: How many incidents are charged to a budget.
        free_row: Membership changes in a row without progress or health between them.
        last_counted_ns: When the last charged incident closed, set by the caller; None: there was none.
    """

    def __init__(self, role: RoleSpec, options: JobOptions) -> None:
        self._role, self._options = role, options
        self._charges: dict[int, list[int]] = {}
        self._backoff_step = 0
        self.last_counted_ns: int | None = None
        self.charged = 0
        self.free_row = 0

    def judge(self, kind: FailureKind, now: int, exit_code: int = 0, signal: str | None = None) -> Verdict:
        """Return what a failure of a member at `now` means, by `judge_failure` of control. Nothing is charged.

        `exit_code` and `signal` are those of the failure, as far as its kind has them.
        """
        failure = Failure(ReplicaId(self._role.name, 0), kind, "", exit_code, signal)
        return judge_failure(self._role, self._charges, failure, now)

    def charge(self, level: int, now: int) -> int:
        """Charge an incident that opens now to the budget of a level (0: the role's own), and return its back-off."""
        self._charges.setdefault(level, []).append(now)
        self.charged += 1
        assert self._role.restart is not None
        policy = self._role.restart.chain()[level]
        wait, self._backoff_step = next_backoff(policy, self._backoff_step, self.last_counted_ns, now)
        return wait

    def excuse(self, opened_ns: int) -> None:
        """Take back the charge of the incident that opened at `opened_ns`, since it has another cause (R7).

        Nothing happens if no charge has that time.
        """
        for charges in self._charges.values():
            if opened_ns in charges:
                charges.remove(opened_ns)
                self.charged -= 1
                self._backoff_step = step_without_last(self._backoff_step)

    def note_change(self, kind: str, reason: str, *, healthy: bool) -> str:
        """Count a membership change, and return why it fails the job; empty if it does not (R8).

        Args:
            kind: The kind of the incident, such as "node_lost". Some kinds, such as "joined", never fail the job.
            reason: One line for people.
            healthy: The gang has progressed, or run for long enough, since the last change: a new row begins.
        """
        self.free_row = next_free_row(self.free_row, healthy)
        if not exceeds_row(self.free_row, kind, self._options):
            return ""
        return row_text(self._role.name, self.free_row, self._options, reason)

    def growth_wait_ns(self, *, healthy: bool, is_first: bool) -> int:
        """Return how long a generation has to have run before it grows, by `growth_wait_ns` of control.

        `healthy` is as in `note_change`. `is_first` says that it is the first generation of the gang.
        """
        cooldown_ns = self._role.cooldown_ns
        return growth_wait_ns(cooldown_ns, self.free_row, self._options, healthy=healthy, is_first=is_first)
