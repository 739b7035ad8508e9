"""Restart policy of the gang in macro mode: what its failures mean, and how long its restarts wait.

Every rule is a function of `flowdist.control`, called with the numbers that are kept here: the charges of the budgets
(R7, R9, R11) and the step of the back-off (R10).
"""

from __future__ import annotations

from flowdist.control.job.state import Failure
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.rules.backoff import next_backoff, step_without_last
from flowdist.control.rules.verdict import Verdict, judge_failure
from flowdist.graph import FailureKind, RoleSpec


class Policy:
    """Restart policy of the gang, with the part of its history that the rules depend on. All times are ns.

    Attributes:
        last_counted_ns: When the last charged incident closed, set by the caller; None: there was none.
    """

    def __init__(self, role: RoleSpec) -> None:
        self._role = role
        self._charges: dict[int, list[int]] = {}
        self._backoff_step = 0
        self.last_counted_ns: int | None = None

    @property
    def charged(self) -> int:
        """Return how many incidents are charged to a budget."""
        return sum(map(len, self._charges.values()))

    def judge(self, kind: FailureKind, now: int, exit_code: int = 0, signal: str | None = None) -> Verdict:
        """Return what a failure of a member at `now` means, by `judge_failure` of control. Nothing is charged.

        `exit_code` and `signal` are those of the failure, as far as its kind has them.
        """
        failure = Failure(ReplicaId(self._role.name, 0), kind, "", exit_code, signal)
        return judge_failure(self._role, self._charges, failure, now)

    def charge(self, level: int, now: int) -> int:
        """Charge an incident that opens now to the budget of a level (0: the role's own), and return its back-off."""
        self._charges.setdefault(level, []).append(now)
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
                self._backoff_step = step_without_last(self._backoff_step)
