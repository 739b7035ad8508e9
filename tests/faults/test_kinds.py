"""Each row of the table of kinds holds: its words are known ones, and what it says can be carried out is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from flowdist.dsl import Node, Restart, Snapshots, Topology, Workload
from flowdist.faults.grammar import EXAMPLES
from flowdist.faults.kinds import KINDS, Command, Target, Trait, carried_out
from flowdist.sim.result import unfired_texts
from flowdist.testing import simulate

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "faults.md"


@pytest.mark.parametrize("name", KINDS)
def test_a_row_has_words_that_the_table_knows(name: str) -> None:
    kind = KINDS[name]
    assert set(kind.traits.split()) <= set(get_args(Trait))
    for command in get_args(Command):
        assert set(getattr(kind, command).split()) <= set(get_args(Target)), command
    assert kind.argument in ("", *EXAMPLES)
    assert re.sub(r"\{(target|arg)\}", "", kind.words).isprintable() and "{target}" in kind.words
    assert ("{arg}" in kind.words) <= bool(kind.argument)
    assert f"`{name}" in REFERENCE.read_text()


SIMULATED = [(target, kind) for target, kinds in carried_out("simulated").items() for kind in kinds]


@pytest.mark.parametrize(("target", "kind"), SIMULATED)
def test_the_simulator_carries_out_what_the_table_says(target: str, kind: str) -> None:
    t = Topology("job", nodes=[Node("node0", cpu=4, gpu=1), Node("node1", cpu=4, gpu=1)])
    load = Workload(steps=100, step_time="1s", checkpoint_every="10s")
    t.role(
        "trainer", "true", replicas="1:2", gpu=1, restart=Restart(max_restarts=2), workload=load, snapshots=Snapshots()
    )
    hit = {"node": "node9" if kind == "add" else "node1", "replica": "trainer/1", "controller": "controller"}[target]
    argument = {"nodes": "node0", "": ""}.get(KINDS[kind].argument) or EXAMPLES.get(KINDS[kind].argument, "")
    fault = f"{'trainer' if kind == 'scale' else hit}@30s:{kind}" + (f"={argument}" if argument else "")
    assert unfired_texts(simulate(t, fault, until="5m")) == []
