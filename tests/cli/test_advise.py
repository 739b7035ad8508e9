"""`flowdist advise` as a user types it."""

from __future__ import annotations

import json
import re
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flowdist.cli.main import cli

ROOT = Path(__file__).parents[2]
GANG = str(ROOT / "scenarios/topologies/gang.py")
RATE = ("--rate", "node-kill=100/node-day/2m")
LONG = ("--set", "trainer.workload.steps=40000", "--set", "trainer.workload.checkpoint_every=20m")
USUAL = (GANG, *RATE, *LONG, "--seeds", "1:4", "--until", "6h")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(map(str, arguments)))


def advise(*arguments: str) -> Result:
    return run("advise", *arguments)


@pytest.fixture(scope="module")
def usual() -> str:
    done = advise(*USUAL, "--only", "interval")
    assert done.exit_code == 0, done.output
    return done.stdout


def test_it_says_what_to_change_what_that_gains_and_how_sure_it_is(usual: str) -> None:
    assert re.search(r"gang: seeds 1:4 in macro mode, each 6h at most, 100 faults", usual)
    assert re.search(r"goodput today: [\d.]+ % \+- [\d.]+", usual)
    assert re.search(r"1  trainer saves every  20m    \S+  \+[\d.]+ \+- [\d.]+ .* 4 of 4 seeds", usual)
    assert "node hours saved" in usual and "cost saved" not in usual


def test_the_commands_show_the_gain(usual: str) -> None:
    commands = {
        line.split()[0]: line.split(maxsplit=1)[1] for line in usual.splitlines() if "flowdist simulate" in line
    }
    assert list(commands) == ["today", "1"]
    shown = []
    for command in commands.values():
        done = run(*shlex.split(command)[1:], "--json")
        shown.append(json.loads(done.stdout)["estimates"]["goodput"][0])
    gain = re.search(r"trainer saves every  20m    \S+  \+([\d.]+)", usual)
    assert gain and 100 * (shown[1] - shown[0]) == pytest.approx(float(gain[1]), abs=0.006)


def test_a_topology_that_leaves_its_nodes_to_the_machine_gets_no_spare_ones() -> None:
    asked = (str(ROOT / "examples/char_gpt/topology.py"), "--rate", "trainer-kill=30/replica-hour", "--seeds", "1:2")
    told = json.loads(advise(*asked, "--only", "spares", "--json").stdout)
    assert told["advice"] == told["tried"] == []
    declared = json.loads(advise(GANG, *RATE, "--seeds", "1:2", "--until", "1h", "--only", "spares", "--json").stdout)
    assert [change["what"] for one in declared["advice"] for change in one["changes"]] or declared["tried"]


@pytest.mark.slow
def test_json_has_the_sweep_the_gains_and_the_commands() -> None:
    told = json.loads(advise(*USUAL, "--only", "interval", "--only", "minimum", "--price", "3", "--json").stdout)
    assert told["kind"] == "advice" and told["mode"] == "macro" and told["role"] == "trainer"
    interval = told["interval"]
    assert interval["today_s"] == 1200 and interval["least_s"] == 1 <= interval["best_s"] < 1200
    assert {point["s"] for point in interval["sweep"]} >= {interval["best_s"], 1200.0}
    (best,) = (one for one in told["advice"] if one["changes"][0]["lever"] == "interval")
    assert best["verdict"] == "saves" and best["gain"]["money"][0] == pytest.approx(3 * best["gain"]["hours"][0])
    assert "--set trainer.workload.checkpoint_every=" in best["command"]
    assert {one["lever"] for one in told["tried"]} <= {"minimum"} and told["measured_rates"] == []


@pytest.mark.slow
def test_the_price_of_an_hour_is_of_gpus_or_of_nodes(tmp_path: Path) -> None:
    told = [json.loads(advise(*USUAL, "--only", "interval", *more, "--json").stdout)
            for more in (("--price", "3"), ("--price", "3/node-hour"))]  # fmt: skip
    assert told[0]["advice"] == told[1]["advice"] and told[0]["unit"] == "node-hour"
    done = advise(*USUAL, "--price", "3/gpu-hour")
    assert done.exit_code == 2 and "the nodes of the job have no GPUs" in done.output
    big = (str(ROOT / "scenarios/topologies/hundred_thousand.py"), "-p", "nodes=8", "-p", "least=6", "-p", "spares=0")
    rest = ("--rate", "node-kill=1/node-day/1h", "--until", "2d", "--seeds", "1:2", "--only", "interval", "--json")
    per_gpu, per_node = (json.loads(advise(*big, *rest, "--price", price).stdout) for price in ("1", "8/node-hour"))
    assert per_gpu["unit"] == "GPU-hour" and per_gpu["price"] == per_node["price"] == 1.0


def test_where_nothing_is_sure_to_gain_it_says_so() -> None:
    done = advise(GANG, "--rate", "node-kill=1/node-day/2m", "--seeds", "1:3", "--only", "scope")
    assert done.exit_code == 0 and "Nothing gains more than its uncertainty." in done.stdout
    assert "a failure of trainer restarts job: +0.00\n" in done.stdout
    assert (
        "note: no 95 % intervals: no faults of node-kill hit in 3 runs, too few; at least about 48 seeds" in done.stdout
    )


def test_the_plot_marks_today_and_the_best_and_is_in_the_page(tmp_path: Path) -> None:
    plot, page = tmp_path / "x.svg", tmp_path / "x.html"
    done = advise(*USUAL, "--only", "interval", "--plot", str(plot), "--html", str(page))
    assert done.exit_code == 0, done.output
    drawn = ET.fromstring(plot.read_text())
    texts = ["".join(text.itertext()) for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "today: 20m" in texts and any(text.startswith("best: ") for text in texts)
    assert plot.read_text() in page.read_text() and "trainer saves every" in page.read_text()
    assert "http" not in page.read_text().replace("http://www.w3.org/2000/svg", ""), "the page fetches nothing"


def test_rates_are_measured_in_a_record_and_stand_in_the_commands(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    run("simulate", GANG, "--fail", "node1@2m/1m", "--fail", "node2@5m/1m", "--trace", str(trace))
    done = advise(GANG, "--from", str(trace), "--only", "interval", "--seeds", "1:3")
    assert done.exit_code == 0, done.output
    assert re.search(r"measured --rate node-kill=[\d.]+/node-day/1m(\d+s)?: 2 in [\d.]+ days \(95 %: ", done.stderr)
    assert "note: node-kill is measured from 2 failures: between" in done.stdout
    assert re.search(r"today  flowdist simulate .*gang.py --rate node-kill=\S+/node-day/1m", done.stdout)


def test_a_record_without_failures_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    run("simulate", GANG, "--trace", str(trace))
    done = advise(GANG, "--from", str(trace))
    assert done.exit_code == 2 and "no failure of a node or worker of this job" in done.output


def test_the_times_of_a_calibration_are_used_and_stand_in_the_commands(tmp_path: Path) -> None:
    workload = tmp_path / "workload.toml"
    workload.write_text('format = 1\nruns = ["x"]\n[roles."trainer"]\nstep_time = "7s"\nsteps = 5000\n')
    done = advise(GANG, *RATE, "--workload", str(workload), "--only", "interval", "--seeds", "1:2", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["interval"]["least_s"] == 7 and f"--workload {workload}" in told["command"]


def test_a_model_of_user_code_is_left_out() -> None:
    topology = str(ROOT / "examples/resume_model/topology.py")
    done = advise(topology, "--rate", "node-kill=200/node-day/1m", "--only", "interval", "--seeds", "1:3", "--json")
    assert done.exit_code == 0, done.output
    assert "--set trainer.simulate=none" in json.loads(done.stdout)["command"]


def test_faults_of_a_file_are_named_by_the_file(tmp_path: Path) -> None:
    file = tmp_path / "faults.txt"
    file.write_text("rate node-kill=100/node-day/2m\n")
    done = advise(GANG, *LONG, "--faults", str(file), "--until", "6h", "--seeds", "1:4", "--only", "interval", "--json")
    told = json.loads(done.stdout)
    assert f"--faults {file}" in told["command"] and "--rate" not in told["command"]


def test_everything_that_is_wrong_with_the_options_is_said_at_once() -> None:
    wrong = ("--rate", "node-kill=1x", "--price", "dear", "--seeds", "3", "--until", "soon", "--only", "lese")
    done = advise(GANG, *wrong, "--plot", "x.png")
    assert done.exit_code == 2 and done.stdout == ""
    for words in (
        "'1x' is no rate",
        "--until soon is not a duration",
        "--seeds 3: one seed shows no uncertainty",
        "--only lese is no lever (did you mean 'lease'?)",
        "--price dear cannot be read",
        "--plot x.png: the plot is SVG",
    ):
        assert words in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((GANG,), "advice needs failures"),
        ((GANG, "--rate", "nod-kill=1/nod-day"), "did you mean 'node'?"),
        ((GANG, *RATE, "--until", "0s"), "nothing happens before that time"),
        ((GANG, *RATE, "--only", "spares", "--plot", "x.svg"), "which --only excludes"),
        ((GANG, "--from", "nowhere.jsonl"), "no file 'nowhere.jsonl'"),
        (("nowhere.py", *RATE), "no topology file 'nowhere.py'"),
        ((GANG, *RATE, "--workload", "nowhere.toml"), "nowhere.toml"),
        ((str(ROOT / "scenarios/r12_a_spare_node_is_used_at_once.toml"), *RATE), "name its topology"),
    ],
)
def test_what_is_wrong_is_said_without_a_traceback(arguments: tuple[str, ...], words: str) -> None:
    done = advise(*arguments)
    assert done.exit_code == 2 and words in done.output and "Traceback" not in done.output
