"""Generators that a script has in its variables: each is found under its name, and nothing of the script changes."""

from __future__ import annotations

import gc
import json
import queue
import random
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flowdist.prove.in_worker.onlooker import look_on
from flowdist.prove.in_worker.variables import own_generators, small_values

SCRIPT = """import random

everywhere = random.Random(1)

class Loop:
    def __init__(self):
        self.order = random.Random(2)

    def run(self, see):
        noise, other = random.Random(3), 5
        for _ in range(2):
            see()
            noise.random()
        return other

class Big:
    pass

def drop(see, kept):
    big = Big()
    kept(big)
    see()
    del big
    see()

def keep(see):
    width, depth = 3, random.Random(4)
    settings = locals()
    later = 5
    see()
    return settings, later
"""


WAITS = """import threading

class Shard:
    def __init__(self):
        self.rate, self.parts, self.lock = 0.5, {"w1": [1.0, 2.0]}, threading.Lock()

def serve(first, waits):
    shard, step = Shard(), 0
    first()
    while waits():
        step += 1
        shard.rate *= 0.5
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "of_script.py").write_text(SCRIPT)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield __import__("of_script")
    del sys.modules["of_script"]


def seen_by(folder: Path) -> tuple[list[dict[str, str]], Callable[[], None]]:
    found: list[dict[str, str]] = []
    return found, lambda: found.append(own_generators(str(folder)))


def test_generators_of_variables_modules_and_objects_have_their_names(script: Any, tmp_path: Path) -> None:
    found, see = seen_by(tmp_path)
    elsewhere = random.Random(4)  # of code that is not the script's
    assert script.Loop().run(see) == 5 and elsewhere.random()
    assert [set(each) for each in found] == [{"noise", "self.order", "everywhere"}] * 2
    one, other = found
    assert {name for name in one if one[name] != other[name]} == {"noise"}  # it alone was drawn from between


def test_numbers_of_variables_are_told_as_they_are_and_small_collections_as_digests(
    script: Any, tmp_path: Path
) -> None:
    script.rate, script.recent, script.name, script.large = 0.5, [1.0], "a", list(range(1000))
    found: list[dict[str, str]] = []
    script.keep(lambda: found.append(small_values(str(tmp_path))))
    script.recent.append(2.0)
    script.Loop().run(lambda: found.append(small_values(str(tmp_path))))
    assert found[0].keys() == {"rate", "recent"} and found[1].keys() == {"rate", "recent", "other", "_"}
    assert (found[1]["rate"], found[1]["other"]) == ("=0.5", "=5")
    assert found[0]["recent"] != found[1]["recent"]


def test_what_a_script_drops_does_not_live_on_because_it_was_looked_at(script: Any, tmp_path: Path) -> None:
    kept: list[weakref.ref[Any]] = []
    alive: list[bool] = []

    def see() -> None:
        gc.collect()
        alive.append(kept[0]() is not None)
        own_generators(str(tmp_path))

    script.drop(see, lambda big: kept.append(weakref.ref(big)))
    assert alive == [True, False]


def test_what_a_function_has_got_of_locals_stays_as_it_is(script: Any, tmp_path: Path) -> None:
    seen: list[dict[str, str]] = []
    settings, _ = script.keep(lambda: seen.append(own_generators(str(tmp_path))))
    assert settings["width"] == 3 and "later" not in settings and "settings" not in settings
    assert list(seen[0]) == ["everywhere"], "its own variables are not looked at"


def test_generators_of_numpy_and_torch_are_found(script: Any, tmp_path: Path) -> None:
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    found, see = seen_by(tmp_path)
    made = {"a": numpy.random.default_rng(1), "b": numpy.random.RandomState(1), "c": torch.Generator().manual_seed(1)}
    for name, generator in made.items():
        setattr(script, name, generator)
    script.Loop().run(see)
    for draw in (made["a"].normal, made["b"].rand, lambda: torch.rand(1, generator=made["c"])):
        draw()
    script.Loop().run(see)
    assert {name for name in found[0] if found[0][name] != found[2][name]} == {"a", "b", "c"}


def test_a_server_that_waits_is_looked_at_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers are told, and its locks are not; what has changed between is another digest."""
    (tmp_path / "of_server.py").write_text(WAITS)
    monkeypatch.syspath_prepend(str(tmp_path))
    server, rounds = __import__("of_server"), queue.Queue[bool]()
    ready, gone_on = threading.Event(), threading.Semaphore(0)

    def waits() -> bool:
        gone_on.release()
        return rounds.get()

    def first() -> None:
        look_on(str(tmp_path / "prover"), str(tmp_path))
        ready.set()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "prover"))
        listener.listen()
        thread = threading.Thread(target=server.serve, args=(first, waits))
        thread.start()
        with listener.accept()[0] as link, link.makefile("rb") as answers:
            assert json.loads(answers.readline())["kind"] == "onlooker" and ready.wait(10)
            states = []
            for goes_on in (True, False):
                gone_on.acquire()
                link.sendall(b"\n")
                states.append(json.loads(answers.readline()))
                rounds.put(goes_on)
        thread.join(10)
    del sys.modules["of_server"]
    assert [set(each) for each in states] == [{"shard.rate", "shard.parts", "step"}] * 2
    assert {name for name in states[0] if states[0][name] != states[1][name]} == {"shard.rate", "step"}
