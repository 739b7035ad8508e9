"""Words for what the controller has decided about a failure: verdicts, charges, and why each role restarts.

What restarts comes from the controller; this module names the edge, domain or scope of the graph that leads to it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from flowdist.control.rules import Verdict
from flowdist.graph import Domain, JointWorld, RestartPolicy, RoleGraph, RoleSpec, Rule, format_duration
from flowdist.graph.policies import Scope
from flowdist.report.static.failing import Failing


def verdict_text(spec: RoleSpec, failing: Failing, verdict: Verdict, rule: Rule | None) -> str:
    """Return why the controller judges a failure as it does: the rule that matches (None: none), or the policy."""
    policy = spec.restart
    if failing.kind == "drained":
        return "a drained node has not failed: the restart is not charged"
    lost = "a node that is taken away" if failing.kind == "preempted" else "a lost node"
    if policy is None:
        if failing.nodes:
            return f"{lost} is no failure: the restart is not charged, and needs no policy"
        return f"{spec.name} has no restart policy: any failure fails the job"
    if rule is not None and not (rule.do == "restart" and rule.counted):
        not_counted = ", and it is not counted" if rule.do == "restart" else ""
        return f"{rule_text(rule)} is the first rule that matches{not_counted}"
    if rule is None and failing.nodes:
        return f"{lost} is no failure: the restart is not charged"
    found = "no rule matches; " if policy.rules else ""
    found = f"{rule_text(rule)} is the first rule that matches; " if rule is not None else found
    text = f"{found}its policy is {policy_text(policy)}"
    for used_up in policy.chain()[: verdict.level + verdict.exhausted]:
        text += "; that budget is used up"
        text += f", and the next policy is {policy_text(used_up.wider)}" if used_up.wider is not None else ""
    return text


def rule_text(rule: Rule) -> str:
    """Return the rule as the DSL spells it: `On("oom", do="fail")`."""
    parts = [f'"{rule.kind}"'] if rule.kind is not None else []
    parts += [f"exit={rule.exit}"] if rule.exit is not None else []
    parts += [f'signal="{rule.signal}"'] if rule.signal is not None else []
    parts += [f'do="{rule.do}"'] if rule.do != "restart" else []
    parts += ["count=False"] if not rule.counted else []
    return f"On({', '.join(parts)})"


def policy_text(policy: RestartPolicy) -> str:
    """Return the policy in words: `restart the role, 3 times within 1h, then fail`."""
    times = "once" if policy.max_restarts == 1 else f"{policy.max_restarts} times"
    then = policy_text(policy.wider) if policy.wider is not None else policy.then
    return f"restart the {policy.scope}, {times}{_window(policy)}, then {then}"


def charge_of(graph: RoleGraph, spec: RoleSpec, levels: list[int], wider: Iterable[str]) -> dict[str, Any]:
    """Return how many restarts are charged to which budget, and what follows when it is used up, as plain values.

    `levels` has the level of the budget that pays for each restart; at least one. Only `words` tells of all levels:
    scope, budget and times (s) are those of the last one. `wider` are the roles that the next policy restarts.
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
        "words": _charge_words(graph, spec, policy, levels, wider),
    }


def _charge_words(
    graph: RoleGraph, spec: RoleSpec, policy: RestartPolicy, levels: list[int], wider: Iterable[str]
) -> list[str]:
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
        end = f"{policy_text(policy.wider)}; that restarts {', '.join(wider)}"
    words.append(f"when the budget is used up: {end}")
    if others := upstream_of(graph, spec.name):
        window = format_duration(graph.options.cause_window_ns)
        names = " or ".join(others)
        words.append(f"if {names} fails within {window} as well, that is the cause, and is charged instead")
    return words


def ended_text(graph: RoleGraph, spec: RoleSpec) -> str:
    """Return in words what the job loses when a failure of the role is ignored (R9)."""
    if spec.gang:
        names = " and ".join(graph.mates_of(spec.name))
        are, it = ("are", "them") if graph.world_of(spec.name) is not None else ("is", "it")
        return f"{names} {are} ended for good, not succeeded; the job continues without {it}"
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


def why_restarting(graph: RoleGraph, scopes: Mapping[str, Scope | None], restarted: Container[str]) -> dict[str, str]:
    """Return for each role that restarts the first edge, domain or scope that leads to it, in words.

    `scopes` has the roles that are hit, each with the scope of the policy that decides; None: their node is lost.
    """
    reasons: dict[str, str] = {}
    for role, scope in scopes.items():
        named = _by_scope(graph, graph.role(role), scope)
        reasons |= {name: why for name, why in named.items() if name in restarted and name not in reasons}
        if role in restarted:
            reasons[role] = named[role]
    todo = list(reasons)
    for name in todo:  # grows while it is walked
        for follower, because in [*followers(graph, name), *_addressed(graph, name)]:
            if follower in restarted and follower not in reasons:
                reasons[follower] = because
                todo.append(follower)
    return reasons


def _addressed(graph: RoleGraph, role: str) -> list[tuple[str, str]]:
    """Return the roles that have the address of this one in their command or environment, each with that in words."""
    text = f"it has the address of {role} in its command or env, which changes"
    return [(spec.name, text) for spec, _ in graph.dependents(role) if role in spec.address_edges]


def led_back(graph: RoleGraph, role: str, restarted: Container[str]) -> str:
    """Return the edge or domain by which a restart leads back to all of the role, in words; empty if none does."""
    edges = (edge for spec in graph.roles if spec.name in restarted for edge in followers(graph, spec.name))
    return next((because for follower, because in edges if follower == role), "")


def _by_scope(graph: RoleGraph, spec: RoleSpec, scope: Scope | None) -> dict[str, str]:
    """Return the roles that restart by the policy's scope alone, before edges are followed, with the reasons."""
    if scope is None:
        return {spec.name: "it ran there" + (", and a gang re-forms as one" if spec.gang else "")}
    of = "the policy" if spec.restart is None or scope == spec.restart.scope else "the wider policy"
    text = f'the scope of {of} of {spec.name} is "{scope}"'
    if scope == "replica" and spec.gang:
        return {spec.name: "a gang restarts as one"}
    names = [spec.name]
    if scope == "domain" and (domain := graph.domain_of(spec.name)) is not None:
        names += domain.roles
        text += f", which is {domain.name}"
    if scope == "job":
        names += [other.name for other in graph.roles]
    return dict.fromkeys(names, text)


def followers(graph: RoleGraph, role: str) -> list[tuple[str, str]]:
    """Return the roles to which a restart of `role` passes by one edge, each with the edge in words; some twice."""
    found = []
    groups: tuple[JointWorld | Domain, ...] = (*graph.worlds, *graph.domains)
    for group in groups:
        is_world = isinstance(group, JointWorld)
        kind, then = ("world", ", which re-forms as one") if is_world else ("restart domain", "")
        for name in group.roles if role in group.roles else ():
            others = ", ".join(dict.fromkeys(other for other in group.roles if other != name))
            found.append((name, f'it is in the {kind} "{group.name}" with {others}{then}'))
    edges = [spec.name for spec, gate in graph.dependents(role) if gate.on_restart == "restart"]
    return found + [(name, f'its gate on {role} says on_restart="restart"') for name in edges]


def _window(policy: RestartPolicy) -> str:
    return f" within {format_duration(policy.within_ns)}" if policy.within_ns is not None else ""
