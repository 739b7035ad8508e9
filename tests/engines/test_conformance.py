"""Conformance of every engine, against a fake of its system (real small programs), and of Slurm against a real one."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from flowdist.control.fleet.values import Launch, Seen, Size
from flowdist.engines.by_hand import ByHand
from flowdist.engines.interface import Engine
from flowdist.engines.local import LocalProcesses
from flowdist.engines.slurm.engine import Slurm
from flowdist.engines.slurm.options import read_options
from tests.engines.fakes import slurm as fake_slurm
from tests.lab.network import LabUnavailable
from tests.slurm.cluster import Cluster, why_unavailable

PATIENCE_S = 20
POLL_S = 0.02  # between two looks at an engine, which gives no sign of a change: flowdist looks once a second
# A member has two pipes with names: it writes what happens to it into one, and the other has its exit code. Both ends
# are open for reading and writing, so that no open waits for the other end.
MEMBER = """
import os, signal, sys
said, told = (os.open(sys.argv[1] + kind, os.O_RDWR) for kind in (".said", ".told"))
def heard(number, frame):
    os.write(said, signal.Signals(number).name.encode() + b"\\n")
    if number == signal.SIGTERM:
        sys.exit(0)
signal.signal(signal.SIGTERM, heard)
signal.signal(signal.SIGUSR1, heard)
os.write(said, b"up\\n")
sys.exit(int(os.read(told, 9)))
"""


class Member:
    """The test's ends of the pipes of a member."""

    def __init__(self, path: Path) -> None:
        self._said, self._told = (self._pipe(path.with_suffix(kind)) for kind in (".said", ".told"))
        self._text = b""

    def _pipe(self, path: Path) -> int:
        os.mkfifo(path)
        return os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def heard(self, count: int) -> list[str]:
        """Wait until the member is up and has noted so many signals, and return them."""
        end = time.monotonic() + PATIENCE_S
        while self._text.count(b"\n") < 1 + count:
            ready, _, _ = select.select([self._said], [], [], max(0, end - time.monotonic()))
            assert ready, f"the member has not got {count} signals, but written {self._text!r}"
            self._text += os.read(self._said, 4096)
        return self._text.decode().split()[1:]

    def end(self, code: int) -> None:
        """Order the member to exit; nothing happens if it has ended."""
        os.write(self._told, str(code).encode())

    def close(self) -> None:
        os.close(self._said)
        os.close(self._told)


class Bench(NamedTuple):
    """An engine with a fake of its system. `sees` is false for an engine that cannot see what its members do."""

    engine: Engine
    folder: Path
    submitted: dict[str, Member]  # by reference
    sees: bool = True

    def submit(self, member: str, avoid: tuple[str, ...] = ()) -> str:
        pipes = Member(self.folder / member)
        command = (sys.executable, str(self.folder / "member.py"), str(self.folder / member))
        reference = self.engine.submit(Launch(member, f"job-{member}", "", Size(), command, avoid, str(self.folder)))
        self.submitted[reference] = pipes
        return reference

    def until(self, reference: str, is_so: Callable[[Seen], bool]) -> Seen:
        """Wait until the engine shows the member so."""
        end = time.monotonic() + PATIENCE_S
        while not is_so(seen := self.engine.observe([reference])[reference]):
            assert time.monotonic() < end, seen
            time.sleep(POLL_S)
        return seen


class Person:
    """A person who types at once what the engine by hand prints."""

    def __init__(self) -> None:
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def read(self, line: str) -> None:
        member, _, text = line.partition(": ")
        if text.startswith("type on a host"):
            self.processes[member] = subprocess.Popen(shlex.split(text.rpartition(": ")[2]))
        elif text.startswith("press Ctrl-C"):
            self.processes[member].send_signal(signal.SIGTERM)
        else:
            number = getattr(signal, f"SIG{text.partition('kill -')[2].partition(' ')[0]}")
            self.processes[member].send_signal(number)


REAL = pytest.param("real slurm", marks=[pytest.mark.real, pytest.mark.slow])


@pytest.fixture(params=["local", "hand", "slurm", REAL])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    (tmp_path / "member.py").write_text(MEMBER)
    person = Person()
    if request.param == "local":
        bench = Bench(LocalProcesses(), tmp_path, {})
    elif request.param == "hand":
        bench = Bench(ByHand(person.read), tmp_path, {}, sees=False)
    else:
        if request.param == "slurm":
            fake_slurm.install(tmp_path / "fake")
        monkeypatch.setenv("PATH", f"{tmp_path / 'fake'}:{os.environ['PATH']}")
        engine = Slurm(read_options([], []), str(tmp_path))
        bench = Bench(engine, tmp_path, {})
    with contextlib.ExitStack() as stack:
        if request.param == "real slurm":
            folder = real_slurm(stack, tmp_path)
            monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
            monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm/slurm.conf"))
        yield from ended(bench, person)


def real_slurm(stack: contextlib.ExitStack, folder: Path) -> Path:
    """Bring up a cluster of three nodes, and return a folder with Slurm's programs as its login node has them."""
    if why := why_unavailable():
        pytest.skip(f"no Slurm: {why}")
    try:
        cluster = stack.enter_context(Cluster(folder, nodes=3))
    except LabUnavailable as error:
        pytest.skip(f"no Slurm: {error}")
    programs = folder / "programs"
    programs.mkdir()
    for name in fake_slurm.PROGRAMS:
        words = shlex.join([*cluster.lab.on("login"), shutil.which(name) or name])
        (programs / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (programs / name).chmod(0o755)
    return programs


def ended(bench: Bench, person: Person) -> Iterator[Bench]:
    """Yield the bench, and end all of its members afterwards."""
    yield bench
    for member in bench.submitted.values():
        member.end(0)
    for reference in bench.submitted if bench.sees else ():
        bench.until(reference, lambda seen: seen.phase == "ended")
    for process in person.processes.values():
        process.wait()
    for member in bench.submitted.values():
        member.close()


def test_members_have_references_of_their_own(bench: Bench) -> None:
    references = [bench.submit("m1"), bench.submit("m2")]
    assert len(set(references)) == 2
    assert {seen.phase for seen in bench.engine.observe(references).values()} <= {"pending", "running"}
    for member in bench.submitted.values():
        member.heard(0)


def test_a_cancelled_member_gets_sigterm_and_is_over(bench: Bench) -> None:
    reference = bench.submit("m1")
    bench.submitted[reference].heard(0)
    bench.engine.cancel(reference)
    assert bench.submitted[reference].heard(1) == ["SIGTERM"]
    seen = bench.until(reference, lambda seen: seen.phase == "ended")
    assert seen.cause in ("cancelled", "")
    bench.engine.cancel(reference)  # one that is over stays over
    bench.engine.signal(reference, "USR1")
    assert bench.engine.observe([reference])[reference].phase == "ended"


def test_a_signal_reaches_the_member_and_does_not_end_it(bench: Bench) -> None:
    reference = bench.submit("m1")
    bench.submitted[reference].heard(0)
    bench.engine.signal(reference, "USR1")
    assert bench.submitted[reference].heard(1) == ["SIGUSR1"]
    assert bench.engine.observe([reference])[reference].phase != "ended"


def test_a_reference_that_the_engine_does_not_know_is_over(bench: Bench) -> None:
    known = bench.submit("m1")
    bench.submitted[known].heard(0)
    assert bench.engine.observe(["4711"])["4711"].phase == "ended"
    both = bench.engine.observe([known, "4711"])
    assert (both[known].phase != "ended", both["4711"].phase) == (True, "ended")
    assert bench.engine.observe([]) == {}


@pytest.mark.parametrize(("code", "cause"), [(0, "succeeded"), (3, "failed")])
def test_the_end_of_a_member_has_its_cause(bench: Bench, code: int, cause: str) -> None:
    reference = bench.submit("m1")
    bench.submitted[reference].heard(0)
    bench.submitted[reference].end(code)
    if not bench.sees:
        pytest.skip("a person sees it, and flowdist does not")
    seen = bench.until(reference, lambda seen: seen.phase == "ended")
    assert (seen.cause, seen.reason != "") == (cause, True)


def test_a_member_that_runs_has_a_host(bench: Bench) -> None:
    reference = bench.submit("m1")
    bench.submitted[reference].heard(0)
    if not bench.sees:
        pytest.skip("a person chooses the host")
    assert bench.until(reference, lambda seen: seen.phase == "running").host
