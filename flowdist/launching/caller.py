"""`flowdist.launch(function, args, procs=4)`: a function on several processes, from a script or a notebook.

The job is an ordinary one, with one role. Its supervisor is a process of its own, because a supervisor adopts orphans
and takes the signals, which is nothing to do to a user's process; it dies with that process.
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

from flowdist import __version__
from flowdist.dsl import Restart, Topology
from flowdist.dsl.load import compile_loaded
from flowdist.dsl.oneline import name_from, written_at
from flowdist.dsl.problems.places import call_site
from flowdist.errors import FlowdistError, JobFailed
from flowdist.launching.worker_main import CALL, RESULT, Call, Result
from flowdist.runtime.gpus.devices import machine_gpus, settle_cluster
from flowdist.runtime.run_folder.folder import new_run
from flowdist.runtime.worker_env.ports import Ports
from flowdist.runtime.worker_env.run_environment import write_environment

T = TypeVar("T")
INSIDE = "FLOWDIST_LAUNCHED"  # set in workers: they launch nothing themselves
PROCS_MAX = 10_000


class _RemoteTraceback(Exception):
    """What the child printed, as the cause of what the parent raises."""

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
    """Call the function on `procs` processes that form one world, and return what each has returned, by rank.

    With procs=1 it is called in this process, where a debugger works; RANK, WORLD_SIZE and so on are set for that time.

    Args:
        function: One that workers can import, or that can be pickled (with cloudpickle, if that is installed: lambdas,
            and functions of a notebook). A script calls `launch` below `if __name__ == "__main__":`.
        args, kwargs: Its arguments, the same for all.
        procs: How many processes.
        setup: Called before it in each process, without arguments.
        max_restarts: How often a failure restarts all of them; results are those of the last time.
        start: `forkserver` forks the processes from one that has torch imported, if this one has; `spawn` starts each
            afresh. They are never forked from this process: of its threads and its CUDA context only broken halves
            would arrive.
        parallel: The dimensions of their mesh, for `flowdist.worker.mesh()`.
        env: Added to their environment.
        runs: Where the folder of the run is made: logs, journal, results. Nothing is made with procs=1.
        quiet: Not their output.

    Raises:
        FlowdistError: when it cannot be launched: see the message.
        JobFailed: when a process died without raising.
        Exception: what the function has raised, in the process that failed first; its traceback there is the cause.
    """
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
    if procs == 1:
        if max_restarts:
            help = "leave max_restarts out, or write procs=2"
            raise FlowdistError("procs=1 runs in this process, which nothing can restart", help=help)
        with _world_of_one({**_mesh_of_one(parallel), **(env or {})}):
            if setup is not None:
                setup()
            return [function(*args, **(kwargs or {}))]
    if platform.system() != "Linux":
        raise FlowdistError("launch with several processes needs Linux", help="write procs=1")
    call = _pack(function, tuple(args), dict(kwargs or {}), setup)
    warm = start == "forkserver"
    made = _role(function, procs, env=env or {}, max_restarts=max_restarts, warm=warm, parallel=parallel)
    run_dir = _new_run(made, Path(runs))
    (run_dir / CALL).write_bytes(pickle.dumps(tuple(call)))
    outcome = _supervise(run_dir, quiet)
    return _results(run_dir, procs, outcome)


@contextlib.contextmanager
def _world_of_one(env: Mapping[str, str]) -> Iterator[None]:
    """torchrun's variables for one worker of one; afterwards the environment is as it was."""
    # not of those that any connection may be given between now and the moment when torch binds it
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


def _pack(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], setup: Any) -> Call:
    """By reference where that can be imported again, by value where only cloudpickle can do it."""
    content = (function, args, kwargs, setup)
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    file = getattr(main, "__file__", None)
    prepare: dict[str, Any] = {"sys_path": list(sys.path), "sys_argv": list(sys.argv), "dir": str(Path.cwd())}
    try:
        packed = pickle.dumps(content)
    except Exception as error:
        return Call(_by_value(content, str(error)), prepare)
    if b"__main__" not in packed:
        return Call(packed, prepare)
    if name is None and (file is None or not Path(file).is_file()):
        return Call(_by_value(content, "it is defined in a notebook or at a prompt"), prepare)
    known = (
        {"init_main_from_name": name} if name is not None else {"init_main_from_path": str(Path(str(file)).resolve())}
    )
    return Call(packed, prepare | known)


def _by_value(content: tuple[Any, ...], why: str) -> bytes:
    try:
        import cloudpickle  # type: ignore[import-not-found, unused-ignore]  # the user's choice
    except ImportError:
        help = "define it at the top of a module or script, or install cloudpickle"
        name = getattr(content[0], "__qualname__", repr(content[0]))
        raise FlowdistError(f"{name} cannot be sent to the workers: {why}", help=help) from None
    try:
        packed: bytes = cloudpickle.dumps(content)
    except Exception as error:
        raise FlowdistError(f"it cannot be sent to the workers: {error}", help="pass what can be pickled") from None
    return packed


def _role(
    function: Any, procs: int, *, env: Mapping[str, str], max_restarts: int, warm: bool, parallel: Any
) -> Topology:
    name = name_from(getattr(function, "__name__", "job").replace("_", "-"))
    t = Topology(name)
    t.role(
        "worker",
        ["python", "-m", "flowdist.launching.worker_main", "${log_dir}"],
        replicas=f"1x{procs}",
        workdir=str(Path.cwd()),
        env={**{key: value.replace("${", "${$}{") for key, value in env.items()}, INSIDE: "1"},
        restart=Restart("role", max_restarts=max_restarts) if max_restarts else None,
        preload=["torch"] if warm and "torch" in sys.modules else [],  # whoever has imported it here wants it there
        warm=warm,
        parallel=parallel,
    )
    return t


def _new_run(t: Topology, runs: Path) -> Path:
    loaded = compile_loaded(written_at(t, call_site((), depth=3)))
    graph, _ = settle_cluster(loaded.graph, machine_gpus(os.environ))
    run_dir = new_run(runs, graph)
    write_environment(run_dir, graph, str, __version__)
    return run_dir


def _supervise(run_dir: Path, quiet: bool) -> str:
    """Until the job is over; its reason when it has failed, else nothing. Ctrl-C stops it in order, twice at once."""
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
    for line in source:
        target.write(line)
        target.flush()


def _results(run_dir: Path, procs: int, failure: str) -> list[Any]:
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
    """The exception itself, where it can be had; its traceback in the child is its cause."""
    cause = _RemoteTraceback(f"in rank {rank} of {procs}:\n{result.raised}")
    try:
        error = pickle.loads(result.packed) if result.packed is not None else None
    except Exception:
        error = None
    if not isinstance(error, BaseException):
        error = JobFailed(f"rank {rank} raised {result.error}")
    raise error from cause
