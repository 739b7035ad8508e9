"""The table of variables: those of torch's own source, and the pages of docs that show them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from flowdist.torchrun.variables import VARIABLES, idle_variables

DOCS = Path(__file__).parents[2] / "docs"
NAMES = [variable.name for variable in VARIABLES]


def test_every_variable_of_torchs_launcher_is_in_the_table() -> None:
    found = importlib.util.find_spec("torch")  # imports nothing
    if found is None or found.origin is None:
        pytest.skip("torch is not installed")
    folder = Path(found.origin).parent / "distributed"
    files = [folder / "run.py", *folder.glob("launcher/*.py"), *folder.rglob("elastic/**/*.py")]
    names = {name for file in files for name in re.findall(r"\bTORCH_?ELASTIC_[A-Z_]+[A-Z]\b", file.read_text())}
    assert len(names) > 10 and names <= set(NAMES)


def variable_table(prefixes: tuple[str, ...]) -> str:
    """Return the table that the docs have of the variables with these prefixes."""
    rows = ["| variable | here | |", "|---|---|---|"]
    rows += [f"| `{name}` | {effect} | {words} |" for name, effect, words in VARIABLES if name.startswith(prefixes)]
    return "\n".join(rows)


def test_the_pages_show_the_table() -> None:
    assert variable_table(("TORCHELASTIC_", "TORCH_ELASTIC_")) in (DOCS / "torchrun.md").read_text()
    assert variable_table(("TORCHX_",)) in (DOCS / "torchx.md").read_text()
    assert len(set(NAMES)) == len(NAMES)
    assert all(name.startswith(("TORCHELASTIC_", "TORCH_ELASTIC_", "TORCHX_")) for name in NAMES)


def test_idle_variables_are_those_that_are_set_and_change_nothing() -> None:
    env = {"TORCHX_RANK0_HOST": "a", "TORCHX_ROLE_IDX": "0", "TORCHX_IMAGE": "", "TORCHX_TRACKERS": "b"}
    assert idle_variables(env, "TORCHX_") == ["TORCHX_RANK0_HOST=a"]
    assert idle_variables({"TORCHX_RANK0_HOST": "a"}, "TORCHELASTIC_") == []
