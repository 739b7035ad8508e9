"""What a failure means: restart, fail or ignore, and whether it counts (R5, R8, R9, R11).

Nothing is changed here. A verdict says in words which of the user's rules decided.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from flowdist.control.job.state import Failure, JobState, Role
from flowdist.graph import RestartPolicy, Rule, format_duration
from flowdist.graph.policies import Action, Scope

# Nobody's code is at fault: without a rule these re-form without counting, in roles with no policy too (R8).
FREE_KINDS: frozenset[str] = frozenset({"node_lost", "gpu_lost", "preempted", "store_lost", "unkillable"})


class Verdict(NamedTuple):
    """`exhausted` tells a used-up budget apart: a failure upstream can still take the blame for it (R7)."""

    action: Action
    counted: bool
    scope: Scope
    because: str
    exhausted: bool = False
    level: int = 0  # how often it was escalated (R11)


EXCUSED = Verdict("restart", False, "replica", "it follows from the loss of a node")


def judge(
    job: JobState, failure: Failure, *, caused: bool = False, was_told: bool = False, at_ns: int | None = None
) -> Verdict:
    """`caused`: something upstream, or in the same incident, is the root cause, so this one charges nobody.

    `was_told`: to stop, before it was known to have failed. Only a rule of its own can make more of it than that.
    `at_ns` is when it happened; None: now.
    """
    role = job.role_of(failure.replica)
    policy = role.spec.restart
    rule = matching_rule(policy, failure)
    scope: Scope = policy.scope if policy else "role"
    if rule is not None and rule.do != "restart":
        return Verdict(rule.do, False, scope, f"rule {describe_rule(rule)} says {rule.do}")
    if policy is None:
        if failure.kind in FREE_KINDS:
            return Verdict("restart", False, "role", "a change of membership")
        if was_told:
            return Verdict("restart", False, "role", "it was being stopped")
        return Verdict("fail", False, scope, f"role {role.spec.name} has no restart policy")
    free = failure.kind in FREE_KINDS and rule is None
    if free or caused or (rule is not None and not rule.counted):
        return Verdict("restart", False, scope, "not counted")
    return _within_budget(role, policy, 0, job.now if at_ns is None else at_ns)


def _within_budget(role: Role, policy: RestartPolicy, level: int, at_ns: int) -> Verdict:
    used = charges_in_window(role, policy, level, at_ns)
    window = f" within {format_duration(policy.within_ns)}" if policy.within_ns is not None else ""
    wider = f" of the {policy.scope}" if level else ""
    if used < policy.max_restarts:
        because = f"restart {used + 1} of {policy.max_restarts}{window}{wider}"
        return Verdict("restart", True, policy.scope, because, level=level)
    if policy.wider is not None:
        return _within_budget(role, policy.wider, level + 1, at_ns)
    many = f"{policy.max_restarts} restart{'s' * (policy.max_restarts != 1)}{window}{wider}"
    because = f"role {role.spec.name} has used up its budget of {many}"
    action: Action = "ignore" if policy.then == "ignore" else "fail"
    return Verdict(action, False, policy.scope, because, exhausted=True, level=level)


def charges_in_window(role: Role, policy: RestartPolicy, level: int, at_ns: int) -> int:
    """Incidents charged to that level of the role's budget that its window sees then, and those still open."""
    since = at_ns - policy.within_ns if policy.within_ns is not None else None
    opened = role.spent.get(level, [])
    return len(opened) - (bisect_right(opened, since) if since is not None else 0)


def may_be_excused(job: JobState, verdict: Verdict, failure: Failure) -> bool:
    """A budget is not used up by what something upstream has caused: its failure may be reported a moment later."""
    upstream = [job.roles[name] for name in job.role_of(failure.replica).upstream]
    return verdict.exhausted and any(
        role.count(phase) for role in upstream for phase in ("starting", "running", "ready", "stopping")
    )


def matching_rule(policy: RestartPolicy | None, failure: Failure) -> Rule | None:
    """The first rule that matches decides (R9)."""
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
    """The rule as the user wrote it, roughly."""
    parts = [f'"{rule.kind}"'] if rule.kind else []
    parts += [f"exit={rule.exit}"] if rule.exit is not None else []
    parts += [f'signal="{rule.signal}"'] if rule.signal else []
    return f"On({', '.join(parts)})"
