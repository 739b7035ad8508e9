"""The version, the changelog and the package agree, and the policy names every deprecated module."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from flowdist import __version__

ROOT = Path(__file__).parents[2]
POLICY = ROOT / "docs/reference/versions.md"


def released() -> list[str]:
    """Return the versions of the changelog, the newest first; what is not released yet stands above them."""
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    headings = headings[1:] if headings[0] == "Unreleased" else headings
    for heading in headings:
        assert re.fullmatch(r"\d+\.\d+\.\d+( \(\d{4}-\d\d-\d\d\))?", heading), heading
    return [heading.split()[0] for heading in headings]


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:3]))


def test_the_version_is_the_newest_of_the_changelog_or_a_later_one_in_development() -> None:
    newest = released()[0]
    if __version__.endswith(".dev0"):
        assert numbers(__version__) > numbers(newest)
    else:
        assert __version__ == newest


def test_the_changelog_has_its_versions_in_order() -> None:
    versions = [numbers(version) for version in released()]
    assert versions == sorted(set(versions), reverse=True)


def test_the_version_has_one_source() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"] and "version" not in project["project"]
    path = project["tool"]["hatch"]["version"]["path"]
    assert re.search(r'^__version__ = "(.+)"$', (ROOT / path).read_text(), re.M)[1] == __version__  # type: ignore[index]


def test_the_policy_lists_each_deprecated_module_and_no_other() -> None:
    deprecated = set()
    for path in (ROOT / "flowdist").rglob("*.py"):
        if (ast.get_docstring(ast.parse(path.read_text())) or "").startswith("Deprecated"):
            deprecated.add(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    (line,) = re.findall(r"^Deprecated now: (.*)$", POLICY.read_text(), re.M)
    assert deprecated == set(re.findall(r"`(flowdist[\w.]*)`, in favour of", line))


@pytest.mark.slow
def test_a_deprecated_module_names_the_users_line_and_what_to_write(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\nfrom flowdist.parallel import mesh\n")
    words = [sys.executable, "-W", "default::DeprecationWarning", str(script)]
    done = subprocess.run(words, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    assert (
        "train.py:2: DeprecationWarning: flowdist.parallel is deprecated: import flowdist.worker.device_mesh"
        in done.stderr
    )
