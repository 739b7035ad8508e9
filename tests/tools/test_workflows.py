"""The check of workflow files: those of the project and of `flowdist new` are in order; each mistake is found."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.check_workflows import ROOT, findings, main, targets_of, templates

CI = ROOT / ".github/workflows/ci.yml"
GOOD = """\
name: good
on:
  push:
  schedule:
    - cron: "0 3 * * *"
permissions:
  contents: read
jobs:
  first:
    runs-on: ubuntu-latest
    timeout-minutes: 10
    strategy:
      matrix:
        target: [test, docs]
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.11"
      - name: all
        if: always() && github.ref == 'refs/heads/main'
        run: make ${{ matrix.target }}
  second:
    needs: first
    runs-on: [self-hosted, gpu]
    timeout-minutes: 10
    steps:
      - run: |
          echo "${{ needs.first.result }}"
"""


def test_the_projects_workflows_and_those_of_its_templates_are_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert templates() and CI.is_file()
    assert main([]) == 0, capsys.readouterr().out


def test_the_workflow_runs_what_ci_runs_on_one_machine() -> None:
    """`.ci/run` and the workflow are two lists of the same targets."""
    local = set(re.findall(r"^\s*part make (.+)$", (ROOT / ".ci/run").read_text(), re.M))
    text = CI.read_text()
    hosted = set(re.findall(r"run: make ([\w-]+)$", text, re.M))
    hosted |= {word for line in re.findall(r"target: \[(.*)\]", text) for word in line.split(", ")}
    assert hosted == local


def test_a_good_workflow_is_in_order(tmp_path: Path) -> None:
    (tmp_path / "w.yml").write_text(GOOD)
    assert findings(tmp_path / "w.yml", targets_of(ROOT / "Makefile")) == []


def test_the_workflows_on_the_pages_are_in_order(tmp_path: Path) -> None:
    """A block of YAML that names its file in `.github/workflows` is a workflow that readers copy."""
    blocks = [
        (page.stem, block)
        for page in ROOT.glob("docs/**/*.md")
        for block in re.findall(r"^```yaml\n(# \.github/workflows/.*?)^```$", page.read_text(), re.M | re.S)
    ]
    assert blocks
    for name, block in blocks:
        (tmp_path / f"{name}.yml").write_text(block)
        assert findings(tmp_path / f"{name}.yml") == []


def put(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (put("name: good", "nam: good"), "the workflow has no key 'nam'"),
        (put("permissions:\n  contents: read\n", ""), "the workflow has no 'permissions'"),
        (put("contents: read", "content: read"), "has no key 'content'"),
        (put("contents: read", "contents: all"), "is 'all', and has to be one of read, write, none"),
        (put("  push:", "  pushed:"), "'on' of the workflow has no key 'pushed'"),
        (put("  push:", "  push: {branch: main}"), "'push' of 'on' of the workflow has no key 'branch'"),
        (put("- cron:", "- crons:"), "has no key 'crons'"),
        (put("    runs-on: ubuntu-latest\n", ""), "'first' has no 'runs-on'"),
        (put("    timeout-minutes: 10\n", ""), "'first' has no 'timeout-minutes'"),
        (put("timeout-minutes: 10", "timeout-minutes: ten"), "is 'ten', and has to be a number"),
        (put("    strategy:", "    strategies:"), "'first' has no key 'strategies'"),
        (put("      matrix:", "      matrx:"), "'strategy' of 'first' has no key 'matrx'"),
        (put("        if: always()", "        when: always()"), "has no key 'when'"),
        (put("      - uses: actions/checkout@v4\n", "      - name: nothing\n"), "a step has either 'uses' or 'run'"),
        (put("actions/checkout@v4", "actions/checkout"), "has to be OWNER/NAME@VERSION"),
        (put('"3.11"', "3.11"), "is the number 3.11: write it in quotation marks"),
        (put("make ${{ matrix.target }}", "make tests"), "the Makefile has no target 'tests'"),
        (put("[test, docs]", "[test, doc]"), "the Makefile has no target 'doc'"),
        (put("matrix.target }}", "matrix.target"), "does not close"),
        (put("matrix.target }}", "matrx.target }}"), "'matrx' in 'matrx.target' is no context"),
        (put("needs.first.result", "equals(1)"), "'equals' in 'equals(1)' is no function"),
        (put("needs: first", "needs: [frist]"), "'second' needs 'frist', which is no other job"),
        (put('          echo "', "          if true; echo '"), "bash cannot parse"),
        (put("name: good", "name: good\nname: better"), "the workflow has 'name' twice"),
        (put("    steps:", "    steps: {}\n    outputs:"), "is a mapping, and has to be a list"),
        (put("name: good", "name: [good"), "while parsing"),
        (lambda _: "- a\n", "a workflow is a mapping"),
    ],
)
def test_each_mistake_is_found(change: Callable[[str], str], found: str, tmp_path: Path) -> None:
    path = tmp_path / "w.yml"
    assert change(GOOD) != GOOD
    path.write_text(change(GOOD))
    text = "\n".join(findings(path, targets_of(ROOT / "Makefile")))
    assert found in text and text.startswith(str(path)), text


FROM_INDEX = re.compile(
    r"pip3? install (?:-\S+ )*['\"]?flowdist(?:\[[\w,]+\])?(?:[=<>~]=[\d.]+)?['\"]?(?=[\s`.,;)]|$)(?! @)"
)
PAGES = [page for place in ("", "docs/**/", "evidence/", "examples/**/") for page in ROOT.glob(f"{place}*.md")]


@pytest.mark.parametrize("path", [*PAGES, CI, *templates()], ids=lambda path: path.name)
def test_nothing_says_that_a_release_can_be_installed_from_the_package_index(path: Path) -> None:
    """`pip install flowdist` would take whatever somebody else has put there under this name."""
    assert FROM_INDEX.findall(path.read_text()) == []


@pytest.mark.parametrize(
    "line", ["pip install flowdist", 'run: pip install "flowdist[a,b]"', "pip install -U flowdist==1.0"]
)
def test_an_installation_from_the_package_index_is_found(line: str) -> None:
    assert FROM_INDEX.search(f"{line}\n") and not FROM_INDEX.search(line.replace("flowdist", "./flowdist"))
    assert not FROM_INDEX.search("pip install 'flowdist[testing] @ git+https://example.invalid/x'")
