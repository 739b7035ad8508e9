"""The controller process: it feeds the pure controller, writes the journal, and sends effects to the agents.

A record is written to the journal before its effects are carried out (R21). The journal is forced to the disk (fsync)
when a generation begins and when the job ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from hashlib import sha256
from pathlib import Path
from typing import assert_never

import msgspec

from flowdist.control.connection.sessions import Sessions
from flowdist.control.protocol.effects import Effect, FinishJob, Notify, OpenStore
from flowdist.control.protocol.events import ControllerStarted, Event, TimePassed
from flowdist.control.protocol.ids import NodeName
from flowdist.control.protocol.messages import Heartbeat, Join, Leave, Preempted, Report, ToAgent, ToController
from flowdist.graph import RoleGraph, decode_graph
from flowdist.record.journal import FaultLine, Header, Line, Record, encode_line, read_whole_lines
from flowdist.record.replay import Replay
from flowdist.record.status import Decision, Status, status_of
from flowdist.runtime.clock import boot_ns
from flowdist.runtime.controller.alarm import Alarm
from flowdist.runtime.controller.host_registry import HostRegistry, Listening
from flowdist.runtime.controller.metrics import serve_metrics
from flowdist.runtime.injection.link_faults import LinkFaults
from flowdist.runtime.run_folder.remote_error_report import save_report
from flowdist.runtime.wire.endpoint import DeathProof
from flowdist.runtime.wire.fault_messages import HealLink, LinkFault, RemoteFault
from flowdist.runtime.wire.frames import (
    Decided,
    Describe,
    Described,
    Farewell,
    HostFrame,
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
from flowdist.text.streams import print_printable_only

# Frames that the controller accepts from other hosts: no order of the operator, no query, no fault to inject
RemoteFrame = ToController | Watch | HostFrame
BIND_RETRY_S = 10.0  # how long a controller that takes over waits for the port of the last one to become free
JOURNAL_LOST = os.EX_IOERR  # exit code of a controller that could not write its journal
FLUSH_S = 2.0  # how long the other hosts have to read the last frames


class ControllerConfig(msgspec.Struct, frozen=True):
    """Configuration of the controller process.

    A controller that finds a journal in the run's folder continues the job from there (R21).
    """

    run_dir: str
    run_id: str
    control_socket: str  # path of the Unix socket for the agents of this host, the supervisor and other commands
    known_nodes: tuple[NodeName, ...]  # nodes that are expected from the start
    start_ns: int  # start of the job, on CLOCK_BOOTTIME
    lifeline: int  # file descriptor of a pipe that ends when the supervisor ends: this process then ends too
    link_faults: tuple[LinkFault, ...] = ()  # injected faults of connections that are in force
    listening: Listening | None = None  # None: no other hosts may join
    metrics: int | None = None  # file descriptor of a listening socket for scrapes


class JournalFile:
    """The journal's file, open for appending; it is made if it does not exist.

    An incomplete last line, which a crash may leave, is cut off when the file is opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = []  # the lines of the file when it was opened
        whole = 0
        if path.exists():
            self.lines, whole = read_whole_lines(path.read_bytes())
        self._file = path.open("ab")
        self._file.truncate(whole)

    def write(self, line: bytes, *, force: bool) -> None:
        """Append an encoded line. It survives a crash of this process, and with `force` (fsync) one of the machine.

        If the line cannot be written, this process exits at once with code JOURNAL_LOST: an effect that no later
        controller can read in the journal must not be carried out (R21).
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
    """The controller process: it passes messages and the time to the pure controller and carries out its effects.

    Args:
        config: What the supervisor has set.
        graph: The job.
        token: The secret that other hosts have to know; empty: none.
    """

    def __init__(self, config: ControllerConfig, graph: RoleGraph, token: str) -> None:
        self._config = config
        job = config.listening.door.job if config.listening is not None else ""
        self._hosts = HostRegistry(graph, job, config.run_id, token, config.known_nodes)
        self._remote: dict[asyncio.StreamWriter, None] = {}  # connections of other hosts
        header = Header(graph, config.known_nodes, config.run_id)
        self._replay = Replay(header)
        self._controller = self._replay.controller
        self._sessions = Sessions(graph.options)
        self._journal = JournalFile(Path(config.run_dir, "journal.jsonl"))
        self._last_ns = 0
        self._agents: dict[NodeName, asyncio.StreamWriter] = {}
        self._link_faults = LinkFaults(config.link_faults)
        self._watchers: list[asyncio.StreamWriter] = []
        self._alarm = Alarm(self._now, self._time_passed)
        self._last_heard_ns: dict[NodeName, int] = {}
        self._took_over: ControllerStarted | None = None
        if self._journal.lines:
            self._take_over()
        else:
            self._write(header, force=True)

    def _take_over(self) -> None:
        """Rebuild the state of the job from the journal, which holds every decision of the controllers before (R21).

        The event that a new epoch begins is handled later, by `run`.
        """
        self._last_ns = self._replay.follow(self._journal.lines).t_ns
        self._journal.lines.clear()
        state = self._controller.state
        local = [node.name for node in state.graph.cluster.nodes]
        remote = [name for name in state.nodes if name not in local] if self._config.listening is not None else []
        self._took_over = self._sessions.take_over(state, self._now(), remote)

    async def run(self) -> None:
        """Serve agents, hosts, operators and scrapes until the supervisor ends or SIGTERM arrives."""
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._loop.add_reader(self._config.lifeline, self._over.set)
        self._loop.add_signal_handler(signal.SIGTERM, self._over.set)
        if self._took_over is not None:
            self._handle(self._took_over)
        Path(self._config.control_socket).unlink(missing_ok=True)
        before = os.umask(0o177)  # another user must not be able to connect, not even for a moment
        server = await asyncio.start_unix_server(self._serve, self._config.control_socket)
        os.umask(before)
        servers = [server]
        if self._config.metrics is not None:
            servers.append(await serve_metrics(self._config.metrics, self._status))
        if self._config.listening is not None:
            servers.append(await self._listen_for_hosts(self._config.listening))
        self._set_timer()
        await self._over.wait()
        for each in servers:
            each.close()
        await self._close_remote()

    async def _listen_for_hosts(self, listening: Listening) -> asyncio.Server:
        until = self._loop.time() + BIND_RETRY_S
        while True:
            try:
                return await asyncio.start_server(self._serve_remote, listening.address or None, listening.port)
            except OSError:
                if self._loop.time() > until:
                    raise
                await asyncio.sleep(0.05)

    async def _serve_remote(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if await self._hosts.admit(reader, writer):
                self._remote[writer] = None
                await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass  # this process ends during a handshake
        finally:
            self._remote.pop(writer, None)
            self._hosts.disconnected(writer)
            writer.close()

    async def _close_remote(self) -> None:
        """End the connections to other hosts, and wait until each host has closed its own, at most FLUSH_S seconds.

        If the job is not over, each host that watches the journal first gets a Farewell.
        """
        if self._controller.state.outcome is None:
            for writer in [writer for writer in self._watchers if writer in self._remote]:
                self._send(writer, Farewell("flowdist ended there before the job was over"))
        for writer in self._remote:
            with contextlib.suppress(OSError, RuntimeError):
                writer.write_eof()
        until = self._loop.time() + FLUSH_S
        while self._remote and self._loop.time() < until:
            await asyncio.sleep(0.01)

    def _now(self) -> int:
        """Return the time since the start of the job in ns, which never decreases, not even after a take-over."""
        self._last_ns = max(self._last_ns, boot_ns() - self._config.start_ns)
        return self._last_ns

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (message := await read_to_controller(reader)) is not None:
                if writer in self._remote and not isinstance(message, RemoteFrame):
                    raise msgspec.ValidationError(f"other hosts may not send {type(message).__name__}")
                self._handle_message(message, writer)
        except (msgspec.MsgspecError, RecursionError) as error:
            print(f"flowdist: a connection was closed: {error}", file=sys.stderr)
        except asyncio.CancelledError:
            pass  # this process ends; else asyncio would print a traceback
        finally:
            if writer in self._watchers:
                self._watchers.remove(writer)
            writer.close()

    def _status(self) -> Status:
        now = self._now()
        spent = self._replay.sheet.spent(now)
        status = status_of(self._controller.state, self._replay.decisions, self._config.run_id, now, spent)
        nodes = [
            msgspec.structs.replace(node, heard_s_ago=(now - self._last_heard_ns[node.name]) / 1e9)
            if node.name in self._last_heard_ns
            else node
            for node in status.nodes
        ]
        return msgspec.structs.replace(status, nodes=tuple(nodes))

    def _handle_message(self, message: ToControllerFrame, writer: asyncio.StreamWriter) -> None:
        match message:
            case Watch():
                self._add_watcher(message, writer)
            case Operate():
                self._operate(message, writer)
            case Describe():
                self._send(writer, Described(self._status()))
            case Injected():
                fault = FaultLine(self._now(), message.spec, message.target)
                self._write(fault, force=False)
                self._replay.hear(fault)
            case LinkFault():
                self._link_faults.add(message)
            case HealLink():
                self._link_faults.heal(message)
            case RemoteFault():
                if (connection := self._hosts.connection_of(message.node)) is not None:
                    self._send(connection, message)
            case JoinRequest():
                self._send(writer, self._hosts.welcome(message, self._controller.state, writer))
            case DeathProof():
                for event in self._sessions.gone(message.node, message.incarnation, message.cause):
                    self._handle(event)
            case RemoteErrorReport():
                save_report(message, self._controller.state, Path(self._config.run_dir))
            case Join() | Heartbeat() | Report() | Preempted() | Leave():
                self._link_faults.carry(message.node, "up", writer, lambda: self._handle_agent(message, writer))
            case _:
                assert_never(message)

    def _add_watcher(self, message: Watch, writer: asyncio.StreamWriter) -> None:
        """Send the watcher the journal without its first `message.skip` lines, and from now on every new line.

        If the watcher's digest of the skipped lines differs from the journal's, the watcher first gets a Farewell.
        """
        lines = self._journal.path.read_bytes().splitlines(keepends=True)
        if message.digest and message.digest != sha256(b"".join(lines[: message.skip])).digest():
            self._send(writer, Farewell("the journal there lost its last lines in a crash: join the job again"))
        for line in lines[message.skip :]:
            writer.write(encode(JournalLine(line)))
        self._watchers.append(writer)

    def _operate(self, message: Operate, writer: asyncio.StreamWriter) -> None:
        self._sessions.note(message.event)
        done = self._handle(message.event)
        if message.answer:
            notices = [effect for effect in done.effects if isinstance(effect, Notify)]
            decisions = tuple(Decision(done.t_ns, effect.text, effect.level) for effect in notices)
            self._send(writer, Decided(done.n, decisions))

    def _handle_agent(self, message: ToController, writer: asyncio.StreamWriter) -> None:
        self._last_heard_ns[message.node] = self._now()
        heard = self._sessions.hear(message, self._now())
        if isinstance(message, Join) and heard.answers:
            self._agents[message.node] = writer
            if self._controller.state.outcome is not None:
                self._send_to_agent(message.node, writer, self._sessions.dismiss(message.node))
        for answer in heard.answers:
            self._send_to_agent(message.node, writer, answer)
        for event in heard.events:
            self._handle(event)

    def _handle(self, event: Event) -> Record:
        line = self._replay.decide(event, self._now())
        force = any(isinstance(effect, OpenStore | FinishJob) for effect in line.effects)
        self._write(line, force=force)
        for effect in line.effects:
            self._carry_out(effect)
        self._set_timer()
        return line

    def _write(self, line: Line, *, force: bool) -> None:
        data = encode_line(line)
        self._journal.write(data, force=force)
        for watcher in self._watchers:
            self._send(watcher, JournalLine(data))

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Notify():
                pass  # watchers receive it in the line of the journal
            case FinishJob():
                for node, writer in self._agents.items():
                    self._send_to_agent(node, writer, self._sessions.dismiss(node))
            case _:
                agent = self._agents.get(effect.node)
                if agent is not None:
                    self._send_to_agent(effect.node, agent, self._sessions.order(effect))

    def _send_to_agent(self, node: NodeName, writer: asyncio.StreamWriter, message: ToAgent) -> None:
        self._link_faults.carry(node, "down", writer, lambda: self._send(writer, message))

    def _send(self, writer: asyncio.StreamWriter, message: msgspec.Struct) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):
            writer.write(encode(message))

    def _set_timer(self) -> None:
        times = [time for time in (self._controller.deadline(), self._sessions.deadline()) if time is not None]
        self._alarm.set(max(0, min(times) - self._now()) / 1e9 if times else None)

    def _time_passed(self, now: int) -> None:
        """Handle the deadlines of the sessions and of the pure controller that have passed by `now`, in ns.

        The alarm calls this once every message that had arrived by `now` is handled.
        """
        for event in self._sessions.expire(now):
            self._handle(event)
        deadline = self._controller.deadline()
        if deadline is not None and deadline <= now:
            self._handle(TimePassed())
        self._set_timer()


def main() -> None:
    """Run the controller process. Its argument is a ControllerConfig as JSON; the token is in FLOWDIST_TOKEN."""
    print_printable_only()  # the log quotes what other hosts send
    config = msgspec.json.decode(sys.argv[1], type=ControllerConfig)
    graph = decode_graph(Path(config.run_dir, "graph.json").read_bytes())
    token = os.environ.pop(TOKEN, "")
    asyncio.run(_ControllerProcess(config, graph, token).run())


if __name__ == "__main__":
    main()
