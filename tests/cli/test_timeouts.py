"""Problems of timeouts on the command line: on the terminal and under --json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowdist.cli.main import cli

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


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    file = tmp_path / "topology.py"
    file.write_text(BODY)
    return file


def run(*args: str) -> Any:
    return CliRunner().invoke(cli, args)


def test_check_refuses_with_both_values_and_what_to_write(topology: Path) -> None:
    result = run("check", str(topology))
    assert result.exit_code == 2
    lines = [line.strip() for line in result.stderr.splitlines()]
    words = (
        "start_timeout=5m ends every attempt before its first step, which begins after 8m (1m start-up + 7m warm-up)"
    )
    assert f"topology.py:9:19: error[FD180]: role 'trainer': {words}" in lines[0]
    assert lines[-5:-2] == [
        f"= note: startup=1m, in {topology}:13:31",
        f"= note: warmup=7m, in {topology}:13:44",
        '= help: write start_timeout="11m" or more',
    ]


def test_check_prints_the_other_values_as_json(topology: Path) -> None:
    (problem,) = json.loads(run("check", str(topology), "--json").stdout)["problems"]
    assert problem["code"] == "FD180"
    assert [related["text"] for related in problem["related"]] == ["startup=1m", "warmup=7m"]


SOUND = ("--set", "trainer.start_timeout=20m")


def test_plan_and_simulate_print_warnings_as_json(topology: Path) -> None:
    set_hang = ("--set", "trainer.hang_after=8m", "--json")
    (problem,) = json.loads(run("plan", str(topology), *SOUND, *set_hang).stdout)["problems"]
    assert problem["code"] == "FD304"
    (problem,) = json.loads(run("simulate", str(topology), *SOUND, *set_hang).stdout)["problems"]
    assert problem["code"] == "FD304"


def test_simulate_judges_its_faults_and_its_collective(topology: Path) -> None:
    options = ("--fail", "node1@9m/3m", "--collective", "hang", "--until", "15m", *SOUND)
    result = run("simulate", str(topology), *options)
    assert (
        "warning[FD331]: role 'trainer': pending_timeout=1m is over before node1 comes back after 3m" in result.stderr
    )
    assert "warning[FD327]: role 'trainer': a rank that hangs is found only after its peers have died" in result.stderr
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
