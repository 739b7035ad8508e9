"""Ends a test that hangs, and every process that a test leaves behind. `tests/conftest.py` puts it to work.

Each test has a mark in its environment, which all processes that it starts inherit. The processes with that mark are
killed as soon as the test has failed or has taken longer than its limit, before its fixtures end: whatever waits for
one of them, a `with` block, a pipe or a fixture, goes on at once. A test on real processes that passes and leaves some
running fails. So does a test that leaves signals ignored: each process of the tests after it would inherit that.

The limit is `timeout` in pyproject.toml, SLOW_S for tests marked `slow`, or what a test's own `timeout` marker says.
Time in which the test is ready to run and has no core does not count: a test that computes passes on a busy machine.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import pytest
from _pytest.runner import CallInfo
from pytest_timeout import Settings, is_debugging

from tests import handlers

VARIABLE = "FLOWDIST_TESTED_BY"
SLOW_S = 240.0
AGAIN_S = 5.0  # a test that hangs on is interrupted again after so long: something of it has caught the first time
LEFT_MIN_S = 0.1
TEARDOWN_S = 20.0  # for all fixtures of a test that has failed
PATIENCE_S = 20.0  # processes of a test that has passed may take so long to end by themselves
SESSION = uuid.uuid4().hex
NUMBERS = itertools.count(1)
MARK = pytest.StashKey[str]()
FAILED = pytest.StashKey[bool]()


def pytest_configure() -> None:
    _mark(f"{SESSION}.0")  # what fixtures of a module or session start is no single test's
    _leave_popen_at_once()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_S))


@pytest.fixture(autouse=True)
def ends_what_it_starts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give the test its mark, and end what carries it when all other fixtures of the test have ended."""
    mark = f"{SESSION}.{next(NUMBERS)}"
    request.node.stash[MARK] = mark
    _mark(mark)
    yield
    _mark(f"{SESSION}.0")
    ignored = handlers.restore()
    if request.node.stash.get(FAILED, False):
        kill(mark)
    elif request.node.get_closest_marker("real") and (left := _left_after(mark, PATIENCE_S)):
        names = [_read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace") for pid in left]
        kill(mark)
        pytest.fail("the test has left processes running: " + "; ".join(names))
    if ignored:
        pytest.fail("the test has left signals ignored: " + ", ".join(ignored))


def _mark(mark: str) -> None:
    os.environ[VARIABLE] = mark


def marked(variable: str, value: str) -> list[int]:
    """Return the processes that were started with that value of an environment variable and are no zombies."""
    wanted = f"{variable}={value}".encode()
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if wanted in _read(pid, "environ").split(b"\0")]


def kill(mark: str) -> None:
    """Kill the processes of a test until none is left: one may start another meanwhile."""
    for _ in range(20):
        if not (pids := marked(VARIABLE, mark) + _forked()):
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _wait_for(pids, 1.0)


def _forked() -> list[int]:
    """Return the children of this process that run no program of their own: their environment is that of its start."""
    own = f"{VARIABLE}={SESSION}".encode()
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in pids if own not in (known := _read(int(pid), "environ")) and known]


def _left_after(mark: str, seconds: float) -> list[int]:
    end = time.monotonic() + seconds
    while (pids := marked(VARIABLE, mark)) and (left := end - time.monotonic()) > 0:
        _wait_for(pids, left)
    return pids


def _wait_for(pids: list[int], seconds: float) -> None:
    """Wait until all of them have ended, or for so long."""
    end = time.monotonic() + seconds
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(pid)
            select.select([fd], [], [], max(0.0, end - time.monotonic()))
            os.close(fd)


def _read(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[FAILED] = True
        kill(item.stash.get(MARK, f"{SESSION}.0"))
    return report


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Give the fixtures of a test that has failed their time: pytest-timeout has ended its watch before."""
    if isinstance(node, pytest.Item) and not node.config.getoption("usepdb"):
        _watch(node, TEARDOWN_S)


def pytest_timeout_set_timer(item: pytest.Item, settings: Settings) -> bool:
    """Take the place of the timer of pytest-timeout, which kills nothing and interrupts a test once only."""
    _watch(item, settings.timeout)
    return True


def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    signal.setitimer(signal.ITIMER_REAL, 0)
    return True


def _watch(item: pytest.Item, seconds: float) -> None:
    is_first = True
    began_s = time.monotonic() - _waited_s()

    def interrupt(number: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True
        nonlocal is_first
        if is_debugging():
            return
        left_s = began_s + seconds - (time.monotonic() - _waited_s())
        if is_first and left_s > 0:
            signal.setitimer(signal.ITIMER_REAL, max(left_s, LEFT_MIN_S), AGAIN_S)
            return
        kill(item.stash.get(MARK, f"{SESSION}.0"))
        if not is_first:
            kill(f"{SESSION}.0")  # it waits for a process of its module's fixtures, perhaps
        is_first = False
        if _is_in_test(frame):
            pytest.fail(f"it took longer than {seconds:g} s; the processes that it had started were killed")

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)


def _waited_s() -> float:
    """Return how long the main thread of this process was ready to run and had no core so far, in seconds."""
    with contextlib.suppress(OSError):  # a kernel without these statistics
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def _is_in_test(frame: FrameType | None) -> bool:
    """Return whether the frame belongs to a test or its fixtures, and not to pytest, which an exception would end."""
    code: Any = CallInfo.from_call
    while frame is not None:
        if frame.f_back is not None and frame.f_back.f_code is code.__func__.__code__:
            return True
        frame = frame.f_back
    return False


def _leave_popen_at_once() -> None:
    """Have a failing test kill a process that it would wait for: at the end of a `with` block, and in a `finally`."""
    leave, wait = subprocess.Popen.__exit__, subprocess.Popen.wait

    def leave_at_once(
        process: subprocess.Popen[Any],
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            process.kill()
        leave(process, kind, error, trace)

    def wait_for_none(process: subprocess.Popen[Any], timeout: float | None = None) -> int:
        if timeout is None and isinstance(sys.exc_info()[1], AssertionError | pytest.fail.Exception):
            process.kill()
        return wait(process, timeout)

    subprocess.Popen.__exit__ = leave_at_once  # type: ignore[method-assign, assignment]
    subprocess.Popen.wait = wait_for_none  # type: ignore[method-assign]
