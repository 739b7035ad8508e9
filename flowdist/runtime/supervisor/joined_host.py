"""The foreground process of a host that has joined the job of another host: it runs one node of the job.

The process reads the journal over its own connection to the controller, as the supervisor does on the controller's
host. When it has had no connection for `controller_outage`, it stops everything on this host.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from hashlib import sha256
from pathlib import Path

import msgspec

from flowdist.control.protocol.events import NodeJoined
from flowdist.control.protocol.ids import NodeName
from flowdist.errors import JobFailed
from flowdist.graph import NodeSpec, RoleGraph, format_duration
from flowdist.record.journal import Line
from flowdist.record.reader import BadLine, RecordReader
from flowdist.runtime.agent.node_config import NodeConfig
from flowdist.runtime.run_folder.folder import lock_run
from flowdist.runtime.run_folder.logs import OpenSink
from flowdist.runtime.supervisor.event_printer import Show
from flowdist.runtime.supervisor.fault_target import FaultTarget
from flowdist.runtime.supervisor.host_process import NOTICE_NS, WIND_DOWN_S, HostProcess, RunResult
from flowdist.runtime.supervisor.joining import RETRY_S, Connection, Joined, rejoin
from flowdist.runtime.supervisor.local_node import LocalNode, Site
from flowdist.runtime.wire.endpoint import DeathProof
from flowdist.runtime.wire.fault_messages import RemoteFault
from flowdist.runtime.wire.frames import Farewell, JournalLine, Watch, encode, read_from_controller
from flowdist.runtime.wire.handshake import HOST_SECRET, ConnectionRejected

LOG = "node.log"
LEAVE_S = 30.0  # for the node to leave after an interrupt, besides the grace of its workers


class JoinedHost:
    """One node of a job whose controller is on another host.

    Args:
        joined: The place of this host in the job, from `join_job`.
        spec: The size of the node; its name comes from `joined`.
        graph: The job, as this host runs it.
        site: The address of this host.
        devices: The GPUs of the node, as CUDA_VISIBLE_DEVICES names them.
        run_dir: The folder of the run on this host, for logs.
        show: Prints a line on the terminal.
        open_sink: Selects where the output of a worker goes, if not to the terminal.
        notice_ns: Time in ns from SIGUSR1 until this machine is taken away.
    """

    def __init__(
        self,
        joined: Joined,
        spec: NodeSpec,
        graph: RoleGraph,
        site: Site,
        devices: tuple[str, ...],
        run_dir: Path,
        show: Show,
        open_sink: OpenSink | None = None,
        notice_ns: int = NOTICE_NS,
    ) -> None:
        welcome = joined.welcome
        self._joined, self._spec, self._site, self._devices = joined, spec, site, devices
        os.environ[HOST_SECRET] = joined.credentials.secret  # for the guardian; workers do not get it
        self._name, self._show = welcome.node, show
        self._host = HostProcess(
            run_dir, lock_run(run_dir), [self._name], graph, welcome.known_nodes, show, open_sink, welcome.graph
        )
        self._writer: asyncio.StreamWriter | None = joined.connection.writer
        self._reader, self._digest = RecordReader(f"journal.jsonl at {joined.controller.address}"), sha256()
        self._notice_ns = notice_ns
        self._is_catching_up = True  # reading what happened before this host joined
        self._interrupts = 0
        self._lost = ""  # why the job is over for this host although it has not ended

    async def run(self) -> RunResult:
        """Run the node until the job is over, the node has left the job, or the controller is lost.

        Nothing of the run is left on this host then.

        Returns:
            The result of the job.

        Raises:
            JobFailed: The controller is lost or refuses this host, or the guardian of the node keeps failing.
            RunBroken: An unexpected exception has ended this process.
            KeyboardInterrupt: An interrupt made the node leave before the job was over.
        """
        host = self._host
        host.begin(self._interrupted, self._noticed)
        self._node = LocalNode(host, self._config(), LOG, self)
        self._faults = FaultTarget(self._node, host.run_dir, self._show)
        host.background(self._keep_connected())
        try:
            await self._node.start()
            while not host.over.is_set():
                await host.wait()
                host.follower.read()
        except Exception as error:
            host.fail(error)
        finally:
            await self._wind_down()
        return host.result([], KeyboardInterrupt() if self._interrupts else JobFailed(self._lost))

    def _config(self) -> NodeConfig:
        host, welcome = self._host, self._joined.welcome
        return NodeConfig(
            node=msgspec.structs.replace(self._spec, name=self._name),
            number=welcome.number,
            incarnation=welcome.incarnation,
            run_dir=str(host.run_dir),
            run_id=welcome.run_id,
            control_socket="",
            socket_dir=str(host.sockets),
            lifeline=host.lifeline,
            lock=host.lock,
            devices=self._devices,
            controller=self._joined.controller,
            notice_ns=self._notice_ns,
            **self._site._asdict(),
        )

    def node_starts(self, node: NodeName) -> None:
        """Do nothing: the controller learns of the new incarnation from its agent."""

    async def guardian_ended(self, node: NodeName, *, was_killed: bool) -> None:
        """Kill the rest of the node if its guardian was killed, and then send the controller the proof of death.

        A guardian that ends by itself does both itself. Without a connection no proof is sent: the controller waits for
        the end of the node's lease. If this host is leaving the job, or the job has ended, this process ends now.
        """
        if was_killed:
            await self._host.processes.kill_others(self._host.warn)
            if self._writer is not None:
                proof = DeathProof(node, self._node.last_incarnation, "its guardian was killed")
                self._writer.write(encode(proof))
        if self._interrupts or self._host.finished is not None:
            self._host.over.set()

    def node_gone(self, node: NodeName, cause: str, *, is_given_up: bool) -> None:
        """End this process if the node was given up: this host has no other node."""
        if is_given_up:
            self._end(f"{node}: {cause}")

    async def _keep_connected(self) -> None:
        """Read the journal; when the connection is lost, connect again within `controller_outage` (R21).

        The coroutine returns when the job has ended, the controller has said farewell, or no new connection was made.
        """
        connection: Connection | None = self._joined.connection
        address = self._joined.controller.address
        while connection is not None:
            self._writer = connection.writer
            self._writer.write(encode(Watch(self._reader.lines, self._digest.digest())))
            await self._read(connection.reader)
            self._writer.close()
            self._writer = None
            if self._host.finished is not None or self._lost:
                return
            self._show("warning", f"connection to the controller at {address} lost; connecting again")
            connection = await self._reconnect()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Handle the controller's messages until the connection ends, a message is invalid, or the controller ends.

        Messages are lines of the journal, faults for this node, and the farewell, which ends this process.
        """
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            while (message := await read_from_controller(reader)) is not None:
                match message:
                    case JournalLine():
                        self._digest.update(message.line)
                        try:
                            self._handle_line(self._reader.read(message.line))
                        except BadLine as bad:  # the next connection would bring the same line
                            self._end(f"the job cannot be followed any more: {bad.message}")
                            return
                    case RemoteFault():
                        if message.node == self._name:
                            self._faults.inject(message, self._host.state)
                    case Farewell():
                        self._end(f"the controller at {self._joined.controller.address} is gone: {message.reason}")
                        return

    async def _reconnect(self) -> Connection | None:
        """Connect to the controller again and return the connection.

        If the controller refuses this host, or does not answer for `controller_outage`, return None after `_end`.
        """
        address = self._joined.controller.address
        outage_ns = self._host.state.graph.options.controller_outage_ns
        try:
            connection = await rejoin(self._joined, outage_ns)
        except ConnectionRejected as error:
            self._end(f"the controller at {address} refuses this host: {error.message}")
            return None
        except TimeoutError as error:
            why = f" ({error})" if str(error) else ""
            away = format_duration(outage_ns)
            self._end(f"no controller has answered at {address} for {away}{why}; everything on this host was stopped")
            return None
        self._show("event", "connected to the controller again")
        return connection

    def _handle_line(self, line: Line) -> None:
        record = self._host.apply(line)
        if record is None:
            return
        if isinstance(record.event, NodeJoined) and record.event.node == self._name:
            self._is_catching_up &= record.event.incarnation < self._joined.welcome.incarnation
        if self._is_catching_up:
            self._host.printer.skip(record)
            return
        if self._host.print(record):
            # The controller dismisses the agent, whose guardian then ends: normally that ends this process earlier.
            wait_s = WIND_DOWN_S if self._node.process is not None else 0
            asyncio.get_running_loop().call_later(wait_s, self._host.over.set)
            self._faults.resume_all()

    def _end(self, why: str) -> None:
        """End this process although the job has not ended. The first reason is the one that `run` raises."""
        self._lost = self._lost or why
        self._host.over.set()

    def _noticed(self) -> None:
        """Have the work on the node move elsewhere, because this machine is about to be taken away."""
        self._show("warning", f"{self._name} is about to be taken away (SIGUSR1): its work moves elsewhere")
        self._node.give_notice()

    def _interrupted(self) -> None:
        """Leave the job in order at the first interrupt; at the second, or if the node does not run, at once."""
        self._interrupts += 1
        guardian = self._node.process
        if self._interrupts > 1 or guardian is None:  # None: a fault has taken the node away
            self._host.over.set()
        if self._interrupts == 1:
            self._show("warning", f"{self._name} is leaving the job; a second interrupt ends it at once")
            if guardian is not None:
                self._node.leave()
                self._host.background(self._see_to_the_end())

    async def _see_to_the_end(self) -> None:
        """End this process if the node has not left after the grace of its workers, as while its agent stands still."""
        grace_s = max((role.grace_ns for role in self._host.state.graph.roles), default=0) / 1e9
        await self._host.wait(grace_s + LEAVE_S)
        if not self._host.over.is_set():
            self._show("warning", f"{self._name} has not left {grace_s + LEAVE_S:.0f} s after the interrupt")
            self._host.over.set()

    async def _wind_down(self) -> None:
        """End every process of the run on this host; those that do not end within WIND_DOWN_S are killed."""
        self._faults.resume_all()
        await self._host.end_processes()
        self._host.cancel_tasks()
        if self._writer is not None:
            with contextlib.suppress(OSError, RuntimeError, TimeoutError):
                await asyncio.wait_for(self._writer.drain(), RETRY_S)
            self._writer.close()
        self._host.close()
