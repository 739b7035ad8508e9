"""The process of an agent: it carries out what the pure agent says, and tells it what happened. No decisions here."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import sys
import time
from collections import deque
from pathlib import Path
from typing import assert_never

import msgspec

from flowdist.control.agent.agent import Agent
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import Addresses, ReplicaId
from flowdist.control.protocol.messages import Acked, Dismissed, Ordered, Rejoin
from flowdist.graph import RoleSpec, decode_graph
from flowdist.graph.warmth import NOTHING_TO_PRELOAD, cold_because
from flowdist.runtime.agent.guardian import NodeConfig
from flowdist.runtime.agent.readiness import Listener, until_ready
from flowdist.runtime.agent.worker_socket import WorkerSocket
from flowdist.runtime.clock import boot_ns
from flowdist.runtime.gpus.guard import GpuGuard
from flowdist.runtime.processes import spawn_protocol as spawner
from flowdist.runtime.processes.exit_status import describe_exit, signal_name
from flowdist.runtime.run_folder.logs import last_output_ns
from flowdist.runtime.run_folder.remote_error_report import collect_report
from flowdist.runtime.stores.store_forks import StoreForks
from flowdist.runtime.stores.stores import Stores
from flowdist.runtime.wire.dialing import dial
from flowdist.runtime.wire.frames import encode, read_from_controller
from flowdist.runtime.wire.handshake import TurnedAway
from flowdist.runtime.worker_env import stop_notice
from flowdist.runtime.worker_env.environment import RunPaths, expand_command, fork_server_spec, macro_values, worker_env
from flowdist.runtime.worker_env.ports import Ports
from flowdist.runtime.worker_env.secret_values import Mask
from flowdist.runtime.worker_env.worker_errors import error_line, is_out_of_memory, oom_kills, raised_ns

CONNECT_PAUSE_S = 0.02
FAR_PAUSE_S = 0.1  # to a controller on another host, which may have many to answer


def run_agent(config: NodeConfig, channel: socket.socket, token: str = "") -> None:
    """Until the job is over or the node leaves. The token is for a controller on another host."""
    for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME") if config.interface else ():
        os.environ.setdefault(name, config.interface)  # else they look up the host's name, and may fail to
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_AgentProcess(config, channel, token).run())


def write_atomically(path: Path, content: str, *, lasts: bool = True) -> None:
    """Whoever reads it sees the old content or the new, never a part; if it `lasts`, after a crash of the machine too.

    That takes some milliseconds: what is of no use after a crash need not.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w") as file:
        file.write(content)
        file.flush()
        if lasts:
            os.fsync(file.fileno())
    temporary.rename(path)


class _AgentProcess:
    def __init__(self, config: NodeConfig, channel: socket.socket, token: str) -> None:
        self._config, self._channel, self._token = config, channel, token
        graph = decode_graph(Path(config.run_dir, "graph.json").read_bytes()).on(config.node)
        self._graph = graph
        self._agent = Agent(config.node, graph, config.address, config.incarnation)
        checkpoints = graph.checkpoint_dir or str(Path(config.run_dir, "checkpoints"))
        socket_path = str(Path(config.socket_dir, f"{config.node.name}.sock"))
        self._places = RunPaths(config.run_dir, config.run_id, checkpoints, socket_path)
        self._ports = Ports(config.run_id, config.number, config.address)
        self._inputs: deque[io.AgentInput] = deque()
        self._is_pumping = False
        self._timer: asyncio.TimerHandle | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._workers: dict[int, tuple[StartReplica, int]] = {}  # by spawn id: attempt and local rank
        self._spawning: dict[tuple[ReplicaId, int], _Spawning] = {}
        self._probes: dict[tuple[ReplicaId, int], asyncio.Task[None]] = {}
        self._mask = Mask()  # last words of workers go into the journal
        python = os.environ.get("PYTHON_EXEC", sys.executable)
        reasons = [cold_because(role, python, sys.executable) for role in graph.roles]
        self._may_use_torch = any(reason != NOTHING_TO_PRELOAD for reason in reasons)  # and have a process group
        self._ids = itertools.count(1)  # of workers, and of store hosts
        self._killed: dict[tuple[ReplicaId, int], None] = {}  # attempts that we sent SIGKILL
        self._oom_kills = oom_kills()

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        run_dir, socket_dir = self._config.run_dir, self._config.socket_dir
        self._store_forks = StoreForks(self._loop, self._channel_send, self._ids, run_dir, socket_dir)
        self._stores = Stores(self._loop, self._store_exited, self._store_forks, self._config.address)
        self._sockets = WorkerSocket(self._tell)
        self._gpus = GpuGuard(self._loop, self._config.devices, self._tell)
        self._answers = spawner.answers()
        self._channel.setblocking(False)
        self._loop.add_reader(self._channel, self._read_spawner)
        self._loop.add_signal_handler(signal.SIGTERM, self._tell, io.LeaveRequested())
        self._prepare()
        server = await self._sockets.serve(self._places.worker_socket)
        talking = asyncio.create_task(self._talk_to_controller())
        await self._over.wait()
        talking.cancel()
        server.close()
        if self._writer is not None:
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()

    async def _talk_to_controller(self) -> None:
        pause_s = CONNECT_PAUSE_S if self._config.meeting is None else FAR_PAUSE_S
        while True:
            try:
                reader, self._writer = await self._connect()
            except (ConnectionRefusedError, FileNotFoundError):
                self._tell(io.Refused(is_local=self._config.meeting is None))
                await asyncio.sleep(pause_s)
                continue
            except (OSError, TurnedAway):
                await asyncio.sleep(pause_s)
                continue
            self._tell(io.Connected())
            with contextlib.suppress(msgspec.MsgspecError, RecursionError):  # whoever sends that is better met anew
                while (message := await read_from_controller(reader)) is not None:
                    if isinstance(message, Acked | Rejoin | Ordered | Dismissed):
                        self._tell(message)
            self._writer.close()
            self._writer = None
            self._tell(io.Disconnected())

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._config.meeting is not None:
            return await dial(self._config.meeting, self._token)
        return await asyncio.open_unix_connection(self._config.control_socket)

    def _tell(self, event: io.AgentInput) -> None:
        """One input after the other: carrying out an output may bring the next."""
        self._inputs.append(event)
        if self._is_pumping:
            return
        self._is_pumping = True
        while self._inputs:
            for output in self._agent.handle(self._inputs.popleft(), boot_ns()):
                self._carry_out(output)
        self._is_pumping = False
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._agent.deadline()
        if deadline is not None:
            wait_s = max(0, deadline - boot_ns()) / 1e9
            self._timer = self._loop.call_later(wait_s, self._tell, io.AgentTimePassed())

    def _carry_out(self, output: io.AgentOutput) -> None:
        match output:
            case io.Send():
                if self._writer is not None:
                    self._writer.write(encode(output.message))
            case io.SpawnWorkers():
                self._gpus.when_free(output, self._spawn)
            case io.LeaveGeneration():
                self._sockets.leave(output.replica, output.attempt)
            case io.HurrySpawn():
                self._gpus.cancel(output.replica, output.attempt)
                for id in self._ids_of(output.replica, output.attempt):
                    self._channel_send(spawner.CancelSpawn(id))
            case io.SignalWorkers():
                self._signal(output)
            case io.WritePeers():
                self._write_peers(output.replica, output.attempt, output.addresses)
            case io.AnswerWorker():
                self._answer_commit(output)
            case io.LookForSigns():
                seen_ns = last_output_ns(self._attempt_dir(output.replica, output.attempt))
                self._inputs.append(io.SignsSeen(output.replica, output.attempt, seen_ns))
            case io.AskWorkers():
                folder, procs = self._attempt_dir(output.replica, output.attempt), self._procs(output.replica)
                step = stop_notice.announce_stop(folder, procs)
                self._inputs.append(io.WorkersAsked(output.replica, output.attempt, step))
            case io.TellWorkers():
                stop_notice.set_stop_step(self._attempt_dir(output.replica, output.attempt), output.step)
            case io.BindStore():
                port = self._stores.bind((output.world, output.generation), output.eager and self._may_use_torch)
                self._inputs.append(io.StoreBound(output.world, output.generation, port))
            case io.KillStore():
                self._stores.kill((output.world, output.generation))
            case io.EndAgent():
                self._over.set()
            case _:
                assert_never(output)

    def _store_exited(self, key: tuple[str, int], detail: str) -> None:
        self._tell(io.StoreExited(*key, detail))

    def _spawn(self, start: StartReplica, kept: tuple[int, ...]) -> None:
        role = self._graph.role(start.replica.role)
        try:
            ports = self._ports.of(str(start.replica), role.ports)
            envs = [self._env(start, role, local_rank, ports) for local_rank in range(role.procs)]
            cores = self._gpus.cores(role, start)
        except OSError as error:
            self._inputs.append(io.SpawnFailed(start.replica, start.attempt, str(error)))
            return
        self._write_peers(start.replica, start.attempt, start.addresses)
        spawning = _Spawning(start, ports, time.time_ns(), {}, set(range(role.procs)))
        self._spawning[start.replica, start.attempt] = spawning
        for id, (before, local_rank) in list(self._workers.items()):
            if before.replica == start.replica and local_rank in kept:
                spawning.ids[id] = local_rank
                spawning.missing.discard(local_rank)
                self._workers[id] = (start, local_rank)
                self._resume(before, start, local_rank, envs[local_rank])
        self._forget_before(start)
        if not spawning.missing:
            self._all_spawned(start)
        for local_rank in sorted(spawning.missing):
            env = envs[local_rank]
            values = macro_values(start, role, local_rank, self._places, ports)
            argv = expand_command(role.command, values, os.environ)
            folder = str(self._places.attempt_dir(start) / str(local_rank))
            id = next(self._ids)
            self._workers[id] = (start, local_rank)
            spawning.ids[id] = local_rank
            spawning.server = fork_server_spec(role, argv, os.environ, env, values)
            where = (role.workdir, folder, spawning.server, cores[local_rank])
            self._channel_send(spawner.Spawn(id, argv, env, *where))

    def _forget_before(self, start: StartReplica) -> None:
        """Earlier attempts of the replica are over: an agent that runs for weeks must not keep all of them."""
        over = [key for key in self._spawning if key[0] == start.replica and key[1] < start.attempt]
        for key in over:
            del self._spawning[key]
            self._killed.pop(key, None)

    def _resume(self, before: StartReplica, start: StartReplica, local_rank: int, env: dict[str, str]) -> None:
        """A worker that has left its generation goes on as one of this attempt."""
        folder = self._places.attempt_dir(start) / str(local_rank)
        folder.mkdir(parents=True, exist_ok=True)
        if (pid := spawner.read_pid(self._places.attempt_dir(before) / str(local_rank))) is not None:
            spawner.write_pid(folder, pid)  # a fault may be aimed at it as soon as it is said to run
        role, ports = self._graph.role(start.replica.role), self._spawning[before.replica, before.attempt].ports
        old = self._env(before, role, local_rank, ports)
        changed = {name: value for name, value in env.items() if old.get(name) != value}
        self._sockets.resume(start.replica, before.attempt, start.attempt, local_rank, changed)

    def _prepare(self) -> None:
        """Where all workers want the same imports, they begin before the first of them is ordered."""
        wanted: dict[spawner.ForkServerSpec, None] = {}
        for role in self._graph.roles:
            size = role.max_replicas * role.procs
            world = ("", 1, 0, size, 0, 1, 0, 1, 0, "", 0)  # nothing that differs from start to start counts
            start = StartReplica(self._config.node.name, ReplicaId(role.name, 0), 1, *world)
            values = macro_values(start, role, 0, self._places, {})
            with contextlib.suppress(OSError):  # a secret that is missing: whoever needs it says so
                env = worker_env(start, role, 0, os.environ, self._places, {}, (), self._stores.has_torch)
                server = fork_server_spec(
                    role, expand_command(role.command, values, os.environ), os.environ, env, values
                )
                wanted |= {server: None} if server is not None else {}
        if len(wanted) == 1:
            self._agent.is_warming = self._stores.awaits_fork_server = True
            (self._prepared,) = wanted
            self._channel_send(spawner.Prepare(self._prepared))

    def _env(self, start: StartReplica, role: RoleSpec, local_rank: int, ports: dict[str, int]) -> dict[str, str]:
        devices = tuple(self._config.devices[gpu] for gpu in start.gpus)
        env = worker_env(start, role, local_rank, os.environ, self._places, ports, devices, self._stores.has_torch)
        self._mask.add(env[secret.name] for secret in role.secrets)
        return env

    def _channel_send(self, request: spawner.Request) -> None:
        # small and rare: a moment of blocking is simpler than a buffer of our own
        self._channel.setblocking(True)
        with contextlib.suppress(ConnectionError):  # the spawner is gone: the next read says so
            self._channel.sendall(spawner.encode(request))
        self._channel.setblocking(False)

    def _signal(self, output: io.SignalWorkers) -> None:
        number = signal.Signals[f"SIG{output.signal}"]
        if number == signal.SIGKILL:
            self._killed[output.replica, output.attempt] = None
        for id in self._ids_of(output.replica, output.attempt):
            self._channel_send(spawner.Signal(id, number))

    def _ids_of(self, replica: ReplicaId, attempt: int) -> list[int]:
        return [id for id, (start, _) in self._workers.items() if (start.replica, start.attempt) == (replica, attempt)]

    def _read_spawner(self) -> None:
        try:
            data = self._channel.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionError:  # it was killed, with a request unread
            data = b""
        if not data:
            os._exit(1)  # without a spawner the node is lost: the guardian sees to the rest
        for answer in self._answers.feed(data):
            match answer:
                case spawner.Spawned() | spawner.SpawnRefused() | spawner.Ended() if self._store_forks.owns(answer.id):
                    self._hear_of_store(answer)
                case spawner.Spawned():
                    self._spawned(answer.id)
                case spawner.SpawnRefused():
                    self._refused(answer)
                case spawner.Ended():
                    self._ended(answer)
                case spawner.Prepared():
                    self._fork_stores_from(self._prepared if answer.is_usable else None)
                    self._stores.start_deferred()
                    self._tell(io.WarmedUp())
                case spawner.StartedCold() if not self._store_forks.owns(answer.id):
                    start, _ = self._workers[answer.id]
                    self._spawning[start.replica, start.attempt].server = None
                    self._tell(io.SpawnedCold(start.replica, start.attempt, answer.reason))

    def _hear_of_store(self, answer: spawner.Spawned | spawner.SpawnRefused | spawner.Ended) -> None:
        match answer:
            case spawner.SpawnRefused():
                self._store_forks.server = None
                self._stores.ended(self._store_forks.ended(answer.id), answer.detail)
            case spawner.Ended():
                self._stores.ended(self._store_forks.ended(answer.id), describe_exit(answer.code))

    def _fork_stores_from(self, server: spawner.ForkServerSpec | None) -> None:
        """Workers are forked from it: it may be of use for the next store, too."""
        if server is not None and any(name.partition(".")[0] == "torch" for name in server.preload):
            self._store_forks.server = server

    def _spawned(self, id: int) -> None:
        start, local_rank = self._workers[id]
        key = (start.replica, start.attempt)
        spawning = self._spawning[key]
        spawning.missing.discard(local_rank)
        if spawning.missing:
            return
        if spawning.refused is not None:
            self._give_up(key)
            return
        self._all_spawned(start)

    def _all_spawned(self, start: StartReplica) -> None:
        spawning = self._spawning[start.replica, start.attempt]
        self._fork_stores_from(spawning.server)
        self._tell(io.WorkersSpawned(start.replica, start.attempt, tuple(spawning.ports.items())))
        self._watch_readiness(start, spawning)

    def _refused(self, answer: spawner.SpawnRefused) -> None:
        start, local_rank = self._workers.pop(answer.id)
        spawning = self._spawning[start.replica, start.attempt]
        spawning.missing.discard(local_rank)
        del spawning.ids[answer.id]
        spawning.refused = spawning.refused or answer.detail
        if not spawning.missing:
            self._give_up((start.replica, start.attempt))

    def _give_up(self, key: tuple[ReplicaId, int]) -> None:
        """Some workers of the attempt could not be started: the others are killed, then the attempt has failed."""
        spawning = self._spawning[key]
        if spawning.ids:
            for id in spawning.ids:
                self._channel_send(spawner.Signal(id, signal.SIGKILL))
        else:
            self._tell(io.SpawnFailed(*key, spawning.refused or ""))

    def _watch_readiness(self, start: StartReplica, spawning: _Spawning) -> None:
        role = self._graph.role(start.replica.role)
        if role.ready is None or role.ready.how == "call":
            return
        key = (start.replica, start.attempt)
        folder = self._places.attempt_dir(start)
        here = Listener(self._config.address, spawning.ports)
        probe = until_ready(role.ready, here, role.workdir, folder, spawning.since_ns)
        task = asyncio.create_task(probe)
        task.add_done_callback(lambda task: None if task.cancelled() else self._tell(io.ProbePassed(*key)))
        self._probes[key] = task

    def _ended(self, answer: spawner.Ended) -> None:
        start, local_rank = self._workers.pop(answer.id)
        key = (start.replica, start.attempt)
        spawning = self._spawning[key]
        spawning.ids.pop(answer.id, None)
        if spawning.refused is not None:
            if not spawning.ids:
                self._give_up(key)
            return
        if key in self._probes:
            self._probes.pop(key).cancel()
        self._tell(self._exit_of(start, local_rank, answer.code))

    def _exit_of(self, start: StartReplica, local_rank: int, code: int) -> io.WorkerExited:
        folder = self._places.attempt_dir(start) / str(local_rank)
        code = spawner.injected_code(folder, code)
        name = signal_name(code) if code < 0 else None
        if code == 0:
            return io.WorkerExited(start.replica, start.attempt, local_rank)
        if self._config.meeting is not None and self._writer is not None:
            self._writer.write(encode(collect_report(start, local_rank, folder, self._mask)))
        detail = error_line(folder, self._mask)
        kind = "oom" if is_out_of_memory(detail) or self._was_oom_killed(start, local_rank, name) else None
        how = (max(code, 0), name, kind, detail, raised_ns(folder))
        return io.WorkerExited(start.replica, start.attempt, local_rank, *how)  # type: ignore[arg-type]

    def _was_oom_killed(self, start: StartReplica, local_rank: int, name: str | None) -> bool:
        """A SIGKILL that was not ours while the kernel counted one for want of memory, or a fault said so."""
        before, self._oom_kills = self._oom_kills, oom_kills()
        said = (self._places.attempt_dir(start) / str(local_rank) / spawner.INJECTED_OOM).exists()
        is_ours = (start.replica, start.attempt) in self._killed
        return name == "KILL" and not is_ours and (said or self._oom_kills > before)

    def _attempt_dir(self, replica: ReplicaId, attempt: int) -> Path:
        return Path(self._config.run_dir, replica.role, str(replica.index), f"attempt_{attempt}")

    def _procs(self, replica: ReplicaId) -> int:
        return self._graph.role(replica.role).procs

    def _write_peers(self, replica: ReplicaId, attempt: int, addresses: Addresses) -> None:
        folder = self._attempt_dir(replica, attempt)
        content = {key: [part for part in address.split(",") if part] for key, address in addresses}
        write_atomically(folder / "peers.json", json.dumps(content), lasts=False)

    def _answer_commit(self, answer: io.AnswerWorker) -> None:
        """The pointer is written before the worker is told: whoever was told yes finds it after any crash."""
        spawning = self._spawning.get((answer.replica, answer.attempt))
        if answer.accepted and spawning is not None:
            start, role = spawning.start, self._graph.role(answer.replica.role)
            pointer = {"path": answer.path, "step": answer.step, "generation": start.generation}
            write_atomically(self._places.latest(start, role), json.dumps(pointer))
        self._sockets.answer(answer)


class _Spawning:
    """An attempt whose workers are being started, and what is known of it."""

    def __init__(
        self, start: StartReplica, ports: dict[str, int], since_ns: int, ids: dict[int, int], missing: set[int]
    ) -> None:
        self.start, self.ports, self.since_ns, self.ids, self.missing = start, ports, since_ns, ids, missing
        self.refused: str | None = None
        self.server: spawner.ForkServerSpec | None = None  # that its workers are forked from, as far as is known
