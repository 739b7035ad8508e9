"""Any events in any order at any time: late, duplicated, from dead attempts. The invariants hold after each of them.

To record an event emits nothing and opens no incident, whatever the state is: all decisions come after that.

At the end the faults cease: what was ordered is done, time passes, tasks finish. Then the job has ended, or waits for
something that it names.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flowdist.control.controller import Controller
from flowdist.control.invariants import check_job
from flowdist.control.membership.waiting import waiting_for
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import (
    AskStep,
    CloseStore,
    Effect,
    OpenStore,
    StartReplica,
    StopAtStep,
    StopReplica,
)
from flowdist.graph import SECOND, RoleGraph
from flowdist.testing.strategies import FAILURES, NODES, topologies
from tests.choosing import examples
from tests.control.harness import assert_records_only, assert_settled

NEWS_OF_NODES = (
    ev.NodePreempted,
    ev.DrainRequested,
    ev.NodeJoined,
    ev.NodeGone,
    ev.NodeSilent,
    ev.NodeLeft,
    ev.ReplicaUnkillable,
    ev.GpuFailed,
    ev.CancelRequested,
)
ORDERS = (OpenStore, StartReplica, StopReplica, CloseStore, AskStep, StopAtStep)


class AnyEvents(RuleBasedStateMachine):
    """The nodes and what runs on them, as a world that may do anything but lie about what has ended."""

    @initialize(drawn=st.booleans().flatmap(lambda gpus: topologies(gpus=gpus)), known=st.integers(0, 3))
    def begin(self, drawn: RoleGraph, known: int) -> None:
        self.graph = drawn
        self.controller = Controller(drawn, NODES[:known])
        self.now = 0
        self.incarnations: dict[str, int] = {}
        self.up: dict[str, None] = {}
        self.orders: list[Effect] = []  # not carried out yet
        self.alive: dict[tuple[object, int], StartReplica] = {}
        self.suspended: dict[object, StartReplica] = {}  # left that attempt in place, and wait
        self.past: list[ev.Event] = []
        self.ended = False

    def tell(self, event: ev.Event) -> None:
        self.past.append(event)
        assert_records_only(self.controller, event, self.now)
        for effect in self.controller.handle(event, self.now):
            if isinstance(effect, ORDERS) and effect.node in self.up:
                self.orders.append(effect)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "controller"):
            check_job(self.controller.state)
            assert_settled(self.controller)

    @rule(index=st.integers(0, 2))
    def join(self, index: int) -> None:
        name = NODES[index]
        if name in self.up:
            self._forget(name)
        self.incarnations[name] = self.incarnations.get(name, 0) + 1
        self.up[name] = None
        spec = self.graph.cluster.nodes[index]
        self.tell(ev.NodeJoined(name, spec, incarnation=self.incarnations[name]))

    @rule(index=st.integers(0, 2), gpu=st.sampled_from([None, 0]))
    def connect_again(self, index: int, gpu: int | None) -> None:
        """The orders that were on their way are lost; what runs there goes on, or its end was not reported."""
        name = NODES[index]
        node = self.controller.state.nodes.get(name)  # none: the job was over when the node came
        if name in self.up and node is not None and node.usable:
            self.orders = [order for order in self.orders if order.node != name]  # type: ignore[union-attr]
            running = [ev.InventoryItem(*key, "running") for key, start in self.alive.items() if start.node == name]  # type: ignore[arg-type]
            waiting = [
                ev.InventoryItem(start.replica, start.attempt, "suspended")
                for start in self.suspended.values()
                if start.node == name
            ]
            bad = ((gpu, "it is bad"),) if gpu is not None else ()
            spec, incarnation = self.graph.cluster.nodes[index], self.incarnations[name]
            inventory = (*running, *waiting)
            self.tell(ev.NodeJoined(name, spec, incarnation=incarnation, inventory=inventory, bad_gpus=bad))

    @rule(index=st.integers(0, 2), how=st.sampled_from([ev.NodeGone, ev.NodeSilent, ev.NodeLeft]))
    def lose(self, index: int, how: type) -> None:
        name = NODES[index]
        if name in self.up:
            self._forget(name)
            del self.up[name]
            self.tell(how(name))

    @rule(index=st.integers(0, 2), gpu=st.integers(0, 2), xid=st.sampled_from([0, 79, 13]))
    def break_a_gpu(self, index: int, gpu: int, xid: int) -> None:
        if NODES[index] in self.up:
            self.tell(ev.GpuFailed(NODES[index], gpu, "it is bad", xid))

    def _forget(self, name: str) -> None:
        """Nothing of the node runs any more, and what it was told is lost."""
        self.orders = [order for order in self.orders if order.node != name]  # type: ignore[union-attr]
        self.alive = {key: start for key, start in self.alive.items() if start.node != name}
        self.suspended = {replica: start for replica, start in self.suspended.items() if start.node != name}

    @precondition(lambda self: self.orders)
    @rule(data=st.data())
    def obey(self, data: st.DataObject) -> None:
        self._obey(self.orders.pop(data.draw(st.integers(0, len(self.orders) - 1))))

    def _obey(self, order: Effect) -> None:
        match order:
            case OpenStore():
                self.tell(ev.StoreOpened(order.world, order.generation, 29500))
            case StartReplica():
                key = (order.replica, order.attempt)
                other = [attempt for replica, attempt in self.alive if replica == order.replica]
                assert not other, f"{order.replica} starts while attempt {other} runs"
                before = self.suspended.get(order.replica)
                assert before is None or before.node == order.node or self._is_to_end(before), f"{before} still waits"
                if before is not None and before.node == order.node:
                    del self.suspended[order.replica]
                self.alive[key] = order
                ports = tuple((port, 4000) for port in self.graph.role(order.replica.role).ports)
                self.tell(ev.ReplicaStarted(*key, ports))
            case StopReplica():
                key = (order.replica, order.attempt)
                self.orders = [
                    o for o in self.orders if not (isinstance(o, StartReplica) and (o.replica, o.attempt) == key)
                ]
                start = self.alive.pop(key, None)
                if order.in_place and start is not None:
                    self.suspended[order.replica] = start
                elif (waiting := self.suspended.get(order.replica)) is not None and waiting.attempt == order.attempt:
                    del self.suspended[order.replica]
                self.tell(ev.ReplicaStopped(*key, suspended=order.in_place and start is not None))
            case AskStep():
                step = order.attempt if order.replica.index else None
                self.tell(ev.StepTold(order.replica, order.attempt, step))
            case StopAtStep():
                self.tell(ev.ReplicaLeftStep(order.replica, order.attempt))
            case _:
                pass

    def _is_to_end(self, start: StartReplica) -> bool:
        """Whether those who wait there were told to end, and will before anything starts on that node."""
        ends = [o for o in self.orders if isinstance(o, StopReplica) and not o.in_place]
        return any((o.replica, o.attempt) == (start.replica, start.attempt) for o in ends)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), kind=st.sampled_from([*FAILURES, None]), mates=st.booleans())
    def exit(self, data: st.DataObject, kind: str | None, mates: bool) -> None:
        """With `mates`, the other workers of a replica that can stay do."""
        key = data.draw(st.sampled_from(sorted(self.alive)))
        start = self.alive.pop(key)
        suspended = mates and kind is not None and self.controller.state.replicas[start.replica].is_elastic
        if suspended:
            self.suspended[start.replica] = start
        self.tell(ev.ReplicaExited(*key, kind, 1 if kind else 0, suspended=suspended))  # type: ignore[arg-type]

    @precondition(lambda self: self.alive)
    @rule()
    def become_elastic(self) -> None:
        for key in sorted(self.alive):
            self.tell(ev.ReplicaElastic(*key))  # type: ignore[arg-type]

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), step=st.integers(0, 9))
    def live(self, data: st.DataObject, step: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.alive)))
        start = self.alive[key]
        self.tell(
            data.draw(
                st.sampled_from(
                    [
                        ev.ReplicaReady(*key),
                        ev.ReplicaProgressed(*key, step),
                        ev.ReplicaStepped(*key, step),
                        ev.ReplicaSpent(*key, "saving", step),
                        ev.CheckpointOffered(*key, start.generation, "x", step),
                        ev.CheckpointOffered(*key, start.generation - 1, "x", step),
                        ev.StoreLost(start.world, start.generation),
                        ev.ReplicaStalled(*key, "progress", SECOND, step),
                        ev.ReplicaStalled(*key, "output", SECOND, was_seen=step > 4),
                        ev.ReplicaRevived(*key),
                    ]
                )
            )
        )

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """Old news, once more. News of a node are not repeated: they would be new facts."""
        old = data.draw(st.sampled_from(self.past))
        if not isinstance(old, NEWS_OF_NODES):
            self.tell(old)

    @rule(seconds=st.sampled_from([0, 1, 5, 31, 61, 400]))
    def wait(self, seconds: int) -> None:
        self.now += seconds * SECOND
        self.tell(ev.TimePassed())

    @rule(data=st.data(), count=st.integers(0, 4))
    def scale(self, data: st.DataObject, count: int) -> None:
        self.tell(ev.ScaleRequested(data.draw(st.sampled_from(self.graph.roles)).name, count))

    @rule(index=st.integers(0, 2), what=st.sampled_from([ev.DrainRequested, ev.CordonRequested, ev.UncordonRequested]))
    def operate(self, index: int, what: type) -> None:
        self.tell(what(NODES[index]))

    @rule(index=st.integers(0, 2), seconds=st.sampled_from([0, 30]))
    def preempt(self, index: int, seconds: int) -> None:
        self.tell(ev.NodePreempted(NODES[index], seconds * SECOND))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def leave_under_notice(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.alive)))
        notice = self.controller.state.worlds[self.alive[key].world].notice
        if notice is not None:
            del self.alive[key]
            self.tell(ev.ReplicaStopped(*key))  # type: ignore[arg-type]

    @rule()
    def restart_controller(self) -> None:
        self.tell(ev.ControllerStarted(self.controller.state.epoch + 1))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def unkillable(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.alive)))
        if self.controller.state.replicas[key[0]].phase == "stopping":
            del self.alive[key]
            self.tell(ev.ReplicaUnkillable(*key))  # type: ignore[arg-type]

    @precondition(lambda self: self.now > 1000 * SECOND)
    @rule(now=st.booleans())
    def cancel(self, now: bool) -> None:
        self.tell(ev.CancelRequested(now=now))

    def teardown(self) -> None:
        if not hasattr(self, "controller"):
            return
        job = self.controller.state
        for _ in range(2000):
            if job.outcome is not None:
                assert not self.alive or all(isinstance(o, StopReplica) for o in self.orders)
                assert all(self._is_to_end(start) for start in self.suspended.values()), self.suspended
                return
            if self.orders:
                self._obey(self.orders.pop(0))
            elif not self._go_on():
                assert waiting_for(job), "the job neither ends nor waits for anything that it names"
                return
            check_job(job)
        raise AssertionError("the job goes on for ever")

    def _go_on(self) -> bool:
        """Readiness first, then the end of a task, then the next deadline. False when nothing more can happen."""
        job = self.controller.state
        for key, start in self.alive.items():
            replica = job.replicas[start.replica]
            if replica.phase == "running" and job.role_of(replica.id).spec.ready is not None:
                self.tell(ev.ReplicaReady(*key))  # type: ignore[arg-type]
                return True
        for key, start in list(self.alive.items()):
            if job.roles[start.replica.role].spec.kind == "task" and job.replicas[start.replica].is_up:
                del self.alive[key]
                self.tell(ev.ReplicaExited(*key))  # type: ignore[arg-type]
                return True
        deadline = self.controller.deadline()
        if deadline is None:
            return False
        self.now = max(self.now, deadline)
        self.tell(ev.TimePassed())
        return True


AnyEvents.TestCase.settings = settings(
    max_examples=examples(25, 100), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnyEvents = AnyEvents.TestCase
