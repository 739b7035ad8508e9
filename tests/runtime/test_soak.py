"""The soak: what it draws and how it judges; and a short one, on real processes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import ModuleType

import pytest

from flowdist.faults.grammar import parse_fault

FILE = Path(__file__).parents[2] / "benchmarks/soak.py"


@pytest.fixture(scope="module")
def soak() -> ModuleType:
    spec = importlib.util.spec_from_file_location("soak", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module
    spec.loader.exec_module(module)
    return module


def test_a_seed_draws_the_same_plan_and_half_an_hour_has_every_kind(soak: ModuleType) -> None:
    plan = soak.Nemesis(1, 1800.0).plan()
    assert plan == soak.Nemesis(1, 1800.0).plan() != soak.Nemesis(2, 1800.0).plan()
    kinds = {soak.kind_of(fault) for fault in plan}
    of_nodes = ("kill", "leave", "pause", "lost", "partition", "cut-to", "delay", "drop")
    of_trainers = ("kill", "exit", "oom", "hang", "pause", "slow")
    assert kinds >= {f"{kind} of node" for kind in of_nodes} | {f"{kind} of trainer" for kind in of_trainers}
    assert kinds >= {"kill of controller", "partition of controller", "cut-to of controller", "kill of ps"}
    assert all(fault == parse_fault(fault).spec for fault in plan)


def test_two_nodes_at_most_are_away_and_node0_is_never_killed(soak: ModuleType) -> None:
    for seed in range(50):
        away: dict[str, float] = {}
        for fault in (parse_fault(text) for text in soak.Nemesis(seed, 1800.0).plan()):
            node = fault.arg if fault.kind in ("partition", "cut-to") and fault.target == "controller" else fault.target
            if node.startswith("node") and fault.when.at_ns is not None and fault.duration_ns is not None:
                away = {name: until for name, until in away.items() if until > fault.when.at_ns}
                assert node not in away and len(away) < 2
                assert node != "node0" or fault.kind not in ("kill", "leave")
                away[node] = fault.when.at_ns + fault.duration_ns


def test_growth_is_the_slope_of_a_straight_line(soak: ModuleType) -> None:
    samples = [soak.Sample(float(second), 1000 + 5 * second, 10 + second // 50) for second in range(0, 200, 2)]
    assert soak.growth_kib(samples) == pytest.approx(300)
    assert soak.more_files(samples) == 3
    noise = [soak.Sample(float(second), 1000 + second % 4, 10) for second in range(0, 200, 2)]
    assert abs(soak.growth_kib(noise)) < 1 and soak.more_files(noise) == 0


def test_an_attempt_that_works_beside_its_successor_is_seen(soak: ModuleType) -> None:
    assert soak.overlaps("1 10.0\n1 11.0\n2 11.5\n1 11.8\n2 20.0\n3 20.5\n3") == []
    assert soak.overlaps("1 10.0\n2 11.5\n1 18.0\n1 18.1\n") == [], "it stood still, and was killed when it went on"
    assert soak.overlaps("1 10.0\n2 11.5\n1 11.6\n1 13.1\n") == ["attempt 1 worked for 1.50 s beside attempt 2"]


def test_shared_memory_that_somebody_else_uses_is_not_ours(soak: ModuleType) -> None:
    before = soak.shared_memory()
    theirs = SharedMemory(create=True, size=16)
    try:
        assert theirs.name in soak.shared_memory() - before and soak.is_in_use(theirs.name)
        assert theirs.name not in soak.left_in_memory(before, patience_s=0)
        theirs.close()
        assert not soak.is_in_use(theirs.name)
        assert theirs.name in soak.left_in_memory(before, patience_s=0)
    finally:
        theirs.unlink()


def test_shared_memory_that_others_are_about_to_free_is_not_left(
    soak: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have ended between a look at what there is and a look at who uses it."""
    before = soak.shared_memory()
    theirs = SharedMemory(create=True, size=16)
    theirs.close()
    looks = iter([{theirs.name} | before, before])
    monkeypatch.setattr(soak, "shared_memory", lambda: next(looks))
    try:
        assert soak.left_in_memory(before) == []
    finally:
        theirs.unlink()


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_short_soak_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(FILE), "--minutes", "0.75", "--seed", "7"],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all is well; again: python benchmarks/soak.py --minutes 0.75 --seed 7" in done.stdout
    assert list(tmp_path.iterdir()) == []
