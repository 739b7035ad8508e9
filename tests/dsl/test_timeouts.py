"""Rules about the order of timeouts: the values, the places and the advice that they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowdist.dsl.problems.problem import Problem
from tests.dsl.test_load import problems_of

HEAD = "from flowdist import Node, Restart, Template, Topology, Workload\nt = Topology('x', nodes=2)\n"


def problems(tmp_path: Path, body: str, *sets: str, head: str = HEAD) -> list[Problem]:
    return problems_of(tmp_path, head + body, sets=sets)


def role(arguments: str, workload: str) -> str:
    return f"w = Workload({workload})\nt.role('a', 'true', replicas=2, workload=w, {arguments})\n"


@pytest.mark.parametrize(
    ("arguments", "workload", "code", "words", "help"),
    [
        (
            "hang_after='9m'",
            "collective='hang', collective_timeout='9m1s'",
            "FD327",
            "ends them after 9m1s, and the hang is judged after hang_after=9m and cause_window=2s later",
            'write hang_after="6m" or less',
        ),
        (
            "hang_after='31m'",
            "collective='fail'",
            "FD327",
            "ends them after 30m, and the hang is judged after hang_after=31m",
            'write hang_after="22m" or less',
        ),
        (
            "hang_after='5m'",
            "collective='hang', collective_timeout='4m', step_time='2m'",
            "FD327",
            "ends them after 4m",
            'give the process groups a timeout of "11m" or more, and write it as collective_timeout=',
        ),
        (
            "start_timeout='6m'",
            "startup='1m', warmup='6m'",
            "FD180",
            "start_timeout=6m ends every attempt before its first step, which begins after 7m (1m start-up + "
            "6m warm-up)",
            'write start_timeout="9m" or more',
        ),
        (
            "start_timeout='8m'",
            "warmup='6m', restore_time='5m'",
            "FD328",
            "start_timeout=8m ends each attempt that resumes from a checkpoint before its first step, which begins "
            "after 11m5s (5s start-up + 5m restore + 6m warm-up)",
            'write start_timeout="14m" or more',
        ),
        (
            "ready_when='call', ready_timeout='20s'",
            "startup='20s'",
            "FD181",
            "ready_timeout=20s ends every attempt before it is ready, after 20s",
            'write ready_timeout="30s" or more',
        ),
        (
            "ready_when='call', ready_timeout='20s'",
            "startup='9s', restore_time='1m'",
            "FD328",
            "ready_timeout=20s ends each attempt that resumes from a checkpoint before it is ready, after 1m9s "
            "(9s start-up + 1m restore)",
            'write ready_timeout="1m44s" or more',
        ),
        (
            "",
            "checkpoint_time='1m', step_time='5s', step_spread=0.2",
            "FD329",
            "drain=30s is too short to save when a node is drained: up to 1m6s pass until the step is done and its "
            "checkpoint is complete (6s step + 1m checkpoint)",
            'write drain="1m23s" or more',
        ),
        (
            "restart=Restart(max_restarts=3, within='10m')",
            "warmup='4m'",
            "FD332",
            "a role that fails at its first step is restarted for ever: 3 restarts take 12m18s with start-up and "
            "back-off, and the budget looks back only 10m",
            'write within="19m" or more, or leave it out',
        ),
        (
            "restart=Restart(max_restarts=1, within='2m', backoff_reset='1m', backoff='1h')",
            "warmup='2m'",
            "FD332",
            "1 restart take 2m5s with start-up and back-off",
            'write within="4m" or more, or leave it out',
        ),
        (
            "restart=Restart(max_restarts=2, backoff='9s', backoff_reset='1m')",
            "warmup='2m'",
            "FD335",
            "backoff=9s is never waited for when the role fails at its first step: that comes 2m5s after the start, "
            "and backoff_reset=1m begins the series anew before that",
            'write backoff_reset="5m" or more',
        ),
    ],
)
def test_a_finding_names_both_values_and_what_to_write(
    tmp_path: Path, arguments: str, workload: str, code: str, words: str, help: str
) -> None:
    (found,) = [problem for problem in problems(tmp_path, role(arguments, workload)) if problem.code == code]
    assert found.message.startswith("role 'a': ")
    assert words in found.message
    assert help in found.help


@pytest.mark.parametrize(
    ("arguments", "workload"),
    [
        ("hang_after='9m'", ""),  # nothing says that peers end
        ("hang_after='11m', replicas=1", "collective='hang'"),  # there are no peers
        ("hang_after='11m', gang=False, restart=Restart('replica')", "collective='hang'"),
        ("start_timeout='7500ms'", "startup='8s'"),  # a first step within `cause_window` counts
        ("ready_timeout='9s'", "startup='20s'"),  # it has no readiness check
        ("ready_when='call', ready_timeout='20s', kind='service'", "startup='9s', restore_time='1m'"),
        ("kind='service', drain='1s'", "checkpoint_time='1m'"),
        ("restart=Restart(max_restarts=3)", "warmup='1h'"),  # the budget has no window
        ("restart=Restart(max_restarts=3, backoff='0s', backoff_reset='1m')", "warmup='1h'"),  # no back-off is wanted
    ],
)
def test_what_cannot_go_wrong_is_not_reported(tmp_path: Path, arguments: str, workload: str) -> None:
    body = role(arguments, workload)
    if "replicas=1" in arguments:
        body = body.replace("replicas=2, ", "")
    assert {problem.code for problem in problems(tmp_path, body)} <= {"FD127"}  # a service alone never ends


def test_a_role_without_a_workload_is_not_judged_by_a_guess(tmp_path: Path) -> None:
    body = "t.role('a', 'true', start_timeout='2s', ready_when='call', ready_timeout='2s')\n"
    body += "t.role('b', 'true', restart=Restart(max_restarts=9, within='30s', backoff='1ms', backoff_reset='1s'))"
    assert not problems(tmp_path, body)
    assert {problem.code for problem in problems(tmp_path, body, "a.workload.warmup=1s")} == {"FD180", "FD181"}


def test_both_places_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (found,) = problems(tmp_path, role("start_timeout='5m'", "warmup='6m'"))
    assert (found.place.line, [place and place.line for _, place in found.related]) == (4, [None, 3])
    text = found.format()
    assert "  = note: startup=5s is the default\n" in text
    assert "  = note: warmup=6m, in topology.py:3:21\n  = help: " in text
    assert found.as_dict()["related"] == [
        {"text": "startup=5s is the default"},
        {"text": "warmup=6m", "file": str(tmp_path / "topology.py"), "line": 3, "column": 21, "end_column": 25},
    ]


def test_the_topology_and_a_template_may_have_the_value(tmp_path: Path) -> None:
    body = "base = Template(workload=Workload(checkpoint_time='1m'))\nt.role('a', 'true', like=base)\n"
    (found,) = problems(tmp_path, body, head=HEAD.replace("nodes=2", "nodes=2, drain='20s'"))
    assert (found.code, found.place.line) == ("FD329", 2)
    assert [place and place.line for _, place in found.related] == [3, None]


def test_a_value_of_the_command_line_is_reported_there(tmp_path: Path) -> None:
    body = role("start_timeout='5m'", "warmup='4m'")
    assert not problems(tmp_path, body)
    for value in ("a.start_timeout=1m", "a.workload.startup=6m"):
        (found,) = problems(tmp_path, body, value)
        assert (found.code, found.place.file) == ("FD180", "<command line>")


def test_the_policy_of_then_has_a_budget_of_its_own(tmp_path: Path) -> None:
    then = "Restart('job', max_restarts=9, within='1m')"
    (found,) = problems(tmp_path, role(f"restart=Restart(max_restarts=1, then={then})", ""))
    assert found.code == "FD124"
    assert (tmp_path / "topology.py").read_text().splitlines()[3][found.place.column - 1 :].startswith("'1m'")
    assert [text for text, _ in found.related] == ["backoff=1s is the default", "backoff_max=1m is the default"]
    assert "the budget can never run out: 9 restarts take longer than 1m by back-off alone" in found.message


def test_an_unreadable_value_is_one_error_alone(tmp_path: Path) -> None:
    found = problems(tmp_path, role("start_timeout='soon'", "startup='2m'"))
    assert [problem.code for problem in found] == ["FD106"]


def test_a_world_drains_as_long_as_its_most_patient_role(tmp_path: Path) -> None:
    body = "w = Workload(checkpoint_time='1m')\na = t.role('a', 'true', workload=w)\n"
    body += "b = t.role('b', 'true', workload=w, drain='2m')\nt.world('core', a, b)\n"
    assert not problems(tmp_path, body)
    assert [problem.code for problem in problems(tmp_path, body.replace("2m", "1m"))] == ["FD329"] * 2
    hangs = body.replace("checkpoint_time='1m'", "collective='hang'").replace(
        "role('a', 'true', ", "role('a', 'true', hang_after='11m', "
    )
    (found,) = problems(tmp_path, hangs)
    assert found.code == "FD327"


def test_two_roles_of_one_line_have_one_problem(tmp_path: Path) -> None:
    body = "for name in ('a', 'b'):\n    t.role(name, 'true', drain='9s', workload=Workload(checkpoint_time='9s'))\n"
    (found,) = problems(tmp_path, body)
    assert found.message.startswith("roles 'a' and 'b': drain=9s")


def test_a_role_without_a_workload_is_not_judged_by_the_default_one(tmp_path: Path) -> None:
    values = {"hang_after": "1s", "start_timeout": "1s", "ready_when": "call", "ready_timeout": "1s", "drain": "100ms"}
    body = f"t.role('a', 'true', **{values}, restart=Restart(max_restarts=2, within='9s', backoff_reset='2s'))\n"
    assert not problems(tmp_path, body)
    own = body.replace("restart=", "workload=Workload(startup='5.1s'), restart=")
    found = [problem.code for problem in problems(tmp_path, own)]
    assert set(found) == {"FD304", "FD180", "FD181", "FD329", "FD332", "FD335"}


def test_a_first_step_longer_than_hang_after_is_found(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, role("hang_after='1m'", "startup='1m', warmup='30s'"))
    assert found.code == "FD304"
    assert "its workload needs 1m30s before the first step" in found.message
    (found,) = problems(tmp_path, role("hang_after='5m'", "warmup='6m'"))
    assert [text for text, _ in found.related] == ["warmup=6m"]
    (found,) = problems(tmp_path, role("hang_after='5m'", "checkpoint_time='6m', checkpoint_every='1h', startup='0s'"))[
        :1
    ]
    assert [text for text, _ in found.related][:1] == ["checkpoint_time=6m"]
