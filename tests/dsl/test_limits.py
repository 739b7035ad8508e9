"""Limits that `flowdist check` knows: those of Linux are tried with real programs."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from flowdist.dsl.check.room import OTHERS_BYTES, STRING_MAX, STRINGS_MAX, strings_max
from tests.dsl.test_load import loaded, problems_of, refused, underlined

HEAD = "from flowdist import Topology\n"
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the limits are those of Linux")


def started(env: dict[str, str], *words: str) -> bool:
    """Return whether Linux starts a program with that environment and these arguments."""
    try:
        return subprocess.run(["true", *words], env={"PATH": os.environ["PATH"], **env}, check=True).returncode == 0
    except OSError as error:
        assert error.errno == errno.E2BIG
        return False


def accepted(folder: Path, **arguments: object) -> bool:
    """Return whether a role with these arguments has no problem."""
    words = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return problems_of(folder, f'{HEAD}t = Topology("x")\nt.role("a", {words})') == []


@linux_only
def test_the_longest_variable_and_argument_that_linux_takes(tmp_path: Path) -> None:
    for more in (0, 1):
        text = "x" * (STRING_MAX - len("A=") + more)
        assert started({"A": text}) == accepted(tmp_path, command="true", env={"A": text}) == (not more)
        word = "x" * (STRING_MAX + more)
        assert started({}, word) == accepted(tmp_path, command=["true", word]) == (not more)


@linux_only
def test_the_sum_of_the_environment_that_linux_takes_here(tmp_path: Path) -> None:
    """What is accepted can be started; what is refused is near the limit, or above it."""
    sizes = range(0, STRINGS_MAX + (1 << 20), 1 << 19)
    found = []
    for size in sizes:
        env = {f"V{number}": "x" * ((64 << 10) - 20) for number in range(size // (64 << 10))}
        found.append((accepted(tmp_path, command="true", env=env), started(env)))
    assert found[0] == (True, True) and found[-1] == (False, False)
    assert all(starts for is_accepted, starts in found if is_accepted)
    assert sum(starts for is_accepted, starts in found if not is_accepted) <= 1


@pytest.mark.parametrize(
    ("stack", "most"),
    [(8 << 20, 2 << 20), (64 << 10, 128 << 10), (1 << 30, 6 << 20), (resource.RLIM_INFINITY, 6 << 20)],
)
def test_a_quarter_of_the_stack_is_for_strings_but_not_less_than_128_kib_or_more_than_6_mib(
    stack: int, most: int
) -> None:
    assert strings_max(stack) == most - OTHERS_BYTES


@pytest.mark.parametrize("nodes", [2, 3])
def test_ports_of_all_roles_together(tmp_path: Path, nodes: int) -> None:
    text = f'{HEAD}t = Topology("x", nodes={nodes})\nfew = t.role("few", "true", ports=["a"])\n'
    text += 't.role("many", "true", replicas=10, ports=[f"p{i}" for i in range(15)])'
    if nodes == 3:
        assert loaded(tmp_path, text).warnings == ()
        return
    problem = refused(tmp_path, text)
    assert (problem.code, underlined(problem)) == ("FD184", '[f"p{i}" for i in range(15)]')
    assert problem.message == "role 'many': the roles need 151 ports, and 2 nodes have 64 each"


def test_more_nodes_than_a_run_has_are_a_warning(tmp_path: Path) -> None:
    text = f'{HEAD}t = Topology("x", nodes=%d)\nt.role("a", "true")'
    assert loaded(tmp_path, text % 4097).warnings == ()
    (warning,) = loaded(tmp_path, text % 20_000).warnings
    assert (warning.code, underlined(warning)) == ("FD337", "20000")
    assert warning.message == "topology 'x': 20,000 nodes can be simulated; a run has 4,097 at most"
