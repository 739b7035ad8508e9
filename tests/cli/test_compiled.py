"""`flowdist run graph.json`: what it refuses. tests/engines/test_jobset_pods.py has its runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flowdist.cli.main import cli
from flowdist.cli.run.join import of_pool
from flowdist.dsl.load import load_topology
from flowdist.engines.jobset.manifests import graph_in_image
from flowdist.graph import encode_graph

TOPOLOGY = """
from flowdist import Secret, Topology
t = Topology("x")
t.role("a", "true", env={"K": Secret(env="KEY_A")})
t.role("b", "true", env={"K": Secret(env="KEY_B")})
"""


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    (tmp_path / "t.py").write_text(TOPOLOGY)
    graph = graph_in_image(load_topology(str(tmp_path / "t.py")).graph, str(tmp_path))
    (tmp_path / "graph.json").write_bytes(encode_graph(graph))
    return tmp_path / "graph.json"


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["run", *map(str, words)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "runs on members that join"),
        (("--listen", "host0:29400"), "without FLOWDIST_TOKEN every machine"),
        (("--listen", "127.0.0.1:0", "--set", "a.cpu=2"), "is compiled: parameters, overrides"),
        (("--listen", "127.0.0.1:0", "--nodes", "2"), "is compiled: parameters, overrides"),
        (("--listen", "127.0.0.1:0", "--on", "local"), "is compiled: parameters, overrides"),
        (("--listen", "127.0.0.1:0", "--max-restarts", "0"), "is compiled: parameters, overrides"),
        (("--resume", "latest"), "--resume takes the topology of that run"),
    ],
)
def test_options_that_do_not_go_with_a_graph_are_refused(
    graph_file: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.delenv("FLOWDIST_TOKEN", raising=False)
    done = run(graph_file, *words, "--runs", graph_file.parent / "runs")
    assert (done.exit_code, message in done.output) == (2, True), done.output


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"name": 5}'])
def test_a_file_that_is_no_graph_is_refused_in_words(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "graph.json").write_bytes(content)
    done = run(tmp_path / "graph.json", "--listen", "127.0.0.1:0")
    assert done.exit_code == 2 and "is no role graph" in done.output and "flowdist export writes it" in done.output
    missing = run(tmp_path / "other.json", "--listen", "127.0.0.1:0")
    assert missing.exit_code == 2 and "is no role graph" in missing.output


def test_a_member_needs_the_secrets_of_its_own_pool_alone(graph_file: Path) -> None:
    graph = graph_in_image(load_topology(str(graph_file.parent / "t.py")).graph, "/app")
    assert [[secret.env for secret in role.secrets] for role in of_pool(graph, "b").roles] == [[], ["KEY_B"]]
    assert of_pool(graph, None) is graph
