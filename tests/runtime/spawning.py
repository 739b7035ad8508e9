"""A spawner for tests, and programs that it starts both ways."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from flowdist.runtime.processes.spawn_protocol import (
    Answer,
    Channel,
    Ended,
    PrefixSpec,
    Request,
    Spawn,
    Spawned,
    StartedCold,
)
from tests.leftovers import VARIABLE

UNKNOWN = ("RANK", "LOCAL_RANK", "MASTER_PORT")  # 0 for a worker, if the test does not say otherwise
PROGRAM = """
import socket
from flowdist.runtime.processes import prefix_process, prefixes, spawner
prefix_process.PATIENCE_S = prefixes.PATIENCE_S = {patience_s}
spawner.Spawner(socket.socket(fileno={fd})).run()
"""


class Outcome(NamedTuple):
    """What a program left: subprocess's code, and its output."""

    code: int
    out: str
    err: str


class Spawning:
    """A spawner process. Programs run in `folder`."""

    def __init__(self, folder: Path, patience_s: float = 60.0) -> None:
        self.folder = folder
        self._mark = {VARIABLE: os.environ[VARIABLE]}  # a spawner of a module keeps its prefixes over many tests
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        argv = [sys.executable, "-P", "-c", PROGRAM.format(fd=theirs.fileno(), patience_s=patience_s)]
        self.process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self.last = 0
        self.heard: list[Answer] = []

    def __enter__(self) -> Spawning:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = {answer.id for answer in self.heard if isinstance(answer, Ended)}
        for answer in self.heard:
            if isinstance(answer, Spawned) and answer.id not in ended and answer.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(answer.pid, signal.SIGKILL)  # the guardian's work, who is not here
        self._channel.close()
        self.process.wait()

    def prefix(self, *args: str, env: dict[str, str] | None = None, late: tuple[str, ...] = ()) -> PrefixSpec:
        """The prefix of a Python program of the folder."""
        whole = {**os.environ, **self._mark, **(env or {})}
        shared = tuple((name, value) for name, value in whole.items() if name not in UNKNOWN)
        return PrefixSpec((sys.executable, *args), shared, str(self.folder), UNKNOWN, UNKNOWN[2:], late)

    def start(
        self,
        *args: str,
        warm: bool = False,
        env: dict[str, str] | None = None,
        cpus: tuple[int, ...] = (),
        late: tuple[str, ...] = (),
    ) -> int:
        """A Python program; its id."""
        self.last += 1
        argv = (sys.executable, *args)
        folder = str(self.logs(self.last))
        whole = {**os.environ, **self._mark, **dict.fromkeys(UNKNOWN, "0"), **(env or {})}
        prefix = self.prefix(*args, env=env, late=late) if warm else None
        self.send(Spawn(self.last, argv, whole, str(self.folder), folder, prefix, cpus))
        return self.last

    def logs(self, id: int) -> Path:
        return self.folder.parent / f"logs of {self.folder.name}" / str(id)

    def send(self, request: Request) -> None:
        self._channel.send(request)

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """The spawner finds all that comes meanwhile when the block is over, requests first."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    def until(self, kind: type, id: int, seconds: float = 60.0) -> Answer:
        """The answer of that kind about that program."""
        end = time.monotonic() + seconds
        while True:
            for answer in self.heard:
                if isinstance(answer, kind) and getattr(answer, "id", id) == id:
                    return answer
            if not self.listen(max(0.0, end - time.monotonic())):
                raise AssertionError(f"no {kind.__name__} of {id} among {self.heard}")

    def listen(self, seconds: float) -> bool:
        """Waits for answers, which `heard` has then; False if none comes."""
        if not select.select([self._channel], [], [], seconds)[0]:
            return False
        answers = self._channel.receive()
        assert answers is not None, "the spawner has ended"
        self.heard += answers  # type: ignore[arg-type]
        return True

    def pid(self, id: int) -> int:
        answer = self.until(Spawned, id)
        assert isinstance(answer, Spawned)
        return answer.pid

    def outcome(self, id: int) -> Outcome:
        """Of a program, when it has ended."""
        answer = self.until(Ended, id)
        assert isinstance(answer, Ended)
        return Outcome(answer.code, self._output(id, "stdout.log"), self._output(id, "stderr.log"))

    def output_until(self, id: int, text: str, seconds: float = 60.0) -> str:
        """Its stdout, as soon as the text is in it."""
        end = time.monotonic() + seconds
        while text not in (output := self._output(id, "stdout.log")):
            assert time.monotonic() < end, f"{text!r} never came: {output}{self._output(id, 'stderr.log')}"
            assert self.process.poll() is None, "the spawner has ended"
            time.sleep(0.01)
        return output

    def until_there(self, pattern: str, seconds: float = 60.0) -> None:
        """Waits for a file of the folder that a program writes before its split, when it says nothing else."""
        end = time.monotonic() + seconds
        while not any(self.folder.glob(pattern)):
            assert time.monotonic() < end, f"{pattern} never came"
            time.sleep(0.01)

    def _output(self, id: int, name: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.logs(id) / name).read_text(errors="backslashreplace")
        return ""


def cold_reasons(spawning: Spawning) -> list[str]:
    return [answer.reason for answer in spawning.heard if isinstance(answer, StartedCold)]


def write(folder: Path, name: str, code: str) -> None:
    (folder / f"{name}.py").write_text(textwrap.dedent(code).lstrip("\n") + "\n")


def both(
    spawning: Spawning, *args: str, env: dict[str, str] | None = None, may_be_cold: bool = False
) -> tuple[Outcome, Outcome]:
    """What a Python program leaves that is started cold, and warm."""
    cold, warm = spawning.start(*args, env=env), spawning.start(*args, env=env, warm=True)
    outcomes = spawning.outcome(cold), spawning.outcome(warm)
    reasons = [answer.reason for answer in spawning.heard if isinstance(answer, StartedCold) and answer.id == warm]
    assert reasons == [] or may_be_cold
    return outcomes


def plain_outcome(spawning: Spawning, *args: str, env: dict[str, str]) -> Outcome:
    """What a Python program leaves that no process of flowdist has started."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "stdout.log"), Path(folder, "stderr.log")
        with out.open("ab") as stdout, err.open("ab") as stderr:
            code = subprocess.run(
                [sys.executable, *args],
                check=False,
                env={**os.environ, VARIABLE: os.environ[VARIABLE], **dict.fromkeys(UNKNOWN, "0"), **env},
                cwd=spawning.folder,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            ).returncode
        return Outcome(code, *(file.read_text(errors="backslashreplace") for file in (out, err)))
