"""`flowdist simulate` with rates, files of faults and macro mode, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flowdist.cli.main import cli

TOPOLOGIES = Path(__file__).parents[2] / "scenarios/topologies"
GANG, PS, BIG = (str(TOPOLOGIES / name) for name in ("gang.py", "ps.py", "hundred_thousand.py"))


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["simulate", *arguments])


RATE = "node-kill=200/node-day/2m"


def test_rates_are_in_the_record_and_the_same_seed_draws_the_same(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    options = (GANG, "--rate", RATE, "--rate", "trainer-oom=3/replica-day", "--seed", "4", "--until", "20m")
    first, again = simulate(*options, "--trace", str(trace)), simulate(*options)
    other = simulate(*options[:-3], "5", "--until", "20m")
    digests = [done.output.split("digest ")[1] for done in (first, again, other)]
    assert digests[0] == digests[1] != digests[2]
    header, *lines = map(json.loads, trace.read_text().splitlines())
    assert header["options"]["rates"] == f"{RATE} trainer-oom=3/replica-day" and header["seed"] == 4
    specs = [line["spec"] for line in lines if line["type"] == "fault"]
    assert specs and all(spec.startswith("node") and spec.endswith("/2m") for spec in specs)
    # the drawn faults, given as --fail, make the same run
    fails = [word for spec in specs for word in ("--fail", spec)]
    written = simulate(GANG, *fails, "--seed", "4", "--until", "20m")
    assert written.output.split("digest ")[1].split()[0] == digests[0].split()[0]


def test_a_file_of_faults_is_the_same_as_options(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("# both\nnode2@3m/60s\ntrainer@6m:scale=2\n")
    by_file = simulate(GANG, "--faults", str(tmp_path / "f"))
    by_options = simulate(GANG, "--fail", "node2@3m/60s", "--fail", "trainer@6m:scale=2")
    assert by_file.exit_code == by_options.exit_code == 0 and by_file.output == by_options.output


def test_what_is_wrong_with_them_is_said(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("node2@3m/60s\nnode2@3m:kil\n")
    done = simulate(GANG, "--faults", str(tmp_path / "f"))
    assert done.exit_code == 2
    assert f"error: {tmp_path}/f:2: kind 'kil' is unknown\n  node2@3m:kil\n           ^^^\n" in done.output
    assert "help: did you mean 'kill'?" in done.output
    rate = simulate(GANG, "--rate", "nod-kill=1/day")
    assert rate.exit_code == 2 and "there is no 'nod'" in rate.output and "did you mean 'node'?" in rate.output


def test_a_scenario_may_have_rates(tmp_path: Path) -> None:
    scenario = tmp_path / "s.toml"
    scenario.write_text(f'title = "x"\ntopology = "{GANG}"\nuntil = "10m"\nrates = ["{RATE}"]\nseed = 4\n')
    assert "lost (killed)" in simulate(str(scenario)).output


def test_exploring_draws_its_own_faults() -> None:
    done = simulate(GANG, "--explore", "2", "--fail", "node1@3m")
    assert done.exit_code == 2 and "draw their own faults" in done.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--explore", "3", "--seeds", "1:3"), "--explore does not go with --seeds: 3 are the seeds 1:3"),
        (("--explore", "3", "--seed", "0"), "--seed is of one run; a campaign has many"),
        (("--explore", "3", "--schedule", "0"), "--schedule is of one run"),
        (("--seeds", "3", "--until", "5m"), "--until is of one run"),
        (("--seeds", "3", "--trace", "x"), "--trace is of one run"),
        (("--seeds", "3", "--html", "x"), "--html is of one run"),
        (("--jobs", "1"), "--jobs is of campaigns; here is one run"),
        (("--corpus", "x"), "--corpus is of campaigns"),
        (("--fail-fast",), "--fail-fast is of campaigns"),
        (("--cover",), "--cover is of campaigns"),
        (("--cross-check",), "--cross-check compares macro mode with this one"),
        (("--macro", "--schedule", "3"), "--schedule is not for --macro"),
        (("--macro", "--jobs", "2", "--seeds", "1:2"), "--jobs is not for --macro"),
        (("--macro", "--seed", "2", "--seeds", "1:2"), "--seed does not go with --seeds"),
        (("--seeds", "²"), "--seeds ² cannot be read"),
        (("--until", "0s"), "--until 0s: nothing happens before that time"),
    ],
)
def test_options_that_would_change_nothing_are_refused(arguments: tuple[str, ...], words: str) -> None:
    done = simulate(GANG, *arguments)
    assert done.exit_code == 2 and words in done.output, done.output


def test_a_scenario_is_no_topology_to_explore(tmp_path: Path) -> None:
    scenario = tmp_path / "s.toml"
    scenario.write_text(f'title = "x"\ntopology = "{GANG}"\n')
    done = simulate(str(scenario), "--explore", "3")
    assert done.exit_code == 2 and "a scenario has its own faults" in done.output


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('faults = ["nod1@3m"]', "s.toml:3: there is no 'nod1'"),
        ('faults = ["node1@3x"]', "s.toml:3: '3x' is no duration"),
        ('rates = ["nod-kill=1/day"]', "s.toml:3: there is no 'nod'"),
        ("expect = { restarted = { trianer = 1 } }", "s.toml: expect.restarted: there is no 'trianer'"),
    ],
)
def test_what_is_wrong_in_a_scenario_is_told_with_its_file(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "s.toml").write_text(f'title = "x"\ntopology = "{GANG}"\n{line}\n')
    done = simulate(str(tmp_path / "s.toml"))
    assert done.exit_code == 2 and words in done.output, done.output


def test_a_fault_that_never_fired_is_told_under_json_as_well() -> None:
    fault = "trainer@step=trainer,99999"
    assert json.loads(simulate(GANG, "--fail", fault, "--json").stdout)["unfired"] == [fault]
    assert f"warning: fault {fault} never fired" in simulate(GANG, "--fail", fault).output


def test_what_becomes_of_the_peers_of_a_dead_worker_is_said_on_the_command_line() -> None:
    fault = ("--fail", "node1@1m59s:delay=1s/5s", "--fail", "trainer/1@2m")
    lost = "trainer/0 failed on node0: exit code 1: its process group has lost trainer/1"
    assert lost in simulate(GANG, *fault, "--collective", "fail").output
    assert lost not in simulate(GANG, *fault).output
    said = ("--set", "trainer.workload.collective=wait", "--collective", "fail")
    assert lost not in simulate(GANG, *fault, *said).output, "the topology says it"
    assert "'die' is not one of" in simulate(GANG, "--collective", "die").output
    explored = [json.loads(simulate(GANG, "--seeds", "1:9", "--json", *more).output) for more in ((), said[2:])]
    assert [bool(found["collectives"]) for found in explored] == [True, False], "what is given is not drawn"
    assert "they fail in" in simulate(GANG, "--seeds", "1:9").output


WEEKS = (BIG, "-p", "nodes=1250", "-p", "spares=20", "-p", "least=1200", "--macro", "--until", "30d")


def test_a_simulation_that_stops_before_the_job_ends_says_so_and_ends_with_4(tmp_path: Path) -> None:
    done = simulate(GANG, "--until", "3m30s")
    assert done.exit_code == 4 and "UNFINISHED after 3m30s\n" in done.output
    assert "the job had not ended at 3m30s (--until): give it more time (exit code 4)" in done.output
    assert "unsaved at the end" in done.output and "% lost work" not in done.output
    summary = json.loads(simulate(GANG, "--until", "3m30s", "--json").output)
    role, time_s = summary["roles"]["trainer"], summary["time_s"]["trainer"]
    assert summary["outcome"] is None and role["lost_work_s"] == 0
    assert 0 < role["unsaved_work_s"] <= time_s["unsaved at the end"] / 4 < role["unsaved_work_s"] + 1  # whole steps
    assert "lost work" not in time_s
    assert sum(summary["time_ns"]["trainer"].values()) == 4 * 210 * 10**9
    assert simulate(GANG, "--macro", "--until", "3m30s").exit_code == 4
    scenario = tmp_path / "s.toml"
    scenario.write_text(f'title = "x"\ntopology = "{GANG}"\nuntil = "3m30s"\n')
    assert simulate(str(scenario)).exit_code == 0
    assert simulate(str(scenario), "--until", "1m").exit_code == 4


def test_macro_mode_shows_means_with_how_sure_they_are() -> None:
    done = simulate(*WEEKS, "--rate", "node-kill=6.5e-3/node-day/4h", "--seeds", "1:4")
    assert done.exit_code == 4  # the job had not ended after 30 days
    for words in (
        "1250 replicas of trainer on 1270 nodes, 10160 GPUs",
        "rate node-kill=6.5e-3/node-day/4h: 1270 of them, together a fault in 2h54m",
        "4 runs: 4 unfinished",
        "+- (95 %)",
        "Incidents per run, by cause",
        "best by Daly's formula",
        "failures a second of CPU",
    ):
        assert words in done.output


def test_macro_mode_as_json() -> None:
    done = simulate(*WEEKS, "--rate", "node-kill=6.5e-3/node-day/4h", "--seeds", "1:2", "--json")
    found = json.loads(done.output)
    assert found["kind"] == "macro" and [run["seed"] for run in found["runs"]] == [1, 2]
    run = found["runs"][0]
    assert sum(run["time_s"]["trainer"].values()) == pytest.approx(1250 * 30 * 86400)
    assert run["roles"]["trainer"]["generations"] == 1 + sum(run["causes"].values())
    assert len(found["estimates"]["goodput"]) == 2


def test_a_macro_job_that_fails_ends_with_1() -> None:
    done = simulate(GANG, "--macro", "-p", "replicas=4", "--fail", "node1@3m")
    assert done.exit_code == 1 and "failed: trainer was below its minimum for 10m" in done.output


def test_a_macro_trace_is_written_and_neither_replayed_nor_drawn(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    assert simulate(GANG, "--macro", "--fail", "node1@3m/1m", "--trace", str(trace)).exit_code == 0
    assert '"incident (node_lost): node1 lost (killed)"' in trace.read_text()
    for verb in ("replay", "timeline"):
        done = CliRunner().invoke(cli, [verb, str(trace)])
        assert done.exit_code == 2 and "is a trace of macro mode" in done.output
    assert not trace.with_suffix(".html").exists()


def test_the_difference_is_printed() -> None:
    done = simulate(GANG, "--macro", "--cross-check", "--rate", RATE, "--until", "30m", "--seeds", "1:3")
    assert done.exit_code == 0
    assert "productive" in done.output and "equal to the nanosecond: 3 of 3" in done.output
    found = json.loads(simulate(GANG, "--macro", "--cross-check", "--until", "30m", "--json").output)
    assert found["equal"] == found["alike"] == 1


def test_a_difference_ends_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowdist.sim.macro.scope.PROOF_NS", 30_000_000_000)
    done = simulate(GANG, "--macro", "--cross-check", "--fail", "node1@3m/1m", "--until", "30m")
    assert done.exit_code == 3 and "same outcome, generations and incidents" in done.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            (PS, "--macro", "--rate", "node-kill=1/day", "--until", "30d", "--seeds", "2:9"),
            "ps.py:14:9: macro mode does not play this job:\n  the topology: roles=(ps, trainer, evaluator)\n"
            f"help: play a shorter time of it exactly: flowdist simulate {PS} "
            "--rate node-kill=1/day --seed 2 --until 6h\n",
        ),
        ((GANG, "--macro", "--explore", "3"), "--explore is not for --macro"),
        ((GANG, "--macro", "--set", "trainer.ready_timeout=9s"), "role trainer: ready_timeout='9s'"),
        ((GANG, "--macro", "--goodput", "0.9"), "properties and bounds are not for --macro"),
        ((GANG, "--macro", "--html", "x.html"), "--html is not for --macro"),
        ((GANG, "--macro", "--trace", "x", "--seeds", "1:2"), "--trace is of one run"),
        ((GANG, "--macro", "--cross-check"), "--cross-check needs an end"),
        (
            (GANG, "--macro", "--fail", "node1@3m:pause", "--until", "10m", "-p", "nodes=5"),
            f"flowdist simulate {GANG} -p nodes=5 --fail node1@3m:pause --until 10m",
        ),
        ((GANG, "--macro", "--drain", "node1@3m"), "macro mode does not play --drain node1"),
    ],
)
def test_what_macro_mode_cannot_do_it_says(arguments: tuple[str, ...], words: str) -> None:
    done = simulate(*arguments)
    assert done.exit_code == 2 and words in done.output


def test_a_fault_that_takes_the_last_node_for_good_is_told_before_the_start(tmp_path: Path) -> None:
    told = simulate(GANG, "-p", "nodes=2", "--fail", "node0@9s")
    assert told.stderr.startswith("warning: after node0@9s no room is left for the minimum of trainer")
    assert "no room is left" not in simulate(GANG, "-p", "nodes=2", "--fail", "node0@9s/30s").stderr
    assert "no room is left" not in simulate(GANG, "-p", "nodes=2", "--fail", "node0@9s", "--json").stderr
