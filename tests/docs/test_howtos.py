"""How-to guides, explanations and the pages for comers: what they show works.

* **Parsed**: each command line that can be typed, by flowdist's own parser, with its values; each form (`[--seed N]`)
  for its options. Lines of `flowdist torchrun` are torchrun's: tests/torchrun has them.
* **Run**, in `test_the_commands_of_a_page_run`: each command line that needs no further host, no Slurm and no job under
  way, in the order of its page, in a folder with a topology, its scripts and a run of it. Campaigns and simulations of
  weeks get fewer seeds. `NOT_RUN` has every other line with its reason.
* **Compiled**: each block of Python of the whole site. Those with a file name are saved before the commands; tests
  among them are run by pytest. `USES` says how a fragment becomes whole; `ONLY_COMPILED` has the others with a reason.
* **Read**: each block of JSON and TOML.

Tutorials, whose outputs are compared as well, are in test_tutorials.py; docs/testing.md is also in tests/testing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.commands import Block, Line, blocks_of, lines_of, refusal, unknown_options
from tools.pages import DOCS, pages, parts_of_index

ROOT = Path(__file__).parents[2]
GUIDES = [page for part in ("Coming from", "How-to guides", "Explanation") for page in parts_of_index()[part]]
LINES = [line for page in GUIDES for line in lines_of(page, (DOCS / page).read_text())]
OF_FLOWDIST = sorted({line for line in LINES if line.text.startswith("flowdist")})
BLOCKS = [block for page in pages() for block in blocks_of(page, (DOCS / page).read_text())]

# Why a command line is not run, by its beginning.
NOT_RUN = {
    "python -m tests.samerun": "a hundred runs; tests/samerun has one of them",
    "flowdist join": "needs a host that listens: docs/tutorial/5_hosts.md is typed by a test",
    "flowdist torchrun": "scripts of torchrun are run in tests/torchrun and tests/frameworks",
    "flowdist run topology.py --listen": "waits for other hosts: docs/tutorial/5_hosts.md is typed by a test",
    "flowdist run --listen": "waits for other hosts: tests/runtime",
    "flowdist run topology.py --on slurm": "needs Slurm: tests/slurm",
    "flowdist run examples/": "takes minutes: tests/examples",
    "flowdist prove": "kills a script for a minute: tests/prove",
    "flowdist run dist.ddp": "needs torch and a minute: tests/components",
    "flowdist scale": "needs a job under way: tests/runtime",
    "flowdist drain": "needs a job under way: tests/runtime",
    "flowdist replay runs/latest --without": "names a fault of one's own run: tests/cli",
    "srun": "needs Slurm: tests/slurm",
    "python benchmarks/": "is a benchmark: `make bench`",
}

# Fewer seeds, shorter times: what is tested is that the line works.
SHORTER = {
    r"--explore \d+": "--explore 5",
    r"--seeds 1:\d+": "--seeds 1:2",
    r"--until 30d": "--until 1d",
}

TOPOLOGY = """
from flowdist import Restart, Topology, Workload

t = Topology("watched", nodes=4)
t.role(
    "trainer", ["python", "train.py"], replicas="2:4", apart=True,
    restart=Restart("role", max_restarts=3), workload=Workload(steps=300, step_time="1s", checkpoint_every="1m"),
)
"""
TRAIN = """
import time
from flowdist import worker

for step in range(12):
    worker.progress(step)
    time.sleep(0.1)
print("CUDA error: out of memory, says no one")
"""
# How a fragment becomes a file: the page, the beginning of the fragment, the name of the file, what stands before it.
USES = {
    ("models.md", "t.role("): (
        "topology.py",
        'from flowdist import Restart, Topology, Workload\n\nt = Topology("modelled", nodes=3)\n',
    ),
    ("models.md", "class Worker:  # of a task"): ("skeleton.py", ""),
    ("models.md", "from flowdist.testing"): ("test_model.py", ""),
    ("torchx.md", "from flowdist.components"): ("components.py", ""),
}
ONLY_COMPILED = {
    ("launch.md", "import flowdist\n"): "stands for a script of one's own",
    ("rl.md", "if worker.commit("): "a line of the learner of examples/rl",
    ("rl.md", "path = worker.latest("): "lines of an actor of examples/rl",
    ("rl.md", "from flowdist.testing"): "a line for the test of a topology with roles of its own",
    ("models.md", "worker.run("): "one line of a script of one's own; examples/resume_model has it",
    ("models.md", "from xmlrpc"): "a function of a script of one's own",
    ("frameworks.md", "from torchdata"): "lines for a script with torchdata; tests/frameworks runs whole ones",
    ("same_run.md", "scale = "): "lines of a script of one's own",
    ("same_run.md", "loader = "): "one line of a script of one's own; examples/frameworks has whole ones",
    ("prove.md", "from flowdist.testing"): "proves a script of one's own: tests/prove",
    ("playing_again.md", "from flowdist.testing"): "reads a workload of one's own runs: tests/cli/test_calibrate.py",
}


@pytest.mark.parametrize("line", [line for line in OF_FLOWDIST if not line.is_form], ids=lambda line: line.text)
def test_a_command_line_can_be_typed(line: Line) -> None:
    assert refusal(line) == "", line


@pytest.mark.parametrize("line", [line for line in OF_FLOWDIST if line.is_form], ids=lambda line: line.text)
def test_a_form_has_options_that_exist(line: Line) -> None:
    assert unknown_options(line) == set(), line


def test_there_are_lines_of_both_kinds() -> None:
    forms = sum(line.is_form for line in OF_FLOWDIST)
    assert forms > 15 and len(OF_FLOWDIST) - forms > 25


@pytest.mark.parametrize(
    ("text", "is_form", "refused"),
    [
        ("flowdist simulate topology.py --seed 4", False, ""),
        ("flowdist simulate topology.py --sed 4", False, "No such option"),
        ("flowdist simulate topology.py --seed four", False, "not a valid int"),
        ("flowdist simulate topology.py -q", False, "No such option"),
        ("flowdist replay FILE --step 20 [--json]", True, ""),
        ("flowdist explain FD112", False, ""),
    ],
)
def test_a_wrong_line_is_found(text: str, is_form: bool, refused: str) -> None:
    line = Line("page.md", text)
    assert line.is_form is is_form
    if not is_form:
        assert refused in refusal(line) and bool(refused) == bool(refusal(line))


def test_a_wrong_option_of_a_form_is_found() -> None:
    assert unknown_options(Line("page.md", "flowdist logs [ROLE] [-f] [-z] [--attemp N]")) == {"-z", "--attemp"}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.page} {block.language}")
def test_a_block_can_be_read(block: Block) -> None:
    if block.language == "python":
        compile(block.text, block.page, "exec")
    elif block.language == "toml":
        tomllib.loads(block.text)
    elif block.language == "json":
        for value in re.split(r"\n(?=\{)", block.text):
            json.loads(value)


def use_of(block: Block) -> tuple[str, str] | None:
    """Return name and text of the file that a block of Python is saved as; None if it is only compiled."""
    if found := re.match(r"# ([\w./-]+\.py)\n", block.text):
        return found[1], block.text
    for (page, start), (name, before) in USES.items():
        if page == block.page and block.text.startswith(start):
            return name, before + block.text
    assert any(page == block.page and block.text.startswith(start) for page, start in ONLY_COMPILED), block
    return None


def reason_not_to_run(line: Line) -> str:
    return next((reason for start, reason in NOT_RUN.items() if line.text.startswith(start)), "")


def test_each_block_has_a_use_and_each_exception_is_one() -> None:
    mine = [block for block in BLOCKS if block.language == "python" and block.page in GUIDES]
    assert sum(use_of(block) is not None for block in mine) > 5
    for page, start in [*USES, *ONLY_COMPILED]:
        assert page not in GUIDES or any(block.page == page and block.text.startswith(start) for block in mine), start


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a topology, its script and two runs of it, the newest with a second attempt."""
    folder = tmp_path_factory.mktemp("bench")
    for name in ("topology.py", "jobs.py"):
        (folder / name).write_text(TOPOLOGY)
    (folder / "train.py").write_text(TRAIN)
    for name, options in (("a", ""), ("b", " --fail trainer/3@step=trainer,4")):
        done = typed(folder, f"flowdist run{options}")
        assert done.returncode == 0, done.stdout
        (folder / "runs" / name).symlink_to((folder / "runs/latest").readlink())
    done = typed(folder, "flowdist calibrate runs/a runs/b -o workload.toml")
    assert done.returncode == 0, done.stdout
    return folder


def typed(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Type a command line in a folder, and return how it ended, with all of its output in `stdout`."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    text = re.sub(r"^flowdist ", "python -m flowdist ", text)
    return subprocess.run(
        ["bash", "-c", text],
        check=False,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )


def steps_of(page: str) -> Iterator[Line]:
    """Yield the lines of a page that are run, shortened."""
    for line in lines_of(page, (DOCS / page).read_text()):
        if line.is_form or reason_not_to_run(line):
            continue
        text = line.text
        for pattern, shorter in SHORTER.items():
            text = re.sub(pattern, shorter, text)
        yield Line(page, text)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in GUIDES if list(steps_of(page))])
def test_the_commands_of_a_page_run(page: str, bench: Path, tmp_path: Path) -> None:
    """Success, a job that failed and a difference are all right, by their exit codes; a usage error is not."""
    folder = tmp_path / "bench"
    shutil.copytree(bench, folder, symlinks=True)
    for name in ("scenarios", "examples", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    for block in blocks_of(page, (DOCS / page).read_text()):
        if block.language == "python" and (use := use_of(block)) is not None:
            (folder / use[0]).write_text(use[1])
            for script in re.findall(r'["\s](\w+\.py)"', use[1]):  # the scripts of a topology, which is not run
                (folder / script).touch()
    for line in steps_of(page):
        if line.text.partition(" | ")[2].startswith("jq") and shutil.which("jq") is None:
            line = Line(page, line.text.partition(" | ")[0])
        done = typed(folder, line.text)
        assert done.returncode in (0, 1, 3, 4), f"{line.text}\n{done.stdout}"
        assert "Traceback" not in done.stdout, f"{line.text}\n{done.stdout}"


@pytest.mark.slow
def test_the_tests_that_a_page_shows_pass(tmp_path: Path) -> None:
    """Those of docs/models.md; tests/testing has those of docs/testing.md."""
    for block in BLOCKS:
        if block.page == "models.md" and block.language == "python" and (use := use_of(block)) is not None:
            (tmp_path / use[0]).write_text(use[1].replace("seeds=200, jobs=2", "seeds=10"))
    (tmp_path / "train.py").touch()
    done = typed(tmp_path, "python -m pytest -q -p no:cacheprovider test_model.py")
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout
