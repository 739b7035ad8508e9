"""The controller process at work: it feeds the pure controller, writes the journal, and sends effects to the agents.

A record is written before its effects are carried out (R21), and forced to the disk (fsync) when a generation begins
and when the job ends. After an unexpected exception the supervisor starts the next controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from functools import partial
from pathlib import Path
from typing import assert_never

import msgspec

from flowdist.control.connection.objections import objection, objection_to_proof, objection_to_sender
from flowdist.control.connection.sessions import Sessions
from flowdist.control.protocol.effects import Decided, Effect, FinishJob, OpenStore
from flowdist.control.protocol.events import ControllerStarted, Event, TimePassed
from flowdist.control.protocol.ids import NodeName
from flowdist.control.protocol.messages import Heartbeat, Join, Leave, Preempted, Report, ToAgent, ToController
from flowdist.graph import RoleGraph
from flowdist.record.journal import FaultLine, Header, Line, Record
from flowdist.record.replay import Replay
from flowdist.record.status import Decision, Status, status_of
from flowdist.runtime.clock import boot_ns, wall_clock
from flowdist.runtime.controller.alarm import Alarm
from flowdist.runtime.controller.channel import listen
from flowdist.runtime.controller.host_news import HostNews
from flowdist.runtime.controller.host_registry import HostRegistry, Listening
from flowdist.runtime.controller.intake import Intake
from flowdist.runtime.controller.journal_file import JournalFile
from flowdist.runtime.controller.limits import READ_AHEAD
from flowdist.runtime.controller.metrics import serve_metrics
from flowdist.runtime.controller.refusals import Refusals
from flowdist.runtime.controller.watchers import Watchers
from flowdist.runtime.injection.link_faults import LinkFaults
from flowdist.runtime.last_words import die_of
from flowdist.runtime.processes.unexpected import watch_loop
from flowdist.runtime.remote_logs.log_relay import LogRelay
from flowdist.runtime.run_folder.remote_error_report import save_report
from flowdist.runtime.run_folder.resume import checked_header
from flowdist.runtime.wire.endpoint import DeathProof
from flowdist.runtime.wire.frames import (
    Answered,
    Describe,
    Described,
    Farewell,
    HealLink,
    HostFrame,
    Injected,
    JoinRequest,
    LinkFault,
    Operate,
    RemoteErrorReport,
    RemoteFault,
    ToControllerFrame,
    Watch,
    Welcome,
    encode,
    read_to_controller,
)
from flowdist.runtime.wire.handshake import HANDSHAKE_S, Refused
from flowdist.runtime.wire.log_messages import LogAnswer, LogRequest
from flowdist.runtime.wire.tls import Identity

# Frames that the controller accepts from other hosts: no order of the operator, no query, no fault, no whole journal
RemoteFrame = ToController | HostFrame
LOST_LINES = "the journal there lost its last lines in a crash: join the job again"
FLUSH_S = 2.0  # how long the other hosts have to read the last frames


class ControllerConfig(msgspec.Struct, frozen=True):
    """Configuration of the controller process; one that finds a journal in `run_dir` continues its job (R21)."""

    run_dir: str
    run_id: str
    control_socket: str  # path of the Unix socket for the agents of this host, the supervisor and other commands
    known_nodes: tuple[NodeName, ...]  # nodes that are expected from the start
    start_ns: int  # start of the job, on CLOCK_BOOTTIME
    lifeline: int  # file descriptor of a pipe that ends when the supervisor ends: this process then ends too
    link_faults: tuple[LinkFault, ...] = ()  # injected faults of connections that are in force
    listening: Listening | None = None  # None: no other hosts may join
    metrics: int | None = None  # file descriptor of a listening socket for scrapes
    doors: tuple[int, ...] = ()  # descriptors of the sockets that listen for other hosts
    is_standby: bool = False  # wait until stdin has the configuration to begin with


class ControllerProcess:
    """The controller process: it passes messages and the time to the pure controller and carries out its effects.

    An empty `token` is none. Without `identity`, connections of other hosts are not encrypted.
    """

    def __init__(self, config: ControllerConfig, graph: RoleGraph, token: str, identity: Identity | None) -> None:
        self._config = config
        job = config.listening.door.job if config.listening is not None else ""
        self._refusals = Refusals()
        run_dir = Path(config.run_dir)
        known = config.known_nodes
        self._hosts = HostRegistry(graph, job, config.run_id, run_dir, token, known, self._refusals, identity)
        self._remote: dict[asyncio.StreamWriter, None] = {}  # connections of other hosts
        self._intake = Intake(self._hosts, self._refusals)
        self._log_relay = LogRelay(self._hosts.connection_of, self._send)
        header = Header(graph, config.known_nodes, config.run_id, began_at=wall_clock(config.start_ns))
        self._replay = Replay(header, source=str(Path(config.run_dir, "journal.jsonl")))
        self._controller = self._replay.controller
        self._sessions = Sessions(graph.options)
        self._journal = JournalFile(Path(config.run_dir, "journal.jsonl"))
        self._last_ns = 0
        self._agents: dict[NodeName, asyncio.StreamWriter] = {}
        self._link_faults = LinkFaults(config.link_faults)
        self._watchers = Watchers(self._journal.path)
        self._news = HostNews(self._controller.state, lambda: self._journal.place, self._write_frame)
        self._alarm = Alarm(self._now, self._time_passed)
        self._last_heard_ns: dict[NodeName, int] = {}
        self._took_over: ControllerStarted | None = None
        if self._journal.lines:
            self._take_over()
        else:
            self._write(header, force=True)

    def _take_over(self) -> None:
        """Rebuild the state of the job from the journal (R21); `run` handles the event that a new epoch begins."""
        checked_header(self._journal.lines, Path(self._config.run_dir))
        self._last_ns = self._replay.follow(self._journal.lines).t_ns
        self._journal.lines.clear()
        state = self._controller.state
        local = [node.name for node in state.graph.cluster.nodes]
        remote = [name for name in state.nodes if name not in local] if self._config.listening is not None else []
        took_over = self._sessions.take_over(state, self._now(), remote)
        self._took_over = msgspec.structs.replace(took_over, at=wall_clock(boot_ns()))

    async def run(self) -> None:
        """Serve agents, hosts, operators and scrapes until the supervisor ends.

        SIGTERM does nothing: a batch system that cancels a job sends it to all, and the job needs its controller.
        """
        self._loop = asyncio.get_running_loop()
        watch_loop(die_of)
        self._over = asyncio.Event()
        self._loop.add_reader(self._config.lifeline, self._over.set)
        self._loop.add_signal_handler(signal.SIGTERM, lambda: None)  # not SIG_IGN, which children would inherit
        if self._took_over is not None:
            self._handle(self._took_over)
        Path(self._config.control_socket).unlink(missing_ok=True)
        before = os.umask(0o177)  # another user must not be able to connect, not even for a moment
        server = await asyncio.start_unix_server(self._serve, self._config.control_socket)
        os.umask(before)
        servers = [server]
        if self._config.metrics is not None:
            servers.append(await serve_metrics(self._config.metrics, self._status, self._refusals))
        for door in self._config.doors:  # other hosts may have connected while no controller ran
            servers.append(await listen(self._serve_remote, READ_AHEAD, socket.socket(fileno=door)))
        self._set_timer()
        await self._over.wait()
        for each in servers:
            each.close()
        await self._close_remote()
        self._refusals.sum_up()

    async def _serve_remote(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if await self._intake.open(writer) and await self._hosts.admit(reader, writer):
                self._remote[writer] = None
                self._intake.admit(writer)
                await self._serve(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()  # this process ends
        finally:
            self._remote.pop(writer, None)
            self._news.remove(writer)
            self._hosts.disconnected(writer)
            self._log_relay.disconnected(writer)
            await self._intake.end(writer)

    async def _close_remote(self) -> None:
        """Send other hosts the rest of their news, or a Farewell, and end the connections within FLUSH_S seconds."""
        await self._log_relay.wait_for_last()
        until = self._loop.time() + FLUSH_S
        await self._watchers.finish(FLUSH_S)
        if self._controller.state.outcome is None:
            self._news.send_all(Farewell("flowdist ended there before the job was over"))
        for writer in self._remote:
            with contextlib.suppress(OSError, RuntimeError):
                writer.write_eof() if writer.can_write_eof() else writer.close()  # TLS ends in both directions at once
        while self._remote and self._loop.time() < until:
            await asyncio.sleep(0.01)

    def _now(self) -> int:
        """Return the time since the start of the job in ns, which never decreases, not even after a take-over."""
        self._last_ns = max(self._last_ns, boot_ns() - self._config.start_ns)
        return self._last_ns

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (message := await self._read(reader, writer)) is not None:
                self._handle_message(message, writer)
                del message  # which may take 2 MB, and the next one may be long in coming
                with contextlib.suppress(OSError):  # the peer is gone, but it may have sent more
                    await writer.drain()  # a peer that does not read its answers is not read either
        except (msgspec.MsgspecError, RecursionError) as error:
            self._intake.drop(writer, str(error))
        except TimeoutError:
            self._intake.drop(writer, f"it has not joined for {HANDSHAKE_S:g} s")
        except asyncio.CancelledError:
            pass  # this process ends; else asyncio would print a traceback
        except Exception as error:
            die_of(error)
        finally:
            self._watchers.remove(writer)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ToControllerFrame | None:
        """Wait for the next message of a connection; None if it has ended.

        MsgspecError if the frame is invalid, or its sender may not send it; TimeoutError if another host does not join.
        """
        if writer not in self._remote:
            return await read_to_controller(reader)
        message = await self._intake.read(reader, writer)
        if message is not None:
            self._check_remote(message, writer)
        return message

    def _check_remote(self, message: ToControllerFrame, writer: asyncio.StreamWriter) -> None:
        """Raise ValidationError for a frame that another host may not send, or not while it has no node."""
        if not isinstance(message, RemoteFrame):
            raise msgspec.ValidationError(f"other hosts may not send {type(message).__name__}")
        if not self._hosts.node_of(writer) and not isinstance(message, JoinRequest):
            raise msgspec.ValidationError(f"a host without a node may not send {type(message).__name__}")

    def _sender(self, writer: asyncio.StreamWriter) -> NodeName | None:
        """Return the node that a connection may speak for; None for a process of this host, which may for any."""
        return self._hosts.node_of(writer) if writer in self._remote else None

    def _status(self) -> Status:
        now = self._now()
        spent = self._replay.sheet.spent(now)
        lost = self._replay.sheet.lost()
        status = status_of(self._controller.state, self._replay.decisions, self._config.run_id, now, spent, lost)
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
                if writer in self._watchers:
                    raise msgspec.ValidationError("a connection may watch the journal once")
                self._watchers.add(message, writer)
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
                    self._news.send_now(message.node)  # the host lets faults hit what it knows to have started
                    self._send(connection, message)
            case LogRequest():
                self._log_relay.ask(message, writer)
            case LogAnswer():
                self._log_relay.answer(message, writer)
            case JoinRequest():
                self._welcome(message, writer)
            case DeathProof():
                self._handle_death_proof(message, writer)
            case RemoteErrorReport():
                self._save_report(message, writer)
            case Join() | Heartbeat() | Report() | Preempted() | Leave():
                sender = self._sender(writer)  # now: a frame may arrive late, when the connection has ended
                late = partial(self._handle_agent, message, writer, sender)
                self._link_faults.carry(sender or message.node, "up", writer, late)
            case _:
                assert_never(message)

    def _welcome(self, request: JoinRequest, writer: asyncio.StreamWriter) -> None:
        """Answer a host that asks to join, and send it the news of its node from now on if it is welcome."""
        answer: Welcome | Refused = Refused(LOST_LINES)
        if self._journal.has(request.place):
            answer = self._hosts.welcome(request, self._controller.state, writer, self._now())
        self._send(writer, answer)
        self._intake.note_node(writer)
        if isinstance(answer, Welcome):
            self._news.add(answer.node, writer, shows_progress=request.shows_progress)

    def _operate(self, message: Operate, writer: asyncio.StreamWriter) -> None:
        self._sessions.note(message.event)
        done = self._handle(message.event)
        if message.answer:
            said = [Decision.of(done.t_ns, effect) for effect in done.effects if isinstance(effect, Decided)]
            self._send(writer, Answered(done.n, tuple(said)))

    def _handle_death_proof(self, proof: DeathProof, writer: asyncio.StreamWriter) -> None:
        if why := objection_to_proof(proof.node, proof.incarnation, self._sender(writer)):
            self._refusals.note(self._hosts.source_of(writer), why)
            return
        for event in self._sessions.gone(proof.node, proof.incarnation, proof.cause):
            self._handle(event)

    def _save_report(self, report: RemoteErrorReport, writer: asyncio.StreamWriter) -> None:
        if why := objection_to_sender(report.node, self._sender(writer)):
            self._refusals.note(self._hosts.source_of(writer), why)
            return
        save_report(report, self._controller.state, Path(self._config.run_dir))

    def _handle_agent(self, message: ToController, writer: asyncio.StreamWriter, sender: NodeName | None) -> None:
        if why := objection(message, self._controller.state, sender):
            self._refusals.note(self._hosts.source_of(writer), why)
            return
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
        """Have the pure controller decide about an event, write the record, and carry out the effects.

        An exception ends this process, whatever the caller catches: state and journal would differ from then on.
        """
        try:
            line = self._replay.decide(event, self._now())
            force = any(isinstance(effect, OpenStore | FinishJob) for effect in line.effects)
            self._write(line, force=force)
            for effect in line.effects:
                self._carry_out(effect)
            self._news.note(line)
            self._set_timer()
        except Exception as error:
            die_of(error)
        return line

    def _write(self, line: Line, *, force: bool) -> None:
        self._watchers.wrote(self._journal.write(line, force=force))

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Decided():
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
        self._write_frame(writer, encode(message))

    def _write_frame(self, writer: asyncio.StreamWriter, frame: bytes) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):
            if self._intake.may_send(writer):
                writer.write(frame)

    def _set_timer(self) -> None:
        times = [time for time in (self._controller.deadline(), self._sessions.detector.deadline()) if time is not None]
        self._alarm.set(max(0, min(times) - self._now()) / 1e9 if times else None)

    def _time_passed(self, now: int) -> None:
        """Handle the deadlines that have passed by `now`, in ns: every message that had arrived by then is handled."""
        for event in self._sessions.detector.expire(now):
            self._handle(event)
        deadline = self._controller.deadline()
        if deadline is not None and deadline <= now:
            self._handle(TimePassed())
        self._set_timer()
