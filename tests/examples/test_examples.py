"""The pure parts of the examples, and one short real run of each."""

from __future__ import annotations

import importlib.util
import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from flowdist.testing import assert_same_result, explore
from tests.runtime.harness import Job

EXAMPLES = Path(__file__).parents[2] / "examples"
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
np = pytest.importorskip("numpy")


def load(example: str, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A file of an example, with its neighbours importable."""
    monkeypatch.syspath_prepend(str(EXAMPLES / example))
    for neighbour in ("text", "wire", "client", "train", "ps"):
        monkeypatch.delitem(sys.modules, neighbour, raising=False)
    return importlib.import_module(name)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_shards_are_disjoint_and_complete(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = load("word2vec", "text", monkeypatch)
    tokens = np.arange(12_345)
    shards = [text.shard(tokens, rank, size) for rank in range(size)]
    assert sorted(np.concatenate(shards).tolist()) == list(range(12_345))


def test_the_wire_brings_back_what_was_sent_and_refuses_junk(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = load("word2vec", "wire", monkeypatch)
    left, right = socket.socketpair()
    with left, right:
        rows, values = np.array([3, 1], dtype=np.int32), np.array([[1.5], [-2.0]], dtype=np.float32)
        wire.send(left, "push", rows=rows, values=values, none=rows[:0])
        op, arrays = wire.receive(right)
        assert op == "push" and arrays["rows"].tolist() == [3, 1] and arrays["values"].tolist() == [[1.5], [-2.0]]
        assert arrays["none"].shape == (0,)
        left.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(ValueError, match="is none of ours"):
            wire.receive(right)
    left, right = socket.socketpair()
    with right:
        left.close()
        with pytest.raises(ConnectionError):
            wire.receive(right)


def test_the_gradients_are_those_of_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    train = load("word2vec", "train", monkeypatch)
    rng = np.random.default_rng(0)
    centre, context = rng.normal(size=(4, 3)), rng.normal(size=(6, 3))
    at_centre, at_context = np.array([0, 3, 1]), np.array([2, 2, 5, 0, 1])
    _, d_centre, d_context = train.gradients(centre, context, at_centre, at_context, 3)
    for table, gradient in ((centre, d_centre), (context, d_context)):
        row, column = 0, 1
        before = table[row, column]
        losses = []
        for shift in (1e-5, -1e-5):
            table[row, column] = before + shift
            losses.append(train.gradients(centre, context, at_centre, at_context, 3)[0])
        table[row, column] = before
        # the loss is a mean over three pairs, the gradients are sums over them
        assert gradient[row, column] == pytest.approx(3 * (losses[0] - losses[1]) / 2e-5, rel=1e-4, abs=1e-6)


def test_a_server_goes_on_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ps = load("word2vec", "ps", monkeypatch)
    tables = ps.Tables(10, seed=0)
    tables.push("centre", np.array([2, 7]), np.ones((2, ps.DIM), dtype=np.float32))
    again = ps.Tables(10, seed=1)
    again.load(tables.save(tmp_path))
    assert again.pushes == 1
    for name in ps.TABLES:
        assert (again.values[name] == tables.values[name]).all() and (again.squares[name] == tables.squares[name]).all()


@pytest.mark.slow
@pytest.mark.real
def test_word2vec_learns_while_a_server_and_a_trainer_are_killed(tmp_path: Path) -> None:
    faults = ["--fail", "ps/0@checkpoint=ps,4+100ms", "--fail", "trainer/1@step=trainer,800"]
    with Job(
        tmp_path, str(EXAMPLES / "word2vec/topology.py"), "-p", "steps=1200", "-p", "checkpoint_every=0.5", *faults
    ) as job:
        assert job.finish() == 0, job.text
        first, last = map(float, re.search(r"first loss ([\d.]+), last loss ([\d.]+)", job.text).groups())  # type: ignore[union-attr]
        assert last < first - 1
        assert re.search(r"\[ps/0\] resumed after \d+ pushes", job.text)
        closed = re.compile(r"flowdist.*incident \d+: (re-formed|recovered) after")
        assert sum(closed.match(line) is not None for line in job.output) == 2 and job.alive() == []


@pytest.mark.slow
@pytest.mark.real
@needs_torch
def test_char_gpt_resumes_where_it_was(tmp_path: Path) -> None:
    options = ["-p", "trainers=1:2", "-p", "steps=90", "--fail", "trainer/1@checkpoint=trainer,1+100ms"]
    with Job(tmp_path, str(EXAMPLES / "char_gpt/topology.py"), *options) as job:
        assert job.finish() == 0, job.text
        assert "2 workers, from step 0" in job.text and "2 workers, from step 50" in job.text
        losses = [float(loss) for loss in re.findall(r"validation loss ([\d.]+)", job.text)]
        assert losses[-1] < losses[0] - 1 and job.alive() == []


@pytest.mark.slow
@pytest.mark.real
@needs_torch
def test_char_gpt_runs_under_torchrun_unchanged(tmp_path: Path) -> None:
    script = str(EXAMPLES / "char_gpt/train.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    done = subprocess.run([*torchrun, "--steps", "10"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "2 workers, from step 0" in done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.real
@needs_torch
def test_the_resume_model_ends_in_the_same_state_for_real_as_simulated(tmp_path: Path) -> None:
    """A worker is killed after its first checkpoint, in both; the state has to be equal to the last bit."""
    topology, fault = str(EXAMPLES / "resume_model/topology.py"), "trainer/1@checkpoint=trainer,1+100ms"
    simulated = assert_same_result(topology, fault, params={"steps": "200"}).played.ends["trainer"]
    with Job(tmp_path, topology, "-p", "steps=200", "--fail", fault) as job:
        assert job.finish() == 0, job.text
        assert f"fault {fault} hits trainer/1" in job.text and job.alive() == []
        assert re.search(r"incident 1: trainer/\d failed", job.text), "a peer may be heard to fail of it before"
        states = [json.loads(state) for state in re.findall(r"state (\{.*\})", job.text)]
        assert len(states) == 3
        assert {key: value for state in states for key, value in state.items()} == simulated


def test_the_resume_model_survives_what_it_says_it_tolerates() -> None:
    explore(EXAMPLES / "resume_model/topology.py", seeds=20)
