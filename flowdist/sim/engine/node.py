"""A simulated node: the agent of production over processes that are only numbers.

The link to the controller can be cut, and the node can die. While both are well, heartbeats are not played one by one:
the last one that could have been answered is taken as sent when somebody's deadline could depend on it. The agent's
lease is brought up to date before the agent is told anything; what the controller has heard, when a node is not well.
The heartbeats of one that is overdue, or was given up, are played: the next is news.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from flowdist.control.agent.agent import Agent
from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.protocol.messages import Acked, Heartbeat, ToAgent, ToController
from flowdist.graph import MS, NodeSpec, RoleGraph
from flowdist.sim.engine.network import LATENCY_NS, Direction, Link
from flowdist.sim.engine.queue import Action

if TYPE_CHECKING:
    from flowdist.sim.engine.simulation import Simulation

SPAWN_NS = 5 * MS
TERM_NS = 100 * MS  # from SIGTERM to the end of a worker that obeys
KILL_NS = 1 * MS
LEAVE_NS = 10 * MS  # to leave a process group
RESUME_NS = 1 * MS  # to be told of the next
BIND_NS = 200_000
ROUND_TRIP_NS = 2 * LATENCY_NS
FIRST_PORT = 20_000


class SimNode:
    """`incarnation` counts the agents that have been started on the node, in thousands, as in production."""

    def __init__(self, sim: Simulation, spec: NodeSpec, starts: int = 0) -> None:
        self._sim, self.spec, self.starts = sim, spec, starts
        self.agent = Agent(spec, sim.graph, incarnation=1000 * starts + 1)
        self.is_alive = True
        self.net = Link(spec.name, sim.seed, apart_ns=1 if sim.schedule else 0)
        self.is_heard = False  # the next heartbeat is no news; the simulation keeps it as `links` has it
        self.is_paused = False
        self.comes_at_ns = 0  # its agent is started then: nothing is said before
        self._is_coming = False
        self._held: list[Callable[[], None]] = []  # what happens to it as soon as it goes on
        self.link = 0  # counts the connections to the controller: what is said on one does not arrive on the next
        self.hung: dict[tuple[ReplicaId, int], None] = {}  # attempts that do nothing any more
        self.workers: dict[tuple[ReplicaId, int], dict[int, None]] = {}  # alive local ranks by attempt
        self.suspended: dict[tuple[ReplicaId, int], None] = {}  # attempts whose workers have left their generation
        self._procs: dict[str, int] = {}  # workers of a replica, by role
        self._ports: dict[tuple[ReplicaId, str], int] = {}
        self._stores = 0
        self._planned: int | None = None
        self._beat_ns: int | None = None  # when the last heartbeat was sent that was taken as played
        self._beats_wait = False  # the controller's side does not know of it yet

    @property
    def is_well(self) -> bool:
        """It lives, its link is quiet and it is heard: nobody's deadline depends on a single heartbeat of it."""
        return self.is_alive and self.net.is_quiet and self.is_heard

    @property
    def _plays_heartbeats(self) -> bool:
        return not (self.is_heard and self.net.is_quiet) or self._sim.plays_heartbeats

    def connect(self) -> None:
        """The connection to the controller comes up, unless there is none to connect to."""
        if self._sim.queue.now < self.comes_at_ns:
            if not self._is_coming:
                self._sim.queue.at(self.comes_at_ns, self.connect)
            self._is_coming = True
        elif not self._sim.is_down and not self.net.is_cut("up") and not self.net.is_cut("down"):
            self.link += 1
            self.tell(io.Connected())

    def lose_link(self) -> None:
        """The controller died: what is on its way is lost, and the agent finds nobody listening."""
        self.renew()
        self.link += 1
        if self.net.is_quiet:
            self.tell(io.Disconnected())
            self.tell(io.Refused(is_local=True))

    def tell(self, event: io.AgentInput) -> None:
        """An input for the agent, now, or when it gets the CPU again."""
        if not self.is_alive:
            return
        if self.is_paused:
            self._held.append(lambda: self.tell(event))
            return
        now, beat_at = self._sim.queue.now, self.agent.lease.beat_at_ns
        if beat_at is not None and beat_at < now:
            self._renew_lease(now)
        for output in self.agent.handle(event, now):
            self._carry_out(output)
        self._plan()

    def _renew_lease(self, now: int) -> None:
        """Heartbeats that could have been sent and answered before now are taken as played."""
        if self._plays_heartbeats:
            return
        sent = self.agent.renew(now - 1, ROUND_TRIP_NS)
        if sent is not None:
            self._beat_ns, self._beats_wait = sent, True
        sent = self.agent.lease.beat_at_ns
        if sent is not None and sent < now:
            self._send_late(sent, now)

    def _send_late(self, sent: int, now: int) -> None:
        """A heartbeat was due then and is not answered yet: it, or its answer, is under way and may still be lost.

        Sent now it would come later than it does where all are played, and so would every one after it.
        """
        agent = self.agent
        agent.lease.beat(sent)
        if sent + LATENCY_NS >= now:
            beat = Heartbeat(self.spec.name, agent.incarnation, sent)
            self._sim.queue.at(sent + LATENCY_NS, self._arrive, beat, self.link)
        else:
            self._beat_ns, self._beats_wait = sent, True
            answer = Acked(agent.epoch, agent.incarnation, sent)
            self._sim.queue.at(sent + ROUND_TRIP_NS, self.receive, answer, self.link)

    def renew(self) -> None:
        """Take the heartbeats as played that could have been, while the node is heard, on both sides of the link."""
        if self.is_alive and not self.is_paused:
            self._renew_lease(self._sim.queue.now)
        if self._beats_wait and self._beat_ns is not None:
            self._beats_wait = False
            self._sim.heard(self.spec.name, self._beat_ns + LATENCY_NS)

    def receive(self, message: ToAgent, link: int) -> None:
        """A message of the controller arrives, unless the link is cut or is another by now."""
        if link == self.link and (self.net.is_quiet or not self.net.is_cut("down")):
            self.tell(message)

    def cut(self, why: str, *directions: Direction) -> None:
        """Silence from now on: the lease is what was acknowledged so far."""
        self.renew()
        self.net.cut(why, *directions)
        self._sim.listen_for(self)
        self._plan()

    def disturb(
        self, why: str, *, delay_ns: int = 0, loss: float = 0.0, copies: float = 0.0, overtakes: float = 0.0
    ) -> None:
        """The link is slow, loses packets, or says things twice or in another order."""
        self.renew()
        if delay_ns:
            self.net.delay(why, delay_ns)
        if loss:
            self.net.lose(why, loss)
        if copies:
            self.net.duplicate(why, copies)
        if overtakes:
            self.net.reorder(why, overtakes)
        self._sim.listen_for(self)
        self._plan()

    def heal(self, why: str) -> None:
        """What was wrong with the link is over; a connection that was cut is made anew."""
        was_cut = self.net.is_cut("up") or self.net.is_cut("down")
        self._mend_link(why)
        if was_cut and not self.net.is_cut("up") and not self.net.is_cut("down"):
            self.tell(io.Disconnected())
            self.connect()

    def _mend_link(self, why: str) -> None:
        """It is not quiet before what is late on it is there: a heartbeat that is said now waits behind that."""
        self.net.heal(why)
        late_ns = self.net.late_ns(self._sim.queue.now)
        if self.net.is_quiet and late_ns > 0:
            self.net.delay("late", 0)
            self._sim.queue.after(late_ns, self._mend_link, "late")
        self._sim.listen_for(self)

    def pause(self) -> None:
        """Agent and workers get no CPU; what is said to them waits."""
        self.renew()
        self.is_paused = True
        self.net.cut("paused")  # nothing is cut, but heartbeats are not to be taken as played
        self._sim.listen_for(self)
        for key in self.running():
            self._sim.attempt_paused(*key)

    def running(self) -> list[tuple[ReplicaId, int]]:
        """Attempts whose workers run; those that wait for their next generation do not."""
        return [key for key, alive in self.workers.items() if alive and key not in self.suspended]

    def go_on(self) -> None:
        """They get it again. The first thing that the agent sees is the time (R19)."""
        self.is_paused = False
        self.tell(io.AgentTimePassed())
        self._mend_link("paused")  # only now: no heartbeat of the time before was sent
        held, self._held = self._held, []
        for happen in held:
            happen()
        self._sim.check_ghosts(self)

    def die(self) -> list[tuple[ReplicaId, int]]:
        """The agent and all workers are gone. Returns the attempts that ran."""
        self.renew()
        ran = [key for key, alive in self.workers.items() if alive]
        self.is_alive = False
        self._sim.listen_for(self)
        for key in ran:
            self._sim.work.collectives.lost(*key)
        for key in ran:
            self._sim.attempt_ended(*key)
        self.workers.clear()
        return ran

    def exit_worker(
        self,
        replica: ReplicaId,
        attempt: int,
        local_rank: int,
        *,
        code: int = 0,
        signal: str | None = None,
        kind: str | None = None,
        detail: str = "",
    ) -> None:
        """A worker ends, for whatever reason."""
        alive = self.workers.get((replica, attempt), {})
        if not self.is_alive or local_rank not in alive:
            return
        if self.is_paused:
            self._held.append(
                lambda: self.exit_worker(
                    replica, attempt, local_rank, code=code, signal=signal, kind=kind, detail=detail
                )
            )
            return
        self._sim.work.collectives.lost(replica, attempt)
        del alive[local_rank]
        if not alive:
            self.suspended.pop((replica, attempt), None)
            self._sim.attempt_ended(replica, attempt)
        if code or signal:
            self._sim.work.worker_failed(replica, attempt)
        self.tell(io.WorkerExited(replica, attempt, local_rank, code, signal, kind, detail))  # type: ignore[arg-type]

    def replan(self) -> None:
        """Whether its heartbeats are played one by one has changed."""
        if self.is_alive and not self.is_paused:
            self._plan()

    def _plan(self) -> None:
        """Wake the agent at its deadline; while it is heard, heartbeats and lease are no reason to."""
        due = self.agent.deadline() if self._plays_heartbeats else self.agent.duty()
        if due is None or (self._planned is not None and self._sim.queue.now < self._planned <= due):
            return
        self._planned = due
        self._sim.queue.at(due, self._wake, due)

    def _wake(self, due: int) -> None:
        if self._planned != due:
            return
        self._planned = None
        if self.is_paused:
            return
        duty = self.agent.duty()
        if self._plays_heartbeats or (duty is not None and duty <= self._sim.queue.now):
            self.tell(io.AgentTimePassed())
        elif self.is_alive:
            self._plan()  # it was woken for a heartbeat that is taken as played by now

    def _carry_out(self, output: io.AgentOutput) -> None:
        match output:
            case io.Send():
                self._send(output.message)
            case io.SpawnWorkers():
                self._spawn(output)
            case io.LeaveGeneration():
                self._sim.queue.after(LEAVE_NS, self._leave, output)
            case io.SignalWorkers():
                self._signal(output)
            case io.BindStore():
                self._stores += 1
                port = FIRST_PORT - self._stores
                bound = io.StoreBound(output.world, output.generation, port)
                self._sim.queue.after(BIND_NS, self.tell, bound)
            case io.AnswerWorker():
                self._sim.work.checkpoint_answered(output)
            case io.LookForSigns():
                self._sim.work.show_signs(self, output.replica, output.attempt)
            case io.AskWorkers():
                step = self._sim.work.step_of(output.replica, output.attempt)
                answer = io.WorkersAsked(output.replica, output.attempt, step)
                self._sim.queue.after(BIND_NS, self.tell, answer)
            case io.TellWorkers():
                self._sim.work.stop_at(self, output.replica, output.attempt, output.step)
            case io.KillStore() | io.WritePeers() | io.HurrySpawn():
                pass
            case io.EndAgent():
                self.is_alive = False
                self._sim.listen_for(self)

    def _send(self, message: ToController) -> None:
        if self.net.is_quiet:
            self._sim.queue.at(self.net.arrival("up", self._sim.queue.now), self._arrive, message, self.link)
        elif not self.net.is_cut("up"):
            for at in self.net.arrivals("up", self._sim.queue.now):
                self._sim.queue.at(at, self._arrive, message, self.link)

    def _arrive(self, message: ToController, link: int) -> None:
        if link == self.link and not self._sim.is_down:
            self._sim.hear(message)

    def _leave(self, order: io.LeaveGeneration) -> None:
        """Whoever is in elastic code leaves; a worker that hangs does not."""
        key = (order.replica, order.attempt)
        if not self.workers.get(key) or key in self.hung:
            return
        if self.is_paused:
            self._held.append(lambda: self._leave(order))
            return
        self.suspended[key] = None
        self._sim.attempt_ended(*key)
        for local_rank in list(self.workers[key]):
            self.tell(io.WorkerSuspended(*key, local_rank))

    def _spawn(self, output: io.SpawnWorkers) -> None:
        """Whoever is kept belongs to the new attempt at once; the others are there in a moment."""
        start = output.start
        for key in [key for key in self.suspended if key[0] == start.replica and output.kept]:
            del self.suspended[key]
            self.workers[start.replica, start.attempt] = self.workers.pop(key)
        is_fresh = len(output.kept) < self.procs_of(start.replica)
        self._sim.queue.after(SPAWN_NS if is_fresh else RESUME_NS, self._spawned, start, output.kept)

    def _spawned(self, start: StartReplica, kept: tuple[int, ...], stood_still: bool = False) -> None:
        if not self.is_alive:
            return
        if self.is_paused:  # nor does a fork get the CPU; when it does it may be a ghost: see check_ghosts
            self._held.append(lambda: self._spawned(start, kept, stood_still=True))
            return
        role = self._sim.graph.role(start.replica.role)
        key = (start.replica, start.attempt)
        alive = self.workers.setdefault(key, {})
        alive.update(dict.fromkeys(rank for rank in range(self.procs_of(start.replica)) if rank not in kept))
        if not alive:
            return
        if not stood_still:
            self._sim.attempt_began(*key)
        ports = tuple((name, self._port(start.replica, name)) for name in role.ports)
        self.tell(io.WorkersSpawned(*key, ports))
        self._sim.work.workers_run(self, start, kept)

    def procs_of(self, replica: ReplicaId) -> int:
        """How many workers it has here."""
        procs = self._procs.get(replica.role)
        if procs is None:
            procs = self._procs[replica.role] = self._sim.graph.role(replica.role).procs_on(self.spec)
        return procs

    def _port(self, replica: ReplicaId, name: str) -> int:
        """As in production: chosen once, kept for later attempts on the node."""
        return self._ports.setdefault((replica, name), FIRST_PORT + len(self._ports))

    def _signal(self, output: io.SignalWorkers) -> None:
        key = (output.replica, output.attempt)
        if output.signal != "KILL" and (key in self.hung or self._sim.work.collectives.is_deaf(*key)):
            return  # it hears nothing any more
        delay = KILL_NS if output.signal == "KILL" else TERM_NS
        for local_rank in self.workers.get((output.replica, output.attempt), {}):
            self._sim.queue.after(delay, self._end_by_signal, output, local_rank)

    def _end_by_signal(self, output: io.SignalWorkers, local_rank: int) -> None:
        self.exit_worker(output.replica, output.attempt, local_rank, signal=output.signal)


def is_put_off(action: Action, args: tuple[Any, ...]) -> bool:
    """It would wake an agent whose deadline has been moved since."""
    node = getattr(action, "__self__", None)
    return type(node) is SimNode and action == node._wake and args[0] != node._planned


def unseen_hangs(nodes: Iterable[SimNode], graph: RoleGraph) -> str:
    """Of a job that stands still: who hangs in it, where nobody was told to look for that."""
    hung = [replica for node in nodes if node.is_alive for replica, _ in node.hung]
    unseen = [replica for replica in sorted(hung) if graph.role(replica.role).hang_after_ns is None]
    if not unseen:
        return ""
    roles = ", ".join(dict.fromkeys(replica.role for replica in unseen))
    hangs = f"{', '.join(map(str, unseen))} hang{'s' * (len(unseen) == 1)}"
    return f"; {hangs}, which is found only with hang_after= of {roles}"
