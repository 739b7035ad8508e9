"""The foreground process of a host that has joined the job of another host: it runs one node of the job.

News of its node comes over its own connection to the controller. Events are printed once, on the controller's host;
this one prints what it alone knows, and a digest on a terminal. Without a connection for `controller_outage`, it
stops everything on this host.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from flowdist.control.protocol.effects import FinishJob, StartReplica
from flowdist.control.protocol.events import ReplicaExited
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.errors import JobFailed
from flowdist.graph import NodeSpec, RoleGraph, format_duration
from flowdist.runtime.agent.node_config import NodeConfig
from flowdist.runtime.injection.remote_faults import Paused, apply, workers_hit
from flowdist.runtime.joined.joining import RETRY_S, Connection, Joined, rejoin
from flowdist.runtime.processes.pausing import PausedNode
from flowdist.runtime.remote_logs.log_server import LogServer
from flowdist.runtime.run_folder.folder import lock_run
from flowdist.runtime.run_folder.logs import OpenSink
from flowdist.runtime.run_folder.runs import known_mask
from flowdist.runtime.supervisor.event_printer import KINDS, Show
from flowdist.runtime.supervisor.host_process import NOTICE_NS, WIND_DOWN_S, HostProcess
from flowdist.runtime.supervisor.local_node import LocalNode, Site
from flowdist.runtime.wire.endpoint import DeathProof
from flowdist.runtime.wire.frames import (
    Digest,
    Farewell,
    FromControllerFrame,
    JobOver,
    JoinRequest,
    NodeNews,
    Place,
    RemoteFault,
    encode,
    read_from_controller,
)
from flowdist.runtime.wire.handshake import HOST_SECRET, ConnectionRejected
from flowdist.runtime.wire.log_messages import LogRequest

LOG = "node.log"
LEAVE_S = 30.0  # for the node to leave after an interrupt, besides the grace of its workers


@dataclass(slots=True)
class LastReport:
    """A replica with the last report of its failure, if there was one."""

    id: ReplicaId
    exited: ReplicaExited | None


class HostResult(NamedTuple):
    """The end of the job, as a joined host knows it: of the replicas, those that it ran or that have failed."""

    over: JobOver
    replicas: dict[ReplicaId, LastReport]

    @property
    def ending_failed(self) -> tuple[ReplicaId, ...]:
        """The replicas whose failure has ended the job."""
        return self.over.failed


class JoinedHost:
    """One node of a job whose controller is on another host.

    The node's name comes from `joined`, its size from `spec`; `devices` are its GPUs as CUDA_VISIBLE_DEVICES has them.
    `shows_progress`: show the starts here, and a digest of what happens elsewhere. `notice_ns` is from SIGUSR1 until
    this machine is taken away.
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
        *,
        shows_progress: bool = False,
        notice_ns: int = NOTICE_NS,
    ) -> None:
        welcome = joined.welcome
        self._joined, self._spec, self._site, self._devices = joined, spec, site, devices
        os.environ[HOST_SECRET] = joined.credentials.secret  # for the guardian; workers do not get it
        self._name, self._show, self._graph = welcome.node, show, graph
        self._host = HostProcess(run_dir, lock_run(run_dir), [self._name], show, open_sink)
        self._logs = LogServer(run_dir, graph, known_mask(graph, os.environ))
        self._writer: asyncio.StreamWriter | None = joined.connection.writer
        self._notice_ns = notice_ns
        self._place, self._shows_progress = Place(), shows_progress
        self._starts: dict[ReplicaId, StartReplica] = {}  # the last attempt of each replica that has started here
        self._over: JobOver | None = None
        self._interrupts = 0
        self._lost = ""  # why the job is over for this host although it has not ended

    async def run(self) -> HostResult:
        """Run the node until the job is over, the node has left it, or the controller is lost; nothing is left then.

        JobFailed if the controller is lost or refuses this host, or the node's guardian keeps failing; RunBroken after
        an unexpected exception; KeyboardInterrupt if an interrupt made the node leave before the job was over.
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
        host.end(KeyboardInterrupt() if self._interrupts else JobFailed(self._lost))
        assert self._over is not None
        exits = {exited.replica: exited for exited in self._over.exits}
        names = sorted({*self._starts, *exits})
        return HostResult(self._over, {name: LastReport(name, exits.get(name)) for name in names})

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

        A guardian that ends by itself does both itself. Without a connection the controller waits for the lease's end.
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
        """Read the news, over a new connection within `controller_outage` if one is lost (R21), until the job's end."""
        connection: Connection | None = self._joined.connection
        address = self._joined.controller.address
        while connection is not None:
            self._writer = connection.writer
            await self._read(connection.reader)
            self._writer.close()
            self._writer = None
            if self._host.finished is not None or self._lost:
                return
            self._show("warning", f"connection to the controller at {address} lost; connecting again")
            connection = await self._reconnect()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Handle the controller's messages until the connection ends, a message is invalid, or the controller ends."""
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            while (message := await read_from_controller(reader)) is not None:
                self._handle(message)
                if self._lost:
                    return

    def _handle(self, message: FromControllerFrame) -> None:
        match message:
            case NodeNews():
                self._place = message.place
                for start in message.starts:
                    self._note_start(start)
            case Digest():
                self._show_digest(message)
            case RemoteFault():
                if message.node == self._name:
                    self._faults.inject(message, self._starts)
            case LogRequest():
                if self._writer is not None:
                    self._writer.write(encode(self._logs.answer(message)))
            case JobOver():
                self._note_over(message)
            case Farewell():
                self._end(f"the controller at {self._joined.controller.address} is gone: {message.reason}")
            case _:
                pass  # messages to agents, which do not come here

    async def _reconnect(self) -> Connection | None:
        """Connect to the controller again; None, after `_end`, if it refuses or for `controller_outage`."""
        address = self._joined.controller.address
        outage_ns = self._graph.options.controller_outage_ns
        request = JoinRequest(place=self._place, shows_progress=self._shows_progress)
        try:
            connection = await rejoin(self._joined, request, outage_ns)
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

    def _note_start(self, start: StartReplica) -> None:
        """Show the output of an attempt that starts here, unless that is done already: news may come again."""
        role = next((role for role in self._graph.roles if role.name == start.replica.role), None)
        before = self._starts.get(start.replica)
        if start.node != self._name or role is None or not 0 <= start.replica.index < role.max_replicas:
            return
        if before is not None and before.attempt >= start.attempt:
            return
        follower = self._host.follower
        if before is not None:
            follower.read()
            follower.end(before)
        self._starts[start.replica] = start
        follower.follow(start, role)
        if self._shows_progress:
            ranks = f", rank {start.rank} of {start.world_size}" if start.world_size > 1 else ""
            self._show("event", f"{start.replica}: attempt {start.attempt} begins here{ranks}")

    def _show_digest(self, digest: Digest) -> None:
        for said in digest.said:
            self._show(KINDS[said.level], f"at {said.t_ns / 1e9:.2f}s: {said.text}")
        if digest.left_out:
            self._show("event", f"{digest.left_out} more messages are printed on the host with the controller")

    def _note_over(self, over: JobOver) -> None:
        """End this process, but give the node the time to end by itself: the controller dismisses its agent."""
        self._over, self._host.finished = over, FinishJob(over.outcome, over.reason)
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
        grace_s = max((role.grace_ns for role in self._graph.roles), default=0) / 1e9
        await self._host.wait(grace_s + LEAVE_S)
        if not self._host.over.is_set():
            self._show("warning", f"{self._name} has not left {grace_s + LEAVE_S:.0f} s after the interrupt")
            self._host.over.set()

    async def _wind_down(self) -> None:
        """End every process of the run on this host; those that do not end within WIND_DOWN_S are killed."""
        self._faults.resume_all()
        await self._host.end_processes()
        if self._over is not None:
            await self._logs.wait_for_last()
        self._host.cancel_tasks()
        if self._writer is not None:
            with contextlib.suppress(OSError, RuntimeError, TimeoutError):
                await asyncio.wait_for(self._writer.drain(), RETRY_S)
            self._writer.close()
        await self._host.close()


class FaultTarget:
    """Injector of the supervisor's faults on a joined host: into its node, or workers of the node, by their pid files.

    That gives the controller's host no new power: a host that joins a job runs the job's commands anyway.
    """

    def __init__(self, node: LocalNode, run_dir: Path, show: Show) -> None:
        self._node, self._run_dir, self._show = node, run_dir, show
        self._paused: list[PausedNode | Paused] = []

    def inject(self, fault: RemoteFault, started: Container[ReplicaId]) -> None:
        """Announce a fault and inject it, but not into a node or workers that do not run, or replicas not in `started`.

        After the fault's duration a pause or slowdown ends, and a node that was killed or has left is started again.
        """
        guardian = self._node.process
        if guardian is None:
            return
        self._show("warning", f"a fault hits {fault.target}: {fault.kind}")
        if fault.replica is not None:
            if fault.replica in started:
                for folder in workers_hit(self._run_dir, fault):
                    if (paused := apply(folder, fault)) is not None:  # a hang lasts until the worker is killed
                        self._pause_for(paused, fault.duration_ns if fault.kind != "hang" else None)
            return
        match fault.kind:
            case "pause":
                node = PausedNode(guardian.pid)
                node.pause()
                self._pause_for(node, fault.duration_ns)
            case "kill" | "leave":
                self._node.take_away(fault)

    def resume_all(self) -> None:
        """Resume all processes that faults have paused or slowed down. The faults end with that."""
        for paused in list(self._paused):
            self._resume(paused)

    def _pause_for(self, paused: PausedNode | Paused, duration_ns: int | None) -> None:
        self._paused.append(paused)
        if duration_ns is not None:
            asyncio.get_running_loop().call_later(duration_ns / 1e9, self._resume, paused)

    def _resume(self, paused: PausedNode | Paused) -> None:
        if paused in self._paused:
            self._paused.remove(paused)
            paused.resume()
