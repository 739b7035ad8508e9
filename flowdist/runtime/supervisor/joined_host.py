"""The foreground process of a host that has joined the job of another: it owns the guardian of its node, shows what
happens, and sees to it that nothing is left.

It decides nothing: it reads the journal over its own connection to the controller and feeds a mirror with it, as the
supervisor on the controller's host does. Without a connection for `controller_outage` the job is over for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import uuid
from errno import ECONNREFUSED
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from flowdist.control.controller import Controller
from flowdist.control.process_restarts import AgentUpkeep
from flowdist.control.protocol.effects import FinishJob
from flowdist.control.protocol.events import NodeJoined
from flowdist.errors import JobFailed
from flowdist.graph import NodeSpec, RoleGraph, format_duration
from flowdist.record.journal import FaultLine, Line, Record, decode_lines
from flowdist.record.timesheet import Timesheet
from flowdist.runtime.agent.guardian import KILL_NODE, NodeConfig
from flowdist.runtime.clock import boot_ns
from flowdist.runtime.injection.remote_faults import Paused, RemoteFault, apply, workers_hit
from flowdist.runtime.processes.pausing import PausedNode
from flowdist.runtime.processes.reaper import become_subreaper, kill_descendants
from flowdist.runtime.run_folder.folder import lock_run, remove_sockets, socket_dir
from flowdist.runtime.run_folder.logs import Follower, OpenSink
from flowdist.runtime.supervisor.event_printer import Show, Teller
from flowdist.runtime.supervisor.supervisor import LOOK_S, WIND_DOWN_S, RunResult, Site
from flowdist.runtime.wire.dialing import dial
from flowdist.runtime.wire.endpoint import INCARNATIONS, DeathProof, Meeting
from flowdist.runtime.wire.frames import (
    Farewell,
    JoinRequest,
    JournalLine,
    Watch,
    Welcome,
    encode,
    read_from_controller,
)
from flowdist.runtime.wire.handshake import PATIENCE_S, Refused, TurnedAway

RETRY_S = 0.2  # between two calls for a controller that does not listen yet, or no longer
SAY_SO_S = 5.0  # between two lines about that


class Link(NamedTuple):
    """A connection to the controller."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def own_address(self) -> str:
        """By which the controller's host reaches this one."""
        return str(self.writer.get_extra_info("sockname")[0])


class Joined(NamedTuple):
    """A place in the job."""

    link: Link
    meeting: Meeting  # with the run
    welcome: Welcome
    uid: str


class LeftInOrder(KeyboardInterrupt):
    """This host was told to leave, and has."""


async def join_job(meeting: Meeting, token: str, host: str, timeout_s: float, show: Show) -> Joined:
    """Call the controller until it is there, and get a place.

    Args:
        host: The name of this host, from which that of its node is made.
        timeout_s: How long to call.

    Raises:
        JobFailed: when nobody has answered for so long.
        TurnedAway: by the controller, or when it is none.
    """
    loop = asyncio.get_running_loop()
    until, say_at = loop.time() + timeout_s, loop.time() + SAY_SO_S
    uid = uuid.uuid4().hex
    while True:
        try:
            link = Link(*await dial(meeting, token))
            welcome = await _arrive(link, JoinRequest(host, uid))
            # from now on by the address that has answered: a name may have several, of which one alone is right
            host = str(link.writer.get_extra_info("peername")[0])
            return Joined(link, msgspec.structs.replace(meeting, host=host, run=welcome.run_id), welcome, uid)
        except TurnedAway as error:
            if not error.again:
                raise
            why = error.message
        except (OSError, TimeoutError) as error:
            why = in_words(error)
        if loop.time() > until:
            raise JobFailed(
                f"no controller has answered at {meeting.endpoint} for {timeout_s:g} s: {why}",
                help=f"start the same command on {meeting.host}, check that its port {meeting.port} can be reached "
                "from here, and that every host names the same endpoint",
            )
        if loop.time() > say_at:
            show("warning", f"no controller at {meeting.endpoint} yet ({why}): calling for {until - loop.time():.0f} s")
            say_at += SAY_SO_S * 2
        await asyncio.sleep(RETRY_S)


async def _arrive(link: Link, message: JoinRequest) -> Welcome:
    """OSError when the connection ends before there is an answer."""
    link.writer.write(encode(message))
    try:
        async with asyncio.timeout(PATIENCE_S):
            answer = await read_from_controller(link.reader)
    except msgspec.MsgspecError as error:
        raise TurnedAway(Refused(f"the controller cannot be understood: {error}")) from None
    if isinstance(answer, Welcome):
        return answer
    link.writer.close()
    if isinstance(answer, Refused):
        raise TurnedAway(answer)
    raise ConnectionResetError("it hung up")


def in_words(error: OSError) -> str:
    """`connection refused`, `no answer`, `the name is unknown`."""
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, ConnectionRefusedError) or f"[Errno {ECONNREFUSED}]" in str(error):  # of several addresses
        return "connection refused"
    return (error.strerror or str(error)).lower()


class Adapt(Protocol):
    def __call__(self, graph: RoleGraph, /) -> RoleGraph:
        """The graph as this host runs it. FlowdistError when it cannot."""


class JoinedHost:
    """One node of a job that is run by another host."""

    def __init__(
        self,
        joined: Joined,
        token: str,
        spec: NodeSpec,
        graph: RoleGraph,
        site: Site,
        devices: tuple[str, ...],
        run_dir: Path,
        show: Show,
        open_sink: OpenSink | None = None,
    ) -> None:
        welcome = joined.welcome
        self._joined, self._token, self._spec, self._site, self._devices = joined, token, spec, site, devices
        self._meeting, self._name, self._show, self._run_dir = joined.meeting, welcome.node, show, run_dir
        self._lock = lock_run(run_dir)
        self._sockets = socket_dir(run_dir, [self._name])
        self._mirror = Controller(welcome.graph, welcome.known_nodes)
        self._sheet = Timesheet(self._mirror.state)
        self._follower = Follower(run_dir, show, open_sink)
        self._teller = Teller(graph, self._follower, (self._name,), show)
        self._writer: asyncio.StreamWriter | None = joined.link.writer
        self._seen, self._digest = 0, sha256()  # lines of the journal
        self._skip = True  # what happened before this host came
        self._agent = AgentUpkeep(str(run_dir / "node.log"))
        self._lives = 0  # of the guardian
        self._away: list[int | None] = []  # a fault has ended it: for how long, in ns; None: for good
        self._held: list[PausedNode | Paused] = []  # by a fault
        self._guardian: asyncio.subprocess.Process | None = None
        self._leaving = 0
        self._finished: FinishJob | None = None
        self._lost = ""  # why the job is over for us, without its end
        self._fault_lines: list[Line] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> RunResult:
        """Until the job is over, this host has left, or the controller is lost.

        Raises:
            JobFailed: the controller is lost, or the node's own processes are.
            LeftInOrder: after SIGTERM or Ctrl-C.
        """
        become_subreaper()
        self._over = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._leave)
        self._lifeline, held = os.pipe()
        self._tasks.append(asyncio.create_task(self._keep_link()))
        self._tasks.append(asyncio.create_task(self._keep_guardian()))
        try:
            while not self._over.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), LOOK_S)
                self._follower.read()
        finally:
            await self._wind_down(held)
        if self._finished is None and self._leaving:
            raise LeftInOrder
        if self._finished is None:
            raise JobFailed(self._lost)
        finished, job = self._finished, self._mirror.state
        return RunResult(finished.outcome, finished.reason, str(self._run_dir), job, self._fault_lines, [], self._sheet)

    async def _keep_guardian(self) -> None:
        """A guardian that ends has left nothing of its node; another takes its place while the job goes on."""
        while True:
            self._lives += 1
            guardian = await self._start_guardian()
            await guardian.wait()
            self._guardian = None
            if guardian.returncode not in (0, 1):  # it was killed, and could not say so itself
                kill_descendants()
                self._say_gone()
            if self._leaving or self._finished is not None:
                self._over.set()
                return
            is_taken = bool(self._away)
            after_ns, because = self._agent.taken_away(self._away.pop()) if is_taken else self._agent.died()
            if after_ns is None:
                if not is_taken:
                    self._end(f"{self._name}: {because}")
                return
            await asyncio.sleep(after_ns / 1e9)
            self._show("event", f"{self._name}: its agent is started again")

    async def _start_guardian(self) -> asyncio.subprocess.Process:
        config = NodeConfig(
            node=msgspec.structs.replace(self._spec, name=self._name),
            number=self._joined.welcome.number,
            incarnation=self._joined.welcome.incarnation + (self._lives - 1) * INCARNATIONS,
            run_dir=str(self._run_dir),
            run_id=self._joined.welcome.run_id,
            control_socket="",
            socket_dir=str(self._sockets),
            lifeline=self._lifeline,
            lock=self._lock,
            devices=self._devices,
            meeting=self._meeting,
            **self._site._asdict(),
        )
        with (self._run_dir / "node.log").open("ab") as log:
            self._guardian = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "flowdist.runtime.agent.guardian",
                msgspec.json.encode(config).decode(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[self._lifeline, self._lock],
                start_new_session=True,
            )
        if self._leaving:  # it was told while this one was being started
            self._guardian.terminate()
        return self._guardian

    def _say_gone(self) -> None:
        last = self._joined.welcome.incarnation + self._lives * INCARNATIONS - 1
        if self._writer is not None:
            self._writer.write(encode(DeathProof(self._name, last, "its guardian was killed")))

    async def _keep_link(self) -> None:
        """Read the journal; when the connection ends, call again for as long as a controller may be away (R21)."""
        reader = self._joined.link.reader
        while True:
            if self._writer is not None:
                self._writer.write(encode(Watch(self._seen, self._digest.digest())))
            await self._read(reader)
            if self._writer is not None:
                self._writer.close()
            self._writer = None
            if self._finished is not None or self._lost:
                return
            self._show("warning", f"the connection to the controller at {self._meeting.endpoint} is lost: calling it")
            link = await self._call_again()
            if link is None:
                return
            self._show("event", "connected to the controller again")
            reader, self._writer = link

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            while (message := await read_from_controller(reader)) is not None:
                match message:
                    case JournalLine():
                        self._digest.update(message.line)
                        for line in decode_lines([message.line]):
                            self._hear(line)
                    case RemoteFault():
                        self._suffer(message)
                    case Farewell():
                        self._end(f"the controller at {self._meeting.endpoint} is gone: {message.reason}")
                        return
                    case _:
                        pass

    async def _call_again(self) -> Link | None:
        """None when it has been away for too long, or does not know us any more."""
        outage_ns = self._mirror.state.graph.options.controller_outage_ns
        until = boot_ns() + outage_ns
        why = ""
        while boot_ns() < until:
            try:
                link = Link(*await dial(self._meeting, self._token))
                await _arrive(link, JoinRequest("", self._joined.uid, self._name))
                return link
            except TurnedAway as error:
                if not error.again:
                    self._end(f"the controller at {self._meeting.endpoint} wants nothing of this host: {error.message}")
                    return None
            except (OSError, TimeoutError) as error:
                why = f" ({in_words(error)})"
            await asyncio.sleep(RETRY_S)
        away, place = format_duration(outage_ns), self._meeting.endpoint
        self._end(f"no controller has answered at {place} for {away}{why}: everything here was stopped")
        return None

    def _hear(self, line: Line) -> None:
        self._seen += 1
        if isinstance(line, FaultLine):
            self._fault_lines.append(line)
            self._sheet.hear(line)
        if not isinstance(line, Record):
            return
        if tuple(self._mirror.handle(line.event, line.t_ns)) != line.effects:
            self._show("error", f"line {line.n} of the journal does not replay: please report this as a bug")
        self._sheet.hear(line)
        if isinstance(line.event, NodeJoined) and line.event.node == self._name:
            self._skip &= line.event.incarnation < self._joined.welcome.incarnation
        if self._skip:
            self._teller.skip(line)
            return
        self._teller.tell(line)
        for effect in line.effects:
            if isinstance(effect, FinishJob):
                self._finished = effect
                wait_s = WIND_DOWN_S if self._guardian is not None else 0
                asyncio.get_running_loop().call_later(wait_s, self._over.set)  # its agent was dismissed
                for held in list(self._held):
                    self._let_go(held)

    def _suffer(self, blow: RemoteFault) -> None:
        """A fault of the operator's plan, on what runs here: whoever takes part in a job runs its commands as well."""
        guardian = self._guardian
        if blow.node != self._name or guardian is None or guardian.returncode is not None:
            return
        self._show("warning", f"a fault hits {blow.target}: {blow.kind}")
        if blow.replica is not None:
            if blow.replica in self._mirror.state.replicas:
                for folder in workers_hit(self._run_dir, blow):
                    if (held := apply(folder, blow)) is not None:
                        self._hold(held, blow.duration_ns if blow.kind != "hang" else None)
            return
        match blow.kind:
            case "pause":
                below = PausedNode(guardian.pid)
                below.pause()
                self._hold(below, blow.duration_ns)
            case "kill" | "leave":
                self._away.append(blow.duration_ns)
                guardian.send_signal(KILL_NODE if blow.kind == "kill" else signal.SIGTERM)

    def _hold(self, held: PausedNode | Paused, duration_ns: int | None) -> None:
        self._held.append(held)
        if duration_ns is not None:
            asyncio.get_running_loop().call_later(duration_ns / 1e9, self._let_go, held)

    def _let_go(self, held: PausedNode | Paused) -> None:
        if held in self._held:
            self._held.remove(held)
            held.resume()

    def _end(self, why: str) -> None:
        """The job is over for this host."""
        self._lost = self._lost or why
        self._over.set()

    def _leave(self) -> None:
        """First in order, then at once."""
        self._leaving += 1
        if self._leaving == 1:
            self._show("warning", f"{self._name} leaves the job; once more ends it at once")
            if self._guardian is None:
                self._over.set()  # a fault has taken the node away already
                return
            with contextlib.suppress(ProcessLookupError):
                self._guardian.terminate()
        else:
            self._over.set()

    async def _wind_down(self, held: int) -> None:
        """Whatever is left after a moment does not have the choice."""
        for paused in list(self._held):
            self._let_go(paused)
        os.close(held)  # whoever still holds the other end of the lifeline, ends
        if self._guardian is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._guardian.wait(), WIND_DOWN_S)
        for task in self._tasks:
            task.cancel()
        if self._writer is not None:
            with contextlib.suppress(OSError, RuntimeError, TimeoutError):
                await asyncio.wait_for(self._writer.drain(), RETRY_S)
            self._writer.close()
        self._follower.read(final=True)
        if left := kill_descendants():
            self._show("error", f"these processes outlive SIGKILL: {left}")
        os.close(self._lifeline)
        os.close(self._lock)
        remove_sockets(self._sockets, self._run_dir)
