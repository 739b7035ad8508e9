"""What a failure means and costs, in macro mode: the rules, budgets and back-off of one gang (R8 to R11).

The rule that decides is found by control's own function; what is counted against budgets is kept here in numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from flowdist.control.incidents.judge import FREE_KINDS, describe_rule, matching_rule
from flowdist.control.job.state import Failure
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import FailureKind, JobOptions, RestartPolicy, RoleSpec, format_duration


class Verdict(NamedTuple):
    """`fails` says why the job ends; empty: it restarts, `counted` at that level of the policy or not at all."""

    fails: str = ""
    counted: bool = False
    level: int = 0


class Policy:
    """`charged` counts the incidents that a budget paid for, `row` the changes of membership without health between."""

    def __init__(self, role: RoleSpec, options: JobOptions) -> None:
        self._role, self._options = role, options
        self._spent: dict[int, list[int]] = {}
        self._step = 0
        self.last_counted_ns: int | None = None
        self.charged = 0
        self.row = 0

    def judge(self, kind: FailureKind, now: int, exit_code: int = 0, signal: str | None = None) -> Verdict:
        policy = self._role.restart
        is_free = kind in FREE_KINDS
        if policy is None:
            return Verdict() if is_free else Verdict(f"role {self._role.name} has no restart policy")
        rule = matching_rule(policy, Failure(ReplicaId(self._role.name, 0), kind, "", exit_code, signal))
        if rule is not None and rule.do == "fail":
            return Verdict(f"rule {describe_rule(rule)} says fail")
        if (is_free and rule is None) or (rule is not None and not rule.counted):
            return Verdict()
        return self._within_budget(policy, now)

    def _within_budget(self, first: RestartPolicy, now: int) -> Verdict:
        for level, policy in enumerate(first.chain()):
            opened = self._spent.get(level, [])
            since = now - policy.within_ns if policy.within_ns is not None else None
            if len(opened) - (bisect_right(opened, since) if since is not None else 0) < policy.max_restarts:
                return Verdict(counted=True, level=level)
        return Verdict(f"role {self._role.name} has used up its budget of {policy.max_restarts} restarts")

    def charge(self, level: int, now: int) -> int:
        """A counted incident opens. Returns its back-off."""
        assert self._role.restart is not None
        policy = self._role.restart.chain()[level]
        self._spent.setdefault(level, []).append(now)
        self.charged += 1
        wait, self._step = self.backoff_ns(level, now), self._steps_by(policy, now) + 1
        return wait

    def backoff_ns(self, level: int, now: int) -> int:
        """Of a counted incident that opens then (R10)."""
        assert self._role.restart is not None
        policy = self._role.restart.chain()[level]
        step = self._steps_by(policy, now)
        return min(policy.backoff_ns << min(step - 1, 40), policy.backoff_max_ns) if step else 0

    def _steps_by(self, policy: RestartPolicy, now: int) -> int:
        is_over = self.last_counted_ns is not None and now - self.last_counted_ns >= policy.backoff_reset_ns
        return 0 if is_over else self._step

    def excuse(self, opened: int) -> None:
        """The last counted incident, which opened then, had another cause."""
        for times in self._spent.values():
            if opened in times:
                times.remove(opened)
                self.charged -= 1
                self._step = max(0, self._step - 1)

    def note_free(self, healthy: bool, *, chosen: bool) -> str:
        """A change of membership. Returns why it is one too many, if it is."""
        self.row = 1 if healthy else self.row + 1
        if self.row <= self._options.free_incidents_max or chosen:
            return ""
        return (
            f"{self.row} changes of membership of {self._role.name} in a row without progress or "
            f"{format_duration(self._options.min_uptime_ns)} of health between them"
        )

    def grow_after_ns(self, healthy: bool, *, is_first: bool) -> int:
        """Growing is our own choice: it must not be what fails the job (R8). The first need not cool."""
        wait = 0 if is_first else self._role.cooldown_ns
        if self.row >= self._options.free_incidents_max - 1 and not healthy:
            wait = max(wait, self._options.min_uptime_ns)
        return wait
