"""Words of the DSL never change, and what stands for a mistake can be used without a further problem."""

from __future__ import annotations

import copy
import pickle
import string
from collections.abc import Callable, Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowdist.dsl import Node, On, Resources, Restart, Role, Secret, Template, Topology, Workload
from flowdist.dsl.frozen import Frozen, Unknown, has_unknown
from flowdist.dsl.problems.problem import Problems, recording
from tests.choosing import examples

WORDS: list[Callable[[], Frozen]] = [
    lambda: Topology("x"),
    lambda: Topology("x").role("a", "true"),
    lambda: Topology("x").role("a", "true").ready(),
    lambda: Topology("x").role("a", "true").version(),
    lambda: Template(cpu=2),
    Node,
    On,
    Resources,
    Restart,
    Secret,
    Workload,
]
KNOWN = sorted({name for word in WORDS for name in [*vars(word()), *dir(word())]})
NAMES = st.sampled_from(KNOWN) | st.text(string.ascii_lowercase + "_", min_size=1)
VALUES = st.none() | st.integers() | st.text() | st.lists(st.integers()) | st.builds(Restart)


@given(st.sampled_from(WORDS), NAMES, VALUES, st.booleans())
@settings(max_examples=examples(100, 1000), deadline=None)
def test_any_change_of_any_attribute_of_any_word_is_a_problem(
    word: Callable[[], Frozen], name: str, value: object, is_deleted: bool
) -> None:
    made = word()
    before = {key: copy.copy(known) for key, known in vars(made).items()}
    change = (lambda: delattr(made, name)) if is_deleted else (lambda: setattr(made, name, value))
    problems = Problems()
    with recording(problems):
        change()
    (problem,) = problems.sorted()
    assert problem.code == "FD161" and repr(name) in problem.message and problem.place.file == __file__
    with pytest.raises(AttributeError, match="after its call") as caught:
        change()
    assert caught.value.__notes__ and vars(made).keys() == before.keys()
    assert all(vars(made)[key] == before[key] or key in ("site", "topology", "role") for key in before)


def test_a_change_of_a_version_says_where_its_staleness_is_written() -> None:
    version = Topology("x").role("learner", "true").version()
    with pytest.raises(AttributeError, match=r"of the version learner.version\(\)") as caught:
        version.max_staleness = 3
    assert any("learner.version(max_staleness=...)" in note for note in caught.value.__notes__)


def test_a_wrong_use_outside_a_file_is_raised_as_usual() -> None:
    t = Topology("x")
    with pytest.raises(AttributeError, match="topology 'x' has no attribute 'rolee'") as caught:
        t.rolee("a")  # type: ignore[attr-defined]
    assert caught.value.__notes__ == ['help: did you mean "role"?']
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_restrts'"):
        Restart(max_restrts=3)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="a Role is made by its topology"):
        Role("a", "true")
    assert not hasattr(t, "rolee") and getattr(t, "rolee", 3) == 3


def test_words_can_be_copied() -> None:
    for word in WORDS:
        made = word()
        assert vars(copy.copy(made)).keys() == vars(made).keys() and copy.copy(made) != made
    assert copy.deepcopy(Topology("x").role("a", "true")).topology.name == "x"
    with pytest.raises(TypeError):
        pickle.dumps(Node())  # it has the user's code as its place


def test_an_exception_inside_a_word_is_no_wrong_call() -> None:
    class Odd(Mapping[str, str]):
        def __getitem__(self, key: str) -> str:
            raise TypeError("odd")

        def __iter__(self) -> Iterator[str]:
            return iter(["A"])

        def __len__(self) -> int:
            return 1

    problems = Problems()
    base = Template(env={"A": "1"})
    with recording(problems), pytest.raises(TypeError, match="odd"):
        Topology("x").role("a", "true", like=base, env=Odd())
    assert problems.sorted() == []


def test_every_use_of_an_unknown_is_no_problem() -> None:
    x = Unknown()
    uses = [x.a.b, x(1, a=2), x["k"], x + 1, 1 + x, x - 1, 2 * x, x / 2, x // 2, x % 2, x**2, -x, abs(x), x < 3, x | x]
    assert all(isinstance(use, Unknown) for use in uses)
    x.a = x["k"] = 3
    del x.a, x["k"]
    with x as inner:
        assert inner is x
    assert list(x) == [] and len(x) == 0 and not x and int(x) == 1 and float(x) == 1.0 and range(x) == range(1)
    assert has_unknown(f"--ps={x}") and has_unknown(f"{x:>10}") and has_unknown({"a": ["b", (x,)]})
    assert not has_unknown({"a": ["b", ("c",)]}) and not has_unknown(3)
    assert copy.copy(x) is not None and not hasattr(x, "__wrapped__")
