"""Steps that make the fork of a template a worker like one that has run the script by itself."""

from __future__ import annotations

import _ctypes
import _io
import fcntl
import os
import posix
import sys

from flowdist.runtime.prefix import fork_safety
from flowdist.runtime.prefix.effects import exists
from flowdist.runtime.prefix.link import HIGH_FD, VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from flowdist.runtime.prefix.watch import Watch

OUTPUT = (1, 2)  # stdout and stderr
LOGS = ("stdout.log", "stderr.log")
CHUNK = 1 << 20
MEMORY = "/proc/self/mem"
REST = b"FLOWDIST_ROOM="  # of the place: an empty entry would end the list for many readers
ENV_START, ENV_END = 47, 48  # fields of /proc/self/stat behind the name of the program (proc(5), 50 and 51)
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9
_prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]


class Start:
    """Request to start a worker, which `id` names in the spawner's messages, with its logs in `folder`.

    `variables` differ from rank to rank or from start to start. `cpus` are the cores that it is bound to; none: those
    of the template. `store` is the path at which a store host gets its socket; None: this is a worker.
    """

    def __init__(
        self,
        id: int,
        argv: list[str],
        variables: dict[str, str],
        folder: str,
        cpus: list[int],
        store: str | None,
    ) -> None:
        self.id, self.argv, self.variables, self.folder, self.cpus = id, argv, variables, folder, cpus
        self.store = store
        self.logs: list[int] = []
        self.sizes: list[int] = []

    def open_logs(self) -> None:
        """Make the folder and open the logs. OSError if that is not possible."""
        _make_folders(self.folder)
        for name in LOGS:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self.logs.append(posix.open(f"{self.folder}/{name}", flags, 0o666))
        self.sizes = [posix.fstat(log).st_size for log in self.logs]

    def close_logs(self) -> None:
        """Close the descriptors of the logs."""
        while self.logs:
            posix.close(self.logs.pop())

    def write_pid(self, pid: int) -> None:
        """Write the pid file. If it cannot be written, the worker runs without it: only injected faults need it."""
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            file = posix.open(f"{self.folder}/pid.new", flags, 0o666)
            posix.write(file, f"{pid}\n".encode())
            posix.close(file)
            posix.rename(f"{self.folder}/pid.new", f"{self.folder}/pid")
        except OSError:
            return


class Output:
    """The files of standard output and error of this process, with descriptors of flowdist's own.

    The script may have moved, copied or closed its descriptors 1 and 2 before its split.
    """

    def __init__(self) -> None:
        self._own = [high_copy(fd) for fd in OUTPUT]

    def sizes(self) -> list[int]:
        """Return the sizes of the files."""
        return [posix.fstat(own).st_size for own in self._own]

    def give(self, logs: list[int]) -> None:
        """Write what is in the files to `logs` too, and have the script write there from now on."""
        for own, log in zip(self._own, logs, strict=True):
            _copy(own, log)
        self._lead_to(logs)

    def keep(self, start: Start, ends: list[int]) -> None:
        """In a template that a worker has left, have what the worker had written in files of its own.

        `ends` are the sizes of its logs when it left the template.
        """
        files = []
        for name, size, end in zip(LOGS, start.sizes, ends, strict=True):
            log = posix.open(f"{start.folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            files.append(os.memfd_create(name))
            fcntl.fcntl(files[-1], fcntl.F_SETFL, os.O_APPEND)
            posix.write(files[-1], posix.pread(log, end - size, size))
            posix.close(log)
        self._lead_to(files)
        for file in files:
            posix.close(file)

    def undo(self, start: Start) -> None:
        """Take back what a worker has written, before it is started anew."""
        for own, size in zip(self._own, start.sizes, strict=True):
            posix.ftruncate(own, size)

    def close(self) -> None:
        """Close flowdist's own descriptors."""
        for own in self._own:
            posix.close(own)

    def _lead_to(self, files: Iterable[int]) -> None:
        former = [_identity(own) for own in self._own]
        self.close()
        self._own = [high_copy(file) for file in files]
        for own, same in zip(self._own, former, strict=True):
            for fd in fork_safety.open_files():
                if _identity(fd) == same:
                    posix.dup2(own, fd, inheritable=posix.get_inheritable(fd))


class ShownEnvironment:
    """Place of PYTHONPATH and VARIABLE, one after the other, in memory of this process: /proc/PID/environ shows it.

    A fork shows the variables of its template. Tools that look a worker up by its RANK, and scripts that read
    /proc/self/environ, expect the worker's own: each worker writes them there. Nothing else points to that text.
    `pythonpath` is the user's own, in place of the prefix's; empty if it is unset.
    """

    def __init__(self, pythonpath: dict[str, str]) -> None:
        self._pythonpath = pythonpath
        self._address = self._size = 0
        try:
            with _io.open("/proc/self/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            start, end = int(fields[ENV_START]), int(fields[ENV_END])
            memory = posix.open(MEMORY, os.O_RDONLY | os.O_CLOEXEC)
            block = posix.pread(memory, end - start, start)
            posix.close(memory)
        except OSError:
            return  # a system without these files: workers show the variables of the prefix
        at = block.rfind(b"\0PYTHONPATH=") + 1
        if at and block.endswith(b"\0") and block.count(b"\0", at) == 2 and os.fsencode(VARIABLE) in block[at:]:
            self._address, self._size = start + at, len(block) - at - 1

    def give(self, values: dict[str, str]) -> None:
        """Have this process, a worker, show its variables; do nothing if there is no room for them."""
        shown = [os.fsencode(f"{name}={value}") for name, value in {**self._pythonpath, **values}.items()]
        text = b"\0".join([*shown, REST])
        if len(text) <= self._size:
            try:
                memory = posix.open(MEMORY, os.O_RDWR | os.O_CLOEXEC)
                posix.pwrite(memory, text.ljust(self._size), self._address)
                posix.close(memory)
            except OSError:
                return


def high_copy(fd: int) -> int:
    """Return a copy of a descriptor with a number above those that the script expects, if the limit allows it."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    except OSError:
        return posix.dup(fd)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; end if `parent`, as it was before, has ended already."""
    _ctypes.call_function(_prctl, (_PR_SET_PDEATHSIG, _SIGKILL))
    if posix.getppid() != parent:
        posix._exit(1)


def become_worker(start: Start, watch: Watch, output: Output, copied: list[list[int]]) -> None:
    """Make this fork of a template the worker of a request. The script goes on when this has returned.

    What the script has written until its split is copied into the worker's logs, as if it had written it. `copied` are
    the files that are being read: see `fork_safety.copied_files`.
    """
    if start.cpus:
        posix.sched_setaffinity(0, start.cpus)
    output.give(start.logs)
    start.close_logs()
    fork_safety.reopen(copied)
    _look_again()
    sys.argv = _arguments(start.argv)
    watch.generators.give()
    _renew_authkey(watch.authkey)
    threading = sys.modules.get("threading")
    if threading is not None:
        threading.main_thread()._set_native_id()  # Python 3.11 keeps the id of the parent's thread


def _arguments(argv: list[str]) -> list[str]:
    """Return `sys.argv` for a command, if flowdist has to replace it, else as it is."""
    if type(sys.argv) is list:
        return sys.argv
    words: Any = sys.argv
    words.give(argv)
    return list(words)


def _look_again() -> None:
    """Have folders looked at again that were missing when the script looked for modules there."""
    for folder, finder in list(sys.path_importer_cache.items()):
        if finder is None and exists(folder):
            del sys.path_importer_cache[folder]


def _renew_authkey(drawn: bytes) -> None:
    """Give multiprocessing a key of this worker's own, unless the script has set one."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and drawn and bytes(process.current_process().authkey) == drawn:
        process.current_process().authkey = posix.urandom(32)


def import_counter() -> tuple[Any, Any] | None:
    """Import what counts optimizer steps, and return it; None without torch: others are not followed."""
    if "torch.optim.optimizer" not in sys.modules:
        return None
    from flowdist.worker import process_groups, step_counter  # only a script that trains with torch needs them

    return process_groups, step_counter.step_counter


def count_steps(at_first_step: Callable[[], None]) -> None:
    """Count optimizer steps if torch is imported. The first of them or of `progress()` calls `at_first_step`."""
    if counted := import_counter():
        process_groups, counter = counted
        counter.watch()
        counter.at_first_step(process_groups.keep)
        counter.at_first_step(at_first_step)


def _identity(fd: int) -> tuple[int, int]:
    found = posix.fstat(fd)
    return found.st_dev, found.st_ino


def _copy(source: int, target: int) -> None:
    offset = 0
    while data := posix.pread(source, CHUNK, offset):
        offset += len(data)
        while data:
            data = data[posix.write(target, data) :]


def _make_folders(path: str) -> None:
    """Make a folder with all folders above it that are missing."""
    try:
        posix.mkdir(path)
    except FileExistsError:
        return
    except FileNotFoundError:
        _make_folders(path.rpartition("/")[0])
        posix.mkdir(path)
