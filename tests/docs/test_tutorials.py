"""The tutorials: whoever types what they say sees what they show."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.docs.walkthrough import Command, File, follow, missing_in, steps_of

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/tutorial").glob("*.md"))
NEEDS_TORCH = ("1_restart",)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_is_true(page: Path, tmp_path: Path) -> None:
    if page.stem in NEEDS_TORCH and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    wrong = follow(page.read_text(), tmp_path)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_the_example_of_advice_is_true(tmp_path: Path) -> None:
    assert not follow((ROOT / "docs/playing_again.md").read_text(), tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_has_steps_and_is_short_and_each_block_of_it_is_run(page: Path) -> None:
    text = page.read_text()
    steps = list(steps_of(text))
    assert any(isinstance(step, Command) for step in steps) and len(text.split()) <= 1500
    assert text.count("\n```python") == sum(isinstance(step, File) for step in steps)
    assert text.count("\n```") == 2 * (text.count("\n```python\n") + text.count("\n```console\n"))


def test_the_readme_has_a_topology_of_ten_lines_a_picture_and_commands_that_are_true(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    (topology,) = (step for step in steps_of(text) if isinstance(step, File))
    assert topology.name == "topology.py" and len(topology.text.splitlines()) <= 10
    (picture,) = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert (ROOT / picture).read_bytes().startswith(b"\x89PNG")
    install, _, rest = text.partition("## A script for torchrun")
    assert not follow(rest, tmp_path)
    lines = [step.line for step in steps_of(install) if isinstance(step, Command)]
    assert lines == [
        "python3 -m venv .venv",
        ". .venv/bin/activate",
        "pip install torch --index-url INDEX_OF_CPU_BUILDS",
        'pip install ".[torch,testing]"',
    ]  # `make package` runs the last one, with the other ways


PAGE = """
```python
# a.py
print(1)
```
```console
$ python a.py
1
$ true
$ python a.py | tail -1
...
```
"""


def test_steps_are_read_in_their_order() -> None:
    file, *commands = steps_of(PAGE)
    assert file == File("a.py", "# a.py\nprint(1)\n")
    assert commands == [Command("python a.py", ("1",)), Command("true", ()), Command("python a.py | tail -1", ("...",))]


@pytest.mark.parametrize(
    ("output", "shown", "missing"),
    [
        ("one\ntwo 12.5s\nthree", ("one", "two 3ms"), ""),
        ("one\ntwo\nthree", ("one", "three"), ""),
        ("one\ntwo", ("two", "one"), "one"),
        ("one\ntwo", ("on...", "..."), ""),
        ("one", ("on",), "on"),
        ("", ("one",), "one"),
    ],
)
def test_what_the_page_shows_has_to_follow_in_the_output(output: str, shown: tuple[str, ...], missing: str) -> None:
    assert missing_in(output, shown) == missing


def test_numbers_durations_and_names_of_runs_may_differ() -> None:
    shown = ("job-20261123-033238-fd58  1h18m45s  216ms, 3 cpu",)
    assert missing_in("job-20260101-000000-a1b2 9.5s   44ms, 4 cpu", shown) == ""
    assert missing_in("job-20260101-000000-a1b2 9.5s   44ms, 4 gpu", shown) == shown[0]
    assert missing_in(shown[0].replace("  ", " "), shown, is_exact=True) == ""
    assert missing_in(shown[0].replace("3 cpu", "4 cpu"), shown, is_exact=True) == shown[0]


def test_a_command_that_does_something_else_than_the_page_says_is_found(tmp_path: Path) -> None:
    assert follow(PAGE, tmp_path) == []
    (wrong,) = follow(PAGE.replace("$ true", "$ false"), tmp_path)
    assert wrong.startswith("$ false: it fails")
    (wrong,) = follow(PAGE.replace("\n1\n", "\none\n"), tmp_path)
    assert wrong.startswith("$ python a.py: one")
