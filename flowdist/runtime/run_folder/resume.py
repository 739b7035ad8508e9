"""Resuming of a run: how far its journal goes, workers of it that still run, and where it accepts other hosts."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

import msgspec

from flowdist.control.protocol.effects import FinishJob
from flowdist.control.protocol.events import ControllerStarted, NodeJoined
from flowdist.errors import FlowdistError
from flowdist.graph import decode_graph, format_duration
from flowdist.record.journal import Header, Line, Record
from flowdist.record.reader import BadLine, read_whole_lines
from flowdist.record.replay import Replay
from flowdist.runtime.atomic import write_atomically
from flowdist.runtime.processes.reaper import kill_log_writers
from flowdist.runtime.run_folder.folder import CHECKPOINTS, ENGINE, GRAPH, JOURNAL, SUMMARY, lock_run
from flowdist.runtime.saved_files import DAMAGED, SummaryEnd, read_saved
from flowdist.runtime.wire.addresses import endpoint_of
from flowdist.runtime.wire.endpoint import INCARNATIONS

RunState = Literal["running", "succeeded", "failed", "cancelled", "died"]
LISTENS = "listens.json"  # the RunEndpoint of a run that accepts other hosts


class End(NamedTuple):
    """The state of a run; if its job has ended, also the reason and the time that the job has lasted."""

    state: RunState
    reason: str = ""  # empty if the job has not ended
    lasted_ns: int = 0


class ResumePoint(NamedTuple):
    """The point at which a run's journal ends and the run is resumed. For a new run all fields are zero or empty."""

    lines: int = 0  # number of lines in the journal
    last_ns: int = 0  # time of the job at its last event
    starts: Mapping[str, int] = MappingProxyType({})  # by node: how often its guardian has been started
    known: tuple[str, ...] = ()  # nodes that the controller expected at its first start
    added: tuple[str, ...] = ()  # other nodes that have joined


class RunEndpoint(msgspec.Struct, frozen=True):
    """The endpoint at which a run accepts other hosts, `host0:29400`, and the name by which they ask for its job."""

    endpoint: str
    job: str


def saved_endpoint(run_dir: Path) -> RunEndpoint | None:
    """Return the endpoint that `resume_point` has saved for a run; None for a run on one machine.

    FlowdistError if the file cannot be read: whether other hosts have joined the run is then unknown.
    """
    try:
        found = msgspec.json.decode((run_dir / LISTENS).read_bytes(), type=RunEndpoint)
        if endpoint_of(found.endpoint, -1).port < 0:
            raise ValueError(f"{found.endpoint!r} has no port")
        return found
    except FileNotFoundError:
        return None
    except (OSError, FlowdistError, *DAMAGED) as error:
        message = f"{LISTENS} of run {run_dir.name} cannot be read: {error}"
        help = f'write {{"endpoint":"HOST:PORT","job":"NAME"}} to {run_dir / LISTENS}, as the run had them'
        raise FlowdistError(message, help=help) from None


def resume_command(run_dir: Path) -> str:
    """Return the command line that resumes the run, for a user on the host that has the folder."""
    endpoint = None
    if not (run_dir / ENGINE).exists():  # its members get the controller's new address
        with contextlib.suppress(FlowdistError):  # to resume the run says that the file is damaged
            endpoint = saved_endpoint(run_dir)
    listen = f" --listen {endpoint.endpoint}" if endpoint is not None else ""
    return f"flowdist run{listen} --resume {run_dir.name}"


def runs_option(run_dir: Path) -> str:
    """Return ` --runs FOLDER` for a command line about the run; empty if `runs` of the current folder has the run."""
    with contextlib.suppress(FileNotFoundError):  # the current folder has been removed
        if run_dir.parent == Path("runs").resolve():
            return ""
    return f" --runs {shlex.quote(str(run_dir.parent))}"


def truncate_help(run_dir: Path, number: int) -> str:
    """Return the help text for a run that is not running, and whose journal cannot be used from line `number` on."""
    if number == 1:
        return "nothing can be resumed without its header: start a new run with flowdist run"
    command = f"{resume_command(run_dir)}{runs_option(run_dir)} --truncate-at {number}"
    return f"go on from before it: {command}; the whole journal is kept"


def resume_point(run_dir: Path, endpoint: RunEndpoint | None = None) -> ResumePoint:
    """Return the point at which a new or resumed run begins, and save its endpoint for the next resume.

    `endpoint` is where other hosts join; None: this machine alone. FlowdistError if the job is over, a line of the
    journal cannot be used or replayed (`BadLine`), or other hosts were accepted before and are not now, or the reverse.
    """
    past = _read_journal(run_dir)
    end = end_in_summary(run_dir)
    if past.last_ns == 0 and end is not None and end.state == "cancelled":  # before its first event
        raise run_is_over(run_dir, end.state)
    saved = saved_endpoint(run_dir)
    if past.lines and saved is not None and endpoint is None:
        message = f"run {run_dir.name} spans several hosts"
        raise FlowdistError(message, help=f"write {resume_command(run_dir)}, and have the others join again")
    if past.lines and saved is None and endpoint is not None:
        raise FlowdistError(f"run {run_dir.name} uses this machine alone", help="leave --listen out")
    if endpoint is not None:
        (run_dir / LISTENS).write_bytes(msgspec.json.encode(endpoint) + b"\n")
    return past


def _read_journal(run_dir: Path) -> ResumePoint:
    """Read and replay the whole journal before anything starts; FlowdistError if a line is bad or the job is over."""
    path = run_dir / JOURNAL
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ResumePoint()
    try:
        lines, _, _ = read_whole_lines(data, str(path))
        if lines:
            Replay(checked_header(lines, run_dir), source=str(path)).follow(lines[1:])
    except BadLine as bad:
        raise bad.with_help(truncate_help(run_dir, bad.number)) from None
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
            starts[line.event.node] = max(starts.get(line.event.node, 0), line.event.incarnation // INCARNATIONS + 1)
            if line.event.node not in known:
                added[line.event.node] = None
        for effect in line.effects:
            if isinstance(effect, FinishJob):
                raise run_is_over(run_dir, effect.outcome)
    return ResumePoint(len(lines), last_ns, starts, known, tuple(added))


def last_epoch(run_dir: Path) -> int:
    """Return the epoch of the last controller in a run's journal; 0 without a journal, or if that cannot be used."""
    try:
        lines, _, _ = read_whole_lines((run_dir / JOURNAL).read_bytes(), JOURNAL)
    except (OSError, BadLine):  # to resume the run says what is wrong
        return 0
    events = [line.event for line in lines if isinstance(line, Record)]
    epochs = [event.epoch for event in events if isinstance(event, ControllerStarted)]
    return max([1, *epochs])


def checked_header(lines: Sequence[Line], run_dir: Path) -> Header:
    """Return the header of a run's journal; BadLine if its graph is not that of the run (one file was changed).

    msgspec.DecodeError if graph.json is not a role graph.
    """
    header, path = lines[0], run_dir / JOURNAL
    assert isinstance(header, Header)
    if header.graph != decode_graph((run_dir / GRAPH).read_bytes()):
        raise BadLine(str(path), 1, f"its graph is not that of {GRAPH} beside it: one of the two is of another run")
    return header


def truncate_journal(run_dir: Path, number: int) -> str:
    """Cut line `number` and all later ones off the journal of a run that is not running, and return what was done.

    The header stays (`number` >= 2), and a copy of the whole journal. The run no longer knows attempts, generations and
    checkpoints of the cut lines; their files stay. FlowdistError if the run is running or over, there is no such line,
    or an earlier one cannot be used (`BadLine`).
    """
    lock = lock_run(run_dir)
    try:
        if (end := end_in_summary(run_dir)) is not None:
            raise run_is_over(run_dir, end.state)
        path = run_dir / JOURNAL
        lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
        whole = len(lines) - 1  # what follows the last newline is no line
        if not 2 <= number <= whole + 1:
            text = f"--truncate-at {number}: the journal of {run_dir.name} has {whole} lines"
            raise FlowdistError(text, help=f"name a line from 2 to {whole + 1}, or start a new run with flowdist run")
        kept = b"".join(line + b"\n" for line in lines[: number - 1])
        _, _, reader = read_whole_lines(kept, str(path))
        copy = _free_name(run_dir / f"journal.before-{number}.jsonl")
        os.link(path, copy)
        write_atomically(path, kept, durable=True)
    finally:
        os.close(lock)
    reach = f"{reader.events} events, up to {format_duration(reader.t_ns)}"
    return f"the journal is cut off before line {number} ({reach}); all of it is kept in {copy.name}"


def _free_name(path: Path) -> Path:
    """Return the path, or if there is such a file already, the first of `NAME-2`, `NAME-3`, ... that there is not."""
    others = (path.with_stem(f"{path.stem}-{number}") for number in count(2))
    return next(each for each in chain([path], others) if not each.exists())


def end_in_summary(run_dir: Path) -> End | None:
    """Return the end of the run according to its `summary.json`; None if that does not exist or cannot be read."""
    end = read_saved(run_dir / SUMMARY, SummaryEnd)
    return None if end is None else End(end["outcome"], end["reason"], round(end["lasted_s"] * 1e9))


def run_is_over(run_dir: Path, outcome: str, help: str = "") -> FlowdistError:
    """Return an error which says that the run is over and with which outcome.

    An empty `help` becomes: start a new run, and how that goes on from this run's checkpoints if it has any.
    """
    how = "was cancelled" if outcome == "cancelled" else f"has {outcome}"
    return FlowdistError(f"run {run_dir.name} is over: it {how}", help=help or _new_run_help(run_dir, outcome))


def _new_run_help(run_dir: Path, outcome: str) -> str:
    """Return the help text that says how a new run is started instead of one that is over."""
    help = "start a new run with flowdist run"
    checkpoints = run_dir.resolve() / CHECKPOINTS  # a folder that the topology names has the new run anyway
    if outcome == "succeeded" or not any(path.is_file() for path in checkpoints.rglob("*")):
        return help
    option = shlex.join(["--set", f"checkpoint_dir={checkpoints}"])
    return f"{help}; add {option} to go on from the checkpoints of this one"


def kill_remaining_workers(run_dir: Path) -> int:
    """Kill the workers that have outlived flowdist's own processes, as after `pkill -9 flowdist`; return how many.

    Else they would disturb the resumed run's workers for the same work. FlowdistError if one outlives SIGKILL.
    """
    ended, left = kill_log_writers(run_dir)
    if left:
        message = f"run {run_dir.name} cannot be resumed: its process {left[0]} outlives SIGKILL"
        raise FlowdistError(
            message, help="the process hangs in the kernel, in a file system or a driver: restart the machine"
        )
    return ended
