"""The topologies that come with flowdist, and what macro mode says of each: it plays it, or names one field."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flowdist.components.builtins import ddp, spmd
from flowdist.dsl.load import load_topology
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import Plan
from flowdist.graph import HOUR, RoleGraph
from flowdist.projects import write_project
from flowdist.sim.macro.scope import HELP, MacroRefused, scope_of
from flowdist.sim.simulation import with_nodes
from flowdist.testing.kit import graph_of
from tests.sim.cross import crossed

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs/macro.md").read_text(encoding="utf-8")

# By topology: empty, macro mode plays it; else the one field, as its refusal has it.
TABLE = {
    "scenarios/topologies/actors.py": "role actor: gang=False",
    "scenarios/topologies/core.py": "the topology: roles=(ps, trainer, logger)",
    "scenarios/topologies/gang.py": "",
    "scenarios/topologies/hundred_thousand.py": "",
    "scenarios/topologies/mesh.py": "",
    "scenarios/topologies/pools.py": "the topology: roles=(trainer, evaluator)",
    "scenarios/topologies/ps.py": "the topology: roles=(ps, trainer, evaluator)",
    "scenarios/topologies/rl.py": "the topology: roles=(reward, replay, learner, actor, evaluator)",
    "scenarios/topologies/rivals.py": "the topology: roles=(blue, red)",
    "scenarios/topologies/sampled.py": "role trainer: simulate='scenarios/topologies/sampled.py:Worker'",
    "scenarios/topologies/sharded.py": "role trainer: snapshots=SnapshotSpec(every=20, apart='rack', size=200000000)",
    "scenarios/topologies/stages.py": "the topology: roles=(reader, actor)",
    "examples/char_gpt/topology.py": "",
    "examples/resume_model/topology.py": "role trainer: simulate='model:Worker'",
    "examples/rl/topology.py": "the topology: roles=(reward, replay, learner, actor, evaluator)",
    "examples/word2vec/topology.py": "the topology: roles=(ps, trainer, evaluator)",
    "flowdist new --template ddp": "role trainer: simulate='model:Worker'",
    "flowdist new --template ps": "the topology: roles=(ps, trainer)",
    "flowdist new --template rl": "the topology: roles=(replay, learner, actor)",
    "dist.ddp": "",
    "dist.spmd": "",
}
COMPONENTS: dict[str, Callable[[], RoleGraph]] = {
    "dist.ddp": lambda: graph_of(ddp(script=__file__, j="2:4x8", max_retries=9)),
    "dist.spmd": lambda: graph_of(spmd(script=__file__, j="2x8", max_retries=9)),
}
# Changes that make macro mode play topologies which it refuses as they are.
ADVICE = {
    "scenarios/topologies/sampled.py": "trainer.simulate=none",
    "examples/resume_model/topology.py": "trainer.simulate=none",
    "flowdist new --template ddp": "trainer.simulate=none",
}
SMALL = {"scenarios/topologies/hundred_thousand.py": {"nodes": "20", "spares": "2", "least": "15"}}


def graph(name: str, folder: Path, *sets: str) -> RoleGraph:
    """The graph of a bundled topology. `folder` is empty; a project of a template is written there."""
    if name in COMPONENTS:
        return with_nodes(COMPONENTS[name]())
    path = ROOT / name
    if name.startswith("flowdist new"):
        path = folder / "project" / "topology.py"
        write_project(path.parent, name.rpartition(" ")[2])
    return with_nodes(load_topology(str(path), SMALL.get(name, {}), sets, None).graph)


def test_the_table_has_every_bundled_topology() -> None:
    paths = [*ROOT.glob("scenarios/topologies/*.py"), *ROOT.glob("examples/*/topology.py")]
    templates = {path.parent.name for path in ROOT.glob("flowdist/projects/templates/*/topology.py.txt")}
    found = {str(path.relative_to(ROOT)) for path in paths} | {f"flowdist new --template {name}" for name in templates}
    assert found | set(COMPONENTS) == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_macro_mode_plays_a_bundled_topology_or_names_one_field(name: str, tmp_path: Path) -> None:
    job, said = graph(name, tmp_path), ""
    try:
        scope_of(job, Plan())
    except MacroRefused as refused:
        said = str(refused).removeprefix("macro mode does not play this job:\n  ")
        assert refused.refusal is not None and said == refused.refusal.text and refused.help == HELP
    assert said.replace(f"{ROOT}/", "") == TABLE[name]


@pytest.mark.parametrize("name", [name for name, field in TABLE.items() if not field or name in ADVICE])
def test_what_macro_mode_plays_agrees_with_protocol_mode(name: str, tmp_path: Path) -> None:
    job = graph(name, tmp_path, *([ADVICE[name]] if name in ADVICE else []))
    plan = parse_plan(rates=["node-kill=60/node-day/2m"])
    (one,) = crossed(job, plan, [3], HOUR // 2)
    assert one.is_equal, one


@pytest.mark.parametrize("name", TABLE)
def test_the_page_on_macro_mode_has_the_table(name: str) -> None:
    said = f"`{TABLE[name].replace('the topology: ', '')}`" if TABLE[name] else "played"
    assert f"| `{name}` | {said} |" in DOCS
