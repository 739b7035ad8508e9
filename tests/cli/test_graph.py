"""`flowdist graph`: formats, files, and messages when it cannot draw."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flowdist.cli.inspect.topologies import graph as command

PS = str(Path(__file__).parents[2] / "scenarios/topologies/ps.py")
FAKE_DOT = """#!/bin/sh
echo "$1"
cat
"""


def graph(*arguments: str) -> Result:
    return CliRunner().invoke(command, [PS, *arguments])


@pytest.fixture
def fake_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `dot` on the path that prints its argument and its input."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "dot"
    program.write_text(FAKE_DOT)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return program


def test_mermaid_on_stdout_is_the_default() -> None:
    done = graph()
    assert done.exit_code == 0 and done.stdout == graph("--format", "mermaid").stdout
    assert done.stdout.startswith('---\ntitle: "ps-train"\n---\nflowchart LR\n')


def test_the_page_in_docs_shows_the_drawing() -> None:
    page = (Path(__file__).parents[2] / "docs/graph.md").read_text()
    assert f"```mermaid\n{graph().stdout}```" in page


@pytest.mark.parametrize(
    ("name", "form"), [("a.mmd", "mermaid"), ("a.MERMAID", "mermaid"), ("a.dot", "dot"), ("a.gv", "dot")]
)
def test_the_suffix_of_the_file_names_the_format(tmp_path: Path, name: str, form: str) -> None:
    done = graph("-o", str(tmp_path / name))
    assert done.exit_code == 0 and done.stdout == ""
    assert (tmp_path / name).read_text() == graph("--format", form).stdout


def test_the_format_that_is_asked_for_wins_over_the_suffix(tmp_path: Path) -> None:
    assert graph("-o", str(tmp_path / "a.txt"), "--format", "dot").exit_code == 0
    assert (tmp_path / "a.txt").read_text().startswith("digraph")


def test_an_image_is_what_graphviz_makes_of_the_dot_text(tmp_path: Path, fake_dot: Path) -> None:
    assert graph("--format", "svg").stdout == "-Tsvg\n" + graph("--format", "dot").stdout
    assert graph("-o", str(tmp_path / "a.png")).exit_code == 0
    assert (tmp_path / "a.png").read_text().startswith('-Tpng\ndigraph "ps-train" {')


def test_what_graphviz_complains_about_is_told(fake_dot: Path) -> None:
    fake_dot.write_text("#!/bin/sh\necho 'no such renderer' >&2\nexit 1\n")
    done = graph("--format", "svg")
    assert done.exit_code == 2 and "did not draw the graph: no such renderer" in done.stderr


def test_without_graphviz_the_user_learns_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleep").symlink_to(shutil.which("sleep") or "")  # the command of the roles; there is no other program
    monkeypatch.setenv("PATH", str(tmp_path))
    done = graph("-o", str(tmp_path / "a.svg"))
    assert done.exit_code == 2 and not (tmp_path / "a.svg").exists()
    assert "whose program 'dot' is not installed" in done.stderr
    assert "apt install graphviz" in done.stderr and "--format mermaid or dot" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-o", "graph.pdf"], "-o graph.pdf: its suffix names no format"),
        (["-o", "no-such-folder/graph.dot"], "no-such-folder/graph.dot cannot be written: No such file"),
        (["--format", "png"], "png cannot be shown on a terminal"),
        (["--json", "-o", "graph.dot"], "--json does not go with"),
        (["--nodes", "none"], "nodes='none' cannot be read"),
    ],
)
def test_a_mistake_is_told_in_words(arguments: list[str], text: str) -> None:
    done = graph(*arguments)
    assert done.exit_code == 2 and text in done.stderr + done.stdout and isinstance(done.exception, SystemExit)


def test_as_json_it_is_nodes_and_edges() -> None:
    content = json.loads(graph("--json").stdout)
    assert (content["format"], content["kind"], content["name"]) == (1, "graph", "ps-train")
    assert [node["size"] for node in content["nodes"]] == ["2", "2:4", "1"]
    assert [(edge["from"], edge["to"]) for edge in content["edges"]] == [("ps", "trainer"), ("trainer", "evaluator")]
