"""Runs whose package is replaced on the disk while they go on, as by `pip install` of another version."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import flowdist
from tests.runtime.harness import Job

pytestmark = pytest.mark.real

TRAIN = """
import os, time
print("up", flush=True)
while not os.path.exists("end"):
    time.sleep(0.02)
"""
PACKAGE = Path(flowdist.__file__).parent
OTHER = "9.9.9"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A copy of the package, in a folder that comes first on the path."""
    return Path(shutil.copytree(PACKAGE, tmp_path / "site/flowdist", ignore=shutil.ignore_patterns("__pycache__")))


def install_other(installed: Path) -> None:
    """Install a version in place that has the folders `cli` and `control` alone, and each of its modules is empty."""
    uninstall(installed)
    for name in ("cli", "control"):
        (installed / name).mkdir(parents=True)
        (installed / name / "__init__.py").touch()
    (installed / "__init__.py").touch()
    (installed / "_version.py").write_text(f'__version__ = "{OTHER}"\n')


def uninstall(installed: Path) -> None:
    shutil.rmtree(installed)


def started(folder: Path, installed: Path) -> Job:
    (folder / "train.py").write_text(TRAIN)
    job = Job(folder, "train.py", "--max-restarts", "3", env={"PYTHONPATH": str(installed.parent)})
    job.until("up")
    return job


@pytest.mark.parametrize("replace", [install_other, uninstall])
def test_a_run_ends_as_if_nothing_were_replaced(
    tmp_path: Path, installed: Path, replace: Callable[[Path], None]
) -> None:
    with started(tmp_path, installed) as job:
        replace(installed)
        (tmp_path / "end").touch()
        assert job.finish() == 0 and "Traceback" not in job.text, job.text
        assert "SUCCEEDED after" in job.text and (job.run_dir / "summary.json").exists()


def test_a_controller_that_cannot_start_from_another_version_is_told_in_words(tmp_path: Path, installed: Path) -> None:
    with started(tmp_path, installed) as job:
        install_other(installed)
        os.kill(job.named("flowdist.runtime.controller.controller_main")[0], signal.SIGKILL)
        assert job.finish() == 70 and "Traceback" not in job.text, job.text
        told = f"flowdist {flowdist.__version__} was started, and {OTHER} is installed now"
        assert f"the controller died of a package that was replaced meanwhile: {told}" in job.text
        assert re.search("help: .*flowdist run --resume", job.text)


def test_a_module_that_is_missing_when_it_is_imported_late_is_told_in_words(tmp_path: Path, installed: Path) -> None:
    code = "import os; from flowdist.cli.main import main; os.rename('site/flowdist', 'away'); main()"
    env = {**os.environ, "PYTHONPATH": str(installed.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code, "check"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 70 and "Traceback" not in done.stderr, done.stderr
    assert "and none is installed now (ModuleNotFoundError: No module named 'flowdist.cli.inspect')" in done.stderr
