"""A test that fails or hangs ends within seconds and leaves no process, whatever it or its fixtures wait for."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pytest

from tests.choosing import few
from tests.leftovers import marked

ROOT = Path(__file__).parents[1]
CONFTEST = """
from tests.conftest import *
from tests.conftest import leftovers
leftovers.AGAIN_S = 0.5
leftovers.PATIENCE_S = 0.5
"""
FAILING = {
    "a block that waits for its process": "with start(): assert False",
    "a wait at the end": "process = start()\ntry: assert False\nfinally: process.wait()",
    "a daemon": "run([sys.executable, '-c', DAEMON])\nassert False",
    "a child without a program of its own": "if os.fork() == 0: signal.pause()\nassert False",
    "a fixture that waits": "start_in_fixture()\nassert False",
}
HANGING = {
    "a line that never comes": "start().stdout.readline()",
    "an end that never comes": "start().wait()",
    "a pipe without a writer": "os.mkfifo('pipe')\nopen('pipe')",
    "a block, and one around it": "with start() as outer:\n    with start() as inner: inner.wait()",
    "what catches the interruption": "try: start().wait()\nexcept BaseException: pass\nsignal.pause()",
    "asyncio": "asyncio.run(asyncio.Event().wait())",
}
PASSING = {"a daemon": "run([sys.executable, '-c', DAEMON])", "a fixture that waits": "start_in_fixture()"}
PROGRAM = """
import asyncio, os, signal, sys, time
from subprocess import PIPE, Popen, run

import pytest

LASTING = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]
DAEMON = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"

def start():
    process = Popen(LASTING, stdout=PIPE, start_new_session=True)
    assert process.stdout.readline() == b"up\\n"
    return process

@pytest.fixture
def start_in_fixture():
    started = []
    yield lambda: started.append(start())
    for process in started:
        process.wait()

@pytest.mark.real
def test_it(start_in_fixture, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
"""
OUTER = "FLOWDIST_TEST_OF_LEFTOVERS"


def run(folder: Path, body: str, limit_s: float) -> str:
    """Run a test of that body in a pytest of its own, which has to end soon and to leave nothing. Return its output."""
    mark = uuid.uuid4().hex
    (folder / "test_it.py").write_text(PROGRAM + textwrap.indent(body, "    ") + "\n\ndef test_next(): pass\n")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text(f"[pytest]\nmarkers =\n  real\n  slow\ntimeout = {limit_s}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(folder / "tmp")]
    env = {**os.environ, "PYTHONPATH": str(ROOT), OUTER: mark}
    done = subprocess.run(command, check=False, cwd=folder, env=env, capture_output=True, text=True, timeout=30)
    assert marked(OUTER, mark) == [], done.stdout
    assert "INTERNALERROR" not in done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("body", few(FAILING.values()), ids=FAILING)
def test_a_test_that_fails_waits_for_nothing(body: str, tmp_path: Path) -> None:
    output = run(tmp_path, body, limit_s=600)
    assert "1 failed, 1 passed" in output and "assert False" in output


@pytest.mark.parametrize("body", few(HANGING.values()), ids=HANGING)
def test_a_test_that_hangs_fails_at_its_limit(body: str, tmp_path: Path) -> None:
    output = run(tmp_path, body, limit_s=2)
    assert "1 failed, 1 passed" in output and "it took longer than 2 s" in output


@pytest.mark.parametrize("body", PASSING.values(), ids=PASSING)
def test_a_test_on_real_processes_that_leaves_one_fails(body: str, tmp_path: Path) -> None:
    output = run(tmp_path, body, limit_s=2)
    assert ("2 passed, 1 error" in output and "left processes running: sleep 600" in output) or "longer than" in output


def test_a_test_that_leaves_signals_ignored_fails_and_the_next_one_does_not_inherit_it(tmp_path: Path) -> None:
    output = run(tmp_path, "signal.signal(signal.SIGINT, signal.SIG_IGN)", limit_s=600)
    assert "2 passed, 1 error" in output and "has left signals ignored: SIGINT" in output


COMPUTING = """
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
others = []
for _ in range(4):
    others.append(os.fork())  # which waits for nothing: interpreters that start would need more time than the limit
    while not others[-1]: pass
began, computed = time.monotonic(), time.process_time()
while time.process_time() < computed + 0.6: pass
assert time.monotonic() > began + 1
"""


@pytest.mark.slow
@pytest.mark.parametrize(("then", "result"), [("", "2 passed"), ("time.sleep(600)", "1 failed, 1 passed")])
def test_the_limit_does_not_count_time_without_a_core(then: str, result: str, tmp_path: Path) -> None:
    """A test shares its core with four busy processes, so that 0.6 s of computing take about 3 s."""
    output = run(
        tmp_path,
        f"{COMPUTING}for other in others: os.kill(other, signal.SIGKILL); os.waitpid(other, 0)\n{then}",
        limit_s=1,
    )
    assert result in output and ("longer than 1 s" in output) == bool(then)


def test_a_test_that_leaves_nothing_passes(tmp_path: Path) -> None:
    assert "2 passed" in run(tmp_path, "with start() as process: process.kill()", limit_s=20)
