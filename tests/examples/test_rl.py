"""The example of reinforcement learning: its pure parts, and a run in which actors and a service are killed."""

from __future__ import annotations

import importlib
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from flowdist.control.protocol.effects import StartReplica
from flowdist.record.journal import Record
from tests.runtime.harness import Job

EXAMPLE = Path(__file__).parents[2] / "examples/rl"
NAMES = ("cart", "wire", "learner", "replay", "reward")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield {name: importlib.import_module(name) for name in NAMES}
    for name in NAMES:
        sys.modules.pop(name, None)


def test_the_policy_learns_from_its_episodes_and_their_scores(modules: dict[str, ModuleType]) -> None:
    cart, learner, reward = modules["cart"], modules["learner"], modules["reward"]
    policy, rng, lengths = learner.Plain([0.0] * 5), random.Random(0), []
    for _ in range(60):
        episodes = []
        for _ in range(12):
            states, pushes = cart.episode(policy.weights, rng)
            episodes.append({"states": states[:-1], "pushes": pushes, "rewards": reward.score({"states": states})})
        lengths.append(sum(len(each["pushes"]) for each in episodes) / len(episodes))
        policy.update(episodes)
    assert lengths[0] < 40 and sum(lengths[-10:]) / 10 > 110, lengths


@pytest.mark.slow
def test_torch_and_plain_python_take_the_same_step(modules: dict[str, ModuleType]) -> None:
    torch = pytest.importorskip("torch")
    cart, learner, reward = modules["cart"], modules["learner"], modules["reward"]
    weights, rng = [0.1, -0.2, 0.3, 0.1, 0.05], random.Random(1)
    episodes = []
    for _ in range(4):
        states, pushes = cart.episode(weights, rng)
        episodes.append({"states": states[:-1], "pushes": pushes, "rewards": reward.score({"states": states})})
    plain = learner.Plain(list(weights))
    plain.update(episodes)
    layer = torch.nn.Linear(4, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([weights[:4]]))
        layer.bias.copy_(torch.tensor(weights[4:]))
    distributed = learner.Distributed.__new__(learner.Distributed)
    distributed._torch, distributed._layer, distributed._model = torch, layer, layer
    distributed._optimizer = torch.optim.SGD(layer.parameters(), lr=learner.RATE)
    distributed.update(episodes)
    assert distributed.weights == pytest.approx(plain.weights, abs=1e-4)


def test_the_buffer_gives_each_episode_once_and_none_that_is_too_old(modules: dict[str, ModuleType]) -> None:
    replay = modules["replay"].Replay()
    for version in (1, 5, 6, 7):
        replay.answer({"op": "add", "episode": {"version": version}})
    assert replay.answer({"op": "take", "count": 4, "oldest": 5}) == []
    assert replay.answer({"op": "take", "count": 2, "oldest": 5}) == [{"version": 7}, {"version": 6}]
    assert replay.answer({"op": "take", "count": 2, "oldest": 5}) == []
    for version in range(100):
        share = replay.answer({"op": "add", "episode": {"version": version}})
    assert share == 1.0


FAULTS = ("actor/0@step=learner,20", "actor/1@step=learner,40", "reward/0@step=learner,60")


@pytest.mark.slow
@pytest.mark.real
def test_the_reward_rises_through_three_kills_and_the_learner_never_restarts(tmp_path: Path) -> None:
    options = [word for fault in FAULTS for word in ("--fail", fault)]
    with Job(tmp_path, str(EXAMPLE / "topology.py"), "-p", "updates=120", *options) as job:
        assert job.finish() == 0, job.text
        lengths = [
            int(found) for found in re.findall(r"\[learner/0\] version \d+: the pole stands for (\d+)", job.text)
        ]
        assert len(lengths) == 120
        assert sum(lengths[:10]) / 10 < 60 and sum(lengths[-20:]) / 20 > 120, lengths
        starts = [
            effect
            for line in job.journal()[1]
            if isinstance(line, Record)
            for effect in line.effects
            if isinstance(effect, StartReplica)
        ]
        attempts = {str(start.replica): start.attempt for start in starts}
        assert {attempts["learner/0"], attempts.get("learner/1", 1), attempts["replay/0"]} == {1}
        assert (attempts["actor/0"], attempts["actor/1"], attempts["reward/0"]) == (2, 2, 2)
        ready = re.findall(r"(actor/\d): ready with version (\d+) of learner", job.text)
        again = {name: int(version) for name, version in ready}  # the last time of each
        assert again["actor/0"] >= 15 and again["actor/1"] >= 35, ready
        assert "evaluation of version" in job.text and job.alive() == []
