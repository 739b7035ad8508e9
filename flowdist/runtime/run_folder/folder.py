"""The folder of a run: making, finding and locking it.

Its sockets are in it too, or in a folder with a short path where its own path is too long for them.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import os
import secrets
import tempfile
import time
from pathlib import Path

import msgspec

from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph, decode_graph, encode_graph
from flowdist.runtime.run_folder.access import is_private, make_private, refuse_private
from flowdist.runtime.umask import umask_of

GRAPH = "graph.json"
JOURNAL = "journal.jsonl"
CHECKPOINTS = "checkpoints"  # for jobs without checkpoint_dir=
SUMMARY = "summary.json"  # written when the run is over
ENGINE = "engine.json"  # only in the folder of a run whose hosts an engine starts: how it employs the engine
FLEET = "fleet.json"  # only there, too: the members that the engine has
JOINED = "joined"  # only in the folder of a host that has joined the run of another host: the endpoint of that run
LOCK_WAIT_S = 5.0  # for the end of a killed run's processes, and for `is_locked`, which holds the lock for an instant
SOCKET_PATH_MAX = 100  # bytes; Linux allows 107


def new_run(base: Path, graph: RoleGraph, prefix: str = "") -> Path:
    """Make the folder of a new run, with its graph and a folder for checkpoints, and return its resolved path.

    Its name is `<name of the graph>-<yyyymmdd-hhmmss>-<4 hex>`, and the link `latest` beside it points to it; with a
    `prefix` it is `<prefix>_<8 hex>`, without a link. FlowdistError if it cannot be made, or FLOWDIST_GROUP names no
    group of this user.
    """
    try:
        base.mkdir(0o755, parents=True, exist_ok=True)
        run_dir = _make_run_dir(base, graph.name, prefix)
    except OSError as error:
        help = "name a folder that you may write to: --runs DIR, torchrun --log-dir DIR, launch(runs=DIR)"
        text = f"the folder of the run cannot be made in {str(base)!r}: {error.strerror}"
        raise FlowdistError(text, help=help) from None
    _fill(run_dir, graph)
    return run_dir


def new_joined_run(base: Path, run_id: str, node: str, graph: RoleGraph) -> Path:
    """Make the folder of this host's part of a run of another host, and return its resolved path.

    It is `<run>.<node>`, as hosts may share a file system; a number follows if that exists. FlowdistError if
    FLOWDIST_GROUP names no group of this user.
    """
    base.mkdir(0o755, parents=True, exist_ok=True)
    run_dir = base / f"{run_id}.{node}"
    number = 1
    while True:
        with contextlib.suppress(FileExistsError):
            make_private(run_dir)
            break
        number += 1
        run_dir = base / f"{run_id}.{node}.{number}"
    _fill(run_dir, graph)
    return run_dir.resolve()


def _fill(run_dir: Path, graph: RoleGraph) -> None:
    """Make in a new folder of a run what it has from the beginning: the graph, and a folder for checkpoints."""
    with umask_of(run_dir):
        (run_dir / GRAPH).write_bytes(encode_graph(graph))
        (run_dir / CHECKPOINTS).mkdir()


def _make_run_dir(base: Path, topology: str, prefix: str) -> Path:
    while True:
        name = f"{topology}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        name = f"{prefix}_{secrets.token_hex(4)}" if prefix else name
        with contextlib.suppress(FileExistsError):
            make_private(base / name)
            break
    if not prefix:
        link = base / f".latest-{name}"
        link.symlink_to(name)
        link.rename(base / "latest")
    return (base / name).resolve()


def find_run(base: Path, name: str, *, of_one_host: bool = False) -> tuple[Path, RoleGraph]:
    """Return the folder and graph of the run that `name` means: see `run_by_prefix`; a path is allowed too.

    `of_one_host` also accepts the folder of a host that has joined another host's run: it has logs, but no journal.
    FlowdistError if there is no such run or more than one, or it is private, or its graph cannot be read.
    """
    for path in (base, base / name, Path(name)):
        refuse_private(path)
    folder = next((path for path in (base / name, Path(name)) if (path / GRAPH).is_file()), None)
    if folder is None:
        folder = run_by_prefix(base, name)
    if (folder / JOINED).is_file() and not of_one_host:
        message = f"{folder.name} has only the logs of one host of a run"
        raise FlowdistError(message, help=f"its journal is on the host of {(folder / JOINED).read_text().strip()}")
    try:
        return folder.resolve(), decode_graph((folder / GRAPH).read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        text = f"the graph of {folder.name} cannot be read: {error}"
        raise FlowdistError(text, help="it is of another version of flowdist, or damaged") from None


def run_of_prefix(base: Path, name: str) -> Path | None:
    """Return the one run whose name begins with `name`; None if none does or it is empty; FlowdistError if several."""
    found = [path for path in run_dirs(base) if name and path.name.startswith(name)]
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise FlowdistError(f"{name!r} matches more than one run: {names}", help="write more of its name")
    return found[0] if found else None


def run_by_prefix(base: Path, name: str, help: str = "name the folder of all runs with --runs") -> Path:
    """Return the folder of the run whose name, or path below `base`, begins with `name`; `latest` is the newest run.

    FlowdistError if there is none or more than one; its help names a similar run or the newest ones, or is `help` if
    there are no runs at all.
    """
    path = Path(name)
    if path.name != name and path.parent.resolve() == base.resolve():
        name = path.name  # `runs/gpt`, as a shell completes it
    if (folder := run_of_prefix(base, name)) is not None:
        return folder
    for path in private_runs(base):
        if path.name.startswith(name):
            refuse_private(path)
    known = [path.name for path in run_dirs(base)]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        raise FlowdistError(f"there is no run {name!r} in {base}", help=f"did you mean {close[0]!r}?")
    if known:
        raise FlowdistError(f"there is no run {name!r} in {base}", help=f"known: {', '.join(known[:5])}")
    if joined := sorted(base.glob(f"*/{JOINED}"), key=lambda path: path.stat().st_mtime_ns):
        where = joined[-1].read_text().strip()
        help = f"this host has joined {where}: ask there; its logs here: flowdist logs --run {joined[-1].parent.name}"
    elif name == "latest":  # the default of most commands: the user may not have typed it
        help = f"start one with flowdist run, or {help}"
    else:
        help = f"there are no runs in {base} yet: {help}"
    what = "no run" if name == "latest" else f"no run {name!r}"
    raise FlowdistError(f"there is {what} in {base}{' yet' * (name == 'latest')}", help=help)


def run_dirs(base: Path) -> list[Path]:
    """Return the folders of all runs that this user may read, the newest first, without those of joined hosts.

    FlowdistError if the folder of all runs is private to another user.
    """
    refuse_private(base)
    graphs = [path for path in base.glob(f"*/{GRAPH}") if not path.parent.is_symlink() and not is_private(path.parent)]
    graphs = [path for path in graphs if not (path.parent / JOINED).exists()]
    return [path.parent for path in sorted(graphs, key=lambda path: path.stat().st_mtime_ns, reverse=True)]


def private_runs(base: Path) -> list[Path]:
    """Return the folders in the folder of all runs that this user may not read, by name."""
    try:
        return sorted(path for path in base.iterdir() if path.is_dir() and not path.is_symlink() and is_private(path))
    except OSError:  # there is no such folder, or it is private itself
        return []


def lock_run(run_dir: Path, wait_s: float = LOCK_WAIT_S) -> int:
    """Take the lock of the run, and return its file descriptor: the lock is free once every copy of that is closed.

    The supervisor and every guardian hold it: who gets it knows that nothing of the run is running. FlowdistError if
    the run is still running after `wait_s` seconds.
    """
    fd = os.open(run_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(fd)
                raise FlowdistError(
                    f"run {run_dir.name} is still running", help="end it first: flowdist cancel"
                ) from None
            time.sleep(0.05)


def is_locked(run_dir: Path) -> bool:
    """Return whether the run is running: its supervisor, or a guardian that has outlived the supervisor.

    The function takes the run's lock for an instant, for which `lock_run` has to wait.
    """
    try:
        fd = os.open(run_dir / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def agent_socket(node: str) -> str:
    """Return the file name of a node's socket. No other socket has it: a host may be named `control` or `s12-1`."""
    return f"{node}.agent.sock"


def vault_socket(node: str) -> str:
    """Return the file name of the socket of a node's vault, which is no longer than that of its agent."""
    return f"{node}.vault.sock"


def socket_dir(run_dir: Path, nodes: list[str]) -> Path:
    """Return a folder for the sockets of the run: its own folder, or a new one if paths there are too long for sockets.

    The caller removes a new folder with `cleanup.remove_sockets`. Each of `nodes` has a socket. FlowdistError if no
    folder is writable and has paths that are short enough.
    """
    # the name of a store's handover socket, and those of the agents
    longest = max([len("s4194304-1234567.sock"), *(len(agent_socket(name)) for name in nodes)])
    if len(str(run_dir).encode()) + 1 + longest <= SOCKET_PATH_MAX:
        return run_dir
    bases = [os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"]
    room = SOCKET_PATH_MAX - longest - len("/flowdist-12345678/")
    for base in bases:
        if base and len(base.encode()) <= room and os.access(base, os.W_OK | os.X_OK):
            return Path(tempfile.mkdtemp(prefix="flowdist-", dir=base))
    where = " nor ".join(dict.fromkeys(filter(None, bases)))
    message = f"sockets can be neither in {run_dir} nor in {where}: the paths are too long, or not writable"
    raise FlowdistError(message, help="set TMPDIR to a folder with a short path")
