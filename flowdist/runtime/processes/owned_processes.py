"""The processes that a supervisor has started itself, and the killing of all others below it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from flowdist.runtime.processes.reaper import kill_descendants


class Offspring:
    """Our own processes, each in a session of its own: Ctrl-C is for the supervisor alone. Logs are in `run_dir`."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._known: list[asyncio.subprocess.Process] = []
        self._changing = asyncio.Lock()  # a process runs before its number is known here

    async def start(
        self, module: str, config: msgspec.Struct, log: str, hold: Sequence[int] = ()
    ) -> asyncio.subprocess.Process:
        """A module of flowdist. `hold` are the descriptors that it inherits."""
        async with self._changing:
            with (self._run_dir / log).open("ab") as output:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-P",
                    "-m",
                    module,
                    msgspec.json.encode(config).decode(),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=hold,
                    start_new_session=True,
                )
            self._known = [*self.running(), process]
            return process

    def running(self) -> list[asyncio.subprocess.Process]:
        return [process for process in self._known if process.returncode is None]

    async def kill_others(self, spare: Iterable[int] = ()) -> None:
        """Whatever is below this process and is not one of these, nor below one, nor in `spare`."""
        async with self._changing:
            kill_descendants(spare=frozenset([*(process.pid for process in self.running()), *spare]))
