"""Counting of optimizer steps: what is sent and when, which optimizer counts, and what ends it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from flowdist.worker.step_counter import SEND_EVERY_S, StepCounter


class Optimizer:
    pass


class Counting:
    """A counter that is switched on, with a clock that the test sets and a list of what it has sent."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sent: list[dict[str, Any]] = []
        self.counter = StepCounter(self.sent.append, lambda: self.now)
        self.counter._is_on = True

    def steps(self, count: int, optimizer: object) -> None:
        for _ in range(count):
            self.counter.note_step(optimizer)


def test_the_first_step_is_sent_at_once_and_of_a_fast_loop_few_more() -> None:
    counting, optimizer = Counting(), Optimizer()
    counting.steps(1000, optimizer)
    assert counting.sent == [{"counted": 1}]
    counting.now += SEND_EVERY_S
    counting.steps(1000, optimizer)
    assert counting.sent == [{"counted": 1}, {"counted": 1001}]


def test_of_several_optimizers_the_first_one_counts() -> None:
    counting, generator, critic = Counting(), Optimizer(), Optimizer()
    for _ in range(3):
        counting.now += 1
        counting.steps(1, generator)
        counting.steps(5, critic)
    assert counting.sent == [{"counted": 1}, {"counted": 2}, {"counted": 3}]


def test_steps_of_an_optimizer_that_does_not_count_are_signs_of_life() -> None:
    counting, warm_up, main = Counting(), Optimizer(), Optimizer()
    counting.steps(3, warm_up)
    for _ in range(2):
        counting.now += 60
        counting.steps(1, main)
    assert counting.sent == [{"counted": 1}, {"counted": 3}, {"counted": 3}]


def test_when_the_first_optimizer_is_gone_the_next_one_goes_on() -> None:
    counting, first, second = Counting(), Optimizer(), Optimizer()
    counting.steps(2, first)
    counting.steps(1, second)
    del first
    counting.now += 1
    counting.steps(1, second)
    assert counting.sent == [{"counted": 1}, {"counted": 3}]


def test_a_script_that_reports_its_steps_ends_the_count() -> None:
    counting, optimizer = Counting(), Optimizer()
    counting.steps(1, optimizer)
    counting.counter.stop()
    counting.now += 1
    counting.steps(1, optimizer)
    assert counting.sent == [{"counted": 1}]


def test_a_worker_that_stays_in_place_counts_anew_for_its_next_attempt() -> None:
    counting, optimizer = Counting(), Optimizer()
    counting.steps(7, optimizer)
    counting.counter.begin_attempt()
    counting.steps(1, optimizer)
    assert counting.sent == [{"counted": 1}, {"counted": 1}]


def test_nothing_is_watched_without_torch_without_flowdist_or_when_it_is_turned_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Module:
        @staticmethod
        def register_optimizer_step_post_hook(hook: object) -> None:
            raise AssertionError("no hook")

    counter = Counting().counter
    monkeypatch.setenv("FLOWDIST_SOCKET", "/nowhere")
    monkeypatch.delitem(sys.modules, "torch.optim.optimizer", raising=False)
    assert not counter.watch()
    monkeypatch.setitem(sys.modules, "torch.optim.optimizer", Module)  # type: ignore[arg-type]
    monkeypatch.setenv("FLOWDIST_COUNT_STEPS", "0")
    assert not counter.watch()
    monkeypatch.delenv("FLOWDIST_COUNT_STEPS")
    monkeypatch.delenv("FLOWDIST_SOCKET")
    assert not counter.watch()


@pytest.mark.parametrize("compiling", [False, True])
def test_the_hook_of_torch_counts_but_is_no_part_of_a_compiled_step(
    monkeypatch: pytest.MonkeyPatch, compiling: bool
) -> None:
    class Torch:
        hooks: ClassVar[list[Callable[..., None]]] = []

        compiler = SimpleNamespace(is_compiling=lambda: compiling)
        register_optimizer_step_post_hook = hooks.append

    counting, optimizer = Counting(), Optimizer()
    monkeypatch.setenv("FLOWDIST_SOCKET", "/nowhere")
    monkeypatch.delenv("FLOWDIST_COUNT_STEPS", raising=False)
    monkeypatch.setitem(sys.modules, "torch", Torch)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "torch.optim.optimizer", Torch)  # type: ignore[arg-type]
    assert counting.counter.watch() and counting.counter.watch()
    (hook,) = Torch.hooks
    Torch.hooks.clear()
    hook(optimizer, (), {})
    assert counting.sent == ([] if compiling else [{"counted": 1}])


WITH_TORCH = """
import os, torch
from flowdist.worker.step_counter import StepCounter

sent = []
counter = StepCounter(sent.append)
assert counter.watch() and counter.watch()
weight = torch.nn.Parameter(torch.zeros(3))
optimizer = torch.optim.AdamW([weight])
for _ in range(2):
    weight.sum().backward()
    optimizer.step()
assert sent == [{"counted": 1}] and counter._count == 2, (sent, counter._count)
pid = os.fork()
if pid == 0:
    optimizer.step()
    os._exit(0 if counter._count == 2 else 1)
assert os.waitpid(pid, 0)[1] == 0, "a child counted"
"""


@pytest.mark.slow
@pytest.mark.skipif(not list(Path(sys.prefix).glob("lib/python*/site-packages/torch")), reason="torch is not installed")
def test_torch_calls_the_hook_and_a_forked_child_counts_nothing() -> None:
    env = {**os.environ, "FLOWDIST_SOCKET": "/nowhere"}
    ended = subprocess.run(
        [sys.executable, "-c", WITH_TORCH], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
