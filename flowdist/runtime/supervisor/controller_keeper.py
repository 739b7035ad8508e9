"""The controller process of a run, started again when it dies; each controller continues from the journal (R21)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from flowdist.control.process_restarts import ControllerUpkeep
from flowdist.record.journal import Line
from flowdist.record.reader import BadLine, RecordReader
from flowdist.runtime.controller.controller_main import JOURNAL_BAD, JOURNAL_LOST, ControllerConfig
from flowdist.runtime.run_folder.log_reader import lines_of
from flowdist.runtime.supervisor.host_process import HostProcess
from flowdist.runtime.supervisor.outbox import Outbox
from flowdist.runtime.wire.frames import JournalLine, Watch, encode, read_from_controller

CONNECT_RETRY_S = 0.01  # between two attempts to connect to a controller that is starting


class ControllerKeeper:
    """Keeper of the controller process: starts it, reads its journal, and starts the next one when it has died.

    Agents and workers continue meanwhile.

    Args:
        host: The foreground process.
        configure: Returns the configuration for the next controller process.
        outbox: Gets the connection to each controller, and loses it when that controller has died.
        handle: Called with each line of the journal that is new to this process, in order.
    """

    def __init__(
        self,
        host: HostProcess,
        configure: Callable[[], ControllerConfig],
        outbox: Outbox,
        handle: Callable[[Line], None],
    ) -> None:
        self._host, self._configure, self._outbox, self._handle = host, configure, outbox, handle
        self._restarts = ControllerUpkeep(str(host.run_dir))
        self._reader = RecordReader(str(host.run_dir / "journal.jsonl"))
        self.lost = ""  # why no controller is started any more; empty: one is

    @property
    def lines_read(self) -> int:
        """Return how many lines of the journal this process has read."""
        return self._reader.lines

    async def start(self) -> None:
        """Start a controller process, which continues from the journal if the run has one."""
        config = self._configure()
        self._socket = config.control_socket
        hold = [config.lifeline] if config.metrics is None else [config.lifeline, config.metrics]
        self._process = await self._host.processes.start(
            "flowdist.runtime.controller.controller_main", config, "controller.log", hold
        )

    async def keep(self) -> None:
        """Read the journal, and start the next controller whenever one has died, until `over` of the host is set.

        The first controller has to be started before. If too many controllers die, or the journal has a line that
        cannot be used, this method sets `lost` and `over`.
        """
        over = self._host.over
        while not over.is_set():
            try:
                await self._read_journal()
            except BadLine as bad:
                self._give_up(f"the job cannot be followed any more: {bad.message}")
            self._outbox.detach()
            if over.is_set():
                break
            await self._process.wait()
            if over.is_set():
                break
            if self._process.returncode == JOURNAL_BAD:
                self._give_up("".join(lines_of(self._host.run_dir / "controller.log", 1)).removeprefix("flowdist: "))
                break
            journal_lost = self._process.returncode == JOURNAL_LOST
            after_ns, cause = self._restarts.died(journal_lost=journal_lost)
            if after_ns is None:
                self._give_up(cause)
                break
            self._host.show("error" if journal_lost else "warning", cause)
            await asyncio.sleep(after_ns / 1e9)
            await self.start()

    def _give_up(self, why: str) -> None:
        self.lost = why
        self._host.over.set()

    async def _read_journal(self) -> None:
        """Connect to the controller and handle every new line of the journal, until the connection ends.

        Return at once if the controller ends before it accepts the connection.

        Raises:
            BadLine: A line cannot be used or replayed.
        """
        reader = None
        while reader is None and self._process.returncode is None:
            try:
                reader, writer = await asyncio.open_unix_connection(self._socket)
            except OSError:
                await asyncio.sleep(CONNECT_RETRY_S)
        if reader is None:
            return
        writer.write(encode(Watch(self.lines_read)))
        self._outbox.attach(writer.write)
        while (message := await read_from_controller(reader)) is not None:
            if isinstance(message, JournalLine):
                line = self._reader.read(message.line)
                self._restarts.wrote()
                self._handle(line)

    def kill(self) -> None:
        """Kill the controller process for an injected fault, if it runs. `keep` starts the next one."""
        if self._process.returncode is None:
            self._process.kill()
            self._outbox.detach()
