"""worker.elastic against a socket that plays the agent: a world of one leaves, waits and is resumed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowdist import worker
from flowdist.worker import elastic_training
from flowdist.worker.elastic_training import Reformed
from flowdist.worker.save_timer import save_timer
from tests.worker.test_worker import AgentSide, managed

__all__ = ["managed"]
pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture(autouse=True)
def _no_group() -> Iterator[None]:
    """Destroy the process group of a test that fails."""
    yield
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture(autouse=True)
def _no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send no times of saving: whether a commit takes long enough to be reported depends on the machine."""
    monkeypatch.setattr(save_timer, "_send", lambda message: None)


def say(side: AgentSide, message: dict[str, object]) -> None:
    """Send a message on the elastic connection, which was the first."""
    side.first_link().sendall(json.dumps(message).encode() + b"\n")


def leave(side: AgentSide, state: worker.ElasticState) -> None:
    """Have the agent send `leave`; the worker notices it at one of its commits."""
    say(side, {"leave": True})
    while True:
        state.commit()


def answer(side: AgentSide, env: dict[str, str]) -> None:
    """Send the next generation, once the worker has left."""

    def wait() -> None:
        with side.arrived:
            side.arrived.wait_for(lambda: {"suspended": True} in side.lines, 20)
        say(side, {"resume": env})

    threading.Thread(target=wait, daemon=True).start()


def told(side: AgentSide, count: int) -> list[str]:
    return [next(iter(line)) for line in side.wait_for(count)]


def test_it_leaves_at_a_commit_waits_and_trains_on_as_another_attempt(managed: AgentSide) -> None:
    seen: list[tuple[int, int, int]] = []

    def train(state: worker.ElasticState) -> str:
        info = worker.info()
        seen.append((info.generation, info.attempt, state.step))
        if info.generation == 8:
            return "done"
        state.step = 3
        state.commit()
        state.step = 4  # is lost with the generation, unless it is committed
        answer(managed, {"FLOWDIST_GENERATION": "8", "FLOWDIST_ATTEMPT": "4"})
        leave(managed, state)
        return "never"

    assert worker.elastic(train, worker.ElasticState(step=0), backend="gloo") == "done"
    assert seen == [(7, 3, 0), (8, 4, 4)]
    assert told(managed, 5) == ["hello", "elastic", "suspended", "hello", "elastic"]
    hellos = [line["hello"] for line in managed.lines if "hello" in line]
    assert [hello["attempt"] for hello in hellos] == [3, 4]  # type: ignore[index]
    assert managed.lines[-1] == {"elastic": False}


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[.../gloo/transport/tcp/pair.cc:537] Connection closed by peer"),
        RuntimeError("NCCL communicator was aborted"),
    ],
)
def test_a_collective_that_broke_before_the_leave_is_no_error_of_the_worker(
    managed: AgentSide, error: RuntimeError
) -> None:
    starts: list[int] = []

    def train(state: worker.ElasticState) -> int:
        starts.append(state.step)
        if len(starts) == 2:
            return state.step
        state.step = 7
        answer(managed, {"FLOWDIST_GENERATION": "8"})
        say(managed, {"leave": True})  # it may come before the error or after
        raise error

    assert worker.elastic(train, worker.ElasticState(step=1), backend="gloo") == 1
    assert starts == [1, 1]


def raising(error: Exception) -> Callable[[worker.ElasticState], None]:
    def train(state: worker.ElasticState) -> None:
        raise error

    return train


@pytest.mark.parametrize("error", [ValueError("wrong shape"), RuntimeError("wrong shape"), KeyError("x")])
def test_errors_of_the_user_pass_through_at_once(managed: AgentSide, error: Exception) -> None:
    with pytest.raises(type(error), match=str(error.args[0])):
        worker.elastic(raising(error), worker.ElasticState(step=0), backend="gloo")
    assert managed.wait_for(3)[-1] == {"elastic": False}


def run_out_of_memory(side: AgentSide) -> None:
    """Train until the agent asks the worker to leave, and raise OutOfMemoryError of torch instead of leaving."""
    import torch

    def train(state: worker.ElasticState) -> None:
        with pytest.raises(Reformed):
            leave(side, state)
        raise torch.OutOfMemoryError("peer gloo NCCL")

    with pytest.raises(torch.OutOfMemoryError):
        worker.elastic(train, worker.ElasticState(step=0), backend="gloo")


def test_being_out_of_memory_is_no_broken_collective(managed: AgentSide) -> None:
    run_out_of_memory(managed)


def test_sockets_that_are_made_after_an_error_of_the_user_stay_open(managed: AgentSide) -> None:
    """The agent has asked the worker to leave, and a thread shuts the sockets of its group down until it has left."""
    run_out_of_memory(managed)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        with theirs:
            ours.settimeout(10 * elastic_training.POLL_S)
            with pytest.raises(TimeoutError):  # an end of the connection would be read as b""
                ours.recv(1)


def test_a_loop_that_catches_every_exception_does_not_catch_a_reformation(managed: AgentSide) -> None:
    def train(state: worker.ElasticState) -> int:
        if worker.info().generation == 8:
            return state.step
        answer(managed, {"FLOWDIST_GENERATION": "8"})
        say(managed, {"leave": True})
        while True:
            try:
                state.step += 1
                state.commit()
            except Exception:
                raise AssertionError("caught") from None

    assert worker.elastic(train, worker.ElasticState(step=0), backend="gloo") >= 1


def test_a_worker_that_stops_at_the_agreed_step_is_resumed_with_the_next_generation(
    managed: AgentSide, tmp_path: Path
) -> None:
    notice, asked = tmp_path / "notice.json", tmp_path / "asked"
    os.environ.update(FLOWDIST_NOTICE=str(notice), FLOWDIST_ASKED=str(asked))

    def train(state: worker.ElasticState) -> str:
        while not worker.should_stop(state.step):
            state.step += 1
            state.commit()
            if state.step == 3:
                notice.write_text(json.dumps({"stop_at": 5}))
            if state.step == 8:
                return "done"
        answer(managed, {"FLOWDIST_GENERATION": "8", "FLOWDIST_NOTICE": str(tmp_path / "none")})
        say(managed, {"leave": True})
        return "stopped"

    try:
        assert worker.elastic(train, worker.ElasticState(step=0), backend="gloo") == "done"
        assert {"left": True} in managed.lines
    finally:
        del os.environ["FLOWDIST_NOTICE"], os.environ["FLOWDIST_ASKED"]


def test_a_group_that_is_there_already_is_refused_before_the_agent_hears_anything(managed: AgentSide) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with pytest.raises(RuntimeError, match="makes the process group itself"):
        worker.elastic(lambda state: None, worker.ElasticState(step=0))
    assert managed.links == []


def test_ranks_that_leave_a_collective_at_once_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """Gloo forgets what waits for a write that fails: one of three ranks waited for ever, in one of ten times."""
    with contextlib.ExitStack() as running:
        ranks = []
        for rank in range(3):
            command = [sys.executable, "-m", "tests.worker.leaving_ranks", str(rank), "3", "30", str(tmp_path)]
            ranks.append(running.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
            running.callback(ranks[-1].kill)
        for process in ranks:
            output, _ = process.communicate(timeout=60)
            assert (process.returncode, output.split()) == (0, [str(turn) for turn in range(30)])


def test_output_goes_on_in_the_log_of_the_attempt(tmp_path: Path) -> None:
    from flowdist.worker.elastic_training import _move_output

    old, new = tmp_path / "1", tmp_path / "2"
    old.mkdir()
    new.mkdir()
    saved = os.dup(1)
    try:
        log = os.open(old / "stdout.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.write(1, b"before")
        _move_output(old, new)
        os.write(1, b"after")
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        os.close(log)
    assert [(folder / "stdout.log").read_text() for folder in (old, new)] == ["before", "after"]
