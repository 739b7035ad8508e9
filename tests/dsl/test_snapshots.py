"""`snapshots=`: copies of a gang's state in memory are checked against its replicas and nodes (R24)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from flowdist.graph import SnapshotSpec, decode_graph, encode_graph
from flowdist.graph.codec import why_unsound
from tests.dsl.test_load import loaded, problems_of, refused

HEAD = "from flowdist import Node, Restart, Snapshots, Topology, Workload\n"
RACKS = 'nodes=[Node(labels={"rack": f"r{i // 2}"}) for i in range(4)]'


def topology(arguments: str, nodes: str = "nodes=4") -> str:
    return f'{HEAD}t = Topology("x", {nodes})\nt.role("a", "true", replicas="1:4", {arguments})'


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("Snapshots()", SnapshotSpec(2, 1, "node", 0)),
        ('Snapshots(copies=3, every=20, apart="rack", size="200MB")', SnapshotSpec(3, 20, "rack", 200_000_000)),
        ("None", None),
    ],
)
def test_snapshots_are_read_and_kept_in_the_graph(tmp_path: Path, arguments: str, expected: object) -> None:
    graph = loaded(tmp_path, topology(f"snapshots={arguments}", RACKS)).graph
    assert graph.role("a").snapshots == expected
    assert decode_graph(encode_graph(graph)) == graph


@pytest.mark.parametrize(
    ("arguments", "nodes", "code", "message"),
    [
        ("snapshots=2", "nodes=4", "FD134", "snapshots=2 must be a Snapshots"),
        ("snapshots=Snapshots(copies=0)", "nodes=4", "FD105", "copies=0 is less than 1"),
        ("snapshots=Snapshots(every=0)", "nodes=4", "FD105", "every=0 is less than 1"),
        ("snapshots=Snapshots(apart=3)", "nodes=4", "FD134", "apart=3 must be a text"),
        ("snapshots=Snapshots(size='big')", "nodes=4", "FD107", "size='big' cannot be read"),
        (
            "snapshots=Snapshots(copies=3)",
            "nodes=2",
            "FD171",
            "but it may run on 2 nodes",
        ),
        ("snapshots=Snapshots(copies=5)", "nodes=9", "FD171", "but its world has 4 replicas"),
        ("snapshots=Snapshots(copies=5)", "", "FD171", "but its world has 4 replicas"),
        ("snapshots=Snapshots(apart='rak')", RACKS, "FD171", "apart='rak': no node has such a label"),
        ("gang=False, snapshots=Snapshots()", "nodes=4", "FD171", "its replicas are no gang"),
        (
            "memory='20GiB', snapshots=Snapshots(size='4GiB')",
            "nodes=4",
            "FD171",
            "2 snapshots at a time and the replicas need 36GiB on a node, and the largest has 32GiB",
        ),
    ],
)
def test_what_no_node_can_hold_is_refused(tmp_path: Path, arguments: str, nodes: str, code: str, message: str) -> None:
    problem = refused(tmp_path, topology(arguments, nodes))
    assert (problem.code, message in problem.message) == (code, True), problem


def test_roles_of_a_world_have_the_same_snapshots(tmp_path: Path) -> None:
    body = topology("snapshots=Snapshots()").replace("t.role(", "a = t.role(")
    body += '\nb = t.role("b", "true")\nt.world("core", a, b)'
    problem = refused(tmp_path, body)
    assert "role 'b' shares its world, and has other snapshots or none" in problem.message
    same = loaded(tmp_path, body.replace('"b", "true"', '"b", "true", snapshots=Snapshots()')).graph
    roles = (same.roles[0], msgspec.structs.replace(same.roles[1], snapshots=None))
    assert "its roles have different snapshots" in why_unsound(msgspec.structs.replace(same, roles=roles))
    loose = msgspec.structs.replace(same.roles[0], gang=False)
    assert "it has snapshots, and is no gang" in why_unsound(msgspec.structs.replace(same, roles=(loose,), worlds=()))


def test_mistakes_are_said_at_once_and_what_follows_from_them_is_not(tmp_path: Path) -> None:
    body = topology("snapshots=Snapshots(copies=0, apart='rak', size=-1)", RACKS).replace("t.role(", "a = t.role(")
    body += '\nb = t.role("b", "true", snapshots=Snapshots(copies=7))\nt.world("core", a, b)'
    found = [(problem.code, problem.message.partition(": ")[2]) for problem in problems_of(tmp_path, body)]
    assert found == [
        ("FD105", "copies=0 is less than 1"),
        ("FD105", "size=-1 must not be negative"),
        ("FD171", "copies=7 are on as many nodes, but it may run on 4 nodes"),
    ]


def test_a_model_of_the_user_has_no_snapshots(tmp_path: Path) -> None:
    methods = ("__init__(self, ctx)", "restore(self)", "step(self, step)")
    model = "class Model:\n" + "".join(f"    def {method}: pass\n" for method in methods)
    body = topology("snapshots=Snapshots(), simulate=Model").replace(HEAD, HEAD + model)
    assert "it has simulate=, too" in refused(tmp_path, body).message


def test_a_part_is_set_on_the_command_line(tmp_path: Path) -> None:
    graph = loaded(tmp_path, topology("snapshots=Snapshots()"), sets=["a.snapshots.copies=3"]).graph
    assert graph.role("a").snapshots == SnapshotSpec(3)


def test_nothing_is_said_of_copies_while_the_number_of_replicas_is_wrong(tmp_path: Path) -> None:
    body = topology("snapshots=Snapshots(copies=5, size='99GiB')").replace('"1:4"', '"0"')
    assert refused(tmp_path, body).code == "FD105"
