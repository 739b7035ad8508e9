"""Timeouts on the command line: the timeline of a problem is on the terminal and under --json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowdist.cli.main import cli
from flowdist.cli.shared import played
from flowdist.dsl.check import excerpts
from flowdist.dsl.load import load_topology

BODY = """
from flowdist import Restart, Topology, Workload
t = Topology("job", nodes=2)
t.role(
    "trainer",
    "true",
    replicas=2,
    apart=True,
    start_timeout="5m",
    pending_timeout="1m",
    hang_after="11m",
    restart=Restart("role", max_restarts=1),
    workload=Workload(startup="1m", warmup="7m", checkpoint_every="1h"),
)
"""
TIMELINE = [
    "     2ms  trainer/0, trainer/1 start",
    "      5m  trainer/0 has reported no first step for 5m",
    "    5m2s  incident 1: trainer: it hangs: it reported no progress within 5m; nothing tells trainer/0, trainer/1 "
    "apart, so that none is blamed; restarting trainer (restart 1 of 1)",
    "  5m2.1s  trainer/0, trainer/1 start",
    "  5m2.1s  incident 1: re-formed after 108ms, charged to trainer",
    "10m4.1s  the job fails: trainer: it hangs: it reported no progress within 5m; nothing tells trainer/0, trainer/1 "
    "apart, so that none is blamed; role trainer has used up its budget of 1 restart",
]


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    file = tmp_path / "topology.py"
    file.write_text(BODY)
    return file


def run(*args: str) -> Any:
    return CliRunner().invoke(cli, args)


def stripped(lines: list[str]) -> list[str]:
    return [line.strip() for line in lines]


def test_check_refuses_with_a_timeline(topology: Path) -> None:
    result = run("check", str(topology))
    assert result.exit_code == 2
    lines = stripped(result.stderr.splitlines())
    begin = lines.index("= played by the simulator:") + 1
    assert lines[begin : begin + 6] == stripped(TIMELINE)
    assert lines[begin + 6] == '= help: write start_timeout="11m" or more'


def test_check_prints_the_timeline_as_json(topology: Path) -> None:
    (problem,) = json.loads(run("check", str(topology), "--json").stdout)["problems"]
    assert problem["code"] == "FD180"
    assert stripped(problem["timeline"]) == stripped(TIMELINE)
    assert [related["text"] for related in problem["related"]] == ["startup=1m", "warmup=7m"]


SOUND = ("--set", "trainer.start_timeout=20m")


def test_plan_and_simulate_print_warnings_as_json(topology: Path) -> None:
    set_hang = ("--set", "trainer.hang_after=8m", "--json")
    (problem,) = json.loads(run("plan", str(topology), *SOUND, *set_hang).stdout)["problems"]
    assert (problem["code"], "timeline" in problem) == ("FD304", False)
    (problem,) = json.loads(run("simulate", str(topology), *SOUND, *set_hang).stdout)["problems"]
    assert problem["code"] == "FD304"


def test_simulate_judges_its_faults_and_its_collective(topology: Path) -> None:
    options = ("--fail", "node1@9m/3m", "--collective", "hang", "--until", "15m", *SOUND)
    result = run("simulate", str(topology), *options)
    assert (
        "warning[FD331]: role 'trainer': pending_timeout=1m is over before node1 comes back after 3m" in result.stderr
    )
    assert "warning[FD327]: role 'trainer': a rank that hangs is found only after its peers have died" in result.stderr
    assert result.stderr.count("= played by the simulator:") == 2
    assert "the job fails: trainer was below its minimum for 1m" in result.stderr
    codes = [
        problem["code"] for problem in json.loads(run("simulate", str(topology), *options, "--json").stdout)["problems"]
    ]
    assert codes == ["FD327", "FD331"]


def test_a_scenario_is_judged_like_the_command_line(topology: Path) -> None:
    scenario = topology.with_name("a.toml")
    scenario.write_text(
        'title = "a"\ntopology = "topology.py"\nuntil = "15m"\nfaults = ["node1@9m/3m"]\n'
        '[set]\n"trainer.start_timeout" = "20m"\n[expect]\noutcome = "failed"\n'
    )
    result = run("simulate", str(scenario))
    assert "a.toml:4:1: warning[FD331]" in result.stderr
    assert result.exit_code == 0


def test_without_a_finding_nothing_is_played(topology: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = []
    monkeypatch.setattr(played, "played", lambda scene: scenes.append(scene) or ())
    assert run("check", str(topology), *SOUND).exit_code == 0
    assert not scenes


def test_a_scene_with_too_many_events_is_not_shown(topology: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load_topology(str(topology), sets=[SOUND[1], "trainer.workload.checkpoint_every=1s"]).graph
    scene = excerpts.nothing_fails(graph, graph.roles[0], 10**12, "ready")
    assert len(played.played(scene)) == played.LINES_MAX
    monkeypatch.setattr(played, "EVENTS_MAX", 100)
    assert played.played(scene) == ()
