"""Any events in any order at any time: late, duplicated, from dead attempts. The invariants hold after each of them.

At the end the faults cease: what was ordered is done, time passes, tasks finish. Then the job has ended, or waits for
something that it names.
"""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flowdist.control import events as ev
from flowdist.control.controller import Controller
from flowdist.control.effects import AskStep, CloseStore, Effect, OpenStore, StartReplica, StopAtStep, StopReplica
from flowdist.control.waiting import waiting_for
from flowdist.graph import (
    MINUTE,
    SECOND,
    Domain,
    Gate,
    JointWorld,
    Placement,
    RestartPolicy,
    RoleGraph,
    RoleSpec,
    Rule,
)
from tests.control.harness import TCP, assert_settled, graph, role

NODES = ("node0", "node1", "node2")
NEWS_OF_NODES = (
    ev.NodePreempted,
    ev.DrainRequested,
    ev.NodeJoined,
    ev.NodeGone,
    ev.NodeSilent,
    ev.NodeLeft,
    ev.ReplicaUnkillable,
    ev.CancelRequested,
)
ORDERS = (OpenStore, StartReplica, StopReplica, CloseStore, AskStep, StopAtStep)
FAILURES = ("exit", "signal", "oom", "start_failed")


@st.composite
def policies(draw: st.DrawFn, *, may_ignore: bool) -> RestartPolicy | None:
    if draw(st.booleans()) and draw(st.booleans()):
        return None
    actions = ["restart", "fail", "ignore"] if may_ignore else ["restart", "fail"]
    rules = draw(
        st.lists(
            st.builds(Rule, st.sampled_from(actions), kind=st.sampled_from([*FAILURES, "node_lost", None])), max_size=2
        )
    )
    wider = RestartPolicy("job", max_restarts=draw(st.integers(0, 2))) if draw(st.booleans()) else None
    then = "widen" if wider else "ignore" if may_ignore and draw(st.booleans()) else "fail"
    return RestartPolicy(
        scope=draw(st.sampled_from(["role", "job", "domain"])),
        max_restarts=draw(st.integers(0, 3)),
        within_ns=draw(st.sampled_from([None, MINUTE])),
        then=then,  # type: ignore[arg-type]
        rules=tuple(rules),
        wider=wider,
    )


@st.composite
def graphs(draw: st.DrawFn) -> RoleGraph:
    roles: list[RoleSpec] = []
    for name in ("a", "b", "c")[: draw(st.integers(1, 3))]:
        service = bool(roles) is False and draw(st.booleans())
        gang = not service and draw(st.booleans())
        primary = draw(st.booleans()) or not roles
        gates = [
            Gate(
                other.name,
                draw(st.sampled_from(_conditions(other))),
                draw(st.sampled_from(["reconnect", "restart"])),
            )
            for other in roles
            if draw(st.booleans())
        ]
        low = draw(st.integers(1, 2))
        policy = draw(policies(may_ignore=not gang or not primary))
        if policy is not None and not gang and draw(st.booleans()):
            policy = msgspec.structs.replace(policy, scope="replica")
        roles.append(
            role(
                name,
                kind="service" if service else "task",
                gang=gang,
                primary=primary,
                min_replicas=low,
                max_replicas=low + draw(st.integers(0, 2)),
                procs=draw(st.integers(1, 2)),
                gates=tuple(gates),
                restart=policy,
                ports=("rpc",) if draw(st.booleans()) else (),
                ready=TCP if draw(st.booleans()) else None,
                placement=draw(placements([other.name for other in roles])),
                address_edges=tuple(gate.role for gate in gates if draw(st.booleans())),
            )
        )
    if all(spec.kind == "service" or not spec.primary for spec in roles):
        roles.append(role("main", gates=tuple(Gate(spec.name, "started") for spec in roles[:1])))
    names = tuple(spec.name for spec in roles)
    domains = (Domain("d", names[:2]),) if len(names) > 1 and draw(st.booleans()) else ()
    roles = [_without_stray_domain(spec, domains) for spec in roles]
    gangs = [spec for spec in roles if spec.gang and spec.kind == "task"]
    pair = next(((a.name, b.name) for a, b in itertools.combinations(gangs, 2) if _may_be_joint(a, b)), None)
    worlds = (JointWorld("joint", pair),) if pair and draw(st.booleans()) else ()
    drawn = graph(*roles, domains=domains, nodes=3, cpu=draw(st.sampled_from([2.0, 4.0, 8.0])))
    return msgspec.structs.replace(drawn, worlds=worlds)


def _may_be_joint(a: RoleSpec, b: RoleSpec) -> bool:
    """No gate between the two, over others neither, and the end of one is the end of the other."""
    return not b.gates and a.primary == b.primary and _ignores(a) == _ignores(b)


def _ignores(spec: RoleSpec) -> bool:
    policy = spec.restart
    return policy is not None and (policy.then == "ignore" or any(rule.do == "ignore" for rule in policy.rules))


@st.composite
def placements(draw: st.DrawFn, others: list[str]) -> Placement:
    if draw(st.integers(0, 3)):
        return Placement(draw(st.sampled_from(["spread", "pack"])))
    names = st.lists(st.sampled_from(others), max_size=1) if others else st.just([])
    return Placement("spread", tuple(draw(names)), tuple(draw(names)))


def _conditions(other: RoleSpec) -> list[str]:
    conditions = ["started"]
    conditions += ["ready"] if other.ready is not None else []
    return conditions + (["succeeded"] if other.kind == "task" else [])


def _without_stray_domain(spec: RoleSpec, domains: tuple[Domain, ...]) -> RoleSpec:

    policy = spec.restart
    if policy is not None and policy.scope == "domain" and not any(spec.name in domain.roles for domain in domains):
        return msgspec.structs.replace(spec, restart=msgspec.structs.replace(policy, scope="role"))
    return spec


class AnyEvents(RuleBasedStateMachine):
    """The nodes and what runs on them, as a world that may do anything but lie about what has ended."""

    @initialize(drawn=graphs(), known=st.integers(0, 3))
    def begin(self, drawn: RoleGraph, known: int) -> None:
        self.graph = drawn
        self.controller = Controller(drawn, NODES[:known])
        self.now = 0
        self.incarnations: dict[str, int] = {}
        self.up: dict[str, None] = {}
        self.orders: list[Effect] = []  # not carried out yet
        self.alive: dict[tuple[object, int], StartReplica] = {}
        self.past: list[ev.Event] = []
        self.ended = False

    def tell(self, event: ev.Event) -> None:
        self.past.append(event)
        for effect in self.controller.handle(event, self.now):
            if isinstance(effect, ORDERS) and effect.node in self.up:
                self.orders.append(effect)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "controller"):
            self.controller.state.check()
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

    @rule(index=st.integers(0, 2), how=st.sampled_from([ev.NodeGone, ev.NodeSilent, ev.NodeLeft]))
    def lose(self, index: int, how: type) -> None:
        name = NODES[index]
        if name in self.up:
            self._forget(name)
            del self.up[name]
            self.tell(how(name))

    def _forget(self, name: str) -> None:
        """Nothing of the node runs any more, and what it was told is lost."""
        self.orders = [order for order in self.orders if order.node != name]  # type: ignore[union-attr]
        self.alive = {key: start for key, start in self.alive.items() if start.node != name}

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
                self.alive[key] = order
                ports = tuple((port, 4000) for port in self.graph.role(order.replica.role).ports)
                self.tell(ev.ReplicaStarted(*key, ports))
            case StopReplica():
                self.orders = [
                    o for o in self.orders if not (isinstance(o, StartReplica) and o.replica == order.replica)
                ]
                self.alive.pop((order.replica, order.attempt), None)
                self.tell(ev.ReplicaStopped(order.replica, order.attempt))
            case AskStep():
                step = order.attempt if order.replica.index else None
                self.tell(ev.StepTold(order.replica, order.attempt, step))
            case StopAtStep():
                self.tell(ev.ReplicaLeftStep(order.replica, order.attempt))
            case _:
                pass

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), kind=st.sampled_from([*FAILURES, None]))
    def exit(self, data: st.DataObject, kind: str | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.alive)))
        del self.alive[key]
        self.tell(ev.ReplicaExited(*key, kind, 1 if kind else 0))  # type: ignore[arg-type]

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
                return
            if self.orders:
                self._obey(self.orders.pop(0))
            elif not self._go_on():
                assert waiting_for(job), "the job neither ends nor waits for anything that it names"
                return
            job.check()
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
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnyEvents = AnyEvents.TestCase
