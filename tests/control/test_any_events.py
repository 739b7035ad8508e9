"""Any events in any order at any time: late, duplicated, from dead attempts. The invariants hold after each of them.

To record an event emits nothing and opens no incident, whatever the state is: all decisions come after that.

At the end the faults cease: what was ordered is done, time passes, tasks finish. Then the job has ended, or waits for
something that it names.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import AskStep, Order, StartReplica, StopReplica
from flowdist.graph import SECOND, RoleGraph
from flowdist.testing.strategies import FAILURES, NODES, topologies
from tests.choosing import examples
from tests.control.harness import assert_records_only, assert_settled
from tests.proofs.conversation import Player

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


class Nodes(Player):
    """The nodes and what runs on them: they may do anything but lie about what has ended."""

    def send(self, event: ev.Event) -> None:
        assert_records_only(self.controller, event, self.now)
        super().send(event)

    def obey(self, order: Order) -> None:
        before = self.suspended.get(order.replica) if isinstance(order, StartReplica) else None
        assert before is None or before.node == order.node or self.is_to_end(before), f"{before} still waits"
        super().obey(order)

    def is_to_end(self, start: StartReplica) -> bool:
        """Whether those who wait there were told to end, and will before anything starts on that node."""
        ends = [o for o in self.orders if isinstance(o, StopReplica) and not o.in_place]
        return any((o.replica, o.attempt) == (start.replica, start.attempt) for o in ends)

    def step_told(self, order: AskStep) -> int | None:
        return order.attempt if order.replica.index else None


class AnyEvents(RuleBasedStateMachine):
    """Events that nodes, time and the operator send to the controller of one job."""

    @initialize(drawn=st.booleans().flatmap(lambda gpus: topologies(gpus=gpus)), known=st.integers(0, 3))
    def begin(self, drawn: RoleGraph, known: int) -> None:
        self.nodes = Nodes(drawn, NODES[:known])
        self.controller, self.tell = self.nodes.controller, self.nodes.send

    @invariant()
    def is_settled(self) -> None:
        if hasattr(self, "controller"):
            assert_settled(self.controller)

    @rule(index=st.integers(0, 2))
    def join(self, index: int) -> None:
        self.nodes.join(NODES[index])

    @rule(index=st.integers(0, 2), gpu=st.sampled_from([None, 0]))
    def connect_again(self, index: int, gpu: int | None) -> None:
        """The orders that were on their way are lost; what runs there goes on, or its end was not reported."""
        name, nodes = NODES[index], self.nodes
        node = self.controller.state.nodes.get(name)  # none: the job was over when the node came
        if name in nodes.up and node is not None and node.usable:
            nodes.orders = [order for order in nodes.orders if order.node != name]
            running = [ev.InventoryItem(*key, "running") for key, start in nodes.alive.items() if start.node == name]
            waiting = [
                ev.InventoryItem(start.replica, start.attempt, "suspended")
                for start in nodes.suspended.values()
                if start.node == name
            ]
            bad = ((gpu, "it is bad"),) if gpu is not None else ()
            spec, incarnation = nodes.graph.cluster.nodes[index], nodes.incarnations[name]
            inventory = (*running, *waiting)
            self.tell(ev.NodeJoined(name, spec, incarnation=incarnation, inventory=inventory, bad_gpus=bad))

    @rule(index=st.integers(0, 2), how=st.sampled_from([ev.NodeGone, ev.NodeSilent, ev.NodeLeft]))
    def lose(self, index: int, how: type) -> None:
        self.nodes.lose(NODES[index], how)

    @rule(index=st.integers(0, 2), gpu=st.integers(0, 2), xid=st.sampled_from([0, 79, 13]))
    def break_a_gpu(self, index: int, gpu: int, xid: int) -> None:
        if NODES[index] in self.nodes.up:
            self.tell(ev.GpuFailed(NODES[index], gpu, "it is bad", xid))

    @precondition(lambda self: self.nodes.orders)
    @rule(data=st.data())
    def obey(self, data: st.DataObject) -> None:
        orders = self.nodes.orders
        self.nodes.obey(orders.pop(data.draw(st.integers(0, len(orders) - 1))))

    @precondition(lambda self: self.nodes.alive)
    @rule(data=st.data(), kind=st.sampled_from([*FAILURES, None]), mates=st.booleans())
    def exit(self, data: st.DataObject, kind: str | None, mates: bool) -> None:
        """With `mates`, the other workers of a replica that can stay do. An order to stop it comes late."""
        key = data.draw(st.sampled_from(sorted(self.nodes.alive)))
        start = self.nodes.alive.pop(key)
        suspended = mates and kind is not None and self.controller.state.replicas[start.replica].is_elastic
        if suspended:
            self.nodes.suspended[start.replica] = start
        self.tell(ev.ReplicaExited(*key, kind, 1 if kind else 0, suspended=suspended))  # type: ignore[arg-type]

    @precondition(lambda self: self.nodes.alive)
    @rule()
    def become_elastic(self) -> None:
        for key in sorted(self.nodes.alive):
            self.tell(ev.ReplicaElastic(*key))

    @precondition(lambda self: self.nodes.alive)
    @rule(data=st.data(), step=st.integers(0, 9))
    def live(self, data: st.DataObject, step: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.nodes.alive)))
        start = self.nodes.alive[key]
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

    @precondition(lambda self: self.nodes.past)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """Old news, once more. News of a node are not repeated: they would be new facts."""
        old = data.draw(st.sampled_from(self.nodes.past))
        if not isinstance(old, NEWS_OF_NODES):
            self.tell(old)

    @rule(seconds=st.sampled_from([0, 1, 5, 31, 61, 400]))
    def wait(self, seconds: int) -> None:
        """The controller learns late of the deadlines that have passed."""
        self.nodes.now += seconds * SECOND
        self.tell(ev.TimePassed())

    @rule(data=st.data(), count=st.integers(0, 4))
    def scale(self, data: st.DataObject, count: int) -> None:
        self.tell(ev.ScaleRequested(data.draw(st.sampled_from(self.nodes.graph.roles)).name, count))

    @rule(index=st.integers(0, 2), what=st.sampled_from([ev.DrainRequested, ev.CordonRequested, ev.UncordonRequested]))
    def operate(self, index: int, what: type) -> None:
        self.tell(what(NODES[index]))

    @rule(index=st.integers(0, 2), seconds=st.sampled_from([0, 30]))
    def preempt(self, index: int, seconds: int) -> None:
        self.tell(ev.NodePreempted(NODES[index], seconds * SECOND))

    @precondition(lambda self: self.nodes.alive)
    @rule(data=st.data())
    def leave_under_notice(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.nodes.alive)))
        notice = self.controller.state.worlds[self.nodes.alive[key].world].notice
        if notice is not None:
            del self.nodes.alive[key]
            self.tell(ev.ReplicaStopped(*key))

    @rule()
    def restart_controller(self) -> None:
        self.tell(ev.ControllerStarted(self.controller.state.epoch + 1))

    @precondition(lambda self: self.nodes.alive)
    @rule(data=st.data())
    def unkillable(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.nodes.alive)))
        if self.controller.state.replicas[key[0]].phase == "stopping":
            del self.nodes.alive[key]
            self.tell(ev.ReplicaUnkillable(*key))

    @precondition(lambda self: self.nodes.now > 1000 * SECOND)
    @rule(now=st.booleans())
    def cancel(self, now: bool) -> None:
        self.tell(ev.CancelRequested(now=now))

    def teardown(self) -> None:
        if not hasattr(self, "controller"):
            return
        nodes = self.nodes
        assert nodes.finish() == []
        if self.controller.state.outcome is not None:
            assert not nodes.alive or all(isinstance(order, StopReplica) for order in nodes.orders)
            assert all(nodes.is_to_end(start) for start in nodes.suspended.values()), nodes.suspended


AnyEvents.TestCase.settings = settings(
    max_examples=examples(25, 100), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnyEvents = AnyEvents.TestCase
