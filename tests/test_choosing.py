"""`make test` and `make test-rest` together run what `make test-all` runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def collected(marks: str, **variables: str) -> set[str]:
    """Return the names of the tests of some rooms that pytest would run."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    env = {name: value for name, value in os.environ.items() if name != "TEST_ALL"}
    command += ["-m", marks, "tests/record", "tests/sim/test_why.py"]
    found = subprocess.run(command, check=True, cwd=ROOT, env=env | variables, stdout=subprocess.PIPE, text=True)
    return {line for line in found.stdout.splitlines() if "::" in line}


@pytest.mark.slow
def test_what_make_test_leaves_out_or_plays_with_few_examples_is_the_rest() -> None:
    quick, all_of_them = collected("not slow and not lab"), collected("not lab", TEST_ALL="1")
    rest = collected("not lab and (slow or campaign)", TEST_ALL="1")
    assert quick | rest == all_of_them and quick - rest and rest - quick
    assert {name for name in all_of_them if "test_reader.py" in name} <= rest
