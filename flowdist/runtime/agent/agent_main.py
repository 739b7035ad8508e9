"""The agent process of a node, which drives the pure agent (`flowdist.control.agent`), and makes no decisions.

After an unexpected exception the guardian kills the rest of the node, and the controller learns that it is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sys
from collections import deque
from pathlib import Path
from typing import assert_never

import msgspec

from flowdist.control.agent.agent import Agent
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.events import ReplicaUnkillable
from flowdist.control.protocol.messages import Acked, Dismissed, Heartbeat, Ordered, Rejoin, Report, ToController
from flowdist.graph import decode_graph
from flowdist.graph.warmth import cold_because
from flowdist.runtime.agent.lease_watch import LeasePage
from flowdist.runtime.agent.node_config import NOTICE_NODE, NodeConfig
from flowdist.runtime.agent.vault_link import VaultLink
from flowdist.runtime.agent.worker_socket import WorkerSocket
from flowdist.runtime.agent.workers import Workers
from flowdist.runtime.clock import boot_ns
from flowdist.runtime.gpus.guard import GpuGuard
from flowdist.runtime.last_words import die_of
from flowdist.runtime.processes import spawn_protocol as spawner
from flowdist.runtime.processes.process_states import Relatives
from flowdist.runtime.processes.unexpected import start_task, watch_loop
from flowdist.runtime.run_folder.folder import agent_socket, vault_socket
from flowdist.runtime.stores.stores import Stores
from flowdist.runtime.wire.addresses import Endpoint, endpoint_of
from flowdist.runtime.wire.dialing import dial
from flowdist.runtime.wire.frames import encode, read_from_controller
from flowdist.runtime.wire.handshake import ConnectionRejected, Credentials
from flowdist.runtime.worker_env import stop_notice
from flowdist.runtime.worker_env.environment import RunPaths

LOCAL_RETRY_S = 0.02  # between two attempts to connect to a controller on this host
LAST_MESSAGE_S = 2.0  # for a controller to read the last message: one that stands still reads nothing
SPARE_S = 5.0  # so long nothing runs on a node that is spare: first come workers of others, perhaps on this machine
REMOTE_RETRY_S = 0.1  # to one on another host, which may have many hosts to serve


def run_agent(
    config: NodeConfig,
    channel: socket.socket,
    credentials: Credentials,
    page: LeasePage | None = None,
    spawner_pid: int = 0,
) -> bool:
    """Run the agent process, which the guardian has forked, until the job is over or the node has left it.

    Return whether the controller was told: the node may have left while none was connected. `page` gets the end of the
    lease, for the guardian. If the spawner (pid 0: not watched) ends, this exits with 1.
    """
    for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME") if config.interface else ():
        os.environ.setdefault(name, config.interface)  # else gloo looks up the host's name, which may fail
    with contextlib.suppress(asyncio.CancelledError):
        return asyncio.run(_AgentProcess(config, channel, credentials, page or LeasePage(), spawner_pid).run())
    return True


class _AgentProcess:
    """Event loop around the pure agent. The arguments are those of `run_agent`."""

    def __init__(
        self, config: NodeConfig, channel: socket.socket, credentials: Credentials, page: LeasePage, spawner_pid: int
    ) -> None:
        self._relatives = Relatives(os.getppid(), spawner_pid)
        self._config, self._spawner, self._credentials = config, spawner.Channel(channel), credentials
        self._page = page
        graph = decode_graph(Path(config.run_dir, "graph.json").read_bytes()).on(config.node)
        self._graph = graph
        self._agent = Agent(config.node, graph, config.address, config.incarnation)
        checkpoints = graph.checkpoint_dir or str(Path(config.run_dir, "checkpoints"))
        socket_path = str(Path(config.socket_dir, agent_socket(config.node.name)))
        vault = str(Path(config.socket_dir, vault_socket(config.node.name)))
        self._paths = RunPaths(config.run_dir, config.run_id, checkpoints, socket_path, vault)
        self._inputs: deque[io.AgentInput] = deque()
        self._is_handling = False
        self._timer: asyncio.TimerHandle | None = None
        self._writer: asyncio.StreamWriter | None = None
        python = os.environ.get("PYTHON_EXEC", sys.executable)
        reasons = [cold_because(role, python, sys.executable) for role in graph.roles]
        self._starts_cold = any(reasons)

    async def run(self) -> bool:
        """Serve workers, spawner and controller until the pure agent orders the end of this process (EndAgent).

        Return whether a controller is connected then.
        """
        self._loop = asyncio.get_running_loop()
        watch_loop(die_of)
        self._over = asyncio.Event()
        self._set_up_workers()
        self._loop.add_signal_handler(signal.SIGTERM, self._handle, io.LeaveRequested())
        self._loop.add_signal_handler(NOTICE_NODE, self._handle, io.PreemptionNoticed(self._config.notice_ns))
        self._prepare(self._workers.prefixes())
        server = await self._sockets.serve(self._paths.worker_socket)
        self._vault: VaultLink | None = None
        if any(role.snapshots is not None for role in self._graph.roles):
            self._vault = VaultLink(self._config, self._graph, self._credentials, self._paths.vault, self._handle)
            start_task(self._vault.run(), die_of)
        connection = start_task(self._keep_connected(), die_of)
        await self._over.wait()
        connection.cancel()
        server.close()
        if self._writer is None:
            return False
        with contextlib.suppress(ConnectionError, TimeoutError):
            await asyncio.wait_for(self._writer.drain(), LAST_MESSAGE_S)
        return True

    def _prepare(self, prefixes: list[spawner.PrefixSpec]) -> None:
        """Have the prefix of the only role run before the first order, or those of several while the node is spare."""
        if len(self._graph.roles) > 1:
            start_task(self._prepare_while_spare(prefixes), die_of)
        elif prefixes:
            (self._stores.awaited,) = prefixes
            self._agent.is_warming = True
            self._spawner.send(spawner.Prepare(prefixes[0]))

    async def _prepare_while_spare(self, prefixes: list[spawner.PrefixSpec]) -> None:
        """Have the prefixes run one after another while nothing else runs here: workers may move here later."""
        for prefix in prefixes:
            await asyncio.sleep(SPARE_S)
            while any(not attempt.is_over for attempt in self._agent.attempts.values()):
                await asyncio.sleep(SPARE_S)
            self._prepared = asyncio.Event()
            self._spawner.send(spawner.Prepare(prefix))
            await self._prepared.wait()

    def _set_up_workers(self) -> None:
        config, ids, send = self._config, itertools.count(1), self._spawner.send
        self._loop.add_reader(self._spawner, self._read_answers)
        named = self._graph.options.store_endpoint
        endpoint = endpoint_of(named, 0) if named else Endpoint(config.address, 0)
        self._stores = Stores(self._loop, self._handle, endpoint, send, ids, config.run_dir, config.socket_dir)
        self._sockets = WorkerSocket(self._handle)
        self._gpus = GpuGuard(self._loop, config.devices, self._handle)
        self._workers = Workers(
            config,
            self._graph,
            self._paths,
            self._handle,
            self._send_to_controller,
            send,
            ids,
            self._sockets,
            self._gpus,
            self._stores,
        )

    async def _keep_connected(self) -> None:
        """Connect to the controller, again when a connection ends, and pass its messages to the pure agent.

        The agent gets an input for each connection, for its end, and for each refused attempt, too.
        """
        is_local = self._config.controller is None
        retry_s = LOCAL_RETRY_S if is_local else REMOTE_RETRY_S
        while True:
            try:
                reader, self._writer = await self._connect()
            except (OSError, ConnectionRejected) as error:
                if isinstance(error, ConnectionRefusedError | FileNotFoundError):
                    self._handle(io.Refused(is_local=is_local))
                await asyncio.sleep(retry_s)
                continue
            self._handle(io.Connected())
            with contextlib.suppress(msgspec.MsgspecError, RecursionError):  # after an invalid message, connect anew
                while (message := await read_from_controller(reader)) is not None:
                    if isinstance(message, Acked | Rejoin | Ordered | Dismissed):
                        self._handle(message)
            self._writer.close()
            self._writer = None
            self._handle(io.Disconnected())

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._config.controller is not None:
            return await dial(self._config.controller, self._credentials)
        return await asyncio.open_unix_connection(self._config.control_socket)

    def _send_to_controller(self, message: msgspec.Struct) -> None:
        if self._writer is not None:
            self._writer.write(encode(message))

    def _handle(self, event: io.AgentInput) -> None:
        """Have the pure agent handle an input, and carry out its outputs before those of an input that they cause.

        An exception ends this process, for which no caller has to provide: the outputs that are left would be lost.
        """
        self._inputs.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._inputs:
                for output in self._agent.handle(self._inputs.popleft(), boot_ns()):
                    self._carry_out(output)
            self._is_handling = False
            self._set_timer()
        except Exception as error:
            die_of(error)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._page.write(self._agent.fence_at_ns())
        deadline = self._agent.deadline()
        if deadline is not None:
            wait_s = max(0, deadline - boot_ns()) / 1e9
            self._timer = self._loop.call_later(wait_s, self._handle, io.AgentTimePassed())

    def _carry_out(self, output: io.AgentOutput) -> None:
        match output:
            case io.Send():
                self._send(output.message)
            case io.SpawnWorkers():
                self._gpus.when_free(output, self._workers.spawn)
            case io.LeaveGeneration():
                self._sockets.leave(output.replica, output.attempt)
            case io.HurrySpawn():
                self._workers.hurry(output.replica, output.attempt)
            case io.SignalWorkers():
                if output.signal == "KILL":
                    self._relatives.check_spawner()
                self._workers.signal(output.replica, output.attempt, signal.Signals[f"SIG{output.signal}"])
            case io.WritePeers():
                self._workers.write_peers(output.replica, output.attempt, output.addresses)
            case io.AnswerWorker():
                self._workers.answer_commit(output, self._agent.epoch)
            case io.LookForSigns():
                key = (output.replica, output.attempt)
                self._handle(io.SignsSeen(*key, self._workers.last_output_ns(*key), self._workers.state_of(*key)))
            case io.AskWorkers():
                self._handle(io.WorkersAsked(output.replica, output.attempt, self._ask_workers(output)))
            case io.TellWorkers():
                with contextlib.suppress(OSError):  # a full disk: the workers wait for the notice, then for SIGTERM
                    stop_notice.set_stop_step(self._folder(output), output.step)
            case io.BindStore():
                self._stores.bind(
                    (output.world, output.generation), output.eager and (self._starts_cold or self._stores.is_warm)
                )
            case io.KillStore():
                self._stores.kill((output.world, output.generation))
            case io.VaultOrder():
                assert self._vault is not None, "the controller knows no vault here"
                self._vault.obey(output.order)
            case io.EndAgent():
                self._over.set()
            case _:
                assert_never(output)

    def _send(self, message: ToController) -> None:
        if isinstance(message, Report) and isinstance(message.event, ReplicaUnkillable):
            self._workers.check_unkillable(message.event.replica, message.event.attempt)
        if isinstance(message, Heartbeat):
            who = self._relatives.stopped(self._workers.pids())
            self._handle(io.StoodStill(who, self._workers.stopped()))
        self._send_to_controller(message)

    def _ask_workers(self, output: io.AskWorkers) -> int | None:
        """Announce a stop to the workers of an attempt, and return how far they are; None if that cannot be known."""
        try:
            return stop_notice.announce_stop(self._folder(output), self._graph.role(output.replica.role).procs)
        except OSError:
            return None

    def _folder(self, output: io.AskWorkers | io.TellWorkers) -> Path:
        return self._paths.attempt_dir(output.replica, output.attempt)

    def _read_answers(self) -> None:
        """Read the spawner's answers and pass them on; exit with code 1 if the spawner has ended."""
        answers = self._spawner.receive()
        if answers is None:
            os._exit(1)  # without a spawner the node is lost: the guardian kills the rest of it
        for answer in answers:
            match answer:
                case spawner.Prepared() if self._stores.awaited is not None:
                    self._stores.end_waiting(answer.has_torch)
                    self._handle(io.WarmedUp())
                case spawner.Prepared():
                    self._prepared.set()
                case _ if not isinstance(answer, spawner.Request):
                    if not self._stores.handle_answer(answer):
                        self._workers.handle_answer(answer)
