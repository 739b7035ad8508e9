"""The controller process of a run, started again when it dies; each continues from the journal (R21)."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable

import msgspec

from flowdist.control.process_restarts import ControllerUpkeep, Death, Next
from flowdist.record.journal import Line
from flowdist.record.reader import BadLine, RecordReader
from flowdist.runtime.clock import boot_ns
from flowdist.runtime.controller.controller_process import ControllerConfig
from flowdist.runtime.controller.journal_file import JOURNAL_BAD, JOURNAL_LOST
from flowdist.runtime.last_words import last_words
from flowdist.runtime.left_files import size_of
from flowdist.runtime.run_folder.log_reader import lines_of
from flowdist.runtime.supervisor.host_process import HostProcess
from flowdist.runtime.supervisor.outbox import Outbox
from flowdist.runtime.wire.frames import JournalLine, Watch, encode, read_from_controller

MODULE = "flowdist.runtime.controller.controller_main"
STANDBYS = 2  # on a machine that is busy, the second may have to take over before a third can be ready
CONNECT_RETRY_S = 0.01  # between two attempts to connect to a controller that is starting
PREPARE_AFTER_S = 1.0  # from the start of the first controller to that of its standbys: agents and workers start first


class ControllerKeeper:
    """Keeper of the controller process: starts it, reads its journal, and starts the next one when it has died.

    Agents and workers continue meanwhile. `handle` gets each line that is new to this process, in order. While
    `is_ending` returns true, fewer controllers are started again.
    """

    def __init__(
        self,
        host: HostProcess,
        configure: Callable[[], ControllerConfig],
        outbox: Outbox,
        handle: Callable[[Line], None],
        is_ending: Callable[[], bool],
    ) -> None:
        self._host, self._configure, self._outbox, self._handle = host, configure, outbox, handle
        self._is_ending, self._restarts = is_ending, ControllerUpkeep(str(host.run_dir))
        self._log = host.run_dir / "controller.log"
        self._has_standbys = False
        self._preparing = asyncio.Lock()  # else the tasks of two controllers would prepare too many
        self._waiting: list[Process] = []  # standbys; the one that was started first is first
        self._reader = RecordReader(str(host.run_dir / "journal.jsonl"))
        self.lost = ""  # why no controller is started any more; empty: one is
        self._serves_since_ns: int | None = None  # when the present controller has accepted a connection
        self._was_killed = False  # an injected fault has killed the present controller

    @property
    def is_serving(self) -> bool:
        """Return whether the present controller runs, and has accepted a connection."""
        return self._serves_since_ns is not None and self._process.returncode is None

    @property
    def lines_read(self) -> int:
        """Return how many lines of the journal this process has read."""
        return self._reader.lines

    async def start(self) -> None:
        """Start a controller, the standby if one waits. It continues from the journal if the run has one."""
        config = self._configure()
        self._serves_since_ns, self._was_killed = None, False
        self._log_size = size_of(self._log)
        self._socket = config.control_socket
        if not self._standbys():
            process = await self._host.processes.start(MODULE, config, self._log.name, _inherited(config))
        else:
            process = self._waiting.pop(0)
            assert process.stdin is not None
            with contextlib.suppress(ConnectionError):  # it has died a moment ago, and is buried like any controller
                process.stdin.write(msgspec.json.encode(config))
                process.stdin.write_eof()
                await process.stdin.drain()
        self._process = process

    def _standbys(self) -> list[Process]:
        self._waiting = [process for process in self._waiting if process.returncode is None]
        return self._waiting

    async def keep(self) -> None:
        """Read the journal, and start the next controller whenever one has died, until `over` of the host is set.

        The first has to be started before. If too many die in quick succession, or the journal has a bad line, this
        sets `lost`, and `over` unless the run is ending anyway.
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
            after_ns, cause = self._died()
            if after_ns is None:
                self._give_up(cause)
                break
            self._host.show("error" if self._process.returncode == JOURNAL_LOST else "warning", cause)
            await self._host.wait(after_ns / 1e9)
            if over.is_set():
                break
            await self.start()

    def _died(self) -> Next:
        if self._was_killed:
            return Next(0, "the controller died: another takes over from the journal")
        lived_ns = boot_ns() - self._serves_since_ns if self._serves_since_ns is not None else 0
        death: Death = "journal lost" if self._process.returncode == JOURNAL_LOST else "crash"
        words = last_words(self._log, self._log_size)
        return self._restarts.died(lived_ns, death, words, is_ending=self._is_ending())

    def _give_up(self, why: str) -> None:
        self.lost = why
        if not self._is_ending():
            self._host.over.set()

    async def _read_journal(self) -> None:
        """Handle every new line of the journal until the controller ends; BadLine if one cannot be used or replayed."""
        reader = None
        while reader is None and self._process.returncode is None:
            try:
                reader, writer = await asyncio.open_unix_connection(self._socket)
            except OSError:
                await asyncio.sleep(CONNECT_RETRY_S)
        if reader is None:
            return
        self._serves_since_ns = boot_ns()
        self._host.background(self._prepare_next())
        writer.write(encode(Watch(self.lines_read)))
        self._outbox.attach(writer.write)
        with contextlib.closing(writer):
            while (message := await read_from_controller(reader)) is not None:
                if isinstance(message, JournalLine):
                    line = self._reader.read(message.line)
                    self._handle(line)

    async def _prepare_next(self) -> None:
        """Have the next controllers wait, if agents on other hosts need one within their lease.

        Those of this host see that no controller listens, and keep their workers for `controller_outage`.
        """
        if not self._has_standbys:
            await self._host.wait(PREPARE_AFTER_S)
        self._has_standbys = True
        config = self._configure()
        if config.listening is None:
            return
        standby, hold = msgspec.structs.replace(config, is_standby=True), _inherited(config)
        async with self._preparing:
            while len(self._standbys()) < STANDBYS and not self._host.is_over:
                started = await self._host.processes.start(MODULE, standby, self._log.name, hold, stdin=PIPE)
                self._waiting.append(started)  # meanwhile another may have been taken

    def kill(self) -> None:
        """Kill the controller process for an injected fault, if it runs. `keep` starts the next one."""
        if self._process.returncode is None:
            self._was_killed = True
            self._process.kill()
            self._outbox.detach()


def _inherited(config: ControllerConfig) -> list[int]:
    """Return the descriptors that a controller inherits."""
    return [config.lifeline, *config.doors, *([] if config.metrics is None else [config.metrics])]
