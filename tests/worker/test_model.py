"""`flowdist.worker.run`: the class of `simulate=` in a real process, here this one, without flowdist."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flowdist import model, worker
from flowdist.worker import api
from tests.sim import user_models as models


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make this process a world of one worker, with its checkpoints in a folder of the test."""
    for name in [name for name in os.environ if name.startswith("FLOWDIST_") or name in ("RANK", "WORLD_SIZE")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FLOWDIST_CHECKPOINT_DIR", str(tmp_path))
    return tmp_path


def test_it_steps_saves_and_goes_on_from_what_it_has_committed(alone: Path) -> None:
    first = worker.run(models.Counting, steps=25, checkpoint_every=10)
    assert first.calls == list(range(25)) and first.answers == [(10, True), (20, True)]
    assert sorted(path.name for path in (alone / "worker").iterdir()) == ["10-1", "20-1"]
    again = worker.run(models.Counting, steps=30, checkpoint_every=10)
    assert again.calls == list(range(20, 30)) and again.state() == {"total": sum(range(120))}


def test_a_store_on_a_real_disk_does_what_the_simulated_one_does(tmp_path: Path) -> None:
    store = model.Folder(tmp_path / "new")
    store.write("a", b"1")
    store.rename("a", "b")
    store.write("c", b"2")
    store.remove("c")
    store.remove("c")
    assert store.names() == ["b"] and store.names("x") == [] and store.read("b") == b"1"
    for act in (lambda: store.read("a"), lambda: store.rename("a", "b")):
        with pytest.raises(FileNotFoundError):
            act()
    with pytest.raises(ValueError, match="no plain file name"):
        store.write("../a", b"")


def test_random_numbers_are_those_of_the_simulator() -> None:
    real = model.RealContext(seed=3)
    numbers = [real.random("a", 1).random(), real.random("a", 1, shared=True).random(), real.random("b", 1).random()]
    assert len(set(numbers)) == 3 and real.random("a", 1).random() == numbers[0]
    assert model.stream_of(worker.info(), 3, "a", 1, False).random() == numbers[0]


def test_a_world_of_several_needs_an_exchange_and_one_step_to_resume_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="a world of 2 workers needs run"):
        worker.run(models.Counting, steps=3, checkpoint_every=1)
    with pytest.raises(RuntimeError, match="resume from different steps: 0, 1"):
        worker.run(models.Counting, steps=3, checkpoint_every=1, exchange=lambda part: [part, part + 1])
    whole = worker.run(models.Counting, steps=2, checkpoint_every=9, exchange=lambda part: [part, part])
    assert whole.total == 2 * (0 + 2 + 4 + 6)


def test_services_are_called_by_the_users_transport() -> None:
    calls = []

    def call(address: str, method: str, args: tuple[object, ...]) -> object:
        calls.append((address, method, args))
        return "answer"

    assert model.RealContext(call).call("here:1", "push", 1, 2) == "answer" and calls == [("here:1", "push", (1, 2))]
    with pytest.raises(RuntimeError, match="needs a transport"):
        model.RealContext().call("here:1", "push")
    with pytest.raises(RuntimeError, match=r"peers\(\) needs flowdist"):
        model.RealContext().peers("ps", "rpc")
    model.RealContext().consume(1)
    model.RealContext().log(loss=1)


def test_it_saves_and_ends_where_the_job_has_to_leave_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "should_stop", lambda step: step == 7)
    assert worker.run(models.Counting, steps=30, checkpoint_every=10).answers == [(7, True)]
    monkeypatch.setattr(api, "should_stop", lambda step: False)
    assert worker.run(models.Counting, steps=9, checkpoint_every=10).calls == [7, 8]


def test_a_worker_may_have_no_more_than_it_needs() -> None:
    class Least:
        def __init__(self, ctx: model.Context) -> None:
            self.steps: list[int] = []

        def restore(self) -> None:
            pass

        def step(self, step: int) -> None:
            self.steps.append(step)

    assert worker.run(Least, steps=3, checkpoint_every=1).steps == [0, 1, 2]
