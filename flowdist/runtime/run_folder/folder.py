"""The folder of a run, and the short one for its sockets where the path of the first is too long for them."""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import os
import secrets
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, NoReturn

import msgspec

from flowdist.control.protocol.effects import FinishJob
from flowdist.control.protocol.events import NodeJoined
from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph, decode_graph, encode_graph
from flowdist.record.journal import Header, Record, read_whole_lines
from flowdist.runtime.processes.reaper import kill_writers
from flowdist.runtime.run_folder.cleanup import remove_folder

GRAPH = "graph.json"
CONTROL = "control.sock"
SUMMARY = "summary.json"  # written when the run is over
LISTENS = "listens.json"  # a file: where the run lets other hosts in, and the name by which they ask for its job
JOINED = "joined"  # a file: the folder is of a host that takes part in the run of another, and says where that is
LOCK_WAIT_S = 5.0  # for what is left of a run that was killed to end, and for whoever looks whether one goes on
SOCKET_PATH_MAX = 100  # Linux allows 107 bytes; the longest name in the folder has its share


def make_run_dir(base: Path, topology: str, prefix: str = "") -> Path:
    """`runs/<topology>-<yyyymmdd-hhmmss>-<4 hex>/`, with `runs/latest` pointing at it; `<prefix>_<8 hex>/`, without."""
    try:
        base.mkdir(parents=True, exist_ok=True)
        return _make_run_dir(base, topology, prefix)
    except OSError as error:
        help = "name a folder that you may write to: --runs DIR, torchrun --log-dir DIR, launch(runs=DIR)"
        text = f"the folder of the run cannot be made in {str(base)!r}: {error.strerror}"
        raise FlowdistError(text, help=help) from None


def _make_run_dir(base: Path, topology: str, prefix: str) -> Path:
    while True:
        name = f"{topology}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        name = f"{prefix}_{secrets.token_hex(4)}" if prefix else name
        with contextlib.suppress(FileExistsError):
            (base / name).mkdir()
            break
    if prefix:
        return (base / name).resolve()
    link = base / f".latest-{name}"
    link.symlink_to(name)
    link.rename(base / "latest")
    return (base / name).resolve()


def new_run(base: Path, graph: RoleGraph, prefix: str = "") -> Path:
    """The folder of a new run, with its graph. Its name begins with the prefix, if there is one."""
    run_dir = make_run_dir(base, graph.name, prefix)
    (run_dir / GRAPH).write_bytes(encode_graph(graph))
    (run_dir / "checkpoints").mkdir()
    return run_dir


def find_run(base: Path, name: str, *, of_one_host: bool = False) -> tuple[Path, RoleGraph]:
    """The folder of a run, and its graph.

    Args:
        base: Where the folders of runs are.
        name: Its name there, the beginning of one that no other has, or a path; `latest` is the newest.
        of_one_host: Whether the logs of a host that took part in the run of another will do.

    Raises:
        FlowdistError: if there is none, or more than one.
    """
    folder = next((path for path in (base / name, Path(name)) if (path / GRAPH).is_file()), None)
    if folder is None:
        folder = _by_prefix(base, name)
    if (folder / JOINED).is_file() and not of_one_host:
        message = f"{folder.name} has what ran on one host of a run"
        raise FlowdistError(message, help=f"its journal is on the host of {(folder / JOINED).read_text().strip()}")
    try:
        return folder.resolve(), decode_graph((folder / GRAPH).read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        text = f"the graph of {folder.name} cannot be read: {error}"
        raise FlowdistError(text, help="it is of another version of flowdist, or damaged") from None


def run_of_prefix(base: Path, name: str) -> Path | None:
    """The folder of the only run whose name begins so; None if there is none, FlowdistError for more than one."""
    found = [path for path in run_dirs(base) if name and path.name.startswith(name)]
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise FlowdistError(f"{name!r} is more than one run: {names}", help="write more of its name")
    return found[0] if found else None


def _by_prefix(base: Path, name: str) -> Path:
    if (folder := run_of_prefix(base, name)) is not None:
        return folder
    known = [path.name for path in run_dirs(base)]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        raise FlowdistError(f"there is no run {name!r} in {base}", help=f"did you mean {close[0]!r}?")
    if known:
        help = f"known: {', '.join(known[:5])}"
    elif joined := sorted(base.glob(f"*/{JOINED}"), key=lambda path: path.stat().st_mtime_ns):
        where = joined[-1].read_text().strip()
        help = f"this host has joined {where}: ask there; its logs here: flowdist logs --run {joined[-1].parent.name}"
    else:
        help = f"there are no runs in {base}: name their folder with --runs"
    raise FlowdistError(f"there is no run {name!r} in {base}", help=help)


def run_dirs(base: Path) -> list[Path]:
    """The folders of all runs there, the newest first; not those of hosts that took part in the run of another."""
    graphs = [path for path in base.glob(f"*/{GRAPH}") if not path.parent.is_symlink()]
    graphs = [path for path in graphs if not (path.parent / JOINED).exists()]
    return [path.parent for path in sorted(graphs, key=lambda path: path.stat().st_mtime_ns, reverse=True)]


def remove_sockets(folder: Path, run_dir: Path) -> None:
    """What `socket_dir` gave. A guardian that is left alone does the same, so that others may have been faster."""
    for path in folder.glob("*.sock"):
        path.unlink(missing_ok=True)
    if folder != run_dir:
        (run_dir / CONTROL).unlink(missing_ok=True)
        remove_folder(folder)


def lock_run(run_dir: Path, wait_s: float = LOCK_WAIT_S) -> int:
    """A lock that the supervisor and every guardian of the run hold: whoever gets it knows that nothing of it runs.

    Raises:
        FlowdistError: if the run still goes on after `wait_s` seconds.
    """
    fd = os.open(run_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(fd)
                raise FlowdistError(f"run {run_dir.name} is still going on", help="end it first") from None
            time.sleep(0.05)


def is_locked(run_dir: Path) -> bool:
    """Whether anything of the run still goes on: its supervisor, or guardians of one that was killed.

    It holds the lock for an instant, for which `lock_run` has to wait.
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


class Past(NamedTuple):
    """What a run that is resumed has behind it: lines of its journal, time of the job, starts of each node's agent.

    `known` are the nodes that it was told of at its start, `added` those that it was not.
    """

    lines: int = 0
    last_ns: int = 0
    starts: Mapping[str, int] = MappingProxyType({})
    known: tuple[str, ...] = ()
    added: tuple[str, ...] = ()


class Door(msgspec.Struct, frozen=True):
    """Where other hosts come in, `host0:29400`, and the name by which they ask for the job."""

    endpoint: str
    job: str


def door_of(run_dir: Path) -> Door | None:
    """None for a run on one machine."""
    try:
        return msgspec.json.decode((run_dir / LISTENS).read_bytes(), type=Door)
    except FileNotFoundError:
        return None


def resume_words(run_dir: Path) -> str:
    """What is typed to go on with the run, on the host that has its folder."""
    door = door_of(run_dir)
    return f"flowdist run{f' --listen {door.endpoint}' if door is not None else ''} --resume {run_dir.name}"


def past_of(run_dir: Path, door: Door | None = None) -> Past:
    """From its journal; nothing, if it has none. The door is written down, for the one who resumes it.

    Raises:
        FlowdistError: when the job is over, its journal cannot be read, or it has no door while it had one, or the
            other way round.
    """
    past = _past_of(run_dir)
    if past.last_ns == 0 and _was_called_off(run_dir):
        _refuse_over(run_dir, "cancelled")
    before = door_of(run_dir)
    if past.lines and before is not None and door is None:
        message = f"run {run_dir.name} is one over several hosts"
        raise FlowdistError(message, help=f"write {resume_words(run_dir)}, and have the others join again")
    if past.lines and before is None and door is not None:
        raise FlowdistError(f"run {run_dir.name} is one of this machine alone", help="leave --listen out")
    if door is not None:
        (run_dir / LISTENS).write_bytes(msgspec.json.encode(door) + b"\n")
    return past


def _past_of(run_dir: Path) -> Past:
    try:
        lines, _ = read_whole_lines((run_dir / "journal.jsonl").read_bytes())
    except FileNotFoundError:
        return Past()
    except msgspec.DecodeError as error:
        raise FlowdistError(f"the journal of {run_dir.name} cannot be read: {error}") from None
    starts: dict[str, int] = {}
    known: tuple[str, ...] = ()
    added: dict[str, None] = {}
    last_ns = 0
    for line in lines:
        if isinstance(line, Header):
            known = line.known_nodes
        if not isinstance(line, Record):
            continue
        last_ns = line.t_ns
        if isinstance(line.event, NodeJoined):
            starts[line.event.node] = max(starts.get(line.event.node, 0), line.event.incarnation // 1000 + 1)
            if line.event.node not in known:
                added[line.event.node] = None
        for effect in line.effects:
            if isinstance(effect, FinishJob):
                _refuse_over(run_dir, effect.outcome)
    return Past(len(lines), last_ns, starts, known, tuple(added))


def _was_called_off(run_dir: Path) -> bool:
    """Whether it was interrupted before it began: of that only its summary tells."""
    try:
        return bool(msgspec.json.decode((run_dir / SUMMARY).read_bytes())["outcome"] == "cancelled")
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return False


def _refuse_over(run_dir: Path, outcome: str) -> NoReturn:
    how = "was cancelled" if outcome == "cancelled" else f"has {outcome}"
    message = f"run {run_dir.name} is over: it {how}"
    raise FlowdistError(message, help="start a new one with flowdist run")


def end_leftovers(run_dir: Path) -> int:
    """Kill workers that outlived all of a run, as after `pkill -9 flowdist`: no two are ever to do the same work.

    Returns how many there were. FlowdistError when one cannot be killed.
    """
    ended, left = kill_writers(run_dir)
    if left:
        message = f"run {run_dir.name} cannot go on: process {left[0]} of it outlives SIGKILL"
        raise FlowdistError(message, help="it hangs in the kernel: a file system, or a driver; start the machine anew")
    return ended


def socket_dir(run_dir: Path, nodes: list[str]) -> Path:
    """Where the sockets of the run may be: its own folder, if their paths are short enough there."""
    longest = max(len("s4194304-1234567.sock"), *(len(f"{name}.sock") for name in nodes))  # a store's; an agent's
    if len(str(run_dir).encode()) + 1 + longest <= SOCKET_PATH_MAX:
        return run_dir
    bases = [os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"]
    room = SOCKET_PATH_MAX - longest - len("/flowdist-12345678/")
    for base in bases:
        if base and len(base.encode()) <= room and os.access(base, os.W_OK | os.X_OK):
            return Path(tempfile.mkdtemp(prefix="flowdist-", dir=base))
    where = " nor ".join(dict.fromkeys(filter(None, bases)))
    message = f"sockets can be neither in {run_dir} nor in {where}: their paths are too long, or nobody may write there"
    raise FlowdistError(message, help="set TMPDIR to a folder with a short path")
