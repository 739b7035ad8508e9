"""Restart policies: reading of rules, rules that never decide, and budgets that never run out."""

from __future__ import annotations

from typing import Any

import pytest

from flowdist.dsl.compile import compile_topology
from flowdist.dsl.problems.problem import Problems
from flowdist.dsl.topology import Topology
from flowdist.dsl.words import On, Restart
from flowdist.graph import MINUTE, SECOND, RestartPolicy, Rule


def policy(restart: Any) -> tuple[RestartPolicy | None, list[tuple[str, str]]]:
    """Return the compiled policy, and the problems without the name of the role."""
    t, problems = Topology("x"), Problems()
    t.role("a", "true", restart=restart)
    graph = compile_topology(t, problems)
    return graph.roles[0].restart, [(p.code, p.message.removeprefix("role 'a': ")) for p in problems.sorted()]


def codes(*rules: Any) -> list[str]:
    return [code for code, _ in policy(Restart(max_restarts=3, rules=rules))[1]]


def test_what_is_no_policy_is_refused() -> None:
    assert policy("role") == (None, [("FD134", "restart= must be a Restart")])


def test_rules_are_read_as_they_are_written() -> None:
    rules = [On("oom", do="fail"), On(exit=3, count=False), On(signal="sigsegv", do="ignore"), On()]
    found, problems = policy(Restart(rules=rules, max_restarts=2, within="10m"))
    assert problems == [("FD130", "a primary gang cannot go on without a member whose failure is ignored")]
    assert found is not None and (found.max_restarts, found.within_ns) == (2, 10 * MINUTE)
    assert found.rules == (
        Rule("fail", "oom"),
        Rule("restart", exit=3, counted=False),
        Rule("ignore", signal="SEGV"),
        Rule("restart"),
    )


@pytest.mark.parametrize(
    ("rule", "code", "message"),
    [
        (On(exit=256), "FD105", "exit=256 is not an exit code"),
        (On(exit=True), "FD105", "exit=True is not an exit code"),
        (On(exit="3"), "FD105", "exit='3' is not an exit code"),  # type: ignore[arg-type]
        (On("oom", exit=3), "FD125", "a failure of kind 'oom' has no exit code to match"),
        (On("exit", signal="SEGV"), "FD125", "a failure is an exit or a signal, not both"),
        (On(exit=3, signal="SEGV"), "FD125", "a failure is an exit or a signal, not both"),
        (On(signal=9), "FD121", "signal 9 is unknown"),  # type: ignore[arg-type]
        (On(do="retry"), "FD131", "do='retry' is unknown"),  # type: ignore[arg-type]
        ("oom", "FD134", "rules[0] is not an On(...)"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(rule: Any, code: str, message: str) -> None:
    assert policy(Restart(max_restarts=3, rules=[rule]))[1] == [(code, message)]


@pytest.mark.parametrize("rules", ["oom", b"oom", 3, {"oom": "fail"}, iter([On("oom")])])
def test_rules_are_a_list(rules: Any) -> None:
    (problem,) = policy(Restart(rules=rules))[1]
    assert problem == ("FD134", f"rules={rules!r} must be a list")


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (On(), On("oom")),
        (On("exit"), On(exit=3)),
        (On(exit=3), On("exit", exit=3)),
        (On("signal"), On(signal="SEGV")),
        (On(signal="SIGSEGV"), On("signal", signal="segv")),
        (On("node_lost"), On("node_lost", do="fail")),
    ],
)
def test_a_rule_after_one_that_matches_the_same_can_never_decide(earlier: On, later: On) -> None:
    assert codes(earlier, later) == ["FD125"]
    assert codes(On("start_failed", do="fail"), earlier, later) == ["FD125"]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (On(exit=3), On(exit=4)),
        (On(exit=3), On("exit")),
        (On(signal="SEGV"), On("signal")),
        (On("exit"), On(signal="SEGV")),
        (On("oom"), On()),
    ],
)
def test_a_wider_or_another_rule_after_it_can_decide(earlier: On, later: On) -> None:
    assert codes(earlier, later) == []


def test_a_kind_that_is_unknown_covers_nothing() -> None:
    assert codes(On("oomm"), On("exit"), On("oom")) == ["FD121"]  # type: ignore[arg-type]


def test_what_is_no_rule_does_not_shift_the_others() -> None:
    assert codes(3, On("exit"), On(exit=3), On(signal="SEGV")) == ["FD125", "FD134"]


@pytest.mark.parametrize(
    ("restart", "endless"),
    [
        # waits between three restarts: 1 s and 2 s
        (Restart(max_restarts=3, within="3s"), False),
        (Restart(max_restarts=4, within="3s"), True),
        (Restart(max_restarts=1, within="1ms"), False),
        (Restart(max_restarts=0, within="1ms"), False),
        # 1, 2, 2, 2, ...: 19,999 waits of two seconds at most
        (Restart(max_restarts=20_000, within="39997s", backoff_max="2s"), False),
        (Restart(max_restarts=20_000, within="39996s", backoff_max="2s"), True),
        (Restart(max_restarts=10**15, within="1h"), True),
        (Restart(max_restarts=10**15, within="1h", backoff=0), False),
        (Restart(max_restarts=3, within="3s", backoff="2s", backoff_max="2s"), True),
        (Restart(max_restarts=10**15), False),
    ],
)
def test_a_budget_that_backoff_alone_outlasts_can_never_run_out(restart: Restart, endless: bool) -> None:
    found = policy(restart)[1]
    assert [code for code, _ in found] == (["FD124"] if endless else [])
    assert not endless or "restarts take longer than" in found[0][1]


def test_a_policy_has_its_defaults() -> None:
    found, _ = policy(Restart())
    assert found == RestartPolicy("role", 0, None, "fail", (), SECOND, MINUTE, 10 * MINUTE)


def test_a_window_of_nothing_is_refused_and_an_argument_of_none_is_its_default() -> None:
    assert policy(Restart(within=0))[1] == [("FD105", "within=0 must be more than zero")]
    found, problems = policy(Restart(backoff=None, backoff_max=None, backoff_reset=None))  # type: ignore[arg-type]
    assert found == RestartPolicy() and problems == []


def test_a_wider_restart_has_a_budget_and_problems_of_its_own() -> None:
    found, problems = policy(Restart(max_restarts=3, then=Restart("job", max_restarts=1, within="1h")))
    assert problems == [] and found is not None and found.wider is not None
    assert (found.then, found.max_restarts, found.wider.scope, found.wider.max_restarts) == ("widen", 3, "job", 1)
    _, problems = policy(Restart(then=Restart("job", max_restarts=1, within="soon"), within="late"))
    assert [code for code, _ in problems] == ["FD106", "FD106"]


def test_a_wider_restart_has_to_be_wider_and_has_no_rules() -> None:
    _, problems = policy(Restart("job", then=Restart("job")))
    assert problems == [("FD143", "after 'job' comes 'job', which does not restart more")]
    _, problems = policy(Restart(then=Restart("job", max_restarts=1, rules=[On("oom", do="fail")])))
    assert [code for code, _ in problems] == ["FD125"]


@pytest.mark.parametrize(
    ("restart", "found"),
    [
        (
            Restart("role", then=Restart("job")),
            [("FD143", "after 'role' comes 'job' with max_restarts=0, which restarts nothing")],
        ),
        (Restart("role", then=Restart("jbo", max_restarts=1)), [("FD131", "scope='jbo' is unknown")]),  # type: ignore[arg-type]
        (Restart("rloe", then=Restart("role", max_restarts=1)), [("FD131", "scope='rloe' is unknown")]),  # type: ignore[arg-type]
        (Restart(then=Restart), [("FD131", f"then={Restart!r} is unknown")]),  # type: ignore[arg-type]
        (Restart(then=None), [("FD131", "then=None is unknown")]),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_come_next(restart: Restart, found: list[tuple[str, str]]) -> None:
    assert policy(restart)[1] == found
