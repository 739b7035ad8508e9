"""The process of the controller: it feeds the pure controller, writes the journal, and carries effects to the agents.

The journal is written before anything is carried out (R21), and forced to the disk when a generation changes or the
job ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any, assert_never

import msgspec

from flowdist.control.connection.sessions import Sessions
from flowdist.control.controller import Controller
from flowdist.control.protocol.effects import Effect, FinishJob, Notify, OpenStore
from flowdist.control.protocol.events import ControllerStarted, Event, TimePassed
from flowdist.control.protocol.ids import NodeName
from flowdist.control.protocol.messages import Heartbeat, Join, Leave, Preempted, Report, ToAgent, ToController
from flowdist.graph import RoleGraph, decode_graph
from flowdist.record.journal import FaultLine, Header, Line, Record, encode_line, read_whole_lines, record
from flowdist.record.status import Decision, RecentDecisions, Status, status_of
from flowdist.record.timesheet import Timesheet
from flowdist.runtime.clock import boot_ns
from flowdist.runtime.controller.alarm import Alarm
from flowdist.runtime.controller.metrics import serve_metrics
from flowdist.runtime.controller.reception import Listening, Reception
from flowdist.runtime.injection.link_faults import HealLink, LinkFault, LinkFaults
from flowdist.runtime.injection.remote_faults import RemoteFault
from flowdist.runtime.run_folder.remote_error_report import save_report
from flowdist.runtime.wire.endpoint import DeathProof
from flowdist.runtime.wire.frames import (
    Farewell,
    Injected,
    JoinRequest,
    JournalLine,
    Operate,
    RemoteErrorReport,
    ToControllerFrame,
    Watch,
    encode,
    read_to_controller,
)
from flowdist.runtime.wire.handshake import TOKEN
from flowdist.runtime.wire.status_query import Decided, Describe, Described

# What other hosts may say: nothing of the operator's.
FromAfar = ToController | Watch | JoinRequest | DeathProof | RemoteErrorReport
BIND_S = 10.0  # a controller that takes over waits so long for the port of the last one
PART_S = 2.0  # for the other hosts to have read the last frames

JOURNAL_LOST = os.EX_IOERR  # exit code of a controller that could not write it


class ControllerConfig(msgspec.Struct, frozen=True):
    """What the controller's process has to know. `lifeline` closes when the supervisor ends.

    With a journal in the run's folder it takes over from there (R21).
    """

    run_dir: str
    run_id: str
    control_socket: str
    known_nodes: tuple[NodeName, ...]
    start_ns: int  # of the job, on CLOCK_BOOTTIME
    lifeline: int
    disturbed: tuple[LinkFault, ...] = ()  # connections, by a plan of faults
    listening: Listening | None = None
    metrics: int | None = None  # a socket that listens: whoever asks there is told the metrics


class Journal:
    """The record of a real job, line by line. What a crash has left of a last line is cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = []
        whole = 0
        if path.exists():
            self.lines, whole = read_whole_lines(path.read_bytes())
        self._file = path.open("ab")
        self._file.truncate(whole)

    def write(self, line: bytes, *, force: bool) -> None:
        """Append a line. With `force` it survives a crash of the machine, else only of this process.

        Where it cannot be written this process ends at once: what nobody can read again must not be carried out (R21).
        """
        try:
            self._file.write(line)
            self._file.flush()
            if force:
                os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):  # the log is on the same disk
                print(f"flowdist: the journal cannot be written: {error}", file=sys.stderr, flush=True)
            os._exit(JOURNAL_LOST)


class _ControllerProcess:
    def __init__(self, config: ControllerConfig, graph: RoleGraph, token: str) -> None:
        self._config = config
        job = config.listening.door.job if config.listening is not None else ""
        self._reception = Reception(graph, job, config.run_id, token, config.known_nodes)
        self._far: dict[asyncio.StreamWriter, None] = {}  # connections of other hosts
        self._controller = Controller(graph, config.known_nodes)
        self._links = Sessions(graph.options)
        self._journal = Journal(Path(config.run_dir, "journal.jsonl"))
        self._n = 0
        self._last_ns = 0
        self._agents: dict[NodeName, asyncio.StreamWriter] = {}
        self._link_faults = LinkFaults(config.disturbed)
        self._watchers: list[asyncio.StreamWriter] = []
        self._alarm = Alarm(self._now, self._time_passed)
        self._lately = RecentDecisions()
        self._sheet = Timesheet(self._controller.state)
        self._heard_ns: dict[NodeName, int] = {}
        self._took_over: ControllerStarted | None = None
        if self._journal.lines:
            self._take_over()
        else:
            self._write(Header(graph, config.known_nodes, config.run_id), force=True)

    def _take_over(self) -> None:
        """Be where the last controller was: the journal holds all that it ever decided (R21)."""
        for line in self._journal.lines:
            if isinstance(line, Record):
                self._controller.handle(line.event, line.t_ns)
                self._lately.hear(line)
                self._n, self._last_ns = line.n, line.t_ns
            self._sheet.hear(line)
        self._journal.lines.clear()
        state = self._controller.state
        near = [node.name for node in state.graph.cluster.nodes]
        far = [name for name in state.nodes if name not in near] if self._config.listening is not None else []
        self._took_over = self._links.take_over(state, self._now(), far)

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._loop.add_reader(self._config.lifeline, self._over.set)
        self._loop.add_signal_handler(signal.SIGTERM, self._over.set)
        if self._took_over is not None:
            self._handle(self._took_over)
        Path(self._config.control_socket).unlink(missing_ok=True)
        before = os.umask(0o177)  # there is no moment at which another user could connect
        server = await asyncio.start_unix_server(self._serve, self._config.control_socket)
        os.umask(before)
        servers = [server]
        if self._config.metrics is not None:
            servers.append(await serve_metrics(self._config.metrics, self._status))
        door = await self._open_door()
        self._set_timer()
        await self._over.wait()
        for each in servers:
            each.close()
        if door is not None:
            door.close()
            await self._part()

    async def _open_door(self) -> asyncio.Server | None:
        """Listen for other hosts, if they may come."""
        listening = self._config.listening
        if listening is None:
            return None
        until = self._loop.time() + BIND_S
        while True:
            try:
                return await asyncio.start_server(self._serve_far, listening.address or None, listening.port)
            except OSError:
                if self._loop.time() > until:
                    raise
                await asyncio.sleep(0.05)

    async def _serve_far(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if await self._reception.admit(reader, writer):
                self._far[writer] = None
                await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass  # this process ends, in the middle of a greeting
        finally:
            self._far.pop(writer, None)
            self._reception.depart(writer)
            writer.close()

    async def _part(self) -> None:
        """Other hosts have read all that was sent, or had the time for it."""
        if self._controller.state.outcome is None:
            for writer in [writer for writer in self._watchers if writer in self._far]:
                self._send(writer, Farewell("flowdist has ended there before the job was over"))
        for writer in self._far:
            with contextlib.suppress(OSError, RuntimeError):
                writer.write_eof()
        until = self._loop.time() + PART_S
        while self._far and self._loop.time() < until:
            await asyncio.sleep(0.01)

    def _now(self) -> int:
        self._last_ns = max(self._last_ns, boot_ns() - self._config.start_ns)
        return self._last_ns

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (message := await read_to_controller(reader)) is not None:
                if writer in self._far and not isinstance(message, FromAfar):
                    raise msgspec.ValidationError(f"{type(message).__name__} is not for other hosts")
                self._hear(message, writer)
        except (msgspec.MsgspecError, RecursionError) as error:
            print(f"flowdist: a connection was closed: {error}", file=sys.stderr)
        except asyncio.CancelledError:
            pass  # this process ends: asyncio would make a traceback of it
        finally:
            if writer in self._watchers:
                self._watchers.remove(writer)
            writer.close()

    def _status(self) -> Status:
        now = self._now()
        spent = self._sheet.spent(now)
        status = status_of(self._controller.state, self._lately, self._config.run_id, now, spent)
        nodes = [
            msgspec.structs.replace(node, heard_s_ago=(now - self._heard_ns[node.name]) / 1e9)
            if node.name in self._heard_ns
            else node
            for node in status.nodes
        ]
        return msgspec.structs.replace(status, nodes=tuple(nodes))

    def _hear(self, message: ToControllerFrame, writer: asyncio.StreamWriter) -> None:
        match message:
            case Watch():
                lines = self._journal.path.read_bytes().splitlines(keepends=True)
                if message.digest and message.digest != sha256(b"".join(lines[: message.skip])).digest():
                    self._send(writer, Farewell("the next one lacks the end of its journal: join again"))
                for line in lines[message.skip :]:
                    writer.write(encode(JournalLine(line)))
                self._watchers.append(writer)
            case Operate():
                self._links.note(message.event)
                done = self._handle(message.event)
                if message.answer:
                    texts = [effect for effect in done.effects if isinstance(effect, Notify)]
                    said = tuple(Decision(done.t_ns, effect.text, effect.level) for effect in texts)
                    self._send(writer, Decided(done.n, said))
            case Describe():
                self._send(writer, Described(self._status()))
            case Injected():
                self._write(FaultLine(self._now(), message.spec, message.target), force=False)
            case LinkFault():
                self._link_faults.add(message)
            case HealLink():
                self._link_faults.heal(message)
            case RemoteFault():
                if (link := self._reception.link_of(message.node)) is not None:
                    self._send(link, message)
            case JoinRequest():
                self._send(writer, self._reception.welcome(message, self._controller.state, writer))
            case DeathProof():
                for gone in self._links.gone(message.node, message.incarnation, message.cause):
                    self._handle(gone)
            case RemoteErrorReport():
                save_report(message, self._controller.state, Path(self._config.run_dir))
            case Join() | Heartbeat() | Report() | Preempted() | Leave():
                self._link_faults.carry(message.node, "up", writer, lambda: self._hear_agent(message, writer))
            case _:
                assert_never(message)

    def _hear_agent(self, message: ToController, writer: asyncio.StreamWriter) -> None:
        self._heard_ns[message.node] = self._now()
        heard = self._links.hear(message, self._now())
        if isinstance(message, Join) and heard.answers:
            self._agents[message.node] = writer
            if self._controller.state.outcome is not None:
                self._send_agent(message.node, writer, self._links.dismiss(message.node))
        for answer in heard.answers:
            self._send_agent(message.node, writer, answer)
        for event in heard.events:
            self._handle(event)

    def _handle(self, event: Event) -> Record:
        now = self._now()
        effects = self._controller.handle(event, now)
        self._n += 1
        force = any(isinstance(effect, OpenStore | FinishJob) for effect in effects)
        line = record(self._n, now, event, effects)
        self._write(line, force=force)
        self._lately.hear(line)
        for effect in effects:
            self._carry_out(effect)
        self._set_timer()
        return line

    def _write(self, line: Line, *, force: bool) -> None:
        data = encode_line(line)
        self._journal.write(data, force=force)
        self._sheet.hear(line)
        for watcher in self._watchers:
            self._send(watcher, JournalLine(data))

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Notify():
                pass  # the watcher reads it from the journal
            case FinishJob():
                for node, writer in self._agents.items():
                    self._send_agent(node, writer, self._links.dismiss(node))
            case _:
                agent = self._agents.get(effect.node)
                if agent is not None:
                    self._send_agent(effect.node, agent, self._links.order(effect))

    def _send_agent(self, node: NodeName, writer: asyncio.StreamWriter, message: ToAgent) -> None:
        self._link_faults.carry(node, "down", writer, lambda: self._send(writer, message))

    def _send(self, writer: asyncio.StreamWriter, message: Any) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):
            writer.write(encode(message))

    def _set_timer(self) -> None:
        times = [time for time in (self._controller.deadline(), self._links.deadline()) if time is not None]
        self._alarm.set(max(0, min(times) - self._now()) / 1e9 if times else None)

    def _time_passed(self, now: int) -> None:
        """What agents had said by then has been heard."""
        for silent in self._links.expire(now):
            self._handle(silent)
        deadline = self._controller.deadline()
        if deadline is not None and deadline <= now:
            self._handle(TimePassed())
        self._set_timer()


def main() -> None:
    config = msgspec.json.decode(sys.argv[1], type=ControllerConfig)
    graph = decode_graph(Path(config.run_dir, "graph.json").read_bytes())
    token = os.environ.pop(TOKEN, "")
    asyncio.run(_ControllerProcess(config, graph, token).run())


if __name__ == "__main__":
    main()
