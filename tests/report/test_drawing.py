"""The role graph as Mermaid and dot: the drawing is complete, and no name can break out of its label."""

from __future__ import annotations

import re

import pytest

from flowdist.graph import Domain, Gate, JointWorld, Placement, Resources, RoleGraph, RoleSpec, VersionEdge
from flowdist.report.static.drawing import dot, graph_of, mermaid, size_text

HOSTILE = 'a"]; r9[x] -->\n r0\\ <b>#35;%%{init: {}}%%'


def training(name: str = "ps-train", domain: str = "core") -> RoleGraph:
    ps = RoleSpec("ps", ("true",), kind="service", min_replicas=2, max_replicas=2, gang=False)
    gate = (Gate("ps", "ready", "restart"),)
    gpus = Resources(cpu=0.5, gpu=2, memory=64 << 30)
    trainer = RoleSpec("trainer", ("true",), min_replicas=2, max_replicas=4, procs=2, resources=gpus, gates=gate)
    evaluator = RoleSpec("evaluator", ("true",), primary=False, gates=(Gate("trainer", "started"),))
    return RoleGraph(name, (ps, trainer, evaluator), (Domain(domain, ("ps", "trainer")),))


def test_mermaid_shows_roles_gates_and_domains() -> None:
    assert mermaid(training()) == (
        "---\n"
        'title: "ps-train"\n'
        "---\n"
        "flowchart LR\n"
        '    subgraph d0["restart together: core"]\n'
        '        r0(["ps<br/>service 2<br/>each 1 cpu"])\n'
        '        r1["trainer<br/>task 2:4x2<br/>each 0.5 cpu, 2 gpu, 64GiB"]\n'
        "    end\n"
        '    r2["evaluator<br/>task 1, not primary<br/>each 1 cpu"]\n'
        '    r0 ==>|"ready, restart"| r1\n'
        '    r1 -.->|"started, reconnect"| r2\n'
        "    classDef auxiliary stroke-dasharray: 4 3\n"
        "    class r2 auxiliary\n"
    )


def test_dot_shows_roles_gates_and_domains() -> None:
    assert dot(training()) == (
        'digraph "ps-train" {\n'
        "    rankdir=LR\n"
        '    label="ps-train"\n'
        "    labelloc=t\n"
        '    node [shape=box, fontname="sans-serif"]\n'
        '    edge [fontname="sans-serif"]\n'
        '    subgraph cluster_0 { label="restart together: core"\n'
        '        r0 [label="ps\\nservice 2\\neach 1 cpu", style="rounded"]\n'
        '        r1 [label="trainer\\ntask 2:4x2\\neach 0.5 cpu, 2 gpu, 64GiB"]\n'
        "    }\n"
        '    r2 [label="evaluator\\ntask 1, not primary\\neach 1 cpu", style="dashed"]\n'
        '    r0 -> r1 [label="ready, restart", style=bold]\n'
        '    r1 -> r2 [label="started, reconnect", style=dashed]\n'
        "}\n"
    )


@pytest.mark.parametrize("draw", [mermaid, dot])
def test_a_name_never_breaks_out_of_its_label(draw) -> None:  # type: ignore[no-untyped-def]
    """With labels taken out, a graph with hostile names reads as one with harmless names."""
    harmless, hostile = draw(training()), draw(training(HOSTILE, HOSTILE))
    labels = re.compile(r'"(?:[^"\\\n]|\\.)*"')
    assert labels.sub("", hostile) == labels.sub("", harmless)
    assert hostile.count("\n") == harmless.count("\n")


def test_mermaid_sees_neither_markup_nor_entities_nor_directives_in_a_name() -> None:
    text = mermaid(training(HOSTILE, HOSTILE))
    assert "%%" not in text and "<b>" not in text.partition("flowchart")[2]
    assert "a#34;#93;#59; r9#91;x#93; --#62;  r0#92; #60;b#62;#35;35#59;" in text


def test_a_role_of_two_domains_is_drawn_once_and_says_so() -> None:
    graph = RoleGraph(
        "x", training().roles, (Domain("one", ("ps", "trainer")), Domain("two", ("trainer", "evaluator")))
    )
    for text in (mermaid(graph), dot(graph)):
        assert len(re.findall(r"trainer", text)) == 1 and "restarts together with two too" in text
        assert text.index("restart together: one") < text.index("trainer") < text.index("restart together: two")


@pytest.mark.parametrize(
    ("low", "high", "procs", "text"), [(1, 1, 1, "1"), (2, 4, 1, "2:4"), (2, 4, 2, "2:4x2"), (3, 3, 8, "3x8")]
)
def test_a_size_is_written_as_in_the_dsl(low: int, high: int, procs: int, text: str) -> None:
    assert size_text(RoleSpec("a", ("true",), min_replicas=low, max_replicas=high, procs=procs)) == text


def test_the_values_hold_nodes_edges_and_domains() -> None:
    found = graph_of(training())
    assert [node["name"] for node in found["nodes"]] == ["ps", "trainer", "evaluator"]
    assert found["nodes"][1] == {
        "name": "trainer", "kind": "task", "size": "2:4x2", "min_replicas": 2, "max_replicas": 4, "procs": 2,
        "cpu": 0.5, "gpu": 2, "memory": 64 << 30, "gang": True, "primary": True, "domains": ["core"],
        "world": None, "placement": {"strategy": "spread", "near": [], "apart": [], "where": {}},
    }  # fmt: skip
    assert found["edges"] == [
        {"from": "ps", "to": "trainer", "condition": "ready", "on_restart": "restart"},
        {"from": "trainer", "to": "evaluator", "condition": "started", "on_restart": "reconnect"},
    ]
    assert found["domains"] == [{"name": "core", "roles": ["ps", "trainer"]}] and found["worlds"] == []


def joint() -> RoleGraph:
    """Return a graph with two roles in one world, one in a domain with a third, and three kinds of placement."""
    placement = Placement("pack", near=("ps",), apart=("trainer", "aside"), where=(("zone", "a"), ("rack", "7")))
    roles = (
        RoleSpec("ps", ("true",)),
        RoleSpec("aside", ("true",)),
        RoleSpec("trainer", ("true",), placement=placement),
    )
    worlds = (JointWorld("rpc", ("ps", "trainer")),)
    return RoleGraph("joint", roles, (Domain("core", ("trainer", "aside")),), worlds=worlds)


def test_a_joint_world_is_a_box_and_its_roles_name_their_domains() -> None:
    text = mermaid(joint())
    assert text.splitlines()[4:12] == [
        '    subgraph d0["one world: rpc"]',
        '        r0["ps<br/>task 1<br/>each 1 cpu"]',
        '        r2["trainer<br/>task 1<br/>each 1 cpu<br/>packed, on the node of ps, one a node, not on a node with '
        'aside, where zone=a, where rack=7<br/>restarts together with core too"]',
        "    end",
        '    subgraph d1["restart together: core"]',
        '        r1["aside<br/>task 1<br/>each 1 cpu"]',
        "    end",
    ]
    assert 'subgraph cluster_0 { label="one world: rpc"' in dot(joint())


def test_the_values_hold_worlds_and_placement() -> None:
    found = graph_of(joint())
    assert found["worlds"] == [{"name": "rpc", "roles": ["ps", "trainer"]}]
    assert [node["world"] for node in found["nodes"]] == ["rpc", None, "rpc"]
    assert found["nodes"][2]["placement"] == {
        "strategy": "pack", "near": ["ps"], "apart": ["trainer", "aside"], "where": {"zone": "a", "rack": "7"},
    }  # fmt: skip


def test_no_name_of_a_world_or_label_breaks_out() -> None:
    placement = Placement(where=((HOSTILE, HOSTILE),))
    roles = (RoleSpec("a", ("true",), placement=placement), RoleSpec("b", ("true",)))
    text = mermaid(RoleGraph("x", roles, worlds=(JointWorld(HOSTILE, ("a", "b")),)))
    assert "%%" not in text and "<b>" not in text and text.count("\n") == 8


def test_versions_are_lines_with_a_circle() -> None:
    edges = [VersionEdge("learner", 2), VersionEdge("learner")]
    holders = [RoleSpec(name, ("true",), versions=edge) for name, edge in zip(("actor", "judge"), edges, strict=True)]
    found = RoleGraph("rl", (RoleSpec("learner", ("true",)), *holders))
    assert graph_of(found)["versions"] == [
        {"from": "learner", "to": "actor", "max_staleness": 2},
        {"from": "learner", "to": "judge", "max_staleness": 0},
    ]
    assert 'r0 -.-o|"versions, at most 2 behind"| r1' in mermaid(found)
    assert 'r0 -> r2 [label="the latest version", style=dotted, arrowhead=odot]' in dot(found)
