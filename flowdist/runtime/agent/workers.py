"""The workers of a node: started and signalled through the spawner, on orders of the pure agent.

Suspended workers are resumed through the worker socket. Answers of the spawner become inputs of the pure agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from flowdist.control.ownership import objection_to_commit
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import Addresses, ProcessState, ReplicaId
from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph, RoleSpec
from flowdist.graph.capacity import slots_on
from flowdist.runtime.agent.node_config import NodeConfig
from flowdist.runtime.agent.readiness import FileState, awaited_file, until_ready
from flowdist.runtime.agent.worker_socket import WorkerSocket
from flowdist.runtime.atomic import write_json
from flowdist.runtime.gpus.guard import GpuGuard
from flowdist.runtime.last_words import die_of
from flowdist.runtime.left_files import clean
from flowdist.runtime.processes import spawn_protocol as spawner
from flowdist.runtime.processes.process_states import is_stopped, state_of_workers
from flowdist.runtime.processes.reaper import outlive_sigkill
from flowdist.runtime.processes.spawn_protocol import INJECTED_OOM, injected_code, signal_name
from flowdist.runtime.processes.unexpected import start_task
from flowdist.runtime.run_folder.logs import OutputWatch, announce_stacks
from flowdist.runtime.run_folder.owner_file import OWNER, read_owner
from flowdist.runtime.run_folder.remote_error_report import collect_report
from flowdist.runtime.stores.stores import Stores
from flowdist.runtime.wire.frames import RemoteErrorReport
from flowdist.runtime.worker_env.environment import (
    RunPaths,
    expand_command,
    macro_values,
    prefix_spec,
    snapshot_content,
    worker_env,
)
from flowdist.runtime.worker_env.ports import Ports
from flowdist.runtime.worker_env.secret_values import Mask
from flowdist.runtime.worker_env.stop_notice import was_stopping
from flowdist.runtime.worker_env.worker_errors import (
    collective_timeout,
    error_line,
    is_out_of_memory,
    oom_kills,
    raised_ns,
)
from flowdist.worker.api import ROLES

CANCELLED_S = 0.5  # for the SIGTERM of a batch system to reach this agent, after it has ended a worker


@dataclass(slots=True)
class _Attempt:
    """An attempt of a replica whose workers were requested from the spawner, or were resumed."""

    start: StartReplica
    ports: dict[str, int]
    output: OutputWatch
    before: FileState | None  # of the file that `ready_when="file:..."` names, when the attempt was ordered
    missing: set[int]  # local ranks of the workers that are not spawned yet
    refused: str | None = None  # why a worker could not be started
    prefix: spawner.PrefixSpec | None = None  # that its workers ask for; None: none, or it was reported unusable
    was_killed: bool = False  # the agent has sent it SIGKILL
    was_signalled: bool = False  # the agent has sent it any signal


class Workers:
    """All workers of a node, by their ids in the spawn protocol.

    Workers and store hosts share `ids`: the spawner does not distinguish the two. `handle` gives the pure agent an
    input, `report` sends the controller a worker's error report, `send` sends the spawner a request.
    """

    def __init__(
        self,
        config: NodeConfig,
        graph: RoleGraph,
        paths: RunPaths,
        handle: Callable[[io.AgentInput], None],
        report: Callable[[RemoteErrorReport], None],
        send: Callable[[spawner.Request], None],
        ids: Iterator[int],
        sockets: WorkerSocket,
        gpus: GpuGuard,
        stores: Stores,
    ) -> None:
        self._config, self._graph, self._paths = config, graph, paths
        self._handle, self._report, self._send = handle, report, send
        self._ids, self._sockets, self._gpus, self._stores = ids, sockets, gpus, stores
        self._ports = Ports(config.run_id, config.number, config.address)
        self._workers: dict[int, tuple[StartReplica, int]] = {}  # the order and the local rank
        self._pids: dict[int, int] = {}  # of the workers that were reported to run
        self._attempts: dict[tuple[ReplicaId, int], _Attempt] = {}
        self._probes: dict[tuple[ReplicaId, int], asyncio.Task[None]] = {}
        self._mask = Mask()  # the last lines of a worker's output go into the journal
        self._exits = WorkerExits(self._mask)
        self._is_batch_job = "SLURM_JOB_ID" in os.environ

    def prefixes(self) -> list[spawner.PrefixSpec]:
        """Return the prefixes of the roles that may be placed on this node, each once; that of a cold role is none."""
        roles = [role for role in self._graph.roles if slots_on(role, self._config.node)]
        return list(dict.fromkeys(prefix for role in roles if (prefix := self._prefix_of(role)) is not None))

    def _prefix_of(self, role: RoleSpec) -> spawner.PrefixSpec | None:
        size = role.max_replicas * role.procs
        world = ("", 1, 0, size, 0, 1, 0, 1, 0, "", 0)  # placeholders: a prefix does not depend on these
        start = StartReplica(self._config.node.name, ReplicaId(role.name, 0), 1, *world)
        with contextlib.suppress(OSError):  # a missing secret: the start of the worker reports it
            ports = dict.fromkeys(role.ports, 0)
            return self._command(start, role, 0, ports, self._env(start, role, 0, ports))[1]
        return None

    def spawn(self, start: StartReplica, kept: tuple[int, ...]) -> None:
        """Start the workers of an attempt, or resume the suspended ones with a local rank in `kept` as workers of it.

        The pure agent gets WorkersSpawned when all run, else SpawnFailed: at once if a port, a secret or the cores of a
        GPU are missing, or the disk is full; later, with the others killed, if a command cannot be started.
        """
        role = self._graph.role(start.replica.role)
        try:
            ports = self._ports.of(str(start.replica), role.ports)
            envs = [self._env(start, role, local_rank, ports) for local_rank in range(role.procs)]
            cores = self._gpus.cores(role, start)
            self._write_peers(start.replica, start.attempt, start.addresses)
            if start.snapshot is not None:
                write_json(self._paths.snapshot(start.replica, start.attempt), snapshot_content(start.snapshot))
        except OSError as error:
            self._handle(io.SpawnFailed(start.replica, start.attempt, clean(str(error))))
            return
        output = OutputWatch(self._paths.attempt_dir(start.replica, start.attempt))
        attempt = _Attempt(start, ports, output, awaited_file(role), set(range(role.procs)))
        self._attempts[start.replica, start.attempt] = attempt
        for id, (before, local_rank) in list(self._workers.items()):
            if before.replica == start.replica and local_rank in kept:
                attempt.missing.discard(local_rank)
                self._workers[id] = (start, local_rank)
                self._resume(before, start, local_rank, envs[local_rank])
        over = [key for key in self._attempts if key[0] == start.replica and key[1] < start.attempt]
        for key in over:  # else an agent that runs for weeks keeps thousands
            del self._attempts[key]
        if not attempt.missing:
            self._all_spawned(attempt)
        for local_rank in sorted(attempt.missing):
            self._spawn_one(attempt, role, local_rank, envs[local_rank], cores[local_rank])

    def _spawn_one(
        self, attempt: _Attempt, role: RoleSpec, local_rank: int, env: dict[str, str], cores: tuple[int, ...]
    ) -> None:
        start = attempt.start
        argv, attempt.prefix = self._command(start, role, local_rank, attempt.ports, env)
        id, folder = next(self._ids), self._folder(start, local_rank)
        self._workers[id] = (start, local_rank)
        self._send(spawner.Spawn(id, argv, env, role.workdir, str(folder), attempt.prefix, cores))

    def _command(
        self, start: StartReplica, role: RoleSpec, local_rank: int, ports: dict[str, int], env: dict[str, str]
    ) -> tuple[tuple[str, ...], spawner.PrefixSpec | None]:
        """Return the command of a worker, and the prefix that it may be forked from; None: it needs exec."""
        values = macro_values(start, role, local_rank, self._paths, ports)
        argv = expand_command(role.command, values, os.environ)
        return argv, prefix_spec(role, argv, os.environ, env)

    def _resume(self, before: StartReplica, start: StartReplica, local_rank: int, env: dict[str, str]) -> None:
        """Have a suspended worker of the attempt `before` continue in `start`, with what its environment has new."""
        folder = self._folder(start, local_rank)
        with contextlib.suppress(OSError):  # only faults look for the pid file
            folder.mkdir(parents=True, exist_ok=True)
        if (pid := spawner.read_pid(self._folder(before, local_rank))) is not None:
            spawner.write_pid(folder, pid)  # a fault may target the worker as soon as it is reported to run
        role, ports = self._graph.role(start.replica.role), self._attempts[before.replica, before.attempt].ports
        old = self._env(before, role, local_rank, ports)
        changed = {name: value for name, value in env.items() if old.get(name) != value}
        self._sockets.resume(start.replica, before.attempt, start.attempt, local_rank, changed)

    def _env(self, start: StartReplica, role: RoleSpec, local_rank: int, ports: dict[str, int]) -> dict[str, str]:
        devices = tuple(self._config.devices[gpu] for gpu in start.gpus)
        env = worker_env(start, role, local_rank, os.environ, self._paths, ports, devices, self._stores.has_torch)
        self._mask.add(env[secret.name] for secret in role.secrets)
        for name, value in env.items():
            if clean(name + value) != name + value:  # no message to the spawner can carry it
                raise OSError(f"the environment variable {clean(name)} is no UTF-8 text: unset it")
        return env

    def signal(self, replica: ReplicaId, attempt: int, number: signal.Signals) -> None:
        """Have the spawner send a signal to the process group of each worker of the attempt that has not ended.

        Before SIGABRT, a line in the log of each says why the stacks are there that Python then writes (R15).
        """
        if (known := self._attempts.get((replica, attempt))) is not None:
            known.was_signalled = True
            known.was_killed |= number == signal.SIGKILL
        for id in self._ids_of(replica, attempt):
            if number == signal.SIGABRT:
                announce_stacks(self._folder(*self._workers[id]) / "stderr.log")
            self._send(spawner.Signal(id, number))

    def check_unkillable(self, replica: ReplicaId, attempt: int) -> None:
        """Raise RuntimeError if no worker of the attempt outlives SIGKILL: the spawner should have reported their ends.

        Else a GPU would be given up for nothing.
        """
        pids = [self._pids[id] for id in self._ids_of(replica, attempt) if self._pids.get(id)]
        if not outlive_sigkill(pids):
            raise RuntimeError(f"the workers of {replica} have ended, and the spawner has not reported that")

    def hurry(self, replica: ReplicaId, attempt: int) -> None:
        """Cancel the start of the attempt's workers that still wait for a GPU or a prefix; others keep running.

        The pure agent gets SpawnFailed, or for each cancelled worker an exit by SIGTERM.
        """
        self._gpus.cancel(replica, attempt)
        for id in self._ids_of(replica, attempt):
            self._send(spawner.CancelSpawn(id))

    def _ids_of(self, replica: ReplicaId, attempt: int) -> list[int]:
        return [id for id, (start, _) in self._workers.items() if (start.replica, start.attempt) == (replica, attempt)]

    def handle_answer(self, answer: spawner.WorkerAnswer) -> None:
        """Handle an answer of the spawner about a worker, and give the pure agent the inputs that follow from it."""
        start, local_rank = self._workers[answer.id]
        attempt = self._attempts[start.replica, start.attempt]
        match answer:
            case spawner.Spawned() | spawner.SpawnRefused():
                self._spawn_answered(attempt, local_rank, answer)
            case spawner.Ended():
                if self._may_be_cancelled(attempt, answer):
                    asyncio.get_running_loop().call_later(CANCELLED_S, self._ended, attempt, local_rank, answer)
                else:
                    self._ended(attempt, local_rank, answer)
            case spawner.Respawned():
                self._pids[answer.id] = answer.pid
            case spawner.StartedCold():
                attempt.prefix = None
                self._handle(io.SpawnedCold(start.replica, start.attempt, answer.reason))

    def _may_be_cancelled(self, attempt: _Attempt, answer: spawner.Ended) -> bool:
        """Return whether the batch system may have ended a worker because it cancels the whole job.

        Slurm sends SIGTERM to all processes of a job. The worker's end may be seen before the agent's own signal, and
        would be a failure of the role.
        """
        return self._is_batch_job and answer.code == -signal.SIGTERM and not attempt.was_signalled

    def _spawn_answered(
        self, attempt: _Attempt, local_rank: int, answer: spawner.Spawned | spawner.SpawnRefused
    ) -> None:
        attempt.missing.discard(local_rank)
        if isinstance(answer, spawner.Spawned):
            self._pids[answer.id] = answer.pid
            if answer.has_torch:
                self._stores.fork_from(attempt.prefix)
        if isinstance(answer, spawner.SpawnRefused):
            del self._workers[answer.id]
            attempt.refused = attempt.refused or answer.detail
        if attempt.missing:
            return
        if attempt.refused is None:
            self._all_spawned(attempt)
        else:
            self._fail_start(attempt)

    def _all_spawned(self, attempt: _Attempt) -> None:
        start = attempt.start
        self._handle(io.WorkersSpawned(start.replica, start.attempt, tuple(attempt.ports.items())))
        self._watch_readiness(attempt)

    def _fail_start(self, attempt: _Attempt) -> None:
        """Kill the workers of an attempt of which one could not be started; if none is left, report SpawnFailed."""
        key = (attempt.start.replica, attempt.start.attempt)
        self.signal(*key, signal.SIGKILL)
        if not self._ids_of(*key):
            self._handle(io.SpawnFailed(*key, attempt.refused or ""))

    def _ended(self, attempt: _Attempt, local_rank: int, answer: spawner.Ended) -> None:
        start, _ = self._workers.pop(answer.id)
        self._pids.pop(answer.id, None)
        key = (start.replica, start.attempt)
        if attempt.refused is not None:
            if not self._ids_of(*key):
                self._fail_start(attempt)
            return
        if key in self._probes:
            self._probes.pop(key).cancel()
        folder = self._folder(start, local_rank)
        exited = self._exits.describe(start, local_rank, answer.code, folder, attempt.was_killed)
        if self._config.controller is not None and (exited.exit_code or exited.signal):
            self._report(collect_report(start, local_rank, folder, self._mask))
        self._handle(exited)

    def _watch_readiness(self, attempt: _Attempt) -> None:
        start = attempt.start
        role = self._graph.role(start.replica.role)
        if role.ready is None or role.ready.how == "call":
            return
        key = (start.replica, start.attempt)
        folder = self._paths.attempt_dir(*key)
        probe = until_ready(role.ready, self._config.address, attempt.ports, role.workdir, folder, attempt.before)

        async def report() -> None:
            await probe
            self._handle(io.ProbePassed(*key))

        self._probes[key] = start_task(report(), die_of)

    def last_output_ns(self, replica: ReplicaId, attempt: int) -> int | None:
        """Return when any worker of the attempt last wrote output, in ns on the clock `boot_ns`; None if none has."""
        known = self._attempts.get((replica, attempt))
        return known.output.last_output_ns() if known is not None else None

    def pids(self) -> set[int]:
        """Return the process ids of the workers that were reported to run."""
        return set(self._pids.values())

    def stopped(self) -> tuple[ReplicaId, ...]:
        """Return the replicas with a worker that is stopped, or a child of one, in their order."""
        found = [self._workers[id][0].replica for id, pid in self._pids.items() if is_stopped(pid)]
        return tuple(sorted(set(found)))

    def state_of(self, replica: ReplicaId, attempt: int) -> ProcessState:
        """Return the state of a process of the attempt's workers: the most telling one; empty if none is unusual."""
        return state_of_workers(self._pids[id] for id in self._ids_of(replica, attempt) if id in self._pids)

    def _folder(self, start: StartReplica, local_rank: int) -> Path:
        return self._paths.attempt_dir(start.replica, start.attempt) / str(local_rank)

    def write_peers(self, replica: ReplicaId, attempt: int, addresses: Addresses) -> None:
        """Write addresses of other roles into the file that `peers()` reads; else the workers keep the old ones."""
        try:
            self._write_peers(replica, attempt, addresses)
        except OSError as error:
            print(f"flowdist: {replica} does not get the new addresses of its peers: {error}", file=sys.stderr)

    def _write_peers(self, replica: ReplicaId, attempt: int, addresses: Addresses) -> None:
        content = {key: [part for part in address.split(",") if part] for key, address in addresses}
        content[ROLES] = [role.name for role in self._graph.roles]
        write_json(self._paths.attempt_dir(replica, attempt) / "peers.json", content)

    def answer_commit(self, answer: io.AnswerWorker, epoch: int) -> None:
        """Send the workers that offered a checkpoint the controller's answer; before that, publish an accepted one.

        In that order a worker that was answered "accepted" finds its checkpoint again after any crash. Nothing is
        published for a replaced attempt. What cannot be published is answered as refused. In a folder that another run
        owns, `commit()` raises: the worker could never save anything. `epoch` is the highest that this agent knows.
        """
        attempt = self._attempts.get((answer.replica, answer.attempt))
        if answer.accepted and attempt is not None and (why := self._why_not_owned(epoch)):
            self._sockets.answer(msgspec.structs.replace(answer, accepted=False, reason=why), error=why)
            return
        if answer.accepted and attempt is not None:
            start, role = attempt.start, self._graph.role(answer.replica.role)
            pointer = {"path": answer.path, "step": answer.step, "generation": start.generation}
            try:
                write_json(self._paths.latest(start, role), pointer, durable=True)
            except OSError as error:
                print(f"flowdist: the checkpoint {answer.path} cannot be published: {error}", file=sys.stderr)
                answer = msgspec.structs.replace(answer, accepted=False, reason=str(error))
        self._sockets.answer(answer)

    def _why_not_owned(self, epoch: int) -> str:
        """Return why this run may not publish in its folder of checkpoints; empty: it may.

        A damaged owner file is no reason: its owner writes it anew.
        """
        with contextlib.suppress(FlowdistError):
            owner = read_owner(Path(self._paths.checkpoint_dir, OWNER))
            return objection_to_commit(self._paths.run_id, epoch, owner)
        return ""


class WorkerExits:
    """Interpreter of the exits of a node's workers, for the pure agent.

    The kernel does not say which process it killed for lack of memory. A worker counts as such if SIGKILL ended it, not
    from the agent, and the kernel's count of such kills has grown since the last failed worker.
    """

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._oom_kills = oom_kills()

    def describe(
        self, start: StartReplica, local_rank: int, code: int, folder: Path, was_killed: bool
    ) -> io.WorkerExited:
        """Return the input that reports the exit of a worker to the pure agent. Call this once for each exit.

        `code` is negative for a signal. An injected fault may have left another code in the worker's log `folder`.
        `was_killed`: the agent has sent SIGKILL to the attempt.
        """
        ended_by, code = signal_name(code) if code < 0 else None, injected_code(folder, code)
        stops = was_stopping(folder)
        if code == 0:
            return io.WorkerExited(start.replica, start.attempt, local_rank, was_stopping=stops)
        name = ended_by if code < 0 else None
        detail = error_line(folder, self._mask, ended_by)
        timed_out = collective_timeout(folder, self._mask, aborted=name == "ABRT")
        if timed_out not in detail:  # the last line of stderr is one of a stack trace
            detail = timed_out
        was_oom_killed = self._has_oom_kill(folder) and name == "KILL" and not was_killed
        return io.WorkerExited(
            start.replica,
            start.attempt,
            local_rank,
            max(code, 0),
            name,
            "oom" if was_oom_killed or is_out_of_memory(detail) else None,
            detail,
            raised_ns(folder),
            "collective_timeout" if timed_out else "",
            stops,
        )

    def _has_oom_kill(self, folder: Path) -> bool:
        """Return whether the kernel, or an injected fault, has killed for lack of memory since the last call."""
        before, self._oom_kills = self._oom_kills, oom_kills()
        return self._oom_kills > before or os.path.exists(folder / INJECTED_OOM)  # noqa: PTH110  # raises nothing
