"""The process that workers are forked from: it imports what they need, sees whether forking is safe, and forks.

It never touches a GPU and starts no thread. Whoever is forked leaves `serve` with the request, so that next to nothing
of ours is below the user's code.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import selectors
import socket
import sys
import warnings
from pathlib import Path

import msgspec

import flowdist.worker  # noqa: F401  # what workers that speak to us import: it is theirs without a wait
from flowdist.runtime.processes.reaper import die_with_parent
from flowdist.runtime.processes.spawning import (
    Answer,
    Children,
    Ready,
    Signal,
    Spawn,
    SpawnRefused,
    encode,
    requests,
    write_pid,
)
from flowdist.runtime.processes.standby import Standby, Standbys, wait_for_work

PF_EXITING = 0x4  # among the flags of a thread: it is on its way out, and runs no code of the process any more


class Imports(msgspec.Struct, frozen=True):
    """The first line that a fork server reads."""

    first_path: str  # becomes sys.path[0]; empty: there is none
    preload: tuple[str, ...]


def serve(channel: int, parent: int) -> Spawn:
    """Returns in each worker. The fork server itself ends here, when the spawner closes its side."""
    die_with_parent(parent)
    gc.disable()  # a collection would copy the pages that a fork shares; imports are faster without, too
    return _Loop(socket.socket(fileno=channel)).run()


class _Loop:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)
        self._children = Children(self._selector)
        self._standbys = Standbys(self._selector, fork)
        self._frames = requests()

    def run(self) -> Spawn:
        first, _, rest = self._first_line()
        ours = _open_files()
        imports = msgspec.json.decode(first, type=Imports)
        unsafe = hidden_by(imports.first_path) or _import(imports) or _unsafe(ours)
        self._kept = _open_files() - ours
        gc.freeze()  # what is there stays in pages that all workers share
        self._answer(Ready(unsafe))
        forked = self._obey(rest)
        while forked is None:
            for key, _ in self._selector.select(self._standbys.patience_s()):
                if isinstance(key.data, Standby):
                    self._standbys.died(key.data)
                    continue
                if key.fileobj is not self._channel:
                    self._answer(self._children.end(key.data))
                    self._standbys.stir()
                    continue
                forked = self._obey(self._read())
                if forked is not None:
                    return forked
            channel = self._standbys.keep_up(len(self._children))
            if channel is not None:
                forked = self._stand_by(channel)
        return forked

    def _first_line(self) -> tuple[bytes, bytes, bytes]:
        data = b""
        while b"\n" not in data:
            data += self._read()
        return data.partition(b"\n")

    def _read(self) -> bytes:
        """What the spawner says; without it this process ends. One that was killed may have left an answer unread."""
        data = b""
        with contextlib.suppress(ConnectionError):
            data = self._channel.recv(1 << 16)
        if not data:
            os._exit(0)
        return data

    def _obey(self, data: bytes) -> Spawn | None:
        """A request, in the process that was forked for it."""
        for request in self._frames.feed(data):
            match request:
                case Spawn():
                    if self._fork(request):
                        return request
                case Signal():
                    self._children.signal(request.id, request.number)
                case _:
                    raise TypeError(f"no request: {request}")
        return None

    def _fork(self, request: Spawn) -> bool:
        """Whether this is the child."""
        folder = Path(request.folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            os.chdir(request.cwd)
            files = [os.open(os.devnull, os.O_RDONLY)]
            for name in ("stdout.log", "stderr.log"):
                files.append(os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666))
            pid = self._standbys.hand_over(request, files) or fork_with_pid(folder)
        except OSError as error:
            self._answer(SpawnRefused(request.id, f"{request.argv[0]}: {error.strerror}"))
            return False
        if pid == 0:
            self._become_nobody(*files)
            _take(files)
            return True
        self._standbys.stir()
        for file in files:
            os.close(file)
        self._answer(self._children.add(request.id, pid, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        return False

    def _stand_by(self, channel: socket.socket) -> Spawn:
        """In a child that was forked before it is wanted."""
        self._become_nobody(channel.fileno())
        request, files = wait_for_work(channel)
        os.chdir(request.cwd)
        _take(files)
        return request

    def _become_nobody(self, *but: int) -> None:
        """In the child: nothing of the fork server but its memory, and what its imports hold open."""
        os.setsid()
        gc.enable()
        self._channel.close()  # the objects too: their ends would close somebody else's files
        self._selector.close()
        self._children.forget()
        self._standbys.forget()
        for fd in _open_files() - self._kept - {0, 1, 2, *but}:
            os.close(fd)

    def _answer(self, answer: Answer) -> None:
        with contextlib.suppress(ConnectionError):  # the spawner is gone: the next read says so
            self._channel.sendall(encode(answer))


def _take(files: list[int]) -> None:
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)


def fork() -> int:
    """os.fork, with nothing unwritten, and without the warning about threads: we have looked."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def fork_with_pid(folder: Path) -> int:
    """As `fork`; in the child it returns when its pid is in the folder."""
    gate, opener = os.pipe()
    pid = -1
    try:
        pid = fork()
        if pid > 0:
            write_pid(folder, pid)
    finally:
        os.close(opener)
        if pid == 0:
            os.read(gate, 1)  # the parent has closed its end
        os.close(gate)
    return pid


def hidden_by(first_path: str) -> str:
    """A module beside the script that this process would not see, having imported another of that name."""
    if first_path:
        with contextlib.suppress(OSError):
            for entry in sorted(os.listdir(first_path)):  # noqa: PTH208  # names alone are wanted
                name, _, ending = entry.partition(".")
                path = Path(first_path, entry)
                is_module = ending == "py" or ending.endswith("so") or (path / "__init__.py").is_file()
                if name in sys.modules and name != "flowdist" and is_module:
                    file = getattr(sys.modules[name], "__file__", None)
                    if file is not None and not file.startswith(f"{first_path}{os.sep}"):
                        return f"{path} hides a module of that name"
    return ""


def _import(imports: Imports) -> str:
    """Why it failed; empty when everything is there."""
    if imports.first_path:
        sys.path.insert(0, imports.first_path)
    sys.argv[:] = [""]
    for name in imports.preload:
        try:
            importlib.import_module(name)
        except BaseException as error:  # SystemExit too
            return f"preload: {name}: {type(error).__name__}: {error}"
    return ""


def _unsafe(ours: set[int]) -> str:
    """Why workers must not be forked from this process, now that everything is imported."""
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return "it is traced or profiled"
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():
        return "an import has initialised CUDA"
    for fd in sorted(_open_files() - ours):
        with contextlib.suppress(OSError):
            target = str(Path(f"/proc/self/fd/{fd}").readlink())
            if target.startswith(("/dev/nvidia", "socket:", "anon_inode:")):
                return f"an import has opened {target}"
    # A fork ends what knows how to end with it, the threads of OpenBLAS for one. A child would lose what runs on.
    pid = fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    names = other_threads(Path("/proc/self/task"), os.getpid())
    count = f"{len(names)} thread{'s' if len(names) > 1 else ''}"
    return f"its imports have left {count} running ({', '.join(names)})" if names else ""


def other_threads(tasks: Path, pid: int) -> list[str]:
    """The names of those that run beside the main thread, from what /proc has of a process.

    Whoever joins a thread may be told that it has ended a moment before the kernel has taken it off the list.
    """
    names = []
    for task in tasks.iterdir():
        with contextlib.suppress(OSError):  # it has ended
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            if task.name != str(pid) and fields[0] not in "ZX" and not int(fields[6]) & PF_EXITING:
                names.append(name)
    return names


def _open_files() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):  # the one that listed them
            os.fstat(int(name))
            found.add(int(name))
    return found
