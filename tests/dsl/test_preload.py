"""Preloaded modules: those that a role names, and no others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flowdist.dsl.load import load_topology
from flowdist.graph import RoleSpec

TOPOLOGY = "from flowdist import Topology\nt = Topology('x')\nt.role('main', {})\n"


@pytest.fixture(autouse=True)
def modules_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make modules `first` and `second` that can be found but are never imported."""
    (tmp_path / "site").mkdir()
    for name in ("first", "second"):
        (tmp_path / "site" / f"{name}.py").write_text("raise AssertionError('nothing is imported')")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])


def role(folder: Path, arguments: str, **files: str) -> RoleSpec:
    """Return the role `main` of a topology in a folder with these Python files."""
    (folder / "sub").mkdir()
    for name, text in {**files, "topology": TOPOLOGY.format(arguments)}.items():
        (folder / f"{name.replace('__', '/')}.py").write_text(text)
    return load_topology(str(folder / "topology.py")).graph.role("main")


@pytest.mark.parametrize("code", ["import first", "this is no Python"])
def test_what_the_script_imports_is_not_read_from_its_source(tmp_path: Path, code: str) -> None:
    assert role(tmp_path, "script='train.py'", train=code).preload == ()


@pytest.mark.parametrize("given", ["['second', 'first']", "'second,first'"])
def test_what_is_named_is_preloaded_in_its_order(tmp_path: Path, given: str) -> None:
    spec = role(tmp_path, f"script='train.py', preload={given}", train="")
    assert spec.preload == ("second", "first")


def test_a_module_beside_the_script_can_be_preloaded(tmp_path: Path) -> None:
    spec = role(tmp_path, "script='sub/train.py', preload=['beside']", sub__train="", sub__beside="")
    assert spec.preload == ("beside",)
