"""The check of the house finds each thing that it forbids."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import draw_architecture, house

RETIRED = "# Retired words\n\n| retired | now |\n|---|---|\n| `shelf`, `park` | candidates, suspend |\n"


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that writes files below a package `p` and returns what is found about them."""
    monkeypatch.setattr(house, "EXCEPTIONS", {})
    retired = tmp_path / "retired_words.md"
    retired.write_text(RETIRED)

    def findings(**files: str) -> list[str]:
        for name, text in {"__init__": '"""A package."""\n', **files}.items():
            path = tmp_path / "p" / f"{name.replace('__in__', '/')}.py"
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(text)
        return house.findings(tmp_path / "p", retired)

    return findings


def test_the_picture_of_the_architecture_is_up_to_date() -> None:
    assert draw_architecture.PICTURE.read_text() == draw_architecture.picture(), "python tools/draw_architecture.py"


def test_a_small_package_has_nothing_to_be_found(check) -> None:
    assert check(a='"""Add numbers."""\n\nfrom p import b\n', b="x = 1\n") == []


def test_too_many_modules_in_a_folder_are_found(check) -> None:
    crowd = {f"f__in__m{n}": "x = 1\n" for n in range(house.MODULES_MAX + 1)}
    assert check(**crowd)[0].endswith(f"{house.MODULES_MAX + 1} modules, at most {house.MODULES_MAX}")
    assert any("at most 4" in line for line in check(**{f"m{n}": "x = 1\n" for n in range(5)}))


def test_a_folder_that_says_nothing_of_itself_is_found(check) -> None:
    assert "does not say what it is for" in check(f__in____init__="x = 1\n")[0]


@pytest.mark.parametrize("text", ["if TYPE_CHECKING:\n    from p.a import x\n", "def f():\n    import p.a  # late\n"])
def test_a_cycle_is_found_in_type_checking_blocks_and_functions(check, text: str) -> None:
    assert check(a="from p import b\nx = 1\n", b=text) == ["import cycle: p.a, p.b"]


@pytest.mark.parametrize("start", ["It is", "Who runs", "Of whom", "What is", "As of", "Its"])
def test_a_docstring_without_a_subject_is_found(check, start: str) -> None:
    assert "does not name its subject" in check(a=f'def f():\n    """{start} so."""\n')[0]


def test_large_functions_are_found(check) -> None:
    long = "def f():\n" + "    x = 1\n" * house.LINES_MAX
    wide = f"def f({', '.join(f'a{n}' for n in range(house.PARAMETERS_MAX + 1))}):\n    return 1\n"
    branchy = "def f(a):\n    return a" + " or a" * (house.COMPLEXITY_MAX + 1) + "\n"
    assert "61 lines" in check(a=long)[0]
    assert "13 parameters" in check(a=wide)[0]
    assert "is its complexity" in check(a=branchy)[0]


def test_a_retired_word_is_found_as_a_name_and_not_in_prose(check) -> None:
    found = check(a='"""The shelf of a shop."""\n\nshelf = 1  # park\n')
    assert len(found) == 1 and "'shelf' is a retired word" in found[0]


BARE = "def f():\n    if True:\n        import sys\n        import os{}\n    return sys\n"


@pytest.mark.parametrize("text", [BARE.format(""), "async def f(): import sys\n", "# a\n\n" + BARE.format("")])
def test_an_import_in_a_function_without_a_reason_is_found(check, text: str) -> None:
    (found,) = check(a=text)
    assert found.endswith("the import in a function does not say why it is not above")


@pytest.mark.parametrize(
    "text",
    [BARE.format("  # heavy"), "def f():\n    # heavy\n    import sys\n", "if True:\n    import sys\n", "import sys\n"],
)
def test_an_import_with_a_reason_or_outside_of_functions_is_in_order(check, text: str) -> None:
    assert check(a=text) == []


def test_the_figures_count_lines_by_room_and_late_imports(tmp_path: Path) -> None:
    files = {"__init__": "x = 1\n", "a/b": BARE.format("  # heavy"), "sim/macro/m": "x = 1\ny = 2\n"}
    for name, text in files.items():
        path = tmp_path / "p" / f"{name}.py"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    found = house.measures(tmp_path / "p")
    assert found["lines of the product"] == 8 and found["imports in functions"] == 2
    assert (found["lines of (root)"], found["lines of a"], found["lines of sim"]) == (1, 5, 2)
    assert found["lines of sim/macro"] == 2 and found["modules of the largest folder"] == 1


def test_an_exception_for_a_function_that_is_gone_is_found(check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "EXCEPTIONS", {"p.a:f": "a reason"})
    assert check(a="x = 1\n") == ["EXCEPTIONS: there is no p.a:f"]
    assert check(a="def f(" + ", ".join(f"a{n}" for n in range(20)) + "):\n    return 1\n") == []


def test_lines_of_code_are_those_that_hold_code(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p/a.py").write_text(
        '"""Text.\n\nMore.\n"""\n\n# a comment\nx = (\n    1\n)\n\n\ndef f():\n    """Do."""\n    return x\n'
    )
    (module,) = house.modules_of(tmp_path / "p")
    assert house.lines_of_code(module) == 5
