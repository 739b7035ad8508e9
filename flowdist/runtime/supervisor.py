"""The foreground process of a run: it owns all others, shows what happens, and sees to it that nothing is left.

It keeps a mirror of the controller, fed with the lines of the journal: what it shows, what faults wait for and what the
summary says come from that mirror, never from decisions of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from flowdist.control.controller import Controller
from flowdist.control.effects import FinishJob, Notify, StartReplica
from flowdist.control.events import CancelRequested, NodeGone, ReplicaExited, ReplicaStopped
from flowdist.control.history import FaultLine, Header, Line, Record, decode_lines
from flowdist.control.ids import ReplicaId
from flowdist.control.state import JobState
from flowdist.errors import JobFailed
from flowdist.faults import Fault
from flowdist.graph import NodeSpec, RoleGraph, encode_graph
from flowdist.runtime.clock import boot_ns
from flowdist.runtime.controller_main import ControllerConfig
from flowdist.runtime.devices import share_devices
from flowdist.runtime.folder import make_run_dir, socket_dir
from flowdist.runtime.frames import Injected, JournalLine, Operate, Watch, encode, read_from_controller
from flowdist.runtime.guardian import KILL_NODE, NodeConfig
from flowdist.runtime.hooks import Hooks
from flowdist.runtime.inject import Injector
from flowdist.runtime.logs import Follower
from flowdist.runtime.reaper import become_subreaper, kill_descendants

LOOK_S = 0.1  # how often the workers' output is looked at
AGENT_RESTARTS_MAX = 5
WIND_DOWN_S = 5.0

Show = Callable[[Literal["event", "warning", "error", "stdout", "stderr"], str], None]


@dataclass(slots=True)
class RunResult:
    """How a run ended. `job` is the state of the mirror, `faults` are the journal's lines about faults."""

    outcome: str
    reason: str
    run_dir: str
    job: JobState
    faults: list[Line]
    unfired: list[Fault]


class Supervisor:
    """`show(kind, text)` gets every line for the terminal."""

    def __init__(self, graph: RoleGraph, gpus: Sequence[str], faults: Sequence[Fault], base: Path, show: Show) -> None:
        self._graph, self._show = graph, show
        self._run_dir = make_run_dir(base, graph.name)
        self._run_id = self._run_dir.name
        (self._run_dir / "graph.json").write_bytes(encode_graph(graph))
        (self._run_dir / "checkpoints").mkdir()
        self._nodes = {node.name: node for node in graph.cluster.nodes}
        self._sockets = socket_dir(self._run_dir, list(self._nodes))
        self._control_socket = str(self._sockets / "control.sock")
        self._devices = dict(zip(self._nodes, share_devices(graph.cluster.nodes, gpus), strict=True))
        self._mirror = Controller(graph, tuple(self._nodes))
        self._follower = Follower(self._run_dir, show)
        self._injector = Injector(faults, self._run_dir, self._kill_node, self._note_fault)
        self._hooks = Hooks(graph, self._run_dir)
        self._guardians: dict[str, asyncio.subprocess.Process] = {}
        self._starts: dict[str, int] = dict.fromkeys(self._nodes, 0)
        self._agent_deaths: dict[str, int] = dict.fromkeys(self._nodes, 0)
        self._back_after_ns: dict[str, int | None] = {}  # nodes that a fault has killed
        self._latest: dict[ReplicaId, StartReplica] = {}
        self._interrupts = 0
        self._finished: FinishJob | None = None
        self._fault_lines: list[Line] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._writer: asyncio.StreamWriter | None = None

    @property
    def run_dir(self) -> Path:
        return self._run_dir

    async def run(self) -> RunResult:
        """Until the job is over and nothing of it runs. JobFailed when its own processes fail it, KeyboardInterrupt
        when it was interrupted before it could end in order."""
        become_subreaper()
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._start_ns = boot_ns()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._loop.add_signal_handler(number, self._interrupted)
        self._lifeline, held = os.pipe()
        try:
            await self._hooks.start()
            await self._start_controller()
            for node in self._nodes.values():
                await self._start_node(node)
            await self._until_over()
        finally:
            await self._wind_down(held)
        if self._finished is None and self._interrupts:
            raise KeyboardInterrupt
        if self._finished is None:
            log = self._run_dir / "controller.log"
            raise JobFailed(f"the controller died; everything was stopped (see {log})")
        return RunResult(
            outcome=self._finished.outcome,
            reason=self._finished.reason,
            run_dir=str(self._run_dir),
            job=self._mirror.state,
            faults=self._fault_lines,
            unfired=self._injector.never_fired(),
        )

    async def _spawn(self, module: str, config: msgspec.Struct, log: str) -> asyncio.subprocess.Process:
        """One of our own processes, in a session of its own: Ctrl-C is for the supervisor alone."""
        with (self._run_dir / log).open("ab") as output:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                module,
                msgspec.json.encode(config).decode(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[self._lifeline],
                start_new_session=True,
            )

    async def _start_controller(self) -> None:
        config = ControllerConfig(
            str(self._run_dir),
            self._run_id,
            self._control_socket,
            tuple(self._nodes),
            self._start_ns,
            self._lifeline,
        )
        self._controller = await self._spawn("flowdist.runtime.controller_main", config, "controller.log")
        self._background(self._watch_controller())

    async def _start_node(self, node: NodeSpec) -> None:
        self._starts[node.name] += 1
        config = NodeConfig(
            node=node,
            number=list(self._nodes).index(node.name),
            incarnation=1000 * (self._starts[node.name] - 1) + 1,  # the agent itself counts on from there
            run_dir=str(self._run_dir),
            run_id=self._run_id,
            control_socket=self._control_socket,
            socket_dir=str(self._sockets),
            lifeline=self._lifeline,
            devices=self._devices[node.name],
        )
        guardian = await self._spawn("flowdist.runtime.guardian", config, f"{node.name}.log")
        self._guardians[node.name] = guardian
        self._background(self._watch_guardian(node, guardian))

    def _background(self, job: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch_controller(self) -> None:
        """Connect, read every line of the journal; when the controller is gone, so is the job."""
        reader = None
        while reader is None and self._controller.returncode is None:
            try:
                reader, self._writer = await asyncio.open_unix_connection(self._control_socket)
            except OSError:
                await asyncio.sleep(0.01)
        if reader is not None:
            self._send(Watch())
            while (message := await read_from_controller(reader)) is not None:
                if isinstance(message, JournalLine):
                    for line in decode_lines([message.line]):
                        self._hear(line)
        self._over.set()

    async def _watch_guardian(self, node: NodeSpec, guardian: asyncio.subprocess.Process) -> None:
        """The end of a guardian proves that its node is empty; only a guardian that was killed leaves orphans to us."""
        await guardian.wait()
        del self._guardians[node.name]
        if guardian.returncode not in (0, 1):
            kill_descendants(spare=self._own_processes())
        if self._over.is_set() or self._finished is not None:
            return
        planned = node.name in self._back_after_ns
        self._send(Operate(NodeGone(node.name, "it was killed by a fault" if planned else "its agent died")))
        if planned:
            back_ns = self._back_after_ns.pop(node.name)
            if back_ns is None:
                return
            await asyncio.sleep(back_ns / 1e9)
        else:
            self._agent_deaths[node.name] += 1
            if self._agent_deaths[node.name] > AGENT_RESTARTS_MAX:
                self._show("error", f"the agent of {node.name} died {AGENT_RESTARTS_MAX + 1} times: it stays away")
                return
        if not self._over.is_set() and self._finished is None:
            self._show("event", f"{node.name}: its agent is started again")
            await self._start_node(node)

    def _own_processes(self) -> frozenset[int]:
        return frozenset(
            [self._controller.pid, *self._hooks.pids(), *(guardian.pid for guardian in self._guardians.values())]
        )

    async def _until_over(self) -> None:
        """Show output and fire faults until the job has ended."""
        while not self._over.is_set():
            wait_s = LOOK_S
            next_ns = self._injector.next_ns()
            if next_ns is not None:
                wait_s = min(wait_s, max(0.0, (next_ns - self._now()) / 1e9))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), wait_s)
            self._injector.fire(self._mirror.state, self._now())
            self._follower.read()

    def _now(self) -> int:
        return boot_ns() - self._start_ns

    def _hear(self, line: Line) -> None:
        if isinstance(line, Header):
            return
        if isinstance(line, FaultLine):
            self._fault_lines.append(line)
            self._show("warning", f"fault {line.spec} hits {line.target}")
            return
        effects = self._mirror.handle(line.event, line.t_ns)
        if tuple(effects) != line.effects:
            self._show("error", f"line {line.n} of the journal does not replay: please report this as a bug")
        self._hooks.hear(self._mirror.state)
        self._show_record(line)
        self._injector.hear(self._mirror.state, line)

    def _show_record(self, record: Record) -> None:
        if isinstance(record.event, ReplicaExited | ReplicaStopped):
            self._follower.read()  # its last words come before what is made of them
        if isinstance(record.event, ReplicaExited) and record.event.kind is None:
            self._show("event", f"{record.event.replica}: finished")
        starts = [effect for effect in record.effects if isinstance(effect, StartReplica)]
        for start in starts:
            before = self._latest.get(start.replica)
            if before is not None:
                self._follower.read(final=True)
                self._follower.forget(before)
            self._latest[start.replica] = start
            self._follower.follow(start, self._graph.role(start.replica.role))
            again = f" (attempt {start.attempt})" if start.attempt > 1 else ""
            ranks = f", rank {start.rank} of {start.world_size}" if start.world_size > 1 else ""
            self._show("event", f"{start.replica}: starts on {start.node}{again}{ranks}")
        for effect in record.effects:
            if isinstance(effect, Notify):
                self._show("event" if effect.level == "info" else effect.level, effect.text)
            elif isinstance(effect, FinishJob):
                self._finished = effect
                self._over.set()

    def _interrupted(self) -> None:
        """First in order, then at once, then without asking anybody."""
        if self._over.is_set():
            self._hooks.stop()
            return
        self._interrupts += 1
        if self._interrupts == 1:
            self._show("warning", "stopping; once more stops at once")
        if self._interrupts > 2 or self._writer is None:
            self._over.set()
        else:
            self._send(Operate(CancelRequested("interrupted", now=self._interrupts > 1)))

    def _kill_node(self, name: str, back_after_ns: int | None) -> None:
        guardian = self._guardians.get(name)
        if guardian is not None and guardian.returncode is None:
            self._back_after_ns[name] = back_after_ns
            guardian.send_signal(KILL_NODE)

    def _note_fault(self, fault: Fault, target: str) -> None:
        self._send(Injected(fault.spec, target))

    def _send(self, message: msgspec.Struct) -> None:
        if self._writer is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                self._writer.write(encode(message))

    async def _wind_down(self, held: int) -> None:
        """Agents that were dismissed go by themselves; whatever is left after a moment does not have the choice."""
        self._over.set()
        if self._finished is not None:
            waits = [asyncio.create_task(guardian.wait()) for guardian in self._guardians.values()]
            if waits:
                await asyncio.wait(waits, timeout=WIND_DOWN_S)
        os.close(held)  # whoever still holds the other end of the lifeline, ends
        waits = [asyncio.create_task(process.wait()) for process in [*self._guardians.values(), self._controller]]
        await asyncio.wait(waits, timeout=WIND_DOWN_S)
        interrupted = FinishJob("cancelled", "interrupted") if self._interrupts else None
        await self._hooks.finish(self._mirror.state, self._finished or interrupted)
        for task in list(self._tasks):
            task.cancel()
        self._follower.read(final=True)
        left = kill_descendants()
        if left:
            self._show("error", f"these processes outlive SIGKILL: {left}")
        os.close(self._lifeline)
        if self._sockets != self._run_dir:
            for path in self._sockets.iterdir():
                path.unlink()
            self._sockets.rmdir()
        else:
            for path in self._sockets.glob("*.sock"):
                path.unlink()
