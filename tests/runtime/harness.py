"""Real jobs for tests: started, watched line by line, and found in /proc by a mark that all descendants inherit."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import msgspec

from flowdist.cli.shared.records import RecordFile
from flowdist.control.protocol.events import Event
from flowdist.record.journal import Header, Line, Record, decode_line
from flowdist.runtime.wire.frames import JournalLine, Operate, Operation, Watch, encode, read_from_controller
from tests.runtime.sound_files import SavedStatus, Summary

MARK = "FLOWDIST_TEST_MARK"


class Job:
    """`flowdist run ARGUMENTS`, or another verb, in `folder`. Leaving the block kills whatever is left, and says so by
    `survivors`."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        env: dict[str, str] | None = None,
        verb: str = "run",
        before: tuple[str, ...] = (),  # what starts the command, `nsenter` and its options say
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        self.process = subprocess.Popen(
            [*before, sys.executable, "-m", "flowdist", verb, *arguments],
            cwd=folder,
            env={**os.environ, **(env or {}), MARK: self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",  # a worker may print anything
            start_new_session=True,
        )
        self.output: list[str] = []

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind:  # pytest shows it with the failure, which may be a time limit that says nothing of the run
            print(f"--- {self.folder}\n{self.text}")
        self.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def kill(self) -> None:
        """All of it, one after the other: who ends because of those before it is gone when its turn comes."""
        with Deaths(self.alive()) as deaths:
            for pid in deaths.pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            assert deaths.survivors() == []  # what they held, a port for one, is free

    def lines(self) -> Iterator[str]:
        """Lines as they come; ends with the run."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line.rstrip("\n"))
            yield self.output[-1]

    def until(self, text: str, times: int = 1) -> str:
        """Waits for a line that contains the text, for the n-th time."""
        for line in self.lines():
            times -= text in line
            if times == 0:
                return line
        raise AssertionError(f"{text!r} never came:\n" + "\n".join(self.output))

    def until_each(self, *texts: str) -> None:
        """Waits for a line of each text, in whatever order they come."""
        missing = set(texts)
        while missing:
            line = next((line for line in self.lines() if any(text in line for text in missing)), None)
            assert line is not None, f"{missing} never came:\n{self.text}"
            missing -= {text for text in missing if text in line}

    def finish(self) -> int:
        """Reads to the end; the exit code. What the run has written about its end may not contradict itself."""
        for _ in self.lines():
            pass
        code = self.process.wait()
        for name, kind in (("summary.json", Summary), ("status.json", SavedStatus)):
            if (path := self.run_dir / name).exists() and (data := path.read_bytes()):  # empty: on a full disk
                msgspec.json.decode(data, type=kind)
        return code

    @property
    def text(self) -> str:
        return "\n".join(self.output)

    @property
    def run_dir(self) -> Path:
        return (self.folder / "runs/latest").resolve()

    def journal(self) -> tuple[Header, list[Line]]:
        record = RecordFile(self.run_dir / "journal.jsonl")
        return record.header, record.whole()

    def operate(self, event: Operation) -> None:
        """What the operator, or whoever takes nodes away, tells the controller."""
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(self._control_socket())
            link.sendall(encode(Operate(event)))

    def recorded(self, kind: type[Event], times: int = 1) -> None:
        """Waits until so many events of that kind are in the journal."""
        assert asyncio.run(self._count(kind, times)) == times, f"{kind.__name__} was not recorded {times} times"

    async def _count(self, kind: type[Event], times: int) -> int:
        reader, writer = await asyncio.open_unix_connection(self._control_socket())
        writer.write(encode(Watch()))
        count = 0
        while count < times and (answer := await read_from_controller(reader)) is not None:
            lines = map(decode_line, [answer.line]) if isinstance(answer, JournalLine) else []
            count += sum(isinstance(line, Record) and isinstance(line.event, kind) for line in lines)
        writer.close()
        return count

    def _control_socket(self) -> str:
        command = _read(self.named("flowdist.runtime.controller.controller_main")[0], "cmdline").split(b"\0")
        config = next(word for word in command if word.startswith(b"{"))
        path: str = json.loads(config)["control_socket"]
        return path

    def alive(self, *, but: tuple[int, ...] = ()) -> list[int]:
        """Every process of the run that is no zombie, the run's own included."""
        return [pid for pid in marked(self.mark) if pid not in but]

    def named(self, module: str) -> list[int]:
        """Those of our own processes that run a module of flowdist, oldest first."""
        return [pid for pid in self.alive() if module.encode() in _read(pid, "cmdline")]


def marked(mark: str) -> list[int]:
    """Every process with the mark that is no zombie, oldest first."""
    wanted = f"{MARK}={mark}".encode()
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return sorted((pid for pid in pids if wanted in _read(pid, "environ").split(b"\0")), key=_age)


def _read(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


def children(pid: int) -> list[int]:
    """The direct children of a process, oldest first."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if len(fields) > 1 and int(fields[1]) == pid:
                found.append(int(entry.name))
    return sorted(found, key=_age)


def is_guardian_of(pid: int, node: str) -> bool:
    """Its agent and its spawner are forked by it, and look alike."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return f'"name":"{node}"'.encode() in command and b"flowdist.runtime.agent.guardian" not in (
        Path(f"/proc/{parent}/cmdline").read_bytes()
    )


def _age(pid: int) -> tuple[int, int]:
    """By when it started: the numbers begin anew after 32,768, and threads count."""
    fields = _stat(pid)
    return (int(fields[19]) if len(fields) > 19 else sys.maxsize, pid)


def _stat(pid: int) -> list[bytes]:
    """What /proc says of it behind its name, from its state on."""
    return _read(pid, "stat").rpartition(b")")[2].split()


class Deaths:
    """Watches processes from before they are killed; waits for their end without asking again and again."""

    def __init__(self, pids: list[int]) -> None:
        self._fds: dict[int, int] = {}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it has ended since it was found
                self._fds[os.pidfd_open(pid)] = pid

    @property
    def pids(self) -> list[int]:
        return list(self._fds.values())

    def __enter__(self) -> Deaths:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fd in self._fds:
            os.close(fd)

    def survivors(self, seconds: float = 60.0) -> list[int]:
        """Those that still run after so long, as soon as there are none."""
        waiting = dict(self._fds)
        end = time.monotonic() + seconds
        while waiting and (left := end - time.monotonic()) > 0:
            for fd in select.select(list(waiting), [], [], left)[0]:
                del waiting[fd]
        return sorted(waiting.values())
