"""The controller process that waits until the one that runs has died; see `runtime.controller.standby`."""

from __future__ import annotations

import contextlib
from asyncio.subprocess import PIPE, Process

import msgspec

from flowdist.runtime.controller.controller_main import ControllerConfig
from flowdist.runtime.supervisor.host_process import HostProcess

MODULE = "flowdist.runtime.controller.controller_main"


class ControllerStarter:
    """Starter of controller processes, the next of which may wait already, with everything imported.

    Args:
        host: The foreground process.
        log: The name of the log of the controllers, in the run's folder.
    """

    def __init__(self, host: HostProcess, log: str) -> None:
        self._host, self._log = host, log
        self._standby: Process | None = None

    async def start(self, config: ControllerConfig) -> Process:
        """Start a controller and return its process: the one that waits, if it still runs, else a new one."""
        standby, self._standby = self._standby, None
        if standby is None or standby.returncode is not None:
            return await self._host.processes.start(MODULE, config, self._log, _inherited(config))
        assert standby.stdin is not None
        with contextlib.suppress(ConnectionError):  # it has died a moment ago, and is buried like any controller
            standby.stdin.write(msgspec.json.encode(config))
            standby.stdin.write_eof()
            await standby.stdin.drain()
        return standby

    async def prepare(self, config: ControllerConfig) -> None:
        """Start the process of the next controller, which waits until `start` is called, unless one waits already."""
        if self._standby is None or self._standby.returncode is not None:
            waiting, hold = msgspec.structs.replace(config, is_standby=True), _inherited(config)
            self._standby = await self._host.processes.start(MODULE, waiting, self._log, hold, stdin=PIPE)


def _inherited(config: ControllerConfig) -> list[int]:
    """Return the descriptors that a controller inherits."""
    return [config.lifeline, *config.doors, *([] if config.metrics is None else [config.metrics])]
