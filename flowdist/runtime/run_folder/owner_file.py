"""Owner files: the claims of `control.ownership` on the disk, one for each folder of checkpoints or id of a job."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import msgspec

from flowdist.control.ownership import Claim, Decision, decide, why_lost
from flowdist.errors import FlowdistError
from flowdist.runtime.atomic import write_atomically
from flowdist.runtime.left_files import read_small
from flowdist.runtime.processes.reaper import stat_fields
from flowdist.runtime.saved_files import DAMAGED

OWNER = ".flowdist-owner.json"  # in a folder of checkpoints
FILE_MAX = 64 << 10  # bytes
LOOK_S = 0.2  # between two looks at the claim of another run
EMPTY_S = 1.0  # a file that stays empty for longer is damaged: it is empty for a moment when it is made
MODE = 0o644  # other users may have to know whose folder it is

Show = Callable[[str, str], None]


def job_owner_file(base: Path, job: str) -> Path:
    """Return the path of the owner file of a job's id, in the folder of all runs."""
    name = job if re.fullmatch(r"[\w.-]{1,100}", job) else sha256(job.encode(errors="replace")).hexdigest()
    return base / f".job-{name}.json"


def new_claim(run: str, epoch: int) -> Claim:
    """Return a claim for this process; `run` is empty while the run has no id yet."""
    since = time.strftime("%Y-%m-%d %H:%M:%S %z")
    pid, token = os.getpid(), secrets.token_hex(8)
    return Claim(run, epoch, socket.gethostname(), since, _place(), pid, _started(pid), token)


def read_owner(path: Path) -> Claim | None:
    """Return the claim in an owner file; None if there is none. FlowdistError if it is damaged or unreadable."""
    return _decoded(path, _content(path))


class OwnerFile:
    """The claim of this run to one thing, which `acquire` takes, `renew` keeps and `release` gives back.

    `what` names the thing in messages (`the checkpoint folder /data/ckpt`); `help` says what the user of a second run
    can do.
    """

    def __init__(self, path: Path, what: str, help: str, claim: Claim) -> None:
        self.path, self._what, self._help, self._claim = path, what, help, claim
        self._is_held = False

    def acquire(self, show: Show, check: Callable[[], None] = lambda: None) -> None:
        """Take the claim, if need be after a look at that of another run for LEASE_NS.

        `check` is called between two looks and may raise to end the wait. Where the file cannot be written, as in a
        read-only folder, a warning says so and nothing is owned. FlowdistError if another run owns it, or its file is
        damaged.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._acquire(show, check)
        except OSError as error:
            show(
                "warning",
                f"{self._what} has no owner file, and a second run is not noticed: {self.path}: {error.strerror}",
            )

    def _acquire(self, show: Show, check: Callable[[], None]) -> None:
        if not os.access(self.path.parent, os.W_OK):
            raise PermissionError(0, "its folder cannot be written")
        seen, since_s, has_changed, was_said = _content(self.path), time.monotonic(), False, False
        while not self._is_held:
            check()
            decision = self._decide(seen, has_changed, time.monotonic() - since_s)
            if decision.because and (decision.act == "take" or not was_said):
                show("warning", f"{self._what} {decision.because}")
                was_said = True
            self._is_held = decision.act == "take" and self._take(seen)
            if not self._is_held:
                time.sleep(LOOK_S)
            now = _content(self.path)
            if now != seen:
                seen, since_s, has_changed = now, time.monotonic(), True

    def _decide(self, seen: bytes | None, has_changed: bool, unchanged_s: float) -> Decision:
        if seen == b"" and unchanged_s < EMPTY_S:
            return Decision("wait")
        found = _decoded(self.path, seen)
        is_dead = found is not None and _is_dead(found)
        unchanged_ns = round(unchanged_s * 1e9)
        decision = decide(self._claim, found, has_changed=has_changed, unchanged_ns=unchanged_ns, is_dead=is_dead)
        if decision.act == "refuse":
            raise FlowdistError(f"{self._what} {decision.because}", help=self._help)
        return decision

    def _take(self, seen: bytes | None) -> bool:
        """Replace the claim `seen` by the own one, and return whether that succeeded: another run may be faster.

        A claim of another run is moved away before the own one is made. Of two runs that move the same claim away,
        the second would move that of the first: it puts that back.
        """
        if seen is not None:
            aside = self.path.with_name(f"{self.path.name}.{self._claim.token}")
            try:
                self.path.rename(aside)
            except FileNotFoundError:
                return False
            is_expected = _content(aside) == seen
            if not is_expected and not self.path.exists():
                aside.rename(self.path)
            aside.unlink(missing_ok=True)
            if not is_expected:
                return False
        try:
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE))
        except FileExistsError:
            return False
        self._write()
        return True

    def renew(self, run: str) -> str:
        """Renew the claim, and return why it is lost; empty: it is not, or this run never had it.

        A file that cannot be read or written for a while is no loss; one that is damaged is written anew.
        """
        if not self._is_held:
            return ""
        pid = os.getpid()  # a run that goes into the background has another process than the one that took the claim
        place = {"pid": pid, "started": _started(pid)} if pid != self._claim.pid else {}
        self._claim = msgspec.structs.replace(self._claim, run=run, beat=self._claim.beat + 1, **place)
        lost = why_lost(self._claim, self._found())
        if not lost:
            with contextlib.suppress(OSError):
                self._write()
        self._is_held = not lost
        return f"{self._what} {lost}" if lost else ""

    def release(self) -> None:
        """Remove the claim, if it is still this run's."""
        if self._is_held and (found := self._found()) is not None and not why_lost(self._claim, found):
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._is_held = False

    def _found(self) -> Claim | None:
        """Return the claim in the file; None if there is none that can be read."""
        with contextlib.suppress(FlowdistError):
            return read_owner(self.path)
        return None

    def _write(self) -> None:
        write_atomically(self.path, msgspec.json.encode(self._claim) + b"\n", mode=MODE)


def _content(path: Path) -> bytes | None:
    """Return the content of an owner file; None if there is none. One that cannot be read is damaged."""
    data = read_small(path, FILE_MAX)
    if data is None and os.path.lexists(path):
        raise _damaged(path, "it cannot be read")
    return data


def _decoded(path: Path, data: bytes | None) -> Claim | None:
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=Claim)
    except DAMAGED as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: Path, why: str) -> FlowdistError:
    help = "remove it, if no other run uses what it is for"
    return FlowdistError(f"the owner file {path} is damaged: {why}", help=help)


def _is_dead(claim: Claim) -> bool:
    """Return whether the process of the claim was one of this host, as this process sees it, and has ended."""
    return claim.place == _place() and _started(claim.pid) != claim.started


def _place() -> str:
    """Return what identifies the running kernel and its space of process ids, of which each container has its own."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    return secrets.token_hex(8)  # unknown: equal to no other


def _started(pid: int) -> int:
    """Return when a process was started, in the kernel's ticks; 0 if there is none."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = stat_fields(pid)
        return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
    return 0
