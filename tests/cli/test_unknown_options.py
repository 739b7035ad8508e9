"""Command lines of `flowdist run` and `flowdist torchrun` with an option of the script, or of the other verb."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowdist.cli.main import cli

TOPOLOGY = "from flowdist import Topology\nt = Topology('x')\nt.role('a', 'true')\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with a script and a topology, and return it."""
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "jobs.py").write_text(TOPOLOGY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def output(line: str) -> str:
    """Return what a command line prints that is refused before a run begins."""
    done = CliRunner().invoke(cli, line.split(), prog_name="flowdist")
    assert done.exit_code == 2 and not Path("runs").exists(), done.output
    return done.output


@pytest.mark.parametrize(
    ("line", "help"),
    [
        ("train.py --steps 5", "flowdist run train.py -- --steps 5"),
        ("--steps 5 train.py", "flowdist run train.py -- --steps 5"),
        ("train.py --steps=5 --replicas 2", "flowdist run train.py --replicas 2 -- --steps=5"),
        ("train.py --names a b --quiet -- --more 3", "flowdist run train.py --quiet -- --names a b --more 3"),
        ("--set=a=1 -pa=1 train.py -x 3", "flowdist run --set=a=1 -pa=1 train.py -- -x 3"),
        ("no.py --steps 5", "flowdist run no.py -- --steps 5"),
    ],
)
def test_the_scripts_own_options_come_after_two_dashes(line: str, help: str) -> None:
    assert output(f"run {line}").endswith(f"\nhelp: the script's own arguments come after --: {help}\n")


@pytest.mark.parametrize("line", ["--predict", "jobs.py --workload w.toml", "--predict --workload=w.toml --on slurm"])
def test_a_run_is_predicted_by_its_report(line: str) -> None:
    text = "a run is predicted when it is over: flowdist report RUN --workload workload.toml"
    assert output(f"run {line}").endswith(f"\nhelp: {text}\n")
    own = output("run train.py --workload w.toml")
    assert text in own and own.endswith(
        "; the script's own arguments come after --: flowdist run train.py -- --workload w.toml\n"
    )


@pytest.mark.parametrize(
    ("line", "help"),
    [
        ("train.py --nproc-per-node 2", "write flowdist run train.py --replicas 1x2; flowdist torchrun takes"),
        ("--nproc_per_node=3 train.py --nnodes 2:4", "write flowdist run train.py --replicas 2:4x3; flowdist torchrun"),
        ("train.py --nprocs 2", "write flowdist run train.py --replicas 1x2; flowdist torchrun takes"),
        ("train.py --nproc-per-node gpu", "flowdist torchrun takes torchrun's options"),
        ("train.py --standalone", "flowdist torchrun takes torchrun's options"),
        ("-m package.train", "flowdist torchrun takes torchrun's options"),
    ],
)
def test_an_option_of_torchrun_is_given_to_run(line: str, help: str) -> None:
    assert f"\nhelp: {help}" in output(f"run {line}")


@pytest.mark.parametrize("line", ["jobs.py --steps 5", "--steps 5"])
def test_a_topology_has_no_arguments_of_its_own(line: str) -> None:
    shown = output(f"run {line}")
    assert "No such option" in shown and "help: " not in shown


def test_with_json_the_help_has_its_own_key() -> None:
    (problem,) = json.loads(output("run train.py --json --steps 5"))["problems"]
    assert "No such option" in problem["message"] and "help" not in problem["message"]
    assert problem["help"] == "the script's own arguments come after --: flowdist run train.py --json -- --steps 5"
    (problem,) = json.loads(output("status --json --stpes"))["problems"]
    assert problem["help"] == "see flowdist status --help"


@pytest.mark.parametrize(
    ("line", "help"),
    [
        (
            "--set default.hang_after=5s train.py",
            "flowdist run has it: flowdist run train.py --set trainer.hang_after=5s",
        ),
        ("--fail default/0@5s train.py", "flowdist run has it: flowdist run train.py --fail trainer/0@5s"),
        ("--detach train.py", "flowdist run has it: flowdist run train.py --detach"),
        ("--tee 3 --nothing-like-it train.py", "flowdist torchrun --help shows every option"),
        ("--tee 3 --cold train.py", "write it first: flowdist torchrun --cold ..."),
        ("--tee 3 --interface=eth1 train.py", "write it first: flowdist torchrun --interface ..."),
    ],
)
def test_an_option_of_run_is_given_to_torchrun(line: str, help: str) -> None:
    assert help in output(f"torchrun {line}")


@pytest.mark.parametrize("head", ["from flowdist import Topology\n", "import time\n"])
def test_a_file_that_cannot_be_parsed_is_refused_before_a_run_begins(folder: Path, head: str) -> None:
    (folder / "broken.py").write_text(head + "t = dict(\n")
    assert "broken.py:2:9: error[FD141]: the file is not valid Python: '(' was never closed" in output("run broken.py")
    assert "FD141" in output("run broken.py --replicas 2")


def test_a_missing_file_may_have_been_a_script_or_a_topology(folder: Path) -> None:
    shown = output("run elsewhere.py")
    assert (
        "no script or topology file 'elsewhere.py'" in shown and "name a topology, or a script: flowdist run" in shown
    )
    assert "did you mean 'train.py'?" in output("run trian.py")
    (folder / "tempty.py").touch()
    assert "make a topology.py in the current folder" in output("run"), "a script is not what `flowdist run` looks for"
