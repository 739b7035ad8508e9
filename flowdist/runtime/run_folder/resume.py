"""Resuming of a run: what it has behind it, what of it still runs, and where it accepted other hosts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, NoReturn

import msgspec

from flowdist.control.protocol.effects import FinishJob
from flowdist.control.protocol.events import NodeJoined
from flowdist.errors import FlowdistError
from flowdist.record.journal import Header, Record, read_whole_lines
from flowdist.runtime.processes.reaper import kill_log_writers
from flowdist.runtime.run_folder.folder import JOURNAL, SUMMARY
from flowdist.runtime.wire.endpoint import INCARNATIONS

LISTENS = "listens.json"  # the RunEndpoint of a run that accepts other hosts


class ResumePoint(NamedTuple):
    """The point at which the journal of a run ends, from which the run is resumed. All zero for a new run."""

    lines: int = 0  # in the journal
    last_ns: int = 0  # time of the job
    starts: Mapping[str, int] = MappingProxyType({})  # of each node's agent
    known: tuple[str, ...] = ()  # nodes that the controller knew at its first start
    added: tuple[str, ...] = ()  # nodes that have joined besides


class RunEndpoint(msgspec.Struct, frozen=True):
    """The endpoint at which a run accepts other hosts, `host0:29400`, and the name by which they ask for its job."""

    endpoint: str
    job: str


def saved_endpoint(run_dir: Path) -> RunEndpoint | None:
    """Return the endpoint that the run was started with; None for a run on one machine."""
    try:
        return msgspec.json.decode((run_dir / LISTENS).read_bytes(), type=RunEndpoint)
    except FileNotFoundError:
        return None


def resume_command(run_dir: Path) -> str:
    """Return the command that resumes the run, on the host that has its folder."""
    endpoint = saved_endpoint(run_dir)
    listen = f" --listen {endpoint.endpoint}" if endpoint is not None else ""
    return f"flowdist run{listen} --resume {run_dir.name}"


def resume_point(run_dir: Path, endpoint: RunEndpoint | None = None) -> ResumePoint:
    """Return where the journal of the run ends, and save the endpoint for the next resume.

    Args:
        endpoint: Where the run accepts other hosts from now on; None on one machine.

    Raises:
        FlowdistError: if the job is over; if the journal cannot be read; or if only one of the two starts, the first
            and this one, accepts other hosts.
    """
    past = _read_journal(run_dir)
    if past.last_ns == 0 and _was_cancelled_before_start(run_dir):
        _refuse_over(run_dir, "cancelled")
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
    try:
        lines, _ = read_whole_lines((run_dir / JOURNAL).read_bytes())
    except FileNotFoundError:
        return ResumePoint()
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
            starts[line.event.node] = max(starts.get(line.event.node, 0), line.event.incarnation // INCARNATIONS + 1)
            if line.event.node not in known:
                added[line.event.node] = None
        for effect in line.effects:
            if isinstance(effect, FinishJob):
                _refuse_over(run_dir, effect.outcome)
    return ResumePoint(len(lines), last_ns, starts, known, tuple(added))


def _was_cancelled_before_start(run_dir: Path) -> bool:
    """Return whether the run was interrupted before its first event. Only the summary of such a run says so."""
    try:
        return bool(msgspec.json.decode((run_dir / SUMMARY).read_bytes())["outcome"] == "cancelled")
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return False


def _refuse_over(run_dir: Path, outcome: str) -> NoReturn:
    how = "was cancelled" if outcome == "cancelled" else f"has {outcome}"
    message = f"run {run_dir.name} is over: it {how}"
    raise FlowdistError(message, help="start a new run with flowdist run")


def kill_remaining_workers(run_dir: Path) -> int:
    """Kill the workers that have outlived flowdist's own processes of the run, as after `pkill -9 flowdist`.

    The resumed run starts workers that do the same work.

    Returns:
        How many there were.

    Raises:
        FlowdistError: if one of them outlives SIGKILL.
    """
    ended, left = kill_log_writers(run_dir)
    if left:
        message = f"run {run_dir.name} cannot be resumed: its process {left[0]} outlives SIGKILL"
        raise FlowdistError(
            message, help="the process hangs in the kernel, in a file system or a driver: restart the machine"
        )
    return ended
