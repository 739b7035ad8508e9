"""Flowdist's own processes: starting a module as a process, and tracking those that this process has started."""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from flowdist.runtime.processes.reaper import kill_descendants

ROUND_S = 0.5  # of killing, after which this process looks at its other duties
PAUSE_S = 0.5  # between two rounds
PATIENCE_S = 10.0  # until a message names the processes that are left


async def start_module(
    module: str,
    config: msgspec.Struct,
    log: Path,
    *,
    pass_fds: Sequence[int] = (),
    stdin: int = asyncio.subprocess.DEVNULL,
) -> Process:
    """Start `python -m MODULE CONFIG` in a session of its own, so that Ctrl-C at the terminal does not reach it.

    stdout and stderr are appended to `log`; the process inherits the descriptors `pass_fds`.
    """
    command = [sys.executable, "-P", "-m", module, msgspec.json.encode(config).decode()]
    with log.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *command, stdin=stdin, stdout=output, stderr=output, pass_fds=pass_fds, start_new_session=True
        )


class OwnedProcesses:
    """The processes of flowdist that a supervisor or joined host has started, whose logs are in `run_dir`."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._known: list[Process] = []
        self._changing = asyncio.Lock()  # between the start of a process and the moment when it is in `_known`

    async def start(
        self,
        module: str,
        config: msgspec.Struct,
        log: str,
        hold: Sequence[int] = (),
        *,
        stdin: int = asyncio.subprocess.DEVNULL,
    ) -> Process:
        """Start a module as `start_module` does, and return the process; it inherits the descriptors `hold`."""
        async with self._changing:
            process = await start_module(module, config, self._run_dir / log, pass_fds=hold, stdin=stdin)
            self._known = [*self.running(), process]
            return process

    def running(self) -> list[Process]:
        """Return the processes that `start` has started and that have not ended."""
        return [process for process in self._known if process.returncode is None]

    async def kill_others(self, warn: Callable[[str], object], spare: Iterable[int] = ()) -> None:
        """Kill and reap every descendant of this process but `running` ones, `spare`, and what is below them.

        Return when none is left. A process that hangs in the kernel, in a file system or a driver, outlives SIGKILL as
        long as it hangs there; `warn` then gets one message.
        """
        warn_at_s: float | None = time.monotonic() + PATIENCE_S
        while True:
            async with self._changing:
                alone = frozenset([*(process.pid for process in self.running()), *spare])
                left = kill_descendants(spare=alone, patience_s=ROUND_S)
            if not left:
                return
            if warn_at_s is not None and time.monotonic() > warn_at_s:
                warn(f"these processes outlive SIGKILL: {', '.join(map(str, left))}; their node waits for their end")
                warn_at_s = None
            await asyncio.sleep(PAUSE_S)
