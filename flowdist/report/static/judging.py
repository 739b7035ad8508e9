"""Verdict of a role's restart policy on a failure, from the graph alone: the rule, the action and the budget.

`flowdist.control` judges failures by itself. The two share no code, so that the tests can compare them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from flowdist.graph import RestartPolicy, RoleGraph, RoleSpec, Rule, format_duration
from flowdist.graph.policies import Action, Scope
from flowdist.report.static.failing import Failing
from flowdist.report.static.restarts import restart_set


class Verdict(NamedTuple):
    """Verdict on the failure of one replica: restart, fail or ignore, and whether the restart is charged (`counted`).

    `because` is the reason in words. `rule` is the rule that matches, in DSL spelling, empty if none does. `exhausted`:
    every budget of the policy is used up.
    """

    action: Action
    counted: bool
    because: str
    rule: str = ""
    exhausted: bool = False
    scope: Scope = "role"
    level: int = 0  # of the budget that is charged: 0 is the role's own, 1 and up are the policies of then=


def judge(spec: RoleSpec, failing: Failing, used: int) -> Verdict:
    """Return the verdict of the role's policy on the failure of one of its replicas.

    Args:
        spec: The role.
        failing: What fails, and how.
        used: How many restarts of the role's budgets are used up, over all levels of its policy.
    """
    policy, is_free = spec.restart, bool(failing.nodes)
    if failing.kind == "drained":
        return Verdict("restart", False, "a drained node has not failed: the restart is not charged")
    lost = "a node that is taken away" if failing.kind == "preempted" else "a lost node"
    if policy is None:
        if is_free:
            return Verdict("restart", False, f"{lost} is no failure: the restart is not charged, and needs no policy")
        return Verdict("fail", False, f"{spec.name} has no restart policy: any failure fails the job")
    rule = _first_rule(policy, failing)
    written = _rule_text(rule) if rule is not None else ""
    because = f"{written} is the first rule that matches"
    if rule is not None and rule.do != "restart":
        return Verdict(rule.do, False, because, written)
    if rule is not None and not rule.counted:
        return Verdict("restart", False, f"{because}, and it is not counted", written, scope=policy.scope)
    if rule is None and is_free:
        return Verdict("restart", False, f"{lost} is no failure: the restart is not charged", scope=policy.scope)
    return _charged(policy, written, used)


def _charged(policy: RestartPolicy, written: str, used: int) -> Verdict:
    """Return the verdict on a failure that is charged, by the first policy with budget left.

    If no policy has any left, the last one says whether the failure is ignored or fails the job.

    Args:
        policy: The policy of the role.
        written: The rule that matches, in DSL spelling; empty for none.
        used: How many restarts are used up, over all levels of the policy.
    """
    found = "no rule matches; " if policy.rules else ""
    found = f"{written} is the first rule that matches; " if written else found
    text = f"{found}its policy is {policy_text(policy)}"
    for level, each in enumerate(policy.chain()):
        if used < each.max_restarts:
            return Verdict("restart", True, text, written, scope=each.scope, level=level)
        used -= each.max_restarts
        text += "; that budget is used up"
        text += f", and the next policy is {policy_text(each.wider)}" if each.wider is not None else ""
    action: Action = "ignore" if each.then == "ignore" else "fail"
    return Verdict(action, False, text, written, exhausted=True)


def _first_rule(policy: RestartPolicy, failing: Failing) -> Rule | None:
    """Return the first rule that matches the failure, which decides (R9); None if none does."""
    for rule in policy.rules:
        kind = rule.kind in (None, failing.kind)
        code = rule.exit is None or (failing.kind == "exit" and failing.exit == rule.exit)
        signal = rule.signal is None or (failing.kind == "signal" and failing.signal == rule.signal)
        if kind and code and signal:
            return rule
    return None


def _rule_text(rule: Rule) -> str:
    """Return the rule as the DSL spells it: `On("oom", do="fail")`."""
    parts = [f'"{rule.kind}"'] if rule.kind is not None else []
    parts += [f"exit={rule.exit}"] if rule.exit is not None else []
    parts += [f'signal="{rule.signal}"'] if rule.signal is not None else []
    parts += [f'do="{rule.do}"'] if rule.do != "restart" else []
    parts += ["counted=False"] if not rule.counted else []
    return f"On({', '.join(parts)})"


def policy_text(policy: RestartPolicy) -> str:
    """Return the policy in words: `restart the role, 3 times within 1h, then fail`."""
    times = "once" if policy.max_restarts == 1 else f"{policy.max_restarts} times"
    then = policy_text(policy.wider) if policy.wider is not None else policy.then
    return f"restart the {policy.scope}, {times}{_window(policy)}, then {then}"


def charge_of(graph: RoleGraph, spec: RoleSpec, levels: list[int]) -> dict[str, Any]:
    """Return how many restarts are charged to which budget, and what follows when it is used up.

    Args:
        graph: The topology.
        spec: The role that is charged.
        levels: The level of the budget that pays for each restart; at least one. Only `words` tells of all levels:
            scope, budget and times are those of the last one.

    Returns:
        Plain values; durations are in seconds.
    """
    assert spec.restart is not None, f"{spec.name} pays without a policy"
    policy = spec.restart.chain()[levels[-1]]
    return {
        "role": spec.name,
        "times": len(levels),
        "levels": levels,
        "scope": policy.scope,
        "budget": policy.max_restarts,
        "within_s": None if policy.within_ns is None else policy.within_ns / 1e9,
        **{f"{name}_s": getattr(policy, f"{name}_ns") / 1e9 for name in ("backoff", "backoff_max", "backoff_reset")},
        "then": policy.then,
        "words": _charge_words(graph, spec, policy, levels),
    }


def _charge_words(graph: RoleGraph, spec: RoleSpec, policy: RestartPolicy, levels: list[int]) -> list[str]:
    """Return a charge in sentences for people: budgets, back-off, and what follows when they are used up."""
    assert spec.restart is not None
    words = []
    for level, paid in enumerate(spec.restart.chain()):
        if times := levels.count(level):
            each = ", one for each replica: each fails by itself" if times > 1 else ", once all of it runs again"
            s, of = "s" * (paid.max_restarts != 1), f" of the {paid.scope}" if level else ""
            budget = f"{paid.max_restarts} restart{s}{of}{_window(paid)}"
            words.append(f"{spec.name} is charged {times} of its {budget}{each}")
    base, most = format_duration(policy.backoff_ns), format_duration(policy.backoff_max_ns)
    reset = format_duration(policy.backoff_reset_ns)
    waits = f" before the first restart, then {base}, doubling up to {most}; reset after {reset}"
    words.append("back-off: none" + (waits if policy.backoff_ns else ""))
    end = "the job fails" if policy.then == "fail" else ended_text(graph, spec)
    if policy.wider is not None:
        names = ", ".join(restart_set(graph, spec.name, "failure", policy.wider.scope))
        end = f"{policy_text(policy.wider)}; that restarts {names}"
    words.append(f"when the budget is used up: {end}")
    if others := upstream_of(graph, spec.name):
        window = format_duration(graph.options.cause_window_ns)
        names = " or ".join(others)
        words.append(f"if {names} fails within {window} as well, that is the cause, and is charged instead")
    return words


def ended_text(graph: RoleGraph, spec: RoleSpec) -> str:
    """Return in words what the job loses when a failure of the role is ignored (R9)."""
    if spec.gang:
        world = graph.world_of(spec.name)
        names = " and ".join(world.roles) if world is not None else spec.name
        are = "are" if world is not None else "is"
        return f"{names} {are} ended for good, not succeeded; the job continues without {'them' if world else 'it'}"
    text = "the replica is ended for good, not succeeded"
    if not spec.primary or spec.kind == "service":
        return f"{text}; the job continues without it"
    return f"{text}; the job fails when fewer than {spec.min_replicas} of {spec.name} are left"


def upstream_of(graph: RoleGraph, role: str) -> list[str]:
    """Return every role that this one depends on, over any number of gates, in the order of the graph."""
    found = {gate.role for gate in graph.role(role).gates}
    for spec in reversed(graph.roles):  # gates point to earlier roles
        if spec.name in found:
            found.update(gate.role for gate in spec.gates)
    return [spec.name for spec in graph.roles if spec.name in found]


def _window(policy: RestartPolicy) -> str:
    return f" within {format_duration(policy.within_ns)}" if policy.within_ns is not None else ""
