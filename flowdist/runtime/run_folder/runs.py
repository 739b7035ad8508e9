"""Runs seen from outside, by their folders: their state, what is known of them, and requests to their controllers.

The lock of a run shows whether the run is running, and its journal how it has ended. A request goes through the control
socket. If the controller has died, a request waits until the next controller has started (R21).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flowdist.control.fleet.values import FleetState
from flowdist.control.job.state import JobState
from flowdist.control.protocol.effects import FinishJob
from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph
from flowdist.record.journal import Header, Record
from flowdist.record.reader import BadLine, RecordReader
from flowdist.record.status import RecentDecisions, Status, members_of, status_of
from flowdist.runtime.processes import process_states
from flowdist.runtime.run_folder.access import owner_of
from flowdist.runtime.run_folder.cleanup import CONTROL
from flowdist.runtime.run_folder.folder import FLEET, JOINED, JOURNAL, SUMMARY, is_locked, run_dirs
from flowdist.runtime.run_folder.resume import (
    End,
    end_in_summary,
    resume_command,
    run_is_over,
    runs_option,
    saved_endpoint,
)
from flowdist.runtime.saved_files import DAMAGED, Environment, read_saved, read_sealed, sealed
from flowdist.runtime.wire.frames import Answered, Describe, Described, Operate, Operation, encode, read_answer
from flowdist.runtime.wire.log_messages import LogAnswer
from flowdist.runtime.worker_env.run_environment import ENVIRONMENT
from flowdist.runtime.worker_env.secret_values import Mask, read_secrets

if TYPE_CHECKING:
    from flowdist.record.replay import Replay
    from flowdist.record.timesheet import Timesheet

STATUS = "status.json"
TAIL = 256 << 10  # bytes at the end of the journal that are read
PATIENCE_S = 10.0  # how long a request waits for the successor of a controller that has died
JOURNAL_S = 3.0  # a running run that has no journal after so long has its controller on another host
RETRY_S = 0.05  # between two connections
ANSWER_S = 30.0  # how long a controller may take to answer a request
STOPPED_S = 3.0  # how long it may be stopped meanwhile
LOOK_S = 0.5  # between two looks at whether it is


class ControllerIsPrivate(FlowdistError):
    """Error for a user who may read the folder of a run, but not operate the run."""

    def __init__(self, run_dir: Path) -> None:
        text = f"the controller of {run_dir.name} answers the user {owner_of(run_dir)} alone"
        super().__init__(text, help="flowdist status, logs, report and timeline read the folder")


def state_of(run_dir: Path) -> End:
    """Return the state of a run. A run that is not running, and whose job has not ended, has died.

    `lasted_ns` is the time of the last record for a run that has died, and 0 for one that is running. If the end of its
    journal cannot be read, `reason` says so.
    """
    if is_locked(run_dir):
        return End("running")
    records, bad = _last_records(run_dir)
    last = records[-1].t_ns if records else 0
    for line in reversed(records):
        for effect in line.effects:
            if isinstance(effect, FinishJob):
                return End(effect.outcome, effect.reason, line.t_ns)
    # in a long journal the end may be before the last records
    return end_in_summary(run_dir) or End("died", bad, lasted_ns=last)


def over_at(base: Path, endpoint: str) -> str:
    """Say that the newest run that listened at `endpoint` (HOST:PORT, as given) is over; empty if none is."""
    with contextlib.suppress(FlowdistError):  # a private folder, a damaged file: nothing is known of the run
        for run_dir in run_dirs(base):
            door = saved_endpoint(run_dir)
            if door is not None and door.endpoint == endpoint:
                state = state_of(run_dir).state
                how = "has died" if state == "died" else f"is over: {state}"
                return "" if state == "running" else f"run {run_dir.name}, which listened at {endpoint}, {how}"
    return ""


def has_begun(run_dir: Path) -> bool:
    """Return whether the journal of the run has an event, so that something has happened that can be resumed."""
    return bool(_last_records(run_dir)[0])


def _last_records(run_dir: Path) -> tuple[list[Record], str]:
    """Return the records in the last bytes of the journal, and why the lines from there on cannot be used.

    A last line that is incomplete is left out. The reason is empty if all lines can be used.
    """
    try:
        with (run_dir / JOURNAL).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = file.seek(max(0, size - TAIL))
            data = file.read()
    except OSError:
        return [], ""
    lines = data[: data.rfind(b"\n") + 1].split(b"\n")[1 if start else 0 : -1]
    reader, found = RecordReader(is_tail=start > 0), list[Record]()
    for raw in lines:
        try:
            line = reader.read(raw + b"\n")
        except BadLine as bad:
            return found, f"a line of its journal cannot be used: {bad.why}"
        if isinstance(line, Record):
            found.append(line)
    return found, ""


def describe(run_dir: Path, patience_s: float = PATIENCE_S) -> Status:
    """Return the job's status from its controller; FlowdistError if none answers within `patience_s` seconds."""
    answer = _ask(run_dir, encode(Describe()), patience_s)
    assert isinstance(answer, Described)
    return _with_members(run_dir, answer.status)


def _with_members(run_dir: Path, status: Status) -> Status:
    """Return the status with the members of the run's engine, which only the folder of the run has."""
    try:
        fleet = msgspec.json.decode((run_dir / FLEET).read_bytes(), type=FleetState)
    except (OSError, *DAMAGED):  # it has no engine; a damaged file is found when the run is resumed
        return status
    return msgspec.structs.replace(status, members=members_of(fleet))


def operate(run_dir: Path, event: Operation, patience_s: float = PATIENCE_S) -> Answered:
    """Send an operator's event to the controller of a run, and return the controller's decisions.

    A lost event is sent again, which is safe as it names the wanted state. FlowdistError as for `describe`.
    """
    answer = _ask(run_dir, encode(Operate(event, answer=True)), patience_s)
    assert isinstance(answer, Answered)
    return answer


class ControllerLink:
    """A connection to the controller of a run, which is kept for further questions. One thread may use it at a time.

    A controller that is ending still answers over connections that it has, and accepts no new ones.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._link: socket.socket | None = None

    def ask(self, question: bytes, patience_s: float = PATIENCE_S) -> Answered | Described | LogAnswer:
        """Send a frame, again if the controller dies, and return its answer. FlowdistError as for `describe`."""
        until = time.monotonic() + patience_s
        while True:
            try:
                if (answer := self._ask_once(question)) is not None:
                    return answer
            except PermissionError:
                raise ControllerIsPrivate(self._run_dir) from None
            except (OSError, msgspec.MsgspecError):
                pass  # no controller listens, or it has died before it answered: its successor is asked
            self.close()
            _refuse_if_hopeless(self._run_dir, until, patience_s)
            time.sleep(RETRY_S)

    def _ask_once(self, question: bytes) -> Answered | Described | LogAnswer | None:
        if self._link is None:
            path = self._run_dir / CONTROL
            self._link = socket.socket(socket.AF_UNIX)
            self._link.settimeout(ANSWER_S)
            self._link.connect(str(path.readlink() if path.is_symlink() else path))
        self._link.sendall(question)
        self._wait_for_answer(self._link)
        return read_answer(self._link)

    def _wait_for_answer(self, link: socket.socket) -> None:
        """Wait until the answer begins, ANSWER_S at most. FlowdistError if the controller is stopped for STOPPED_S."""
        pid, _, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        until, stopped = time.monotonic() + ANSWER_S, 0
        while not select.select([link], [], [], LOOK_S)[0] and time.monotonic() < until:
            stopped = stopped + 1 if process_states.state_of(pid) == "stopped" else 0
            if stopped * LOOK_S >= STOPPED_S:
                text = f"the controller of {self._run_dir.name} (pid {pid}) is stopped, by SIGSTOP or a debugger"
                raise FlowdistError(text, help=f"let it go on: kill -CONT {pid}")

    def close(self) -> None:
        """Close the connection. The next question opens another one."""
        if self._link is not None:
            self._link.close()
            self._link = None


def _refuse_if_hopeless(run_dir: Path, until: float, patience_s: float) -> None:
    """Raise the error for the user if no controller will answer: the run is over, or `until` has passed."""
    end = state_of(run_dir)
    if end.state != "running":
        raise _over(run_dir, end)
    if not (run_dir / JOURNAL).exists() and time.monotonic() > until - patience_s + JOURNAL_S:
        text = f"the controller of {run_dir.name} is on another host"
        raise FlowdistError(text, help="use that host; flowdist logs shows the output on this one")
    if time.monotonic() > until:
        text = f"the controller of {run_dir.name} does not answer"
        raise FlowdistError(text, help=f"see {run_dir / 'controller.log'}")


def _ask(run_dir: Path, question: bytes, patience_s: float) -> Answered | Described | LogAnswer:
    with contextlib.closing(ControllerLink(run_dir)) as link:
        return link.ask(question, patience_s)


def _over(run_dir: Path, end: End) -> FlowdistError:
    if end.state == "died":
        return FlowdistError(f"run {run_dir.name} has died: nothing of it runs", help=resume_help(run_dir))
    return run_is_over(run_dir, end.state, help=f"see flowdist report {run_dir.name}")


def resume_help(run_dir: Path) -> str:
    """Return the help text for a run that has died: how to resume it, or how to see its logs if it was joined here."""
    if (run_dir / JOINED).is_file():
        return f"see flowdist logs --run {run_dir.name}"
    return f"resume it: {resume_command(run_dir)}{runs_option(run_dir)}"


def status_at_end(run_dir: Path, header: Header, replay: Replay) -> Status:
    """Return the status of the job where its replay has ended, for a run whose controller cannot be asked."""
    name, sheet = header.run_id or run_dir.name, replay.sheet
    status = status_of(replay.job, replay.decisions, name, spent=sheet.spent(), lost=sheet.lost())
    return _with_members(run_dir, status)


def write_end(run_dir: Path, summary: Mapping[str, Any], final: tuple[JobState, Timesheet] | None = None) -> str:
    """Save the summary of a run that is over, and the final status of its job, which saves a replay.

    On a host that has only joined `final` is None. Return why they cannot be written (full disk, moved folder), else
    empty.
    """
    try:
        (run_dir / SUMMARY).write_text(sealed(summary))
        if final is not None:
            _write_status(run_dir, *final)
    except OSError as error:
        return f"the summary cannot be written into {run_dir}: {error.strerror}"
    return ""


def _write_status(run_dir: Path, job: JobState, sheet: Timesheet) -> None:
    recent = RecentDecisions()
    for line in _last_records(run_dir)[0]:
        recent.hear(line)
    status = status_of(job, recent, run_dir.name, spent=sheet.spent(), lost=sheet.lost())
    (run_dir / STATUS).write_text(sealed(msgspec.to_builtins(status)))


def written_status(run_dir: Path) -> Status | None:
    """Return the status that `write_end` has saved; None if there is none that can be read."""
    try:
        return msgspec.convert(read_sealed(run_dir / STATUS), type=Status)
    except msgspec.ValidationError:
        return None


def known_mask(graph: RoleGraph, base: Mapping[str, str]) -> Mask:
    """Return a mask for the values of the graph's secrets, as far as `base` has them: the folder of a run does not."""
    return Mask(value for *_, value, _ in read_secrets(graph, base) if value)


def not_hidden(graph: RoleGraph, base: Mapping[str, str]) -> str:
    """Return a warning that names the secrets that `known_mask` cannot hide, and why; empty if there are none."""
    missing = [f"{name} of role {role!r} ({why})" for role, name, _, why in read_secrets(graph, base) if why]
    return f"not hidden, since their values cannot be read here: {', '.join(missing)}" if missing else ""


def environment_of(run_dir: Path) -> list[dict[str, Any]]:
    """Return the entries of `environment.json`, one for each start of the run; none if the file cannot be read."""
    found = read_saved(run_dir / ENVIRONMENT, Environment)
    return [] if found is None else found["starts"]
