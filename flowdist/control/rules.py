"""Meaning of a failure: restart, fail or ignore, who pays (R5, R8, R9, R11), after which wait (R10), and where (R22).

All follows from the role's policy, the incidents charged so far, the failure and the time. Changes of membership are
free, but too many in a row without progress or health fail the job (R8).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar

from flowdist.control.job.state import Failure
from flowdist.graph import FailureKind, JobOptions, RestartPolicy, RoleSpec, Rule, format_duration
from flowdist.graph.policies import Action, Scope

# Failures of these kinds restart free of charge, in roles without a policy too, unless a rule of the user matches: no
# code of the user is at fault (R8).
FREE_KINDS: frozenset[str] = frozenset({"node_lost", "gpu_lost", "preempted", "store_lost", "unkillable"})

# Kinds of failure that the death of a peer, or of a server, may cause, because connections to it break.
PEER_KINDS: frozenset[FailureKind] = frozenset({"exit", "signal"})

N = TypeVar("N")  # a node, by name or by number
Charges = Mapping[int, Sequence[int]]  # by level of the policy: when the incidents charged there opened, ascending


class Verdict(NamedTuple):
    """Decision about one failure: what follows (`action`), what restarts (`scope`), and why, in words (`because`).

    `counted`: a budget pays. `exhausted`: a budget is used up, but an upstream may yet be the cause (R7). `level` is
    the number of escalations: 0 is the role's own budget, 1 that of `policy.wider` (R11).
    """

    action: Action
    counted: bool
    scope: Scope
    because: str
    exhausted: bool = False
    level: int = 0


EXCUSED = Verdict("restart", False, "replica", "it follows from the loss of a node")
PEER_HANGS = EXCUSED._replace(because="a collective timed out because a peer hangs")


def judge_failure(role: RoleSpec, charges: Charges, failure: Failure, now: int, *, caused: bool = False) -> Verdict:
    """Return the verdict on a failure of the role at `now` (ns). Nothing is changed.

    The first rule that matches decides (R9); else `FREE_KINDS` are free, and budgets pay, less the `charges` so far.
    Without a policy the job fails, unless the failure `was_told`. `caused`: something else is the root; no budget pays.
    """
    policy = role.restart
    rule = matching_rule(policy, failure)
    scope: Scope = policy.scope if policy else "role"
    if rule is not None and rule.do != "restart":
        return Verdict(rule.do, False, scope, f"rule {describe_rule(rule)} says {rule.do}")
    if policy is None:
        if failure.kind in FREE_KINDS:
            return Verdict("restart", False, "role", "a change of membership")
        if failure.was_told:
            return Verdict("restart", False, "role", "it was being stopped")
        return Verdict("fail", False, scope, f"role {role.name} has no restart policy")
    free = failure.kind in FREE_KINDS and rule is None
    if free or caused or (rule is not None and not rule.counted):
        return Verdict("restart", False, scope, "not counted")
    return _within_budget(role, policy, charges, 0, now)


def _within_budget(role: RoleSpec, policy: RestartPolicy, charges: Charges, level: int, now: int) -> Verdict:
    """Return the verdict of the budget of `policy`, the wider one after `level` escalations: it pays, or is used up."""
    used = charges_in_window(charges.get(level, ()), policy.within_ns, now)
    window = f" within {format_duration(policy.within_ns)}" if policy.within_ns is not None else ""
    wider = f" of the {policy.scope}" if level else ""
    if used < policy.max_restarts:
        because = f"restart {used + 1} of {policy.max_restarts}{window}{wider}"
        return Verdict("restart", True, policy.scope, because, level=level)
    if policy.wider is not None:
        return _within_budget(role, policy.wider, charges, level + 1, now)
    many = f"{policy.max_restarts} restart{'s' * (policy.max_restarts != 1)}{window}{wider}"
    because = f"role {role.name} has used up its budget of {many}"
    action: Action = "ignore" if policy.then == "ignore" else "fail"
    return Verdict(action, False, policy.scope, because, exhausted=True, level=level)


def budget_used(role: RoleSpec, charges: Charges, now: int) -> int:
    """Return how many charges the role's own budget, not a wider one, still counts at `now`; 0 without a policy."""
    if role.restart is None:
        return 0
    return charges_in_window(charges.get(0, ()), role.restart.within_ns, now)


def is_last_restart(role: RoleSpec, charges: Charges, now: int) -> bool:
    """Return whether neither the role's budget nor a wider one pays for another restart than those charged so far."""
    level, policy = 0, role.restart
    while policy is not None:
        if charges_in_window(charges.get(level, ()), policy.within_ns, now) < policy.max_restarts:
            return False
        level, policy = level + 1, policy.wider
    return True


def charges_in_window(opened: Sequence[int], window_ns: int | None, now: int) -> int:
    """Return how many of these opening times (ns, ascending) count at `now` in the window; None: for the whole job."""
    since = now - window_ns if window_ns is not None else None
    return len(opened) - (bisect_right(opened, since) if since is not None else 0)


def matching_rule(policy: RestartPolicy | None, failure: Failure) -> Rule | None:
    """Return the first rule of the policy that matches the failure, which decides (R9); None if no rule matches."""
    if policy is None:
        return None
    return next((rule for rule in policy.rules if _matches(rule, failure)), None)


def _matches(rule: Rule, failure: Failure) -> bool:
    if rule.kind is not None and rule.kind != failure.kind:
        return False
    if rule.exit is not None and (failure.kind != "exit" or rule.exit != failure.exit_code):
        return False
    return rule.signal is None or (failure.kind == "signal" and rule.signal == failure.signal)


def describe_rule(rule: Rule) -> str:
    """Return the rule roughly as the user writes it: `On("exit", exit=3)`."""
    parts = [f'"{rule.kind}"'] if rule.kind else []
    parts += [f"exit={rule.exit}"] if rule.exit is not None else []
    parts += [f'signal="{rule.signal}"'] if rule.signal else []
    return f"On({', '.join(parts)})"


DOUBLINGS_MAX = 40  # the cap is reached long before; without this bound the shift would build huge integers


class Backoff(NamedTuple):
    """Result of `next_backoff`: how long one incident waits (ns), and the `step` to pass for the next incident."""

    wait_ns: int
    step: int


def next_backoff(policy: RestartPolicy, step: int, last_counted_ns: int | None, now: int) -> Backoff:
    """Return how long an incident that a budget pays for waits, and the step of the next one. Nothing is changed.

    The first does not wait, each later one twice as long as the one before; the series, of which `step` came before,
    starts anew `backoff_reset_ns` after the last charged incident closed (`last_counted_ns`).
    """
    if last_counted_ns is not None and now - last_counted_ns >= policy.backoff_reset_ns:
        step = 0
    wait = min(policy.backoff_ns << min(step - 1, DOUBLINGS_MAX), policy.backoff_max_ns) if step else 0
    return Backoff(wait, step + 1)


def step_without_last(step: int) -> int:
    """Return the back-off step of a role after the charge of its last incident is taken back (R7); never negative."""
    return max(0, step - 1)


# Kinds of membership changes in which no replica failed. Members stop with their full grace, and the job does not fail
# if a change of one of these kinds is the one too many (R8).
CHOSEN_KINDS: frozenset[str] = frozenset({"joined", "scaled", "address_changed", "interrupted", "drained"})

SNAPSHOT_LOST = "snapshot_lost"  # the kind of another such change: the state that a world reads is lost (R24)


def stops_with_grace(kind: str) -> bool:
    """Return whether an incident of this kind stops members with their full grace: no peer of theirs has failed."""
    return kind in CHOSEN_KINDS or kind == "preempted"


def is_healthy(progressed: bool, formed_ns: int | None, now: int, min_uptime_ns: int) -> bool:
    """Return whether a generation has a new step, or has run in full, since `formed_ns`, for `min_uptime_ns` (R8)."""
    return progressed or (formed_ns is not None and now - formed_ns >= min_uptime_ns)


def next_free_row(free_row: int, healthy: bool) -> int:
    """Return how many membership changes a world has had in a row, after one more; a healthy one began anew (R8)."""
    return 1 if healthy else free_row + 1


def exceeds_row(free_row: int, kind: str, options: JobOptions) -> bool:
    """Return whether this many changes of membership in a row fail the job (R8): never if the last was chosen."""
    return free_row > options.free_incidents_max and kind not in CHOSEN_KINDS


def row_text(name: str, free_row: int, options: JobOptions, last: str) -> str:
    """Return why a job fails whose world changed its members too often in a row (R8); `last` is the last reason."""
    return (
        f"{free_row} changes of membership of {name} in a row without progress or "
        f"{format_duration(options.min_uptime_ns)} of health between them; the last: {last}"
    )


def growth_wait_ns(cooldown_ns: int, free_row: int, options: JobOptions, *, healthy: bool, is_first: bool) -> int:
    """Return how long (ns) a generation has to run before the world may re-form with more members (R8, R13).

    The first one has no cool-down (the longest of the roles), because the world has waited for nodes before.
    """
    wait = 0 if is_first else cooldown_ns
    if free_row >= options.free_incidents_max - 1 and not healthy:
        # Growth is the controller's own choice. It must not use up the row, or the next lost node fails the job.
        wait = max(wait, options.min_uptime_ns)
    return wait


def no_better(node: N, failed_on: Collection[N], *, is_closed: bool) -> list[N]:
    """Return the nodes that are no better for a replica than its own `node`; none if it need not leave that (R22).

    It leaves a node on which it has failed too often (`failed_on`), and one that takes no replicas (`is_closed`). Any
    other node is better than a closed one; otherwise those on which it has failed are no better.
    """
    if node not in failed_on and not is_closed:
        return []
    return [node, *(each for each in failed_on if each != node and not is_closed)]
