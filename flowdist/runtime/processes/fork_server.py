"""The fork server: a process that imports what workers need, checks that forking is safe, and forks the workers.

A fork server never touches a GPU and starts no thread. In each forked worker `serve` returns the request, so that
almost no frame of flowdist is below the user's code.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import selectors
import socket
import sys
import warnings
from pathlib import Path

import msgspec

import flowdist.worker  # noqa: F401  # imported once here, so that workers which use it need not wait for it
from flowdist.runtime.import_leftovers import Generators, has_child, has_position, is_traced, shared_memory
from flowdist.runtime.preload.trial import Trial, import_learned
from flowdist.runtime.processes.children import Children
from flowdist.runtime.processes.reaper import die_with_parent
from flowdist.runtime.processes.spawn_protocol import (
    Channel,
    Imports,
    Ready,
    Signal,
    Spawn,
    SpawnRefused,
    write_pid,
)
from flowdist.runtime.processes.standby import Standby, StandbyPool, receive_work

GENERATORS = Generators()  # as they are before the imports
PF_EXITING = 0x4  # flag of a thread in /proc: it is ending, and runs no code of the process any more


def serve(channel: int, parent: int) -> Spawn:
    """Serve the spawner's requests until the spawner closes its side, which ends this process.

    The function returns only in forked workers.

    Args:
        channel: The descriptor of the socket to the spawner.
        parent: The process id of the spawner; the kernel kills the fork server when the spawner ends.

    Returns:
        The request of the worker that this process has become.
    """
    die_with_parent(parent)
    gc.disable()  # a collection would copy the pages that a fork shares; imports are faster without it, too
    return _ForkServer(Channel(socket.socket(fileno=channel))).run()


class _ForkServer:
    def __init__(self, channel: Channel) -> None:
        self._channel, self._pid = channel, os.getpid()
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)
        self._children = Children(self._selector)
        self._standbys = StandbyPool(self._selector, fork)
        self._env = self._imported_env = dict[str, str]()  # the environment before and after the imports

    def run(self) -> Spawn:
        """Serve requests and keep the pool of standbys; in a forked worker, return the request for that worker."""
        while True:
            for key, _ in self._selector.select(self._standbys.seconds_until_due()):
                if isinstance(key.data, Standby):
                    self._standbys.handle_death(key.data)
                elif key.fileobj is not self._channel:
                    self._channel.send(self._children.end(key.data))
                    self._standbys.note_activity()
                elif (forked := self._handle_requests()) is not None:
                    return forked
            channel = self._standbys.adjust(len(self._children))
            if channel is not None:
                return self._stand_by(channel)

    def _handle_requests(self) -> Spawn | None:
        """Carry out the requests that have arrived. End this process if the spawner has ended.

        Returns:
            None in the fork server; in a worker that was forked here, the request for that worker.
        """
        requests = self._channel.receive()
        if requests is None:
            os._exit(0)
        for request in requests:
            match request:
                case Imports():
                    self._get_ready(request)
                case Spawn():
                    if self._spawn(request):
                        return self._with_imported_env(request)
                case Signal():
                    self._children.signal(request.id, request.number)
                case _:
                    raise TypeError(f"no request: {request}")
        return None

    def _get_ready(self, imports: Imports) -> None:
        """Import the modules, and send the spawner Ready, which says whether this process is safe to fork from."""
        own_files, env = _open_files(), dict(os.environ)
        unsafe, trial = shadowed_module(imports.first_path) or _import(imports), Trial((), ())
        if imports.learned and not unsafe:
            check = functools.partial(_why_unsafe, own_files)
            trial = import_learned(imports.learned, imports.per_worker, imports.changed, _leftovers, check)
            unsafe = "; ".join(f"{name}: {why}" for name, why in trial.refused)
        unsafe = unsafe or _why_unsafe(own_files)
        self._kept_files = _open_files() - own_files
        self._env, self._imported_env = env, dict(os.environ)
        gc.freeze()  # objects that exist now stay in pages that all workers share
        self._standbys.expect(imports.standbys)
        self._channel.send(Ready(unsafe, *trial))

    def _spawn(self, request: Spawn) -> bool:
        """Start a worker: assign it to a standby process if one waits, else fork; send the spawner the result.

        Returns:
            False in the fork server, also when the start was refused; True in a worker that was forked here.
        """
        folder = Path(request.folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            os.chdir(request.cwd)
            files = [os.open(os.devnull, os.O_RDONLY)]
            for name in ("stdout.log", "stderr.log"):
                files.append(os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666))
            pid = self._standbys.assign(request, files) or fork_with_pid(folder)
        except OSError as error:
            self._channel.send(SpawnRefused(request.id, f"{request.argv[0]}: {error.strerror}"))
            return False
        if pid == 0:
            self._drop_inherited(*files)
            _install_stdio(files)
            return True
        self._standbys.note_activity()
        for file in files:
            os.close(file)
        self._channel.send(
            self._children.add(request.id, pid, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        )
        return False

    def _stand_by(self, channel: socket.socket) -> Spawn:
        """In a standby process, wait until the fork server assigns it a worker, and return the request for that worker.

        Args:
            channel: The standby's end of its socket to the fork server.
        """
        self._drop_inherited(channel.fileno())
        request, files = receive_work(channel)
        os.chdir(request.cwd)
        _install_stdio(files)
        return self._with_imported_env(request)

    def _with_imported_env(self, request: Spawn) -> Spawn:
        """Return the request with the variables that imports have set or unset, as they would in the worker itself."""
        env = dict(request.env)
        for name in {**self._env, **self._imported_env}:
            after = self._imported_env.get(name)
            if self._env.get(name) != after and env.get(name) == self._env.get(name):
                env.pop(name, None)
                env |= {name: after} if after is not None else {}
        return msgspec.structs.replace(request, env=env)

    def _drop_inherited(self, *keep: int) -> None:
        """In a forked child, begin a session, and close the descriptors of the fork server, with which the child dies.

        The standard streams, the files that imports have opened and the descriptors in `keep` stay open.
        """
        die_with_parent(self._pid)
        os.setsid()
        gc.enable()
        # The objects are closed too: their finalizers would close descriptors that the worker has opened since.
        self._channel.close()
        self._selector.close()
        self._children.close_in_child()
        self._standbys.close_in_child()
        for fd in _open_files() - self._kept_files - {0, 1, 2, *keep}:
            os.close(fd)


def _install_stdio(files: list[int]) -> None:
    """Make three open files stdin, stdout and stderr of this process, in this order, and close their descriptors."""
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)


def fork() -> int:
    """Fork as os.fork does, after flushing the standard streams and without Python's warning about threads.

    The warning adds nothing: the fork server has checked with `running_threads` that no thread runs.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def fork_with_pid(folder: Path) -> int:
    """Fork a worker as os.fork does. The child returns only after the parent has written the worker's pid file.

    Args:
        folder: The log folder of the worker, which gets the pid file.
    """
    gate, opener = os.pipe()
    pid = -1
    try:
        pid = fork()
        if pid > 0:
            write_pid(folder, pid)
    finally:
        os.close(opener)
        if pid == 0:
            os.read(gate, 1)  # returns when the parent has closed its end
        os.close(gate)
    return pid


def shadowed_module(first_path: str) -> str:
    """Return why a module beside the user's script makes this process unfit to be forked from; empty if none does.

    Such a module has the name of a module that this process has imported from elsewhere. The script of a forked worker
    would import that other module instead.

    Args:
        first_path: The folder of the script; empty: there is nothing to check.
    """
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
    """Import the modules in the order of `preload`, up to the first that fails.

    Returns:
        That module and its error in words; empty if all were imported.
    """
    if imports.first_path:
        sys.path.insert(0, imports.first_path)
    sys.argv[:] = [""]
    for name in imports.preload:
        try:
            importlib.import_module(name)
        except BaseException as error:  # SystemExit too
            return f"preload: {name}: {type(error).__name__}: {error}"
    return ""


def _leftovers() -> object:
    """Return what shows that an import has left something for which `_why_unsafe` may refuse this process.

    Shared memory is not looked for: to find it after each of a thousand imports takes a second.
    """
    threads, files = os.listdir("/proc/self/task"), os.listdir("/proc/self/fd")  # noqa: PTH208  # names alone
    return len(threads), frozenset(files), GENERATORS.seeded(), has_child(), is_traced()


def _why_unsafe(own_files: set[int]) -> str:
    """Return why workers must not be forked from this process after its imports; empty if they may be.

    Args:
        own_files: The descriptors that were open before the imports.
    """
    if is_traced():
        return "it is traced or profiled"
    if seeded := GENERATORS.seeded():
        return f"an import has seeded the random numbers of {seeded}"
    if shared := shared_memory(Path("/proc/self/maps")):
        return f"an import has made memory that processes share ({shared})"
    if has_child():
        return "an import has started a process"
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():
        return "an import has initialised CUDA"
    for fd in sorted(_open_files() - own_files):
        with contextlib.suppress(OSError):
            target = str(Path(f"/proc/self/fd/{fd}").readlink())
            if target.startswith(("/dev/nvidia", "socket:", "anon_inode:")) or has_position(fd):
                return f"an import has opened {target}"
    # Libraries with a fork handler, such as OpenBLAS, stop their threads at this fork. Any thread that still runs
    # would be missing in a forked worker.
    pid = fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    names = running_threads(Path("/proc/self/task"), os.getpid())
    count = f"{len(names)} thread{'s' if len(names) > 1 else ''}"
    return f"its imports have left {count} running ({', '.join(names)})" if names else ""


def running_threads(tasks: Path, pid: int) -> list[str]:
    """Return the names of the threads of a process that run beside its main thread.

    A thread that is ending does not count: joining a thread may return a moment before the kernel removes the thread
    from the list.

    Args:
        tasks: The folder `/proc/PID/task` of the process.
        pid: The process id, which is also the id of the main thread.
    """
    names = []
    for task in tasks.iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            if task.name != str(pid) and fields[0] not in "ZX" and not int(fields[6]) & PF_EXITING:
                names.append(name)
    return names


def _open_files() -> set[int]:
    """Return the numbers of the descriptors that are open in this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed by now
            os.fstat(int(name))
            found.add(int(name))
    return found
