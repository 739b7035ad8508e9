"""The foreground process of a run: it owns all others, shows what happens, and sees to it that nothing is left.

It keeps a mirror of the controller, fed with the lines of the journal: what it shows, what faults wait for and what the
summary says come from that mirror, never from decisions of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from flowdist.control.controller import Controller
from flowdist.control.job.state import JobState
from flowdist.control.process_restarts import AgentUpkeep, ControllerUpkeep
from flowdist.control.protocol.effects import FinishJob
from flowdist.control.protocol.events import CancelRequested, NodeGone
from flowdist.control.protocol.ids import unnamed_nodes
from flowdist.errors import JobFailed
from flowdist.faults.grammar import Fault, Plan, added_node
from flowdist.graph import NodeSpec, RoleGraph
from flowdist.record.journal import FaultLine, Header, Line, Record, UnsavedLine, decode_lines
from flowdist.record.timesheet import Timesheet
from flowdist.runtime.agent.guardian import KILL_NODE, NodeConfig
from flowdist.runtime.clock import boot_ns
from flowdist.runtime.controller.controller_main import JOURNAL_LOST, ControllerConfig
from flowdist.runtime.controller.reception import Listening
from flowdist.runtime.gpus.devices import share_devices
from flowdist.runtime.hooks.hooks import Hooks
from flowdist.runtime.injection.injector import Injector
from flowdist.runtime.injection.link_faults import HealLink, LinkFault
from flowdist.runtime.injection.remote_faults import RemoteFault
from flowdist.runtime.processes.owned_processes import OwnedProcesses
from flowdist.runtime.processes.reaper import become_subreaper, kill_descendants
from flowdist.runtime.run_folder.folder import CONTROL, lock_run, remove_sockets, socket_dir
from flowdist.runtime.run_folder.logs import Follower, OpenSink
from flowdist.runtime.run_folder.resume import kill_remaining_workers, resume_point
from flowdist.runtime.supervisor.event_printer import Show, Teller
from flowdist.runtime.supervisor.outbox import Outbox
from flowdist.runtime.supervisor.startup_signals import EarlyInterrupts
from flowdist.runtime.wire.frames import Injected, JournalLine, Operate, Operation, Watch, encode, read_from_controller

LOOK_S = 0.1  # how often the workers' output is looked at
WIND_DOWN_S = 5.0


class Observer(Protocol):
    """Whoever wants to know how the job goes: every record that is new to this process, and its state, often."""

    def hear(self, record: Record) -> None: ...
    def look(self, job: JobState, now: int) -> None: ...


class Site(NamedTuple):
    """Where a host is: the address by which the others reach it, and the interface that has it, if that is known."""

    address: str
    interface: str


class Hosting(NamedTuple):
    """What a supervisor needs that lets other hosts in: where it listens, and where its own node is."""

    listening: Listening
    site: Site


@dataclass(slots=True)
class RunResult:
    """How a run ended. `job` is the state of the mirror, `faults` are the journal's lines about faults."""

    outcome: str
    reason: str
    run_dir: str
    job: JobState
    faults: list[Line]
    unfired: list[Fault]
    sheet: Timesheet  # where its time went


class Supervisor:
    """`show(kind, text)` gets every line for the terminal; `open_sink` may keep the workers' output from it.

    With `hosting` it lets nodes of other hosts into the job; those of the graph are this one's.
    `onlooker` is told what happens. `metrics` is a socket that listens, at which the controllers answer.
    `seed` is that of the plan's rates. `early` are interrupts from before it runs.
    """

    def __init__(
        self,
        graph: RoleGraph,
        gpus: Sequence[str],
        plan: Plan,
        run_dir: Path,
        show: Show,
        open_sink: OpenSink | None = None,
        hosting: Hosting | None = None,
        *,
        onlooker: Observer | None = None,
        metrics: int | None = None,
        seed: int = 0,
        early: EarlyInterrupts | None = None,
    ) -> None:
        self._onlooker, self._metrics, self._early = onlooker, metrics, early
        self._graph, self._show, self._run_dir, self._run_id = graph, show, run_dir, run_dir.name
        self._lock = lock_run(run_dir)
        self._past = resume_point(run_dir, hosting.listening.door if hosting is not None else None)
        if ended := kill_remaining_workers(run_dir):
            show("warning", f"worker processes that had outlived the run are killed: {ended}")
        nodes = [*graph.cluster.nodes, *(added_node(name, graph) for name in plan.new_nodes)]
        self._nodes = {node.name: node for node in nodes}
        self._sockets = socket_dir(self._run_dir, list(self._nodes))
        self._control_socket = str(self._sockets / CONTROL)
        if self._sockets != run_dir:  # the verbs find it from there
            (run_dir / CONTROL).unlink(missing_ok=True)
            (run_dir / CONTROL).symlink_to(self._control_socket)
        self._devices = dict(zip(self._nodes, share_devices(nodes, gpus), strict=True))
        self._hosting = hosting
        more = unnamed_nodes(len(self._nodes) + 1, hosting.listening.hosts) if hosting is not None else ()
        self._known_nodes = self._past.known or (*(node.name for node in graph.cluster.nodes), *more)
        self._mirror = Controller(graph, self._known_nodes)
        self._sheet = Timesheet(self._mirror.state)
        self._start_ns = 0  # by the clock of the runtime, when it has begun
        self._seen = 0  # lines of the journal
        self._follower = Follower(self._run_dir, show, open_sink)
        self._teller = Teller(graph, self._follower, self._nodes, show)
        self._injector = Injector(plan, graph, self._run_dir, self, seed=seed, since_ns=self._past.last_ns)
        self._hooks = Hooks(graph, self._run_dir)
        self._guardians: dict[str, asyncio.subprocess.Process] = {}
        self._starts = {name: self._past.starts.get(name, 0) for name in self._nodes}
        self._agents = {name: AgentUpkeep(f"{name}.log") for name in self._nodes}
        self._controllers = ControllerUpkeep(str(run_dir))
        self._lost = ""  # why no controller is left
        self._back_after_ns: dict[str, int | None] = {}  # nodes that a fault has killed
        self._interrupts = 0
        self._finished: FinishJob | None = None
        self._fault_lines: list[Line] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._own = OwnedProcesses(run_dir)
        self._outbox = Outbox()
        lost = self._past.added if hosting is None else ()  # of another host nothing is proven: its lease will tell
        for name in lost:
            self.operate(NodeGone(name, "the run was killed, and it with it"))
        self._disturbed: dict[tuple[str, str], LinkFault] = {}  # connections, by node and fault

    @property
    def run_dir(self) -> Path:
        return self._run_dir

    async def run(self) -> RunResult:
        """Until the job is over and nothing of it runs. JobFailed when its own processes fail it, KeyboardInterrupt
        when it was interrupted before it could end in order."""
        become_subreaper()
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._start_ns = boot_ns() - self._past.last_ns
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._loop.add_signal_handler(number, self._interrupted)
        for _ in range(self._early.count if self._early is not None else 0):
            self._interrupted()
        self._lifeline, held = os.pipe()
        try:
            await self._hooks.start()
            await self._start_controller()
            self._background(self._keep_controller())
            for node in self._graph.cluster.nodes:
                await self._start_node(node)
            await self._until_over()
        finally:
            await self._wind_down(held)
        if self._finished is None and self._interrupts:
            raise KeyboardInterrupt
        if self._finished is None:
            log = self._run_dir / "controller.log"
            raise JobFailed(f"{self._lost}; everything was stopped (see {log})")
        return RunResult(
            outcome=self._finished.outcome,
            reason=self._finished.reason,
            run_dir=str(self._run_dir),
            job=self._mirror.state,
            faults=self._fault_lines,
            unfired=self._injector.never_fired(),
            sheet=self._sheet,
        )

    async def _start_controller(self) -> None:
        config = ControllerConfig(
            str(self._run_dir),
            self._run_id,
            self._control_socket,
            self._known_nodes,
            self._start_ns,
            self._lifeline,
            tuple(self._disturbed.values()),
            self._hosting.listening if self._hosting is not None else None,
            self._metrics,
        )
        hold = [self._lifeline] if self._metrics is None else [self._lifeline, self._metrics]
        self._controller = await self._own.start(
            "flowdist.runtime.controller.controller_main", config, "controller.log", hold
        )

    async def _start_node(self, node: NodeSpec) -> None:
        self._starts[node.name] += 1
        self._outbox.take_back_gone(node.name)
        for name, why in list(self._disturbed):
            if name == node.name:
                self.heal_link(name, why)  # it has a new connection
        config = NodeConfig(
            node=node,
            number=list(self._nodes).index(node.name),
            incarnation=1000 * (self._starts[node.name] - 1) + 1,  # the agent itself counts on from there
            run_dir=str(self._run_dir),
            run_id=self._run_id,
            control_socket=self._control_socket,
            socket_dir=str(self._sockets),
            lifeline=self._lifeline,
            lock=self._lock,
            devices=self._devices[node.name],
            **(self._hosting.site._asdict() if self._hosting is not None else {}),
        )
        hold = [self._lifeline, self._lock]
        guardian = await self._own.start("flowdist.runtime.agent.guardian", config, f"{node.name}.log", hold)
        self._guardians[node.name] = guardian
        self._background(self._watch_guardian(node, guardian))

    def _background(self, job: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_controller(self) -> None:
        """Read the journal from the controller; start another when it dies, while all else goes on (R21)."""
        while not self._over.is_set():
            await self._watch_controller()
            self._outbox.detach()
            await self._controller.wait()
            if self._over.is_set():
                break
            journal_lost = self._controller.returncode == JOURNAL_LOST
            after_ns, because = self._controllers.died(journal_lost=journal_lost)
            if after_ns is None:
                self._lost = because
                self._over.set()
                break
            self._show("error" if journal_lost else "warning", because)
            await asyncio.sleep(after_ns / 1e9)
            await self._start_controller()

    async def _watch_controller(self) -> None:
        """Connect, read every line of the journal that is new, until the controller is gone."""
        reader = None
        while reader is None and self._controller.returncode is None:
            try:
                reader, writer = await asyncio.open_unix_connection(self._control_socket)
            except OSError:
                await asyncio.sleep(0.01)
        if reader is None:
            return
        writer.write(encode(Watch(self._seen)))
        self._outbox.attach(writer)
        while (answer := await read_from_controller(reader)) is not None:
            if isinstance(answer, JournalLine):
                for line in decode_lines([answer.line]):
                    self._seen += 1
                    self._hear(line)

    async def _watch_guardian(self, node: NodeSpec, guardian: asyncio.subprocess.Process) -> None:
        """The end of a guardian proves that its node is empty; only a guardian that was killed leaves orphans to us."""
        await guardian.wait()
        del self._guardians[node.name]
        if guardian.returncode not in (0, 1):
            await self._own.kill_others(self._hooks.pids())
        if self._over.is_set() or self._finished is not None:
            return
        agent, is_taken = self._agents[node.name], node.name in self._back_after_ns
        after_ns, because = agent.taken_away(self._back_after_ns.pop(node.name)) if is_taken else agent.died()
        self.operate(NodeGone(node.name, because))
        if after_ns is None:
            if not is_taken:
                self._show("error", f"{node.name}: {because}")
            return
        await asyncio.sleep(after_ns / 1e9)
        if not self._over.is_set() and self._finished is None:
            self._show("event", f"{node.name}: its agent is started again")
            await self._start_node(node)

    async def _until_over(self) -> None:
        """Show output and fire faults until the job has ended."""
        while not self._over.is_set():
            wait_s = LOOK_S
            next_ns = self._injector.next_ns()
            if next_ns is not None:
                wait_s = min(wait_s, max(0.0, (next_ns - self.now_ns()) / 1e9))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), wait_s)
            self._injector.fire(self._mirror.state, self.now_ns())
            self._follower.read()
            if self._onlooker is not None:
                self._onlooker.look(self._mirror.state, self.now_ns())

    def now_ns(self) -> int:
        """In the time of the job, which stands still until it begins."""
        return boot_ns() - self._start_ns if self._start_ns else self._past.last_ns

    def _hear(self, line: Line) -> None:
        self._controllers.wrote()
        if self._seen > self._past.lines:
            self._outbox.hear(line)
        if isinstance(line, Header | UnsavedLine):
            return
        if isinstance(line, FaultLine):
            self._sheet.hear(line)
            self._fault_lines.append(line)
            if self._seen > self._past.lines:
                self._show("warning", f"fault {line.spec} hits {line.target}")
            return
        effects = self._mirror.handle(line.event, line.t_ns)
        self._sheet.hear(line)
        if self._onlooker is not None:
            self._onlooker.hear(line)
        if tuple(effects) != line.effects:
            self._show("error", f"line {line.n} of the journal does not replay: please report this as a bug")
        if self._seen <= self._past.lines:  # told already, when it happened
            self._teller.skip(line)
            self._hooks.skip_past(self._mirror.state)
            return
        self._hooks.observe(self._mirror.state)
        self._teller.tell(line)
        for effect in line.effects:
            if isinstance(effect, FinishJob):
                self._finished = effect
                self._over.set()
        self._injector.observe(self._mirror.state, line)

    def _interrupted(self) -> None:
        """First in order, then at once, then without asking anybody."""
        if self._over.is_set():
            self._hooks.stop()
            return
        self._interrupts += 1
        if self._interrupts == 1:
            self._show("warning", "stopping; once more stops at once")
        if self._interrupts > 2 or (self._interrupts > 1 and not self._seen):
            self._over.set()
        else:
            self.operate(CancelRequested("interrupted", now=self._interrupts > 1))

    def is_remote(self, node: str) -> bool:
        return node not in self._nodes

    def apply_remotely(self, blow: RemoteFault) -> None:
        self._outbox.say(blow)  # the controller has a connection to the command of its host

    def kill_node(self, name: str, back_after_ns: int | None) -> None:
        self._take_away(RemoteFault(name, "kill", duration_ns=back_after_ns))

    def make_node_leave(self, name: str, back_after_ns: int | None) -> None:
        self._take_away(RemoteFault(name, "leave", duration_ns=back_after_ns))

    def _take_away(self, blow: RemoteFault) -> None:
        guardian = self._guardians.get(blow.node)
        if self.is_remote(blow.node):
            self.apply_remotely(blow)
        elif guardian is not None and guardian.returncode is None:
            self._back_after_ns[blow.node] = blow.duration_ns
            guardian.send_signal(KILL_NODE if blow.kind == "kill" else signal.SIGTERM)  # which is a leave

    def add_node(self, name: str) -> None:
        self._show("event", f"{name}: its agent is started")
        self._background(self._start_node(self._nodes[name]))

    def guardian_of(self, name: str) -> int | None:
        guardian = self._guardians.get(name)
        return guardian.pid if guardian is not None and guardian.returncode is None else None

    def add_link_fault(self, fault: LinkFault) -> None:
        self._disturbed[fault.node, fault.why] = fault
        self._outbox.say(fault)

    def heal_link(self, node: str, why: str) -> None:
        if self._disturbed.pop((node, why), None) is not None:
            self._outbox.say(HealLink(node, why))

    def kill_controller(self) -> None:
        if self._controller.returncode is None:
            self._controller.kill()
            self._outbox.detach()

    def operate(self, event: Operation) -> None:
        self._outbox.say(Operate(event))

    def note_fault(self, spec: str, target: str) -> None:
        self._outbox.say(Injected(spec, target))

    def warn(self, text: str) -> None:
        self._show("warning", text)

    async def _wind_down(self, held: int) -> None:
        """Agents that were dismissed go by themselves; whatever is left after a moment does not have the choice."""
        self._over.set()
        self._injector.end_all()
        if self._finished is not None:
            waits = [asyncio.create_task(guardian.wait()) for guardian in self._guardians.values()]
            if waits:
                await asyncio.wait(waits, timeout=WIND_DOWN_S)
        os.close(held)  # whoever still holds the other end of the lifeline, ends
        waits = [asyncio.create_task(process.wait()) for process in self._own.running()]
        if waits:
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
        os.close(self._lock)
        remove_sockets(self._sockets, self._run_dir)
