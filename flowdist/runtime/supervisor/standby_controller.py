"""The controller processes that wait until the one that runs has died; see `runtime.controller.standby`."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import PIPE, Process

import msgspec

from flowdist.runtime.controller.controller_process import ControllerConfig
from flowdist.runtime.supervisor.host_process import HostProcess

MODULE = "flowdist.runtime.controller.controller_main"
STANDBYS = 2  # on a machine that is busy, the second may have to take over before a third can be ready


class ControllerStarter:
    """Starter of controller processes, the next ones of which may wait already, with everything imported.

    Args:
        host: The foreground process.
        log: The name of the log of the controllers, in the run's folder.
    """

    def __init__(self, host: HostProcess, log: str) -> None:
        self._host, self._log = host, log
        self._preparing = asyncio.Lock()  # else the tasks of two controllers would prepare too many
        self._waiting: list[Process] = []  # the one that was started first is first

    async def start(self, config: ControllerConfig) -> Process:
        """Start a controller and return its process: the one that waits, if it still runs, else a new one."""
        if not self._alive():
            return await self._host.processes.start(MODULE, config, self._log, _inherited(config))
        standby = self._waiting.pop(0)
        assert standby.stdin is not None
        with contextlib.suppress(ConnectionError):  # it has died a moment ago, and is buried like any controller
            standby.stdin.write(msgspec.json.encode(config))
            standby.stdin.write_eof()
            await standby.stdin.drain()
        return standby

    async def prepare(self, config: ControllerConfig) -> None:
        """Start processes of the next controllers until STANDBYS of them wait for a call of `start`."""
        standby, hold = msgspec.structs.replace(config, is_standby=True), _inherited(config)
        async with self._preparing:
            while len(self._alive()) < STANDBYS and not self._host.is_over:
                started = await self._host.processes.start(MODULE, standby, self._log, hold, stdin=PIPE)
                self._waiting.append(started)  # meanwhile another may have been taken

    def _alive(self) -> list[Process]:
        self._waiting = [process for process in self._waiting if process.returncode is None]
        return self._waiting


def _inherited(config: ControllerConfig) -> list[int]:
    """Return the descriptors that a controller inherits."""
    return [config.lifeline, *config.doors, *([] if config.metrics is None else [config.metrics])]
