"""The nodes of this host: each is a guardian, with an agent, a spawner and workers below it."""

from __future__ import annotations

import asyncio
import signal
from typing import NamedTuple, Protocol

import msgspec

from flowdist.control.process_restarts import AgentUpkeep, Next
from flowdist.control.protocol.ids import NodeName
from flowdist.runtime.agent.node_config import KILL_NODE, NOTICE_NODE, NodeConfig
from flowdist.runtime.clock import boot_ns
from flowdist.runtime.last_words import last_words
from flowdist.runtime.left_files import size_of
from flowdist.runtime.supervisor.host_process import HostProcess
from flowdist.runtime.wire.endpoint import INCARNATIONS
from flowdist.runtime.wire.frames import RemoteFault


class Site(NamedTuple):
    """The address by which other hosts reach this one, and the network interface that has it; "" if that is unknown."""

    address: str
    interface: str


class NodeOwner(Protocol):
    """The calls that a LocalNode makes to the foreground process that owns it: a supervisor or a joined host."""

    def node_starts(self, node: NodeName) -> None:
        """Prepare for a start of the node's guardian. Called before each start."""

    async def guardian_ended(self, node: NodeName, *, was_killed: bool) -> None:
        """Handle an end of the node's guardian, before `node_gone`; if it `was_killed`, kill the rest of the node."""

    def node_gone(self, node: NodeName, cause: str, *, is_given_up: bool) -> None:
        """Handle that nothing of the node runs any more, because of `cause`. Called only while the job continues.

        `is_given_up`: the guardian has ended by itself too often. False after a fault, even one that is for good.
        """


class LocalNode:
    """One node of this host: its guardian, which is started again when it ends while the job continues.

    One that keeps ending by itself is given up; one that a fault has ended starts again after the fault's duration.
    """

    def __init__(self, host: HostProcess, config: NodeConfig, log: str, owner: NodeOwner) -> None:
        self._host, self._config, self._log, self._owner = host, config, log, owner
        self._name = config.node.name
        self._incarnation = config.incarnation  # the first that the agents of the next guardian have
        self._process: asyncio.subprocess.Process | None = None
        self._restarts = AgentUpkeep(log)
        self._taken_away: RemoteFault | None = None  # the fault that ends the guardian
        self._is_leaving = False
        self._since_ns = self._log_size = 0  # when the guardian was started, and the size of its log then

    @property
    def process(self) -> asyncio.subprocess.Process | None:
        """The process of the guardian; None while no guardian runs."""
        return self._process if self._process is not None and self._process.returncode is None else None

    @property
    def last_incarnation(self) -> int:
        """The highest incarnation that the agents of the latest guardian can have."""
        return self._incarnation - 1

    async def start(self) -> None:
        """Start a guardian, whose agents have higher incarnations than those before, and watch it in the background."""
        self._owner.node_starts(self._name)
        config = msgspec.structs.replace(self._config, incarnation=self._incarnation)
        self._incarnation += INCARNATIONS
        hold = [config.lifeline, config.lock]
        self._since_ns, self._log_size = boot_ns(), size_of(self._host.run_dir / self._log)
        self._process = await self._host.processes.start("flowdist.runtime.agent.guardian", config, self._log, hold)
        self._host.background(self._watch(self._process))

    def take_away(self, fault: RemoteFault) -> None:
        """Inject a fault that ends the node, if it runs: at once for a `kill`, in order for a `leave`."""
        if (guardian := self.process) is not None:
            self._taken_away = fault
            guardian.send_signal(KILL_NODE if fault.kind == "kill" else signal.SIGTERM)

    def _died(self) -> Next:
        words = last_words(self._host.run_dir / self._log, self._log_size)
        return self._restarts.died(boot_ns() - self._since_ns, words)

    def leave(self) -> None:
        """Have the node leave the job in order, with the grace of its workers. It is not started again."""
        self._is_leaving = True
        if (guardian := self.process) is not None:
            guardian.send_signal(signal.SIGTERM)

    def give_notice(self) -> None:
        """Have the agent report that the node will be taken away, so that its work moves elsewhere in order."""
        if (guardian := self.process) is not None:
            guardian.send_signal(NOTICE_NODE)

    async def _watch(self, guardian: asyncio.subprocess.Process) -> None:
        """Wait for the end of the guardian, report it to the owner, and start the next guardian if there is to be one.

        After an exit code of 0, all of the node has ended. After any other, this process adopts what is left, and kills
        it: nothing is reported and nothing starts before the last of it has ended (R19).
        """
        await guardian.wait()
        await self._owner.guardian_ended(self._name, was_killed=guardian.returncode != 0)
        if self._host.is_over or self._is_leaving:
            return
        fault, self._taken_away = self._taken_away, None
        after_ns, cause = self._restarts.taken_away(fault.duration_ns) if fault else self._died()
        self._owner.node_gone(self._name, cause, is_given_up=after_ns is None and fault is None)
        if after_ns is None:
            return
        await asyncio.sleep(after_ns / 1e9)
        if not self._host.is_over and not self._is_leaving:
            self._host.show("event", f"{self._name}: agent started again")
            await self.start()
