"""What JobSet cannot honour of a topology: each is a problem with its code and its place in the file, all at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flowdist.cli.main import cli
from flowdist.dsl.load import load_topology
from flowdist.engines.interface import Topic
from flowdist.engines.jobset.problems import problems

HEAD = "from flowdist import Node, On, Restart, Secret, Topology\n"
NODES = 'Node(gpu=8, labels={"a b": "c"})'
CASES = [  # topology, code, line of the place, words of the message
    (f't = Topology("x", nodes=4 * [{NODES}])\na = t.role("a", "w")\nt.role("b", "w",\n near=[a])', "FD182", 5, "near"),
    (f't = Topology("x", nodes=[{NODES}])\nt.role("a", "true",\n gpu=0.5)', "FD182", 4, "0.5 gpu"),
    (f't = Topology("x", nodes=2000 * [{NODES}])\nt.role("a", "true",\n replicas=1025)', "FD182", 4, "1,025 replicas"),
    (f't = Topology("x", nodes=[{NODES}])\nt.role("a", "true",\n where={{"a b": "c"}})', "FD182", 4, "a b=c cannot be"),
    ('t = Topology("x")\nt.role("a", "true",\n env={"K": Secret(file="~/key")})', "FD182", 4, "home folder"),
    ('t = Topology("x")\nt.role(\n "' + "a" * 55 + '", "true")', "FD182", 4, "Kubernetes allows 63"),
    ('t = Topology("x")\nt.role(\n "big_one", "true")', "FD182", 4, "names in Kubernetes have no _"),
    (f't = Topology("x", nodes=[{NODES}])\nt.role("a", "true", gpu=1,\n numa="node")', "FD336", 4, "kubelet chooses"),
    ('t = Topology("x")\nt.role("a", "true", restart=Restart(\n rules=[On("oom", do="fail")]))', "FD336", 4, "cgroup"),
    ('t = Topology("x")\nt.role("a", "true",\n workdir="/")', "FD336", 4, "outside of the topology's folder"),
    ('t = Topology("x")\nt.role("a", "true",\n state="checkpoint")', "FD336", 4, "lost with the pod"),
    ('t = Topology("x",\n move_after=5)\nt.role("a", "true")', "FD336", 3, "move_after="),
    ('t = Topology("x",\n cordon_after=5)\nt.role("a", "true")', "FD336", 3, "cordon_after="),
]  # fmt: skip


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


@pytest.mark.parametrize(("text", "code", "line", "words"), CASES, ids=[words for *_, words in CASES])
def test_what_jobset_cannot_honour_has_its_place(tmp_path: Path, text: str, code: str, line: int, words: str) -> None:
    (tmp_path / "t.py").write_text(HEAD + text + "\n")
    loaded = load_topology(str(tmp_path / "t.py"))
    (found,) = problems(Topic(loaded.graph, loaded.arguments))
    assert (found.code, found.place.line, found.severity) == (code, line, "error" if code == "FD182" else "warning")
    assert words in found.message and found.help


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "t.py"
    text = 't.role("a", "true", gpu=0.5, state="checkpoint")\nt.role("b", "true", gpu=0.25)\n'
    file.write_text(f'{HEAD}t = Topology("x", nodes=[{NODES}], move_after=7)\n{text}')
    done = run("export", file, "--to", "jobset", "-o", "image=x")
    assert done.exit_code == 2, done.output
    assert [f"t.py:{line}:" in done.output for line in (2, 3, 4)] == [True, True, True]
    assert done.output.count("error[FD182]") == 2 and done.output.count("warning[FD336]") == 2


def test_jobset_is_no_engine_and_help_names_the_export(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(HEAD + 't = Topology("x")\nt.role("a", "true")\n')
    done = run("check", tmp_path / "t.py", "--on", "jobset")
    assert done.exit_code == 2 and "for Kubernetes write flowdist export --to jobset" in done.output


def test_an_export_writes_a_file_and_prints_its_warnings(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(HEAD + 't = Topology("x")\nt.role("a", "true", state="checkpoint")\n')
    done = run("export", tmp_path / "t.py", "--to", "jobset", "-o", "image=x", "--file", tmp_path / "x.yaml")
    assert done.exit_code == 0 and "warning[FD336]" in done.output
    text = (tmp_path / "x.yaml").read_text()
    assert text.startswith("# Job 'x' for JobSet v0.12.0") and "\nkind: JobSet\n" in text


def test_an_export_as_json_has_the_documents_and_the_problems(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(HEAD + 't = Topology("x")\nt.role("a", "true", state="checkpoint")\n')
    done = run("export", tmp_path / "t.py", "--to", "jobset", "-o", "image=x", "--json")
    found = json.loads(done.stdout)
    assert [each["kind"] for each in found["documents"]][-1] == "JobSet"
    assert [each["code"] for each in found["problems"]] == ["FD336"]


def test_names_that_a_cluster_would_refuse_are_no_export(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(HEAD + f't = Topology("{"x" * 61}")\nt.role("a", "true")\n')
    done = run("export", tmp_path / "t.py", "--to", "jobset", "-o", "image=x")
    assert done.exit_code == 2 and "Kubernetes allows 63" in done.output
    done = run("export", tmp_path / "t.py", "--to", "jobset", "-o", "image=x", "-o", "name=short")
    assert done.exit_code == 0
    done = run("export", tmp_path / "t.py", "--to", "jobset", "-o", "image=x", "-o", f"name={'x' * 45}")
    assert done.exit_code == 2 and "a cluster would refuse the manifests" in done.output, done.output


@pytest.mark.parametrize("nodes", ["", ", nodes=2"], ids=["none", "a number"])
def test_pods_are_as_large_as_their_replicas_whatever_the_nodes_of_the_topology_are(tmp_path: Path, nodes: str) -> None:
    (tmp_path / "t.py").write_text(HEAD + f't = Topology("x"{nodes})\nt.role("a", "true", replicas=4, gpu=8)\n')
    done = run("export", tmp_path / "t.py", "--to", "jobset", "-o", "image=x")
    assert done.exit_code == 0 and done.output.count('nvidia.com/gpu: "8"') == 2, done.output
