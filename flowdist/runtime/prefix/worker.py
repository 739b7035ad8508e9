"""Steps that make the fork of a template a worker like one that has run the script by itself."""

from __future__ import annotations

import _ctypes
import os
import posix
import sys

from flowdist.runtime.prefix import fork_safety

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from flowdist.runtime.prefix.watch import Watch

OUTPUT = (1, 2)  # stdout and stderr
LOGS = ("stdout.log", "stderr.log")
CHUNK = 1 << 20
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9
_prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]


class Start:
    """Request to start a worker.

    Args:
        id: The number of the worker in the spawner's messages.
        argv: Its command.
        variables: The environment variables that differ from rank to rank or from start to start, by name.
        folder: Its log folder.
        cpus: The cores that it is bound to; none: those of the template.
        store: The path at which a store host gets its socket; None: this is a worker.
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

    def keep_output(self, ends: list[int]) -> None:
        """In a template that this worker has left, have what the worker had written in files of its own.

        Args:
            ends: The sizes of its logs when it left the template.
        """
        for target, name, size, end in zip(OUTPUT, LOGS, self.sizes, ends, strict=True):
            log = posix.open(f"{self.folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            kept = os.memfd_create(name)
            posix.write(kept, posix.pread(log, end - size, size))
            posix.dup2(kept, target)
            posix.close(kept)
            posix.close(log)

    def undo_output(self) -> None:
        """Take back what the worker has written, before it is started anew."""
        for target, size in zip(OUTPUT, self.sizes, strict=True):
            posix.ftruncate(target, size)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; end if the parent has ended already.

    Args:
        parent: The process id of the parent, known from before the fork or exec.
    """
    _ctypes.call_function(_prctl, (_PR_SET_PDEATHSIG, _SIGKILL))
    if posix.getppid() != parent:
        posix._exit(1)


def become_worker(start: Start, watch: Watch) -> None:
    """Make this fork of a template the worker of a request. The script goes on when this has returned.

    The standard output and error of the script until its split are in the files of the descriptors 1 and 2. They are
    copied into the worker's logs, as if it had written them.
    """
    if start.cpus:
        posix.sched_setaffinity(0, start.cpus)
    for target, log in zip(OUTPUT, start.logs, strict=True):
        _copy(target, log)
        posix.dup2(log, target)
    start.close_logs()
    fork_safety.reopen()
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


def _renew_authkey(drawn: bytes) -> None:
    """Give multiprocessing a key of this worker's own, unless the script has set one."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and drawn and bytes(process.current_process().authkey) == drawn:
        process.current_process().authkey = posix.urandom(32)


def count_steps(at_first_step: Callable[[], None]) -> None:
    """Have the optimizer steps of the script counted, if torch is imported.

    Args:
        at_first_step: Called at the first of them, or at the first call of `progress()`.
    """
    if "torch.optim.optimizer" in sys.modules:
        from flowdist.worker import process_groups  # only a script that trains with torch needs them
        from flowdist.worker.step_counter import step_counter

        step_counter.watch()
        step_counter.at_first_step(process_groups.keep)
        step_counter.at_first_step(at_first_step)


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
