"""The timeline in the terminal: failures and faults are visible at any width."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from flowdist.cli.inspect.timeline import command
from flowdist.dsl import Node, Topology, Workload
from flowdist.record.journal import Header, encode_line
from flowdist.report.record.terminal import LOOKS, terminal_timeline
from flowdist.report.record.timeline import Timeline, timeline_of
from flowdist.sim.simulation import SimResult
from flowdist.testing import simulate

GANG = Path(__file__).parents[2] / "scenarios/topologies/gang.py"


def drawn(result: SimResult) -> Timeline:
    assert isinstance(result.lines[0], Header)
    return timeline_of(result.lines[0], result.lines[1:])


def lines_of(result: SimResult, width: int = 120) -> dict[str, str]:
    """Return the cells by label."""
    lines = [line.plain for line in terminal_timeline(drawn(result), width)]
    label = lines[0].index("|")
    return {line[:label].strip(): line[label:] for line in lines[1:-1]}


def test_the_picture_of_a_lost_node_shades_lost_work_and_begins_a_generation() -> None:
    lanes = lines_of(simulate(GANG, "node1@2m/2m"))
    assert list(lanes) == [
        *("faults", "world trainer", "trainer/0", "trainer/1", "trainer/2 to 3", "node0", "node1", "node2 to 3"),
    ]
    assert lanes["faults"].count("!") == 1 and lanes["world trainer"].count("│") == 3
    lost = lanes["trainer/1"].index("✗")
    assert lanes["trainer/1"][lost + 1] == " " and lanes["trainer/1"].rstrip().endswith("✓")
    assert lanes["trainer/2 to 3"][lost - 1] == "▓" and "✗" not in lanes["trainer/2 to 3"]
    away = lanes["node1"]
    assert away.index("·") - lost in (0, 1) and away.endswith("─") and "·" not in lanes["node0"]


def test_a_checkpoint_that_came_to_nothing_stands_among_the_others_of_its_world() -> None:
    lane = lines_of(simulate(GANG, "trainer@1m:disk-full/1m"))["world trainer"]
    assert lane.count("┬") == 1 and lane.index("┬") < lane.index("┴")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_window_and_the_axis_has_the_end(width: int) -> None:
    timeline = drawn(simulate(GANG, "trainer/1@1m", "node2@3m"))
    lines = [line.plain for line in terminal_timeline(timeline, width)][:-1]
    assert max(map(len, lines)) <= max(width, 46)
    assert lines[0].rstrip().endswith("|") and "12m" in lines[0]


def test_two_hundred_replicas_that_did_the_same_are_one_line() -> None:
    t = Topology("crowd", nodes=200 * [Node(cpu=1)])
    t.role("trainer", "sleep inf", replicas=200, workload=Workload(steps=100))
    lanes = lines_of(simulate(t))
    assert list(lanes) == ["world trainer", "trainer/0 to 199", "node0 to 199"]


def test_every_look_is_a_sign_of_its_own() -> None:
    signs = [sign for sign, _, _ in LOOKS.values()]
    assert len(set(signs)) == len(signs)


def test_the_command_draws_into_the_terminal_or_a_file(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(b"".join(encode_line(line) for line in simulate(GANG, "node1@2m").lines))
    shown = CliRunner().invoke(command, [str(trace), "--format", "text"])
    assert shown.exit_code == 0 and "trainer/2 to 3" in shown.output and "✗ failed, or was lost" in shown.output
    written = CliRunner().invoke(command, [str(trace), "-o", str(tmp_path / "out.txt")])
    assert written.exit_code == 0, written.output
    assert "trainer/2 to 3" in (tmp_path / "out.txt").read_text()
