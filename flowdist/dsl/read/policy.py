"""Reading of `restart=`: the policy of one role and its rules, with the contradictions inside it."""

from __future__ import annotations

from typing import Any, get_args

from flowdist.dsl.problems.problem import did_you_mean
from flowdist.dsl.read.fields import Fields
from flowdist.dsl.words import FailureWord, On, Restart
from flowdist.graph import MINUTE, SECOND, RestartPolicy, Rule, format_duration
from flowdist.graph.policies import SCOPES, SIGNAL_NAMES

KINDS: tuple[str, ...] = get_args(FailureWord)
SIGNALS = sorted(SIGNAL_NAMES.values())


def compile_restart(role: Fields, given: Any) -> RestartPolicy | None:
    """Return the restart policy of a role from its argument; None if that is None, or no Restart (an error)."""
    if given is None:
        return None
    if not isinstance(given, Restart):
        role.error("FD134", "restart", "restart= must be a Restart", 'write restart=Restart("role", max_restarts=3)')
        return None
    return _policy(role.nested("restart", given), given)


def _policy(fields: Fields, given: Restart) -> RestartPolicy:
    """Return the policy of a Restart, and of the wider ones in its `then=`; add errors for what contradicts itself."""
    wider = _policy(fields.nested("then", given.then), given.then) if isinstance(given.then, Restart) else None
    help = 'write rules=[On("oom", do="fail")]'
    written = fields.items("rules", help=help)
    rules = [(i, rule, _rule(fields, rule)) for i, rule in enumerate(written) if isinstance(rule, On)]
    policy = RestartPolicy(
        scope=fields.choice("scope", SCOPES),
        max_restarts=fields.whole("max_restarts"),
        within_ns=None if given.within is None else fields.duration("within", MINUTE, zero=False),
        then="widen" if wider is not None else fields.choice("then", ("fail", "ignore")),
        rules=tuple(rule for _, _, rule in rules),
        backoff_ns=fields.duration("backoff", SECOND),
        backoff_max_ns=fields.duration("backoff_max", MINUTE),
        backoff_reset_ns=fields.duration("backoff_reset", 10 * MINUTE),
        wider=wider,
    )
    for i, rule in enumerate(written):
        if not isinstance(rule, On):
            fields.error("FD134", "rules", f"rules[{i}] is not an On(...)", help, fields.element("rules", i))
    _check_reachable(fields, rules)
    _check_backoff(fields, policy)
    _check_wider(fields, given, policy)
    return policy


def _check_wider(fields: Fields, given: Restart, policy: RestartPolicy) -> None:
    """Add an error unless the wider policy restarts more and has no rules: only the rules of the first policy count."""
    wider = policy.wider
    if wider is None or not isinstance(given.then, Restart):
        return
    if given.scope != policy.scope or given.then.scope != wider.scope:
        pass  # `_policy` reports an unknown scope
    elif SCOPES.index(wider.scope) <= SCOPES.index(policy.scope):
        message = f"after {policy.scope!r} comes {wider.scope!r}, which does not restart more"
        help = f'write then=Restart("{SCOPES[-1]}", max_restarts=2)'
        if policy.scope == SCOPES[-1]:
            help = 'write then="fail" or then="ignore": nothing restarts more than the job'
        fields.error("FD143", "then", message, help)
    elif given.then.max_restarts == 0 and not given.then.site.lost_arguments:
        message = f"after {policy.scope!r} comes {wider.scope!r} with max_restarts=0, which restarts nothing"
        fields.error("FD143", "then", message, f'write then=Restart("{wider.scope}", max_restarts=2)')
    if wider.rules:
        message = "the rules of a wider restart never decide: those of the first do"
        fields.error("FD125", "then", message, "put them into the rules= of the role's own Restart")


def _rule(policy: Fields, rule: On) -> Rule:
    """Return the rule of an `On(...)`; add errors for kinds, exit codes and signals that do not exist or never meet."""
    fields = policy.nested("rules", rule)
    kind = rule.kind
    if kind is not None and kind not in KINDS:
        fields.error("FD121", "kind", f"failure kind {kind!r} is unknown", did_you_mean(str(kind), KINDS))
        kind = None
    if rule.exit is not None:
        if not isinstance(rule.exit, int) or isinstance(rule.exit, bool) or not 0 <= rule.exit <= 255:
            fields.error("FD105", "exit", f"exit={rule.exit!r} is not an exit code", "exit codes are 1 to 255")
        elif rule.exit == 0:
            fields.error("FD126", "exit", "exit code 0 is success, no failure rule can match it", "write another code")
        if kind not in (None, "exit"):
            message = f"a failure of kind {kind!r} has no exit code to match"
            fields.error("FD125", "exit", message, "leave one of them out")
    signal = rule.signal
    if signal is not None:
        signal = str(signal).upper().removeprefix("SIG")
        if signal not in SIGNALS:
            fields.error("FD121", "signal", f"signal {rule.signal!r} is unknown", did_you_mean(signal, SIGNALS))
        if kind not in (None, "signal") or rule.exit is not None:
            fields.error("FD125", "signal", "a failure is an exit or a signal, not both", "leave one of them out")
    do = fields.choice("do", ("restart", "fail", "ignore"))
    return Rule(do, kind, rule.exit, signal, fields.flag("count", True))


def _check_reachable(fields: Fields, rules: list[tuple[int, On, Rule]]) -> None:
    """Add an error for each rule that never decides, because an earlier one matches all that it matches (FD125)."""
    for n, (i, _, rule) in enumerate(rules):
        # `_rule` replaces an unknown kind by None, which matches everything: such a rule must not cover others
        if any(written.kind == earlier.kind and _covers(earlier, rule) for _, written, earlier in rules[:n]):
            message = "this rule can never decide: an earlier one matches all that it matches"
            fields.error("FD125", "rules", message, "put the narrower rule first", fields.element("rules", i))


def _covers(earlier: Rule, later: Rule) -> bool:
    """Return whether the rule `earlier` matches every failure that `later` matches."""
    kind = later.kind or ("exit" if later.exit is not None else "signal" if later.signal else None)
    if earlier.exit is not None:
        return earlier.exit == later.exit
    if earlier.signal is not None:
        return earlier.signal == later.signal
    return earlier.kind is None or earlier.kind == kind


def _check_backoff(fields: Fields, policy: RestartPolicy) -> None:
    """Add an error for a first wait that is longer than the longest one: all waits would be the latter (FD165)."""
    if policy.backoff_ns > policy.backoff_max_ns and not fields.is_wrong("backoff", "backoff_max"):
        first, most = format_duration(policy.backoff_ns), format_duration(policy.backoff_max_ns)
        name = "backoff_max" if fields.values["backoff"] == Restart.backoff else "backoff"
        message = f"backoff={first} is longer than backoff_max={most}, the longest wait"
        fields.error("FD165", name, message, f'write backoff_max="{first}" or more, or backoff="{most}" or less')
