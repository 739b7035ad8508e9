"""The table of docs/survives.md: each cell is simulated."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from flowdist.graph import SnapshotSpec
from tests.sim.test_snapshots import SIZE, job, resumed, simulated, texts

PAGE = (Path(__file__).parents[2] / "docs/survives.md").read_text(encoding="utf-8")
COLUMNS = {
    "no snapshots": None,
    "`copies=1`": SnapshotSpec(1, 20, size=SIZE),
    "`copies=2`": SnapshotSpec(2, 20, size=SIZE),
    '`copies=2, apart="rack"`': SnapshotSpec(2, 20, "rack", SIZE),
    "`copies=3`": SnapshotSpec(3, 20, size=SIZE),
    '`copies=3, apart="rack"`': SnapshotSpec(3, 20, "rack", SIZE),
}
AT = "153s"  # step 146: the last snapshot is of step 140, the last checkpoint of step 100
LOSSES = {
    "a worker": ["trainer/1"],
    "all workers": ["trainer"],
    "a node": ["node0"],
    "a node and its next one, a rack": ["rack=r0"],
    "a node and its buddy in another rack": ["node0", "node2"],
    "two nodes that are no buddies": ["node0", "node3"],
    "two racks": ["rack=r0", "rack=r1"],
    "all nodes, which come back": [f"node{number}" for number in range(6)],
    "the controller": ["controller"],
}


def table() -> dict[tuple[str, str], str]:
    """What the page says, by loss and column."""
    lines = PAGE.partition("| what is lost ")[2].partition("\n\n")[0].splitlines()
    columns = [cell.strip() for cell in lines[0].strip("|").split("|")]
    found = {}
    for line in lines[2:]:
        loss, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        found |= {(loss, column): cell for column, cell in zip(columns, cells, strict=True)}
    return found


TABLE = table()


def test_the_page_has_each_loss_and_each_number_of_copies() -> None:
    assert set(TABLE) == {(loss, column) for loss in LOSSES for column in COLUMNS}


@pytest.mark.parametrize(("loss", "column"), TABLE)
def test_a_cell_of_the_table_is_what_the_simulator_plays(loss: str, column: str) -> None:
    graph = job(nodes=6)
    graph = replace(graph, roles=(replace(graph.roles[0], snapshots=COLUMNS[column]),))
    back = "/20s" if loss.startswith("all nodes") else ""
    result = simulated(graph, *(f"{target}@{AT}{back}" for target in LOSSES[loss]))
    assert result.job.outcome == "succeeded"
    steps = resumed(result)[:1]
    found = "goes on" if not steps else "memory" if steps[0] is not None else "checkpoint"
    assert found == TABLE[loss, column], texts(result)
    lost = {"goes on": 0, "memory": 6, "checkpoint": 46}[found]
    assert result.models["trainer"].lost_steps == lost
