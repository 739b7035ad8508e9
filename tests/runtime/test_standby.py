"""Standby processes: they hold nothing of the fork server, become the wanted worker, and are never left behind."""

from __future__ import annotations

import errno
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowdist.runtime.processes import standby
from flowdist.runtime.processes.spawn_protocol import ForkServerSpec, Signal, Spawn, Spawned
from flowdist.runtime.processes.standby import STANDBY_MAX, StandbyPool
from tests.runtime.harness import Deaths, children
from tests.runtime.spawning import Spawning

pytestmark = pytest.mark.real

TELLS = """
import os, random, signal, sys
with open("ran", "a") as file:
    file.write("x")
print(os.getpid(), sys.argv[1:], os.environ.get("RANK"), len(os.environ.get("BIG", "")), os.getcwd(), random.random())
print("up", flush=True)
signal.pause()
"""


class Standing(Spawning):
    """A spawner whose workers are forked from one fork server."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "tells.py").write_text(TELLS)
        self.spec: ForkServerSpec = super().server("json")

    def tells(self, *args: str, **env: str) -> int:
        """Start a worker that reports its identity and waits for a signal; return it."""
        id = self.start("tells.py", *args, server=self.spec, env=env)
        self.output_until(id, "up\n")
        return id

    def told(self, id: int) -> list[str]:
        return self.output_until(id, "up\n").splitlines()[0].split()

    def fork_server(self) -> int:
        (pid,) = children(self.process.pid)
        return pid

    def standbys(self, count: int, running: list[int]) -> list[int]:
        """Wait until there are so many standbys and return them."""
        workers = {self.pid(id) for id in running}
        end = time.monotonic() + 60
        while len(found := [pid for pid in children(self.fork_server()) if pid not in workers]) != count:
            assert time.monotonic() < end, f"{found} stand by, not {count}"
            time.sleep(0.01)
        return found

    def kill(self, id: int) -> None:
        self.send(Signal(id, signal.SIGKILL))
        self.outcome(id)


@pytest.fixture
def standing(tmp_path: Path) -> Iterator[Standing]:
    folder = tmp_path / "work"
    folder.mkdir()
    with Standing(folder) as standing:
        yield standing


def test_a_worker_is_forked_before_its_request_and_runs_what_the_request_says(standing: Standing) -> None:
    first = standing.tells("--first", RANK="0")
    (waits,) = standing.standbys(1, [first])
    standing.kill(first)
    second = standing.tells("--second", RANK="7", BIG="x" * 100_000)
    assert standing.pid(second) == waits
    pid, args, rank, big, cwd, number = standing.told(second)
    assert (pid, args, rank, big, cwd) == (str(waits), "['--second']", "7", "100000", str(standing.folder))
    assert number != standing.told(first)[-1]
    assert (standing.folder / "ran").read_text() == "xx"
    (another,) = standing.standbys(1, [second])
    assert another != waits


def test_a_standby_leads_its_own_session_and_has_no_files_of_others_open(standing: Standing) -> None:
    first = standing.tells()
    (waits,) = standing.standbys(1, [first])
    end = time.monotonic() + 60
    while os.getsid(waits) != waits or len(os.listdir(f"/proc/{waits}/fd")) != 4:  # noqa: PTH208  # and its channel
        assert time.monotonic() < end, os.listdir(f"/proc/{waits}/fd")  # noqa: PTH208
        time.sleep(0.01)


@pytest.mark.slow
def test_there_are_as_many_standbys_as_running_workers_up_to_a_limit(standing: Standing) -> None:
    running = [standing.tells() for _ in range(STANDBY_MAX + 1)]
    standing.standbys(STANDBY_MAX, running)
    for id in running[2:]:
        standing.kill(id)
    waiting = standing.standbys(2, running[:2])
    for id in running[:2]:  # both at once: with one alone for half a second one of the others would go
        standing.send(Signal(id, signal.SIGKILL))
    for id in running[:2]:
        standing.outcome(id)
    assert {standing.pid(standing.tells()) for _ in range(2)} == set(waiting)


@pytest.mark.parametrize("how", ["killed", "over"])
def test_standbys_end_with_their_fork_server(standing: Standing, how: str) -> None:
    first = standing.tells()
    with Deaths([*standing.standbys(1, [first]), standing.fork_server()]) as deaths:
        if how == "killed":
            os.kill(standing.fork_server(), signal.SIGKILL)
        else:
            standing.process.kill()
        assert deaths.survivors() == []


def test_a_standby_that_dies_as_a_request_arrives_is_replaced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "CALM_S", 0.0)
    selector = selectors.DefaultSelector()
    waits: list[subprocess.Popen[bytes]] = []

    def fork() -> int:
        waits.append(subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]))
        return waits[-1].pid

    standbys = StandbyPool(selector, fork)
    standbys.note_activity()
    standbys.adjust(1)
    waits[0].kill()
    ((key, _),) = selector.select()  # in the same breath as a request, which comes first
    request = Spawn(1, ("python",), {}, str(tmp_path), str(tmp_path))
    assert standbys.assign(request, []) is None
    standbys.handle_death(key.data)
    standbys.note_activity()
    standbys.adjust(1)
    assert len(waits) == 1, "one was killed: no more of them"
    with pytest.raises(ChildProcessError):
        os.waitpid(waits[0].pid, 0)  # it has been reaped
    waits[0].wait()
    selector.close()


def test_a_standby_that_cannot_get_its_request_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOBUFS, "no buffer space available")

    pids: list[int] = []

    def fork() -> int:
        pids.append(os.fork())
        return pids[-1]

    monkeypatch.setattr(standby, "CALM_S", 0.0)
    selector = selectors.DefaultSelector()
    standbys = StandbyPool(selector, fork)
    standbys.note_activity()
    channel = standbys.adjust(1)
    if channel is not None:
        try:
            standby.receive_work(channel)
        finally:
            os._exit(0)
    monkeypatch.setattr("socket.send_fds", refuse)
    assert standbys.assign(Spawn(1, ("python",), {}, str(tmp_path), str(tmp_path)), []) is None
    with pytest.raises(ChildProcessError):
        os.waitpid(pids[0], 0)  # it has been reaped
    selector.close()


def test_a_standby_that_was_killed_is_skipped_and_not_replaced(standing: Standing) -> None:
    first = standing.tells()
    (waits,) = standing.standbys(1, [first])
    with Deaths([waits]) as deaths:
        os.kill(waits, signal.SIGKILL)
        assert deaths.survivors() == []
    second = standing.tells(RANK="3")
    assert standing.told(second)[2] == "3"
    answer = standing.until(Spawned, second)
    assert isinstance(answer, Spawned) and answer.pid != waits
    assert set(children(standing.fork_server())) == {standing.pid(first), standing.pid(second)}
