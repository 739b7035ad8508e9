"""The engine of this machine: each member is a process. It serves trials and tests of what drives an engine."""

from __future__ import annotations

import contextlib
import os
import signal as signals
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from flowdist.control.fleet.values import Cause, Launch, Seen
from flowdist.engines.interface import Engine, EngineFailed


class LocalProcesses(Engine):
    """Engine whose members are child processes of this one, each in a session of its own.

    A reference is the process id with the start time (clock ticks since boot): ids are used again.
    """

    name = "local"

    def __init__(self) -> None:
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._cancelled: set[str] = set()

    def submit(self, launch: Launch) -> str:
        """Start the process of a member. `avoid` plays no part: there is one machine."""
        try:
            with Path(launch.logs, f"{launch.member}.out").open("ab") as log:
                child = subprocess.Popen(
                    launch.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            raise EngineFailed(f"{launch.member} cannot be started: {error.strerror}") from None
        reference = f"{child.pid}:{_started(child.pid)}"
        self._children[reference] = child
        return reference

    def cancel(self, reference: str) -> None:
        """Send SIGTERM to a member that runs."""
        self._cancelled.add(reference)
        self.signal(reference, "TERM")

    def signal(self, reference: str, signal: str) -> None:
        """Send a signal to a member that runs."""
        if self._seen(reference).phase == "running":
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(int(reference.partition(":")[0]), signals.Signals[f"SIG{signal}"])

    def observe(self, references: Iterable[str]) -> Mapping[str, Seen]:
        """Return which members run, and how the others have ended. Of an earlier process's child only that is known."""
        return {reference: self._seen(reference) for reference in references}

    def _seen(self, reference: str) -> Seen:
        child = self._children.get(reference)
        code = child.poll() if child is not None else None
        if code is not None:
            cause: Cause = "cancelled" if reference in self._cancelled else "failed" if code else "succeeded"
            return Seen("ended", "localhost", cause, f"exit code {code}")
        pid, _, started = reference.partition(":")
        if pid.isdecimal() and _started(int(pid)) == started != "":
            return Seen("running", "localhost")
        return Seen("ended")


def _started(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot, as text; empty if there is none with that id."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
