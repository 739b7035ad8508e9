"""The foreground process on the controller's host: it keeps the controller and the nodes of this host running.

Text, times of faults and the summary follow from a mirror of the controller, which gets every line of the journal.
Joined hosts have none: they get news of their own node (`joined_host`). Decisions are the controller's.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from flowdist.control.job.state import JobState
from flowdist.control.process_restarts import why_nodes_are_too_few
from flowdist.control.protocol.effects import FinishJob
from flowdist.control.protocol.events import CancelRequested, NodeGone
from flowdist.control.protocol.ids import NodeName, unnamed_nodes
from flowdist.errors import FlowdistError
from flowdist.faults.grammar import Plan
from flowdist.faults.targets import added_node
from flowdist.graph import RoleGraph
from flowdist.record.journal import FaultLine, Header, Line, Record
from flowdist.record.replay import Replay
from flowdist.runtime.agent.node_config import NodeConfig
from flowdist.runtime.clock import boot_ns
from flowdist.runtime.controller.controller_process import ControllerConfig
from flowdist.runtime.controller.host_registry import Listening
from flowdist.runtime.gpus.devices import share_devices
from flowdist.runtime.hooks.hooks import Hooks
from flowdist.runtime.injection.injector import Injector
from flowdist.runtime.run_folder.cleanup import CONTROL
from flowdist.runtime.run_folder.folder import JOURNAL, lock_run
from flowdist.runtime.run_folder.logs import OpenSink
from flowdist.runtime.run_folder.owner_file import OwnerFile
from flowdist.runtime.run_folder.resume import kill_remaining_workers, resume_point
from flowdist.runtime.supervisor.controller_keeper import ControllerKeeper
from flowdist.runtime.supervisor.event_printer import EventPrinter, Show
from flowdist.runtime.supervisor.fleet_keeper import Employer, FleetKeeper
from flowdist.runtime.supervisor.host_process import LOOK_S, WIND_DOWN_S, HostProcess, RunResult, wait_for_ends
from flowdist.runtime.supervisor.local_node import LocalNode, Site
from flowdist.runtime.supervisor.outbox import Outbox
from flowdist.runtime.supervisor.owner_keeper import OwnerKeeper
from flowdist.runtime.supervisor.startup_signals import StartupSignals
from flowdist.runtime.wire.addresses import open_doors
from flowdist.runtime.wire.endpoint import INCARNATIONS
from flowdist.runtime.wire.frames import HealLink, Injected, LinkFault, Operate, Operation, RemoteFault

ANSWER_S = 2.0  # for a controller that runs to record an interrupt
CANCEL_S = 10.0  # for one that is started or takes over
MARGIN_S = 30.0  # for a job that is cancelled to end, besides the grace of its workers
NO_ANSWER = "the controller does not answer"


class Observer(Protocol):
    """A spectator of the job, such as a live display."""

    def hear(self, record: Record) -> None:
        """Handle the next record of the journal. Called for all of them, also those from before a resume."""

    def look(self, job: JobState, now: int) -> None:
        """Handle the present state of the job at `now`, its time in ns. Called at least every LOOK_S seconds."""


class Hosting(NamedTuple):
    """Settings that let other hosts join.

    `employ` returns, for the folder of the run, the engine that starts the other hosts' members; None: people do that.
    """

    listening: Listening
    site: Site
    employ: Callable[[Path], Employer] | None = None


class Supervisor:
    """The supervisor of one run, resumed if `run_dir` has a journal. It is the fault injector's `ProcessControl`.

    `graph` has the nodes of this host; without `hosting` there are no others. `show` gets the kind of a line first.
    `metrics` is the descriptor of a listening socket; `early` has the interrupts from before `run`. FlowdistError if
    the run cannot be resumed, or something of it still runs.
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
        early: StartupSignals | None = None,
    ) -> None:
        self._onlooker, self._metrics, self._early = onlooker, metrics, early
        self._graph, self._show, self._hosting = graph, show, hosting
        lock = lock_run(run_dir)
        try:
            self._past = resume_point(run_dir, hosting.listening.door if hosting is not None else None)
        except FlowdistError:
            os.close(lock)
            raise
        if killed := kill_remaining_workers(run_dir):
            show("warning", f"worker processes that had outlived the run are killed: {killed}")
        nodes = [*graph.cluster.nodes, *(added_node(name, graph) for name in plan.new_nodes)]
        self._specs = {node.name: node for node in nodes}
        self._devices = dict(zip(self._specs, share_devices(nodes, gpus), strict=True))
        more = unnamed_nodes(len(self._specs) + 1, hosting.listening.hosts) if hosting is not None else ()
        self._known_nodes = self._past.known or (*(node.name for node in graph.cluster.nodes), *more)
        self._host = HostProcess(run_dir, lock, list(self._specs), show, open_sink)
        self._printer = EventPrinter(graph, self._host.follower, self._specs, show)
        self._mirror = Replay(Header(graph, self._known_nodes), source=str(run_dir / JOURNAL))
        self._fault_lines: list[Line] = []
        self._link_control_socket()
        self._doors: list[socket.socket] = []  # they listen for other hosts; each controller gets them
        self._start_ns = 0  # on the runtime's clock, once the job has begun
        self._outbox = Outbox()
        self._controller = ControllerKeeper(
            self._host, self._controller_config, self._outbox, self._handle_line, lambda: self._interrupts > 0
        )
        self._injector = Injector(plan, graph, run_dir, self, seed=seed, since_ns=self._past.last_ns)
        self._hooks = Hooks(graph, run_dir)
        self._fleet: FleetKeeper | None = None
        if hosting is not None and hosting.employ is not None:
            self._fleet = FleetKeeper(hosting.employ(run_dir), run_dir, show, self.operate)
        self._nodes: dict[NodeName, LocalNode] = {}
        self._given_up: set[NodeName] = set()
        self.own(())
        self._ends_because = ""  # it has given up too many of its nodes, or has lost a claim; empty: neither
        self._interrupts = 0
        self._is_alone = False  # the run is being ended without a controller
        self._link_faults: dict[tuple[str, str], LinkFault] = {}  # faults of connections, by node and fault
        # The death of nodes on other hosts is not proven: the controller waits for the end of their leases.
        for name in self._past.added if hosting is None else ():
            self.operate(NodeGone(name, "the run was killed, and it with it"))

    def own(self, claims: Sequence[OwnerFile]) -> None:
        """Keep these claims while the run lasts. If another run takes one of them over, this one ends."""
        self._owners = OwnerKeeper(claims, self._host.run_dir.name, self._end)

    def _link_control_socket(self) -> None:
        """Make the control socket reachable through the run's folder, where other commands look for it."""
        run_dir, sockets = self._host.run_dir, self._host.sockets
        self._control_socket = str(sockets / CONTROL)
        if sockets != run_dir:
            (run_dir / CONTROL).unlink(missing_ok=True)
            (run_dir / CONTROL).symlink_to(self._control_socket)

    async def run(self) -> RunResult:
        """Run the job until it is over, also by failure or cancellation, and nothing of it is left on this host.

        RunBroken if controllers keep dying, or this process has failed: the job has no end in the journal.
        KeyboardInterrupt if an interrupt ended the run before the controller could end the job in order.
        """
        host = self._host
        if self._hosting is not None:
            listening = self._hosting.listening
            self._doors = open_doors([listening.address, *listening.also] if listening.address else [], listening.port)
        self._start_ns = boot_ns() - self._past.last_ns
        host.begin(self._interrupted, self._noticed)
        self._owners.start()
        for _ in range(self._early.count if self._early is not None else 0):
            host.interrupt()
        self._nodes = {name: LocalNode(host, self._node_config(name), f"{name}.log", self) for name in self._specs}
        try:
            await self._hooks.start()
            await self._controller.start()
            host.background(self._controller.keep())
            for node in self._graph.cluster.nodes:
                await self._nodes[node.name].start()
            if self._fleet is not None:
                host.background(self._fleet.keep(lambda: self._mirror.job, self.now_ns))
            await self._until_over()
        except Exception as error:
            host.fail(error)
        finally:
            await self._wind_down()
        lost = (
            self._ends_because
            or f"{self._controller.lost}; everything was stopped (see {host.run_dir / 'controller.log'})"
        )
        failure: KeyboardInterrupt | FlowdistError = KeyboardInterrupt() if self._interrupts else host.broken(lost)
        end, mirror = host.end(failure), self._mirror
        faults, unfired = self._fault_lines, self._injector.never_fired()
        return RunResult(end.outcome, end.reason, str(host.run_dir), mirror.job, faults, unfired, mirror.sheet)

    def _controller_config(self) -> ControllerConfig:
        run_dir = self._host.run_dir
        return ControllerConfig(
            str(run_dir),
            run_dir.name,
            self._control_socket,
            self._known_nodes,
            self._start_ns,
            self._host.lifeline,
            tuple(self._link_faults.values()),
            self._hosting.listening if self._hosting is not None else None,
            self._metrics,
            tuple(door.fileno() for door in self._doors),
        )

    def _node_config(self, name: NodeName) -> NodeConfig:
        return NodeConfig(
            node=self._specs[name],
            number=list(self._specs).index(name),
            incarnation=self._past.starts.get(name, 0) * INCARNATIONS + 1,
            run_dir=str(self._host.run_dir),
            run_id=self._host.run_dir.name,
            control_socket=self._control_socket,
            socket_dir=str(self._host.sockets),
            lifeline=self._host.lifeline,
            lock=self._host.lock,
            devices=self._devices[name],
            **(self._hosting.site._asdict() if self._hosting is not None else {}),
        )

    def node_starts(self, node: NodeName) -> None:
        """Drop messages about the node's last end that are not in the journal yet, and end faults of its connection."""
        self._outbox.withdraw_gone(node)
        for name, why in list(self._link_faults):
            if name == node:
                self.heal_link(name, why)

    async def guardian_ended(self, node: NodeName, *, was_killed: bool) -> None:
        """Kill the rest of the node if its guardian was killed."""
        if was_killed:
            await self._host.processes.kill_others(self._host.warn, self._hooks.pids())

    def node_gone(self, node: NodeName, cause: str, *, is_given_up: bool) -> None:
        """Report that nothing of the node runs any more; if it is given up, end the run if too few nodes are left."""
        self.operate(NodeGone(node, cause))
        if not is_given_up:
            return
        self._show("error", f"{node}: {cause}")
        self._given_up.add(node)
        log = f"{self._host.run_dir / node}.log"
        may_join = self._hosting is not None
        least = 1 if self._mirror.job.admitted else self._mirror.job.graph.cluster.min_nodes
        if why := why_nodes_are_too_few(self._nodes, self._given_up, least, log, others_may_join=may_join):
            self._end(why)

    def _end(self, why: str) -> None:
        """End the run although its job has not ended."""
        self._ends_because = why
        self._host.over.set()

    async def _until_over(self) -> None:
        """Print the workers' output, and inject faults when they are due, until `over` is set."""
        while not self._host.over.is_set():
            next_ns = self._injector.next_ns()
            until_next_s = (next_ns - self.now_ns()) / 1e9 if next_ns is not None else LOOK_S
            await self._host.wait(min(LOOK_S, max(0.0, until_next_s)))
            self._injector.fire(self._mirror.job, self.now_ns())
            self._host.follower.read()
            if self._onlooker is not None:
                self._onlooker.look(self._mirror.job, self.now_ns())

    def now_ns(self) -> int:
        """Return the time of the job in ns. Before `run` it is the time at which the journal ends, 0 in a new run."""
        return boot_ns() - self._start_ns if self._start_ns else self._past.last_ns

    def _handle_line(self, line: Line) -> None:
        is_new = self._controller.lines_read > self._past.lines  # else it was shown before the run was resumed
        if is_new:
            self._outbox.observe(line)
        if (difference := self._mirror.hear(line)) is not None:
            self._show("error", f"{difference.text}: please report this as a bug")
        if isinstance(line, FaultLine):
            self._fault_lines.append(line)
            if is_new:
                self._show("warning", f"fault {line.spec} hits {line.target}")
        if isinstance(line, Record):
            self._handle_record(line, is_new)

    def _handle_record(self, record: Record, is_new: bool) -> None:
        if self._onlooker is not None:
            self._onlooker.hear(record)
        if not is_new:
            self._printer.skip(record)
            self._hooks.skip_past(self._mirror.job)
            return
        self._hooks.observe(self._mirror.job)
        self._printer.print(record)
        for end in (effect for effect in record.effects if isinstance(effect, FinishJob)):
            self._host.finished = end
            self._host.over.set()
        self._injector.observe(self._mirror.job, record)

    def _interrupted(self) -> None:
        """Cancel the job: in order at the first interrupt, at once at the second, without the controller at the third.

        If the controller has not written a line yet, or does not answer, the second already ends the run without it.
        Once the job is over, an interrupt kills the hooks instead.
        """
        if self._host.over.is_set():
            self._hooks.stop()
            return
        self._interrupts += 1
        if self._interrupts == 1:
            self._show("warning", "stopping the job; a second interrupt stops it at once")
            self._host.background(self._see_to_the_end())
        if self._interrupts > 2 or (self._interrupts > 1 and (self._is_alone or not self._controller.lines_read)):
            self._host.over.set()
        else:
            self.operate(CancelRequested("interrupted", now=self._interrupts > 1))

    def _noticed(self) -> None:
        """Have the work on the nodes of this host move elsewhere, because the machine is about to be taken away."""
        self._show("warning", "this machine is about to be taken away (SIGUSR1): its work moves elsewhere")
        for node in self._nodes.values():
            node.give_notice()

    async def _see_to_the_end(self) -> None:
        """After the first interrupt, end the run in time, with the controller or without.

        A controller that runs has ANSWER_S to record it: if it stands still, the agents kill their workers without
        grace at the end of their lease. One that takes over has CANCEL_S. Then the job has as long as the roles need to
        stop one after the other, and a worker that hangs in the kernel to be given up.
        """
        host, options = self._host, self._graph.options
        grace_s = sum(role.grace_ns for role in self._graph.roles) / 1e9
        until_s = boot_ns() / 1e9 + (ANSWER_S if self._controller.is_serving else CANCEL_S)
        while not (host.over.is_set() or self._mirror.job.ending or self._controller.lost or boot_ns() / 1e9 > until_s):
            await host.wait()
        if self._mirror.job.ending and not self._controller.lost:
            limit_s = grace_s + options.unkillable_after_ns / 1e9 + MARGIN_S
            until_s = boot_ns() / 1e9 + limit_s
            while not (host.over.is_set() or self._controller.lost or boot_ns() / 1e9 > until_s):
                await host.wait()
        if host.over.is_set():
            return
        self._is_alone = True
        self._show("warning", f"{self._controller.lost or NO_ANSWER}: the workers are stopped without a controller")
        for node in self._nodes.values():
            node.leave()
        guardians = [node.process for node in self._nodes.values() if node.process is not None]
        await wait_for_ends(guardians, grace_s + WIND_DOWN_S)
        host.over.set()

    def is_remote(self, node: str) -> bool:
        """Return whether the node is on another host: it is not one of this run's own nodes."""
        return node not in self._specs

    def apply_remotely(self, fault: RemoteFault) -> None:
        """Have the controller pass the fault to the foreground process of the other host that runs the node."""
        self._outbox.send(fault)

    def kill_node(self, name: str, back_after_ns: int | None) -> None:
        """Kill all processes of the node, and start it again after `back_after_ns`; None: never."""
        self._take_away(RemoteFault(name, "kill", duration_ns=back_after_ns))

    def make_node_leave(self, name: str, back_after_ns: int | None) -> None:
        """Have the node leave the job in order, and start it again after `back_after_ns`; None: never."""
        self._take_away(RemoteFault(name, "leave", duration_ns=back_after_ns))

    def _take_away(self, fault: RemoteFault) -> None:
        if self.is_remote(fault.node):
            self.apply_remotely(fault)
        else:
            self._nodes[fault.node].take_away(fault)

    def add_node(self, name: str) -> None:
        """Start a node that the plan adds to the job, in the background."""
        self._show("event", f"{name}: agent started")
        self._host.background(self._nodes[name].start())

    def guardian_of(self, name: str) -> int | None:
        """Return the process id of the node's guardian; None if it does not run, or runs on another host."""
        guardian = self._nodes[name].process if name in self._nodes else None
        return guardian.pid if guardian is not None else None

    def add_link_fault(self, fault: LinkFault) -> None:
        """Begin a fault of a node's connection. The controllers that follow this one continue the fault."""
        self._link_faults[fault.node, fault.why] = fault
        self._outbox.send(fault)

    def heal_link(self, node: str, why: str) -> None:
        """End the fault of the node's connection that `why` identifies; do nothing if there is none."""
        if self._link_faults.pop((node, why), None) is not None:
            self._outbox.send(HealLink(node, why))

    def kill_controller(self) -> None:
        """Kill the controller process for an injected fault. The next one continues from the journal."""
        self._controller.kill()

    def operate(self, event: Operation) -> None:
        """Send the controller an event that does not come from an agent; again to the next one if this one dies."""
        self._outbox.send(Operate(event))

    def note_fault(self, spec: str, target: str) -> None:
        """Have the controller write into the journal that a fault, as the user wrote it, has hit its target."""
        self._outbox.send(Injected(spec, target))

    def warn(self, text: str) -> None:
        """Show a warning on the terminal."""
        self._show("warning", text)

    async def _wind_down(self) -> None:
        """End every process of the run on this host, and the hooks.

        If the job has ended, its agents end by themselves within WIND_DOWN_S; the rest is killed.
        """
        host = self._host
        host.over.set()
        if self._fleet is not None:
            await self._fleet.finish(self._mirror.job, self.now_ns)
        self._injector.end_all()
        if host.finished is not None:
            await wait_for_ends(node.process for node in self._nodes.values() if node.process is not None)
        await host.end_processes()
        interrupted = FinishJob("cancelled", "interrupted") if self._interrupts else None
        await self._hooks.finish(self._mirror.job, host.finished or interrupted)
        for door in self._doors:
            door.close()
        self._owners.stop()
        await host.close()
