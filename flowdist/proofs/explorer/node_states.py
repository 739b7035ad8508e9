"""One node of a small job with what is in flight on its connection, and what may happen there next.

What happens at a site does not depend on the rest of the state: it is worked out once for each site and kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

import msgspec

from flowdist.control.agent.agent import Agent
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.protocol.messages import Acked, Heartbeat, Join, Ordered, ToAgent, ToController
from flowdist.graph import MINUTE, NodeSpec, RoleGraph
from flowdist.proofs.explorer.agent_states import Bodies, Body, Did
from flowdist.proofs.explorer.common import Hears, How, Numbered, Process
from flowdist.proofs.explorer.words import describe

WORKER_PORT = 20_000
NOTICE_NS = MINUTE  # of a node that is to be taken away
NOT_RUNNING = ("spawning", "suspended", "parting")
Messages = Numbered[ToController | ToAgent]


class Pace(Enum):
    """When a step is due. Time passes when nothing is prompt or soon; by what is soon it passes only as a fault."""

    PROMPT = "prompt"  # a kill, a start, a deadline that has come
    SOON = "soon"  # a message, a proof, an end after SIGTERM
    LATER = "later"  # time passes to the next deadline
    FREE = "free"  # the end of a task, a return: at any time, or never
    FAULT = "fault"


@dataclass(slots=True, frozen=True)
class Site:
    """`known`: the controller speaks to the node over this connection, it has heard a Join on it."""

    body: int
    up: tuple[int, ...] = ()
    down: tuple[int, ...] = ()
    link: Literal["none", "open", "known"] = "none"
    is_unproven: bool = False  # it died, and the proof is on its way
    is_refused: bool = False  # again and again, since its last connection was lost: nobody listens


@dataclass(slots=True, frozen=True)
class Step:
    """What happens, in words, and what becomes of the site. `broken` is what must not be.

    `listens`: only while a controller does, or only while none does; None: whether or not.
    """

    text: str
    pace: Pace
    site: int
    broken: str | None = None
    listens: bool | None = None


@dataclass(slots=True, frozen=True)
class View:
    """What is asked of a site again and again. Times are nanoseconds from now."""

    site: Site
    steps: tuple[Step, ...]
    processes: tuple[Process, ...]  # that run
    runs: frozenset[ReplicaId]
    is_prompt: bool
    is_soon: bool
    is_empty: bool  # nothing runs or is about to, even by an order that is on its way
    can_be_heard: bool
    deadlines_ns: dict[Hears, int | None]
    broken: str | None


class Sites:
    """Every state of one node that was met."""

    def __init__(
        self, graph: RoleGraph, spec: NodeSpec, messages: Messages, how: How, *, asks: bool, elastic: bool
    ) -> None:
        self._graph, self._name, self._messages, self._how = graph, spec.name, messages, how
        self._bodies = Bodies(graph, spec, asks=asks, elastic=elastic)
        self._known: Numbered[Site] = Numbered()
        self._views: dict[int, View] = {}
        self._pushed: dict[tuple[int, tuple[int, ...]], int] = {}
        self._aged_by: dict[tuple[int, int, Hears], int] = {}
        self._cut: dict[int, int] = {}
        did = self._bodies.tell(self._bodies.first, io.Connected())
        self.first = self._moved(Site(self._bodies.first, link="open"), did)

    def __len__(self) -> int:
        return len(self._known.items)

    def view(self, number: int) -> View:
        found = self._views.get(number)
        if found is None:
            found = self._views[number] = self._look(self._known.items[number])
        return found

    def pushed(self, number: int, messages: tuple[int, ...]) -> int:
        """The controller has sent something; it is lost unless it has a connection to send it over."""
        found = self._pushed.get((number, messages))
        if found is None:
            site = self._known.items[number]
            if site.link == "known":
                site = replace(site, down=site.down + messages)
            found = self._pushed[number, messages] = self._number(site)
        return found

    def heard(self, number: int, at: int, *, registers: bool, repeats: bool) -> int:
        """A message has reached the controller; with `repeats` it will once more, after all that is in flight."""
        site = self._known.items[number]
        up = site.up[:at] + site.up[at + 1 :] + ((site.up[at],) if repeats else ())
        link = "known" if registers and site.link == "open" else site.link
        return self._number(replace(site, up=up, link=link))

    def may_repeat(self, message: int) -> bool:
        """A Join begins a connection and speaks of that moment: it is the one message that never comes again."""
        return not isinstance(self._messages.items[message], Join)

    def proven(self, number: int) -> int:
        return self._number(replace(self._known.items[number], is_unproven=False))

    def cut(self, number: int) -> int:
        """The controller's end of the connection is gone, with what is in flight."""
        found = self._cut.get(number)
        if found is None:
            site = self._known.items[number]
            cut = replace(site, up=(), down=(), link="none")
            if site.link != "none":
                found = self._moved(cut, self._bodies.tell(site.body, io.Disconnected()))
            self._cut[number] = found = self._number(cut) if found is None else found
        return found

    def later(self, number: int, by_ns: int, hears: Hears) -> int:
        """After some time without any other step."""
        found = self._aged_by.get((number, by_ns, hears))
        if found is None:
            found = self._later(self._known.items[number], by_ns, hears)
            self._aged_by[number, by_ns, hears] = found
        return found

    def _later(self, site: Site, by_ns: int, hears: Hears) -> int:
        beats = any(isinstance(self._messages.items[message], Heartbeat) for message in site.up)
        may_beat = site.link != "none" and not beats
        did = self._bodies.later(site.body, by_ns, hears, may_beat=may_beat)
        up, down = (tuple(self._aged(message, by_ns) for message in side) for side in (site.up, site.down))
        return self._moved(replace(site, up=up, down=down), did)

    def _aged(self, message: int, by_ns: int) -> int:
        """Its own time counts from now. Once the lease is over, it is just too old."""
        old = self._messages.items[message]
        lease_ns = self._graph.options.lease_ns
        match old:
            case Join() | Heartbeat() | Acked():
                return self._messages.of(msgspec.structs.replace(old, sent_ns=max(old.sent_ns - by_ns, -lease_ns)))
            case _:
                return message

    def _number(self, site: Site) -> int:
        return self._known.of(site)

    def _moved(self, site: Site, did: Did) -> int:
        """The site with its new body, and what that has to say on its way."""
        body = self._bodies.known.items[did.body]
        up = site.up + tuple(self._messages.of(message) for message in did.sends)
        if body.agent.is_over:
            return self._number(replace(site, body=did.body, up=up, down=(), link="none"))
        return self._number(replace(site, body=did.body, up=up))

    def _look(self, site: Site) -> View:
        body = self._bodies.known.items[site.body]
        steps = [*self._deliveries(site), *self._of_processes(site, body), *self._of_node(site, body)]
        numbers = [process for process, life in body.lives.items() if life not in NOT_RUNNING]
        runs = [replica for replica, _ in numbers]
        twice = next((str(replica) for replica in runs if runs.count(replica) > 1), None)
        agent = body.agent
        is_up = body.is_alive and not agent.is_over
        heard = site.link == "known" and not site.up and not site.down and not agent.is_fencing
        return View(
            site=site,
            steps=tuple(steps),
            processes=tuple(numbers),
            runs=frozenset(runs),
            is_prompt=any(step.pace is Pace.PROMPT for step in steps),
            is_soon=bool(site.up) or site.is_unproven or any(step.pace is Pace.SOON for step in steps),
            is_empty=not body.lives and not any(self._starts(message) for message in site.down),
            can_be_heard=is_up and heard and agent.lease.acked_ns is not None,
            deadlines_ns={
                "answered": _from(agent.duty(), body.now) if is_up else None,
                "refused": _from(self._deadline_refused(agent), body.now) if is_up else None,
                "nothing": _from(_deadline(site, body), body.now) if is_up else None,
            },
            broken=f"split brain: two attempts of {twice} run on {self._name}" if twice else None,
        )

    def _starts(self, message: int) -> bool:
        match self._messages.items[message]:
            case Ordered(order=StartReplica()):
                return True
            case _:
                return False

    def _deadline_refused(self, agent: Agent) -> int | None:
        """What the agent waits for while it is refused again and again."""
        since, options = agent.lease.outage_since_ns, self._graph.options
        if since is None or agent.is_fencing or agent.lease.acked_ns is None:
            return agent.duty()
        times = [agent.duty(), since + options.controller_outage_ns - options.lease_margin_ns]
        return min(time for time in times if time is not None)

    def _step(self, text: str, pace: Pace, site: Site, did: Did, listens: bool | None = None) -> Step:
        return Step(text, pace, self._moved(site, did), did.broken, listens)

    def _deliveries(self, site: Site) -> list[Step]:
        steps = []
        for at, message in enumerate(site.down if self._how.reorders else site.down[:1]):
            content = self._messages.items[message]
            assert isinstance(content, ToAgent)
            did = self._bodies.message(site.body, content)
            rest = site.down[:at] + site.down[at + 1 :]
            text = f"{self._name} <- controller: {describe(content)}"
            steps.append(self._step(text, Pace.SOON, replace(site, down=rest), did))
            repeated = replace(site, down=(*rest, message))
            steps.append(self._step(f"{text} (it will come again)", Pace.FAULT, repeated, did))
        return steps

    def _of_processes(self, site: Site, body: Body) -> list[Step]:
        steps = []
        for process, life in body.lives.items():
            role = self._graph.role(process[0].role)
            name = f"{process[0]}#{process[1]} on {self._name}"

            def add(text: str, pace: Pace, did: Did, name: str = name) -> None:
                steps.append(self._step(f"{name} {text}", pace, site, did))

            if life == "spawning":
                ports = tuple((port, WORKER_PORT + process[0].index) for port in role.ports)
                add("runs", Pace.PROMPT, self._bodies.begin(site.body, process, ports))
                refused = self._bodies.end(site.body, process, io.SpawnFailed(*process))
                add("cannot be started", Pace.FAULT, refused)
            elif life == "killed":
                add("is killed", Pace.PROMPT, self._ends(site, process, signal="KILL"))
            elif life == "leaving":
                add("leaves its generation in place", Pace.SOON, self._bodies.suspend(site.body, process))
                add("fails", Pace.FAULT, self._ends(site, process, code=1))
            elif life == "suspended":
                add("dies while it waits", Pace.FAULT, self._ends(site, process, signal="SEGV"))
            elif life == "parting":
                add("ends where it waited", Pace.PROMPT, self._ends(site, process, signal="KILL"))
            elif life == "told":
                add("ends after SIGTERM", Pace.SOON, self._ends(site, process, signal="TERM"))
            else:
                if life == "up" and role.ready is not None:
                    ready = self._bodies.live(site.body, process, "ready", io.ProbePassed(*process))
                    add("gets ready", Pace.SOON, ready)
                if life == "asked":
                    add("waits for the step at which all stop", Pace.SOON, self._bodies.wait(site.body, process))
                if life == "saving":
                    add("leaves the agreed step", Pace.SOON, self._bodies.leave_step(site.body, process))
                if role.kind == "task" and life != "waits":
                    add("finishes", Pace.FREE, self._ends(site, process))
                add("fails", Pace.FAULT, self._ends(site, process, code=1))
        return steps

    def _ends(self, site: Site, process: Process, code: int = 0, signal: str | None = None) -> Did:
        return self._bodies.end(site.body, process, io.WorkerExited(*process, 0, code, signal))

    def _of_node(self, site: Site, body: Body) -> list[Step]:
        name, bodies = self._name, self._bodies
        if not body.is_alive:
            if site.is_unproven or site.up:
                return []
            back = replace(site, link="open", is_refused=False)
            return [self._step(f"{name} comes back", Pace.FREE, back, bodies.come_back(site.body), listens=True)]
        if body.agent.is_over:
            return []
        steps = []
        due = body.agent.deadline()
        if due is not None and due <= body.now:
            woken = self._step(
                f"{name}: a deadline of its agent", Pace.PROMPT, site, bodies.tell(site.body, io.AgentTimePassed())
            )
            steps += [woken] if woken.broken or woken.site != self._number(site) else []
        cut = replace(site, up=(), down=(), link="none")
        if site.link == "none":
            back, again = replace(site, link="open", is_refused=False), bodies.tell(site.body, io.Connected())
            steps.append(self._step(f"{name} connects again", Pace.FREE, back, again, listens=True))
            if not site.is_refused and body.agent.lease.acked_ns is not None:
                told, refused = replace(site, is_refused=True), bodies.tell(site.body, io.Refused(is_local=True))
                steps.append(self._step(f"{name} is refused: nobody listens", Pace.FREE, told, refused, listens=False))
        else:
            lost = bodies.tell(site.body, io.Disconnected())
            steps.append(self._step(f"{name} loses its connection, with what is in flight", Pace.FAULT, cut, lost))
        for world, generation in [key for key, port in body.agent.stores.items() if port is not None]:
            died = bodies.tell(site.body, io.StoreExited(world, generation))
            steps.append(self._step(f"the store of {world} dies on {name}", Pace.FAULT, site, died))
        if not body.agent.is_leaving:
            leaves = bodies.tell(site.body, io.LeaveRequested())
            steps.append(self._step(f"{name} is told to leave", Pace.FAULT, site, leaves))
        if self._how.operates and site.link == "known":
            noticed = bodies.tell(site.body, io.PreemptionNoticed(NOTICE_NS))
            steps.append(self._step(f"{name} is to be taken away in 1m", Pace.FAULT, site, noticed))
        dead = replace(cut, up=site.up, is_unproven=True)
        steps.append(self._step(f"{name} dies", Pace.FAULT, dead, bodies.die(site.body)))
        return steps


def _deadline(site: Site, body: Body) -> int | None:
    """What the agent waits for. While something is in flight, heartbeats are stuck behind it: all of them are one."""
    agent = body.agent
    if site.link == "none" or not (site.up or site.down):
        return agent.deadline()
    times = [time for time in (agent._fence_at_ns(), agent.duty()) if time is not None]
    return min(times, default=None)


def _from(at: int | None, now: int) -> int | None:
    return None if at is None else at - now
