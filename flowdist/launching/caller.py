"""The calling process of `flowdist.launch`: it packs the function, starts the job and unpacks the results.

The job is an ordinary one, with one role. Its supervisor is a process of its own, because a supervisor adopts orphans
and handles signals, which must not change in the user's process. The supervisor dies with the calling process.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

from flowdist._version import __version__
from flowdist.dsl import Restart, Topology
from flowdist.dsl.load import compile_loaded
from flowdist.dsl.oneline import name_from, written_at
from flowdist.dsl.problems.places import call_site
from flowdist.errors import FlowdistError, JobFailed
from flowdist.launching.worker_main import CALL, RESULT, Result
from flowdist.runtime.gpus.devices import machine_gpus, settle_cluster
from flowdist.runtime.run_folder.folder import new_run
from flowdist.runtime.umask import umask_of
from flowdist.runtime.worker_env.ports import Ports
from flowdist.runtime.worker_env.run_environment import write_environment
from flowdist.text.printable import worker_line

T = TypeVar("T")
INSIDE = "FLOWDIST_LAUNCHED"  # set in workers, which may not call `launch`
PROCS_MAX = 10_000


class _RemoteTraceback(Exception):
    """The traceback in the worker, as the cause of the exception that the caller gets."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._text = text

    def __str__(self) -> str:
        return f"\n{self._text}"


def launch(
    function: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    procs: int = 1,
    setup: Callable[[], Any] | None = None,
    max_restarts: int = 0,
    start: Literal["forkserver", "spawn"] = "forkserver",
    parallel: Mapping[str, int | Literal["elastic"]] | None = None,
    env: Mapping[str, str] | None = None,
    runs: str | Path = "runs",
    quiet: bool = False,
) -> list[T]:
    """Call a function on `procs` processes that form one world, and return what each has returned.

    With procs=1 the function is called in this process, where a debugger works: RANK, WORLD_SIZE and so on are set
    during the call, no folder is made, and an exception comes unchanged. More processes need Linux.

    Args:
        function: One that workers can import, or that can be pickled (with cloudpickle, if that is installed: lambdas,
            and functions of a notebook). A script calls `launch` below `if __name__ == "__main__":`.
        args: Its positional arguments, the same for all processes.
        kwargs: Its keyword arguments, the same for all processes.
        procs: How many processes, from 1 to 10,000.
        setup: Called before the function in each process, without arguments.
        max_restarts: How often a failure restarts all processes, in the whole call; 0 with procs=1. The results are
            those of the last time.
        start: `forkserver` forks the processes from a fresh process, which has imported torch if this one has;
            `spawn` starts each afresh. They are never forked from this process: its threads and its CUDA context would
            be broken in a fork.
        parallel: The dimensions of the processes' mesh, for `flowdist.worker.mesh()`.
        env: Environment variables that the processes get in addition to those of this process.
        runs: The folder in which the folder of the run is made, with logs, journal and results; none with procs=1.
        quiet: Do not show their output; without effect with procs=1.

    Returns:
        What the function has returned in each process, by rank. With procs > 1 it has to be picklable, and it is None
        for a process that has ended itself with exit code 0.

    Raises:
        FlowdistError: if the function cannot be launched: see the message.
        JobFailed: if the job failed and no process has raised, or the exception cannot be pickled.
        Exception: the one that the function has raised in the process that failed first; its cause is the traceback
            there.
        KeyboardInterrupt: after Ctrl-C, once the job has ended.
    """
    _check_call(procs, args, start, max_restarts)
    if procs == 1:
        with _world_of_one({**_mesh_of_one(parallel), **(env or {})}):
            if setup is not None:
                setup()
            return [function(*args, **(kwargs or {}))]
    call = _pack(function, tuple(args), dict(kwargs or {}), setup)
    warm = start == "forkserver"
    made = _role(function, procs, env=env or {}, max_restarts=max_restarts, warm=warm, parallel=parallel)
    run_dir = _new_run(made, Path(runs), pickle.dumps(call))
    outcome = _supervise(run_dir, quiet)
    return _results(run_dir, procs, outcome)


def _check_call(procs: object, args: object, start: object, max_restarts: int) -> None:
    """Raise FlowdistError if the arguments of `launch` are invalid, or if this process or platform cannot launch."""
    if INSIDE in os.environ:
        help = 'put the call below if __name__ == "__main__":, so that workers can import the script'
        raise FlowdistError("flowdist.launch was called in one of its own workers", help=help)
    if isinstance(procs, bool) or not isinstance(procs, int) or not 1 <= procs <= PROCS_MAX:
        raise FlowdistError(f"procs={procs!r} is no number from 1 to {PROCS_MAX:,}", help="write procs=4")
    if not isinstance(args, (tuple, list)):
        raise FlowdistError(f"args={args!r} is no tuple of arguments", help=f"write args=({args!r},)")
    if start not in ("forkserver", "spawn"):
        help = 'write start="forkserver", which is as fast and inherits neither threads nor CUDA, or start="spawn"'
        raise FlowdistError(f"start={start!r} is no way to start processes here", help=help)
    if procs == 1 and max_restarts:
        help = "leave max_restarts out, or write procs=2"
        raise FlowdistError("procs=1 runs in this process, which nothing can restart", help=help)
    if procs > 1 and platform.system() != "Linux":
        raise FlowdistError("launch with several processes needs Linux", help="write procs=1")


@contextlib.contextmanager
def _world_of_one(env: Mapping[str, str]) -> Iterator[None]:
    """Set torchrun's variables for a world of one worker, and those in `env`; restore the environment afterwards."""
    # below the ephemeral ports: no outgoing connection can take it before torch binds it
    port = Ports(uuid.uuid4().hex, 0).of("launch", ("master",))["master"]
    ranks = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"), "0")
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"), "1")
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    before = dict(os.environ)
    os.environ.update({**ranks, **sizes, **address, **env})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _mesh_of_one(parallel: Mapping[str, int | Literal["elastic"]] | None) -> dict[str, str]:
    if parallel is None:
        return {}
    if any(size not in (1, "elastic") for size in parallel.values()):
        help = "write procs= with the product of its sizes"
        raise FlowdistError(f"parallel={dict(parallel)} forms no mesh of one process", help=help)
    return {"FLOWDIST_MESH": ",".join(f"{name}=1" for name in parallel)}


def _pack(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], setup: Any) -> tuple[bytes, dict[str, Any]]:
    """Pickle a call, by value with cloudpickle if workers cannot import the function, with settings (sys.path, ...).

    A worker needs the settings before it can unpickle the call.
    """
    content = (function, args, kwargs, setup)
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    file = getattr(main, "__file__", None)
    prepare: dict[str, Any] = {"sys_path": list(sys.path), "sys_argv": list(sys.argv), "dir": str(Path.cwd())}
    try:
        packed = pickle.dumps(content)
    except Exception as error:
        return _by_value(content, str(error)), prepare
    if b"__main__" not in packed:
        return packed, prepare
    if name is None and (file is None or not Path(file).is_file()):
        return _by_value(content, "it is defined in a notebook or at a prompt"), prepare
    known = (
        {"init_main_from_name": name} if name is not None else {"init_main_from_path": str(Path(str(file)).resolve())}
    )
    return packed, prepare | known


def _by_value(content: tuple[Any, ...], why: str) -> bytes:
    """Pickle a call by value, with cloudpickle. `why` it cannot be pickled by reference is for the error."""
    try:
        import cloudpickle  # type: ignore[import-not-found, import-untyped, unused-ignore]  # optional
    except ImportError:
        help = "define it at the top of a module or script, or install cloudpickle"
        name = getattr(content[0], "__qualname__", repr(content[0]))
        raise FlowdistError(f"{name} cannot be sent to the workers: {why}", help=help) from None
    try:
        packed: bytes = cloudpickle.dumps(content)
    except Exception as error:
        message = f"the call cannot be sent to the workers: {error}"
        raise FlowdistError(message, help="pass what can be pickled") from None
    return packed


def _role(
    function: Any, procs: int, *, env: Mapping[str, str], max_restarts: int, warm: bool, parallel: Any
) -> Topology:
    name = name_from(getattr(function, "__name__", "job"))
    t = Topology(name)
    t.role(
        "worker",
        ["python", "-m", "flowdist.launching.worker_main", "${log_dir}"],
        replicas=f"1x{procs}",
        workdir=str(Path.cwd()),
        env={**{key: value.replace("${", "${$}{") for key, value in env.items()}, INSIDE: "1"},
        restart=Restart("role", max_restarts=max_restarts) if max_restarts else None,
        preload=["torch"] if warm and "torch" in sys.modules else [],  # the function probably uses torch, too
        warm=warm,
        parallel=parallel,
    )
    return t


def _new_run(t: Topology, runs: Path, call: bytes) -> Path:
    """Make the folder of a run of the topology, with the pickled call, and return its path."""
    loaded = compile_loaded(written_at(t, call_site((), depth=3)))
    graph, _ = settle_cluster(loaded.graph, machine_gpus(os.environ))
    run_dir = new_run(runs, graph)
    with umask_of(run_dir):
        write_environment(run_dir, graph, str, __version__)
        (run_dir / CALL).write_bytes(call)
    return run_dir


def _supervise(run_dir: Path, quiet: bool) -> str:
    """Run the job to its end, show its output, and return why it has failed; empty if it has not.

    Ctrl-C stops it in order, a second one at once; KeyboardInterrupt follows its end.
    """
    command = [sys.executable, "-P", "-m", "flowdist.launching.supervisor_main", str(run_dir), str(os.getpid())]
    interrupted = False
    with subprocess.Popen(
        [*command, *(["quiet"] if quiet else [])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        streams = ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
        readers = [threading.Thread(target=_show, args=pair, daemon=True) for pair in streams]
        for reader in readers:
            reader.start()
        while True:
            try:
                process.wait()
                for reader in readers:
                    reader.join()
                break
            except KeyboardInterrupt:
                interrupted = True
                process.send_signal(signal.SIGINT)
    if interrupted:
        raise KeyboardInterrupt
    if process.returncode == 0:
        return ""
    reason = run_dir / "reason.txt"
    return reason.read_text() if reason.exists() else f"its supervisor died with code {process.returncode}"


def _show(source: IO[str], target: IO[str]) -> None:
    """Copy output of the supervisor to the user's stream: on a terminal without what would move the cursor."""
    for line in source:
        with contextlib.suppress(OSError, ValueError):  # the target is closed, or lacks a character: read on even so
            target.write(worker_line(line.rstrip("\n")) + "\n" if target.isatty() else line)
            target.flush()


def _results(run_dir: Path, procs: int, failure: str) -> list[Any]:
    """Return results of the last attempt by rank, or raise what failed first; `failure` is empty if none has."""
    attempts = sorted((run_dir / "worker/0").glob("attempt_*"), key=lambda path: int(path.name.partition("_")[2]))
    files = [attempts[-1] / str(rank) / RESULT for rank in range(procs)] if attempts else []
    found = {rank: Result(*pickle.loads(file.read_bytes())) for rank, file in enumerate(files) if file.exists()}
    if failure:
        failed = [rank for rank, result in found.items() if result.raised]
        if not failed:
            raise JobFailed(f"{failure} (see {run_dir})")
        first = min(failed, key=lambda rank: files[rank].stat().st_mtime_ns)
        _raise(found[first], first, procs)
    return [pickle.loads(found[rank].packed or b"N.") if rank in found else None for rank in range(procs)]


def _raise(result: Result, rank: int, procs: int) -> None:
    """Raise the exception of a worker, or JobFailed if it cannot be unpickled. Its cause is the worker's traceback."""
    cause = _RemoteTraceback(f"in rank {rank} of {procs}:\n{result.raised}")
    try:
        error = pickle.loads(result.packed) if result.packed is not None else None
    except Exception:
        error = None
    if not isinstance(error, BaseException):
        error = JobFailed(f"rank {rank} raised {result.error}")
    raise error from cause
