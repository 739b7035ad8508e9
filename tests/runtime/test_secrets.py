"""Secrets: workers get them, and nothing that flowdist writes or shows has them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowdist.dsl.load import load_topology
from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph, RoleSpec, SecretRef, encode_graph
from flowdist.runtime.run_folder.remote_error_report import collect_report
from flowdist.runtime.worker_env.environment import SecretMissing, read_secret
from flowdist.runtime.worker_env.secret_values import Mask, check_secrets
from tests.runtime.harness import Job
from tests.runtime.test_environment import START, env

VALUE = "hunter2-Zx81-the-value"
PEM = "-----BEGIN KEY-----\nabcdefgh\n-----END KEY-----\n"
TOPOLOGY = """
from flowdist import Restart, Secret, Topology
t = Topology("x")
t.role(
    "a", ["python", "worker.py"], restart=Restart("role", max_restarts=1, backoff=0),
    env={"KEY": Secret(env="SOME_KEY"), "FILE_KEY": Secret(file="key.txt")},
)
"""
HASHING = """
import hashlib, os, sys
for name in ("KEY", "FILE_KEY"):
    print(name, hashlib.sha256(os.environ[name].encode()).hexdigest(), flush=True)
sys.exit(os.environ["FLOWDIST_ATTEMPT"] == "1")
"""
LOUD = """
import os, sys
print("the key is", os.environ["KEY"], flush=True)
sys.exit("bad key " + os.environ["FILE_KEY"])
"""


def job(folder: Path, worker: str, *arguments: str, **variables: str) -> Job:
    (folder / "topology.py").write_text(TOPOLOGY)
    (folder / "worker.py").write_text(worker)
    return Job(folder, *arguments, env=variables)


def files_with(folder: Path, text: str) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 5
    return [path.name for path in files if text.encode() in path.read_bytes()]


@pytest.mark.real
def test_a_worker_gets_its_secrets_and_the_folder_of_the_run_never_has_them(tmp_path: Path) -> None:
    (tmp_path / "key.txt").write_text(f"file-{VALUE}\n")
    with job(tmp_path, HASHING, SOME_KEY=VALUE) as run:
        assert run.finish() == 0, run.text
        for name, value in (("KEY", VALUE), ("FILE_KEY", f"file-{VALUE}")):
            assert run.text.count(f"{name} {hashlib.sha256(value.encode()).hexdigest()}") == 2  # at each attempt
        assert files_with(run.run_dir, VALUE) == [] and VALUE not in run.text
        assert "SOME_KEY" in (run.run_dir / "graph.json").read_text()


@pytest.mark.slow
@pytest.mark.real
def test_a_worker_that_prints_its_secrets_shows_stars(tmp_path: Path) -> None:
    (tmp_path / "key.txt").write_text(f"file-{VALUE}\n")
    with job(tmp_path, LOUD, SOME_KEY=VALUE) as run:
        assert run.finish() == 1
        assert "[a/0] the key is ***" in run.text and "exit code 1: bad key ***" in run.text
        assert "Root cause" in run.text and VALUE not in run.text
        # the worker's own logs are what it has written; what flowdist writes is clean
        assert set(files_with(run.run_dir, VALUE)) == {"stdout.log", "stderr.log"}
        for verb in ("logs", "report", "status"):
            shown = flowdist_here(tmp_path, verb, SOME_KEY=VALUE)
            assert "***" in shown and VALUE not in shown and "not hidden" not in shown


def run_folder(folder: Path) -> None:
    """Run a job whose only worker prints its key."""
    graph = RoleGraph("x", (RoleSpec("a", ("true",), secrets=(SecretRef("KEY", env="SOME_KEY"),)),))
    worker = folder / "runs/x-20261121-1-aaaa/a/0/attempt_1/0"
    worker.mkdir(parents=True)
    (worker / "stdout.log").write_text(f"the key is {VALUE}\n")
    (folder / "runs/x-20261121-1-aaaa/graph.json").write_bytes(encode_graph(graph))
    (folder / "runs/latest").symlink_to("x-20261121-1-aaaa")


def flowdist_here(folder: Path, *words: str, **variables: str) -> str:
    """Return what a verb shows on stdout and stderr, with the variables set."""
    environment = {name: value for name, value in os.environ.items() if name != "SOME_KEY"} | variables
    command = [sys.executable, "-m", "flowdist", *words, "--runs", str(folder / "runs")]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_logs_hide_a_value_that_can_be_read_and_say_which_cannot(tmp_path: Path) -> None:
    run_folder(tmp_path)
    assert flowdist_here(tmp_path, "logs", SOME_KEY=VALUE) == "[a/0] the key is ***\n"
    shown = flowdist_here(tmp_path, "logs")
    assert shown.startswith(f"[a/0] the key is {VALUE}\n")
    assert shown.endswith(
        "warning: not hidden, since their values cannot be read here: "
        "KEY of role 'a' (the variable SOME_KEY is not set)\n"
    )


def test_what_a_worker_on_another_host_has_left_is_masked_as_json_writes_it(tmp_path: Path) -> None:
    value = 'a"b\\c-\u00e9-the-value'
    for ensure_ascii in (True, False):
        error = {"message": {"message": f"bad {value}", "extraInfo": {"py_callstack": value}}}
        (tmp_path / "error.json").write_text(json.dumps(error, ensure_ascii=ensure_ascii))
        (tmp_path / "stderr.log").write_text(f"{value}\n")
        kept = collect_report(START, 0, tmp_path, Mask([value]))
        assert json.loads(kept.error)["message"] == {"message": "bad ***", "extraInfo": {"py_callstack": "***"}}
        assert kept.last_lines == "***\n"


@pytest.mark.real
def test_a_source_that_is_gone_at_a_later_start_fails_that_start(tmp_path: Path) -> None:
    (tmp_path / "key.txt").write_text(VALUE)
    worker = 'import os, sys\nos.remove("key.txt")\nsys.exit(1)\n'
    with job(tmp_path, worker, SOME_KEY=VALUE) as run:
        assert run.finish() == 1
        assert f"there is no file {tmp_path}/key.txt" in run.text and "agent" not in run.text


@pytest.mark.real
def test_run_refuses_to_start_without_a_source_and_names_all_that_are_missing(tmp_path: Path) -> None:
    with job(tmp_path, HASHING) as run:
        assert run.finish() == 2
        assert "role 'a': the secret KEY has no value: the variable SOME_KEY is not set" in run.text
        assert f"role 'a': the secret FILE_KEY has no value: there is no file {tmp_path}/key.txt" in run.text
        assert "FD303" not in run.text and not (tmp_path / "runs").exists()


def test_the_graph_holds_the_reference_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", VALUE)
    (tmp_path / "key.txt").write_text(VALUE)
    (tmp_path / "topology.py").write_text(TOPOLOGY)
    (tmp_path / "worker.py").touch()
    loaded = load_topology(str(tmp_path / "topology.py"))
    wanted = (SecretRef("KEY", env="SOME_KEY"), SecretRef("FILE_KEY", file=str(tmp_path / "key.txt")))
    assert loaded.graph.roles[0].secrets == wanted and loaded.warnings == ()
    assert VALUE not in encode_graph(loaded.graph).decode()
    plain = load_topology(str(tmp_path / "topology.py"), sets=["a.env.KEY=plain"]).graph.roles[0]
    assert plain.env == (("KEY", "plain"),) and plain.secrets == wanted[1:]


def test_a_secret_wins_over_what_is_inherited() -> None:
    spec = RoleSpec("a", ("true",), secrets=(SecretRef("KEY", env="OTHER"),))
    assert env(spec, {"KEY": "inherited", "OTHER": "secret"})["KEY"] == "secret"


def test_a_file_is_read_without_the_newline_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".key").write_text(f" {VALUE} \r\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_secret(SecretRef("KEY", file="~/.key"), {}) == f" {VALUE} "


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"\n", "is empty"), (b"a\0b", "is no text that fits"), (b"x" * 200_000, "is no text that fits")],
)
def test_what_is_in_a_file_must_fit_a_variable(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(SecretMissing, match=reason):
        read_secret(SecretRef("KEY", file=str(tmp_path / "key")), {})


def test_a_pipe_is_no_source(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key")
    with pytest.raises(SecretMissing, match="there is no file"):
        read_secret(SecretRef("KEY", file=str(tmp_path / "key")), {})


def test_an_empty_variable_is_no_value() -> None:
    graph = RoleGraph("x", (RoleSpec("a", ("true",), secrets=(SecretRef("KEY", env="K"),)),))
    with pytest.raises(FlowdistError, match="the variable K is not set"):
        check_secrets(graph, {"K": ""})
    assert check_secrets(graph, {"K": "v"}) == ["v"]


def test_the_longest_value_is_hidden_first_and_lines_of_a_value_on_their_own() -> None:
    mask = Mask(["key", "key-and-more"])
    assert mask("key key-and-more") == "*** ***"
    mask.add([PEM])
    assert mask("abcdefgh") == "***" and mask(f"<{PEM}>") == "<***>"
    assert Mask(["{\n}"])("{}") == "{}" and Mask()("text") == "text"
