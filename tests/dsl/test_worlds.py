"""Joint worlds: the roles that can share one, and the places of problems."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowdist.dsl.problems.problem import Problem
from flowdist.graph import JointWorld
from tests.dsl.test_load import loaded, refused, underlined
from tests.dsl.test_problems import problems

FOUR = """from flowdist import Restart, Topology
t = Topology("x", nodes=4)
a = t.role("a", "true")
b = t.role("b", "true")
c = t.role("c", "true")
d = t.role("d", "true", depends_on=c)
"""


def messages(found: list[Problem]) -> list[str]:
    return [problem.message.removeprefix("world ") for problem in found]


def test_a_world_has_its_roles_once_each(tmp_path: Path) -> None:
    graph = loaded(tmp_path, FOUR + 't.world("core", a, b, a)').graph
    assert graph.worlds == (JointWorld("core", ("a", "b")),)
    assert graph.world_of("b") == graph.worlds[0] and graph.world_of("c") is None


def test_a_role_of_another_topology_is_a_problem_even_if_a_mate_of_it_waits_for_others(tmp_path: Path) -> None:
    other = 'e = Topology("y").role("e", "true")\n'
    found = problems(tmp_path, FOUR + other + 't.world("core", d, e)')
    assert messages(found) == ["'core': role 'e' is not a role of this topology"]


@pytest.mark.parametrize(
    ("call", "code", "message", "argument"),
    [
        ('t.world("Core one", a, b)', "FD102", "world 'Core one': its name cannot be used", '"Core one"'),
        ('t.world("", a, b)', "FD102", "world '': its name cannot be used", '""'),
        ('t.world("a/0", a, b)', "FD102", "world 'a/0': its name cannot be used", '"a/0"'),
        ('t.world("c", a, b)', "FD144", "a role or another world has its name", '"c"'),
        ('t.world("core")', "FD144", "it has fewer than two roles", "t.world"),
        ('t.world("core", a, a)', "FD144", "it has fewer than two roles", "t.world"),
        ('t.world("core", a, "b")', "FD135", "'b' is not a role of this topology", '"b"'),
        ('t.world("core", a, [b])', "FD135", "[role 'b'] is not a role of this topology", "[b]"),
        ('t.world("core", a, b.started())', "FD135", "b.started() is not a role of this topology", "b.started()"),
        (
            't.world("core", a, Topology("y").role("b", "true"))',
            "FD135",
            "role 'b' is not a role of this topology",
            'Topology("y").role("b", "true")',
        ),
        (
            't.world("core", a, t.role("s", "true", kind="service"))',
            "FD144",
            "'s' is a service, but a world ends as one",
            't.role("s", "true", kind="service")',
        ),
        (
            't.world("core", *[a, t.role("e", "true", restart=Restart("replica"))])',
            "FD144",
            "'e' has no gang",
            "t.world",
        ),
        (
            't.world("core", a, t.role("e", "true", primary=False))',
            "FD144",
            "some of its roles are primary",
            "t.world",
        ),
        ('t.world("core", c, d)', "FD145", "one of its roles waits for another", "t.world"),
    ],
)
def test_a_world_that_cannot_be(tmp_path: Path, call: str, code: str, message: str, argument: str) -> None:
    problem = refused(tmp_path, FOUR + call)
    assert problem.code == code and message in problem.message and underlined(problem) == argument


def test_a_name_is_taken_by_the_first_and_a_role_is_in_one_world(tmp_path: Path) -> None:
    body = FOUR + 't.world("core", a, b)\nt.world("core", b, c)'
    assert messages(problems(tmp_path, body)) == [
        "'core': a role or another world has its name",
        "'core': role 'b' is in world 'core' already",
    ]


def test_a_world_that_waits_for_itself_over_others_is_refused(tmp_path: Path) -> None:
    over = 'e = t.role("e", "true", depends_on=[d])\n'
    assert refused(tmp_path, FOUR + over + 't.world("core", c, e)').code == "FD145"
    both = 'e = t.role("e", "true", depends_on=[a])\nt.world("one", a, d)\nt.world("two", c, e)'
    assert messages(problems(tmp_path, FOUR + both)) == [
        f"{name!r}: one of its roles waits for another, so the world can never start" for name in ("one", "two")
    ]


def test_a_ladder_of_gates_before_a_world_is_walked_once(tmp_path: Path) -> None:
    ladder = "".join(
        f'{side}{i} = t.role("{side}{i}", "true", depends_on=[{f"l{i - 1}, r{i - 1}" if i else "d"}])\n'
        for i in range(40)
        for side in "lr"
    )
    wide = FOUR.replace("nodes=4", "nodes=20") + ladder
    assert loaded(tmp_path, wide + 't.world("core", l39, r39)').warnings == ()
