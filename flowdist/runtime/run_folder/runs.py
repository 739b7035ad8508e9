"""Runs from outside, by their folders: how each one is, what is known of it, and a line to the controller of one.

Whether a run goes on is told by its lock, and how it has ended by its journal. A verb that wants to know or to change
something asks the controller at the control socket; while one has died and the next is not there yet, it waits (R21).
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from flowdist.control.job.state import JobState
from flowdist.control.protocol.effects import FinishJob
from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph
from flowdist.record.journal import Header, Line, Record, decode_lines
from flowdist.record.status import RecentDecisions, Status, status_of
from flowdist.runtime.run_folder.folder import CONTROL, JOINED, is_locked, resume_words
from flowdist.runtime.wire.frames import Operate, Operation, encode
from flowdist.runtime.wire.status_query import Decided, Describe, Described, read_answer
from flowdist.runtime.worker_env.environment import SecretMissing, read_secret
from flowdist.runtime.worker_env.secret_values import Mask

if TYPE_CHECKING:
    from flowdist.record.timesheet import Timesheet

RunState = Literal["running", "succeeded", "failed", "cancelled", "died"]
STATUS = "status.json"
TAIL = 256 << 10
PATIENCE_S = 10.0  # with a controller that has died and is not back
JOURNAL_S = 3.0  # for the first line of the journal, where the controller is on this host
RETRY_S = 0.05
ANSWER_S = 30.0


class End(NamedTuple):
    """How a run is: `state`, and of one that has ended in order the reason, and how long it lasted in its own time."""

    state: RunState
    reason: str = ""
    lasted_ns: int = 0


def state_of(run_dir: Path) -> End:
    """A run that nobody carries on, and that has not ended, has died."""
    if is_locked(run_dir):
        return End("running")
    last = 0
    for line in reversed(_last_records(run_dir)):
        last = last or line.t_ns
        for effect in line.effects:
            if isinstance(effect, FinishJob):
                return End(effect.outcome, effect.reason, line.t_ns)
    return _from_summary(run_dir) or End("died", lasted_ns=last)


def has_begun(run_dir: Path) -> bool:
    """Whether its journal says of anything that it happened."""
    return bool(_last_records(run_dir))


def _last_records(run_dir: Path) -> list[Record]:
    """Those at the end of the journal; a line that is cut off, or damaged, is left out."""
    try:
        with (run_dir / "journal.jsonl").open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            data = file.read()
    except OSError:
        return []
    found = []
    for raw in data[: data.rfind(b"\n") + 1].splitlines():
        try:
            line = next(decode_lines([raw]), None)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if isinstance(line, Record):
            found.append(line)
    return found


def _from_summary(run_dir: Path) -> End | None:
    """For a journal in which much was written after the end."""
    try:
        summary = json.loads((run_dir / "summary.json").read_text())
        return (
            End(summary["outcome"], summary["reason"], round(summary["lasted_s"] * 1e9)) if summary["outcome"] else None
        )
    except (OSError, ValueError, KeyError):
        return None


def describe(run_dir: Path, patience_s: float = PATIENCE_S) -> Status:
    """How the job is now.

    Raises:
        FlowdistError: when the run is over, or nobody answers for so long.
    """
    answer = _ask(run_dir, encode(Describe()), patience_s)
    assert isinstance(answer, Described)
    return answer.status


def operate(run_dir: Path, event: Operation, patience_s: float = PATIENCE_S) -> Decided:
    """Give an order and hear what was decided. One that may have been lost is given again: orders are about what is
    to be, so that a second one changes nothing.

    Raises:
        FlowdistError: when the run is over, or nobody answers for so long.
    """
    answer = _ask(run_dir, encode(Operate(event, answer=True)), patience_s)
    assert isinstance(answer, Decided)
    return answer


def _ask(run_dir: Path, question: bytes, patience_s: float) -> Decided | Described:
    until = time.monotonic() + patience_s
    while True:
        try:
            if (answer := _ask_once(run_dir, question)) is not None:
                return answer
        except (OSError, msgspec.MsgspecError):
            pass  # nobody is there, or it has died over it: the next one is asked
        end = state_of(run_dir)
        if end.state != "running":
            raise _over(run_dir, end)
        if not _has_journal(run_dir) and time.monotonic() > until - patience_s + JOURNAL_S:
            text = f"the controller of {run_dir.name} is on another host"
            raise FlowdistError(text, help="ask there; what was printed here is in flowdist logs")
        if time.monotonic() > until:
            text = f"the controller of {run_dir.name} does not answer"
            raise FlowdistError(text, help=f"see {run_dir / 'controller.log'}")
        time.sleep(RETRY_S)


def _ask_once(run_dir: Path, question: bytes) -> Decided | Described | None:
    path = run_dir / CONTROL
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(ANSWER_S)
        link.connect(str(path.readlink() if path.is_symlink() else path))
        link.sendall(question)
        return read_answer(link)


def _over(run_dir: Path, end: End) -> FlowdistError:
    if end.state == "died":
        return FlowdistError(f"run {run_dir.name} has died: nothing of it runs", help=resume_help(run_dir))
    words = {"succeeded": "has succeeded", "failed": "has failed", "cancelled": "was cancelled"}
    help = f"see flowdist report {run_dir.name}"
    return FlowdistError(f"run {run_dir.name} is over: it {words[end.state]}", help=help)


def _has_journal(run_dir: Path) -> bool:
    return (run_dir / "journal.jsonl").exists()


def resume_help(run_dir: Path) -> str:
    """The command that goes on with a run that died, or starts it; of one whose journal is on another host its logs are
    left."""
    if (run_dir / JOINED).is_file():
        return f"see flowdist logs --run {run_dir.name}"
    more = "" if run_dir.parent == Path("runs").resolve() else f" --runs {run_dir.parent}"
    return f"go on with it: {resume_words(run_dir)}{more}"


def replayed(run_dir: Path, lines: list[Line]) -> Status:
    """How the job was when its journal ended, for one that cannot be asked."""
    from flowdist.record.replay import Replay  # all decisions: who only asks does without

    header = lines[0]
    assert isinstance(header, Header)
    replay = Replay(header, strict=True).follow(lines[1:])
    return status_of(replay.job, replay.decisions, header.run_id or run_dir.name, spent=replay.sheet.spent())


def write_status(run_dir: Path, job: JobState, sheet: Timesheet) -> None:
    """Keep how the job has ended: a long journal takes its time to be read."""
    lately = RecentDecisions()
    for line in _last_records(run_dir):
        lately.hear(line)
    status = status_of(job, lately, run_dir.name, spent=sheet.spent())
    (run_dir / STATUS).write_bytes(msgspec.json.format(msgspec.json.encode(status)))


def written_status(run_dir: Path) -> Status | None:
    """What was kept; None if nothing was, or it is of another version."""
    try:
        return msgspec.json.decode((run_dir / STATUS).read_bytes(), type=Status)
    except (OSError, msgspec.MsgspecError):
        return None


def known_mask(graph: RoleGraph, base: Mapping[str, str]) -> Mask:
    """Hides the values of those secrets that can be read here and now: the folder of a run has none of them."""
    return Mask(value for _, value, _ in _secrets_here(graph, base) if value is not None)


def not_hidden(graph: RoleGraph, base: Mapping[str, str]) -> str:
    """Which secrets `known_mask` cannot hide, and why; empty when there is none."""
    missing = [f"{name} ({why})" for name, value, why in _secrets_here(graph, base) if value is None]
    return f"not hidden, since their values cannot be read here: {', '.join(missing)}" if missing else ""


def _secrets_here(graph: RoleGraph, base: Mapping[str, str]) -> Iterator[tuple[str, str | None, str]]:
    """Of each secret who it is, its value, and why it has none."""
    for role in graph.roles:
        for secret in role.secrets:
            name = f"{secret.name} of role {role.name!r}"
            try:
                yield name, read_secret(secret, base), ""
            except SecretMissing as error:
                yield name, None, str(error)


def environment_of(run_dir: Path) -> list[dict[str, Any]]:
    """Where, when and how the run was started, each time; nothing when that was not written down."""
    try:
        starts = json.loads((run_dir / "environment.json").read_text())["starts"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return starts if isinstance(starts, list) else []
