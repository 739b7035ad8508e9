"""Small jobs for the explorer: two nodes, and up to two roles of up to two replicas, each job for one mechanism."""

from __future__ import annotations

from dataclasses import dataclass

from flowdist.graph import (
    MINUTE,
    Cluster,
    Domain,
    Gate,
    JobOptions,
    NodeSpec,
    Readiness,
    Resources,
    RestartPolicy,
    RoleGraph,
    RoleSpec,
    SnapshotSpec,
    VersionEdge,
)
from flowdist.graph.policies import Scope, Then

READY = Readiness("tcp", "rpc")
OPTIONS = JobOptions(bad_node_window_ns=MINUTE)  # failures that count for an hour make too many distinct states


@dataclass(frozen=True)
class SmallJob:
    """One job to explore.

    Args:
        name: The name of the job on the command line.
        about: A line for the help text.
        graph: The compiled job.
        asks: Workers call should_stop() before each step, so that they can agree on a last one.
        elastic: Workers run elastic code, so that they can be suspended.
    """

    name: str
    about: str
    graph: RoleGraph
    asks: bool = False
    elastic: bool = False


@dataclass(frozen=True)
class Part:
    """One exploration: a job, and how far it is explored.

    Args:
        job: The job.
        faults: The largest number of faults on one path.
        is_running: Begin in the state in which the whole job runs, instead of before any node has joined.
        states_max: The number of distinct states after which the exploration is left.
    """

    job: SmallJob
    faults: int
    is_running: bool
    states_max: int


def _graph(*roles: RoleSpec, slots: int, domains: tuple[Domain, ...] = ()) -> RoleGraph:
    nodes = tuple(NodeSpec(f"node{i}", cpu=float(slots)) for i in range(2))
    return RoleGraph("small", roles, domains, Cluster(nodes), OPTIONS)


def _role(name: str, restart: RestartPolicy, **fields: object) -> RoleSpec:
    return RoleSpec(name=name, command=("true",), resources=Resources(cpu=1.0), restart=restart, **fields)  # type: ignore[arg-type]


def _restart(scope: Scope, *, max_restarts: int, then: Then = "fail") -> RestartPolicy:
    return RestartPolicy(scope, max_restarts=max_restarts, then=then, backoff_reset_ns=MINUTE)


def _gang() -> RoleGraph:
    trainer = _role("trainer", _restart("role", max_restarts=1), min_replicas=1, max_replicas=2)
    return _graph(trainer, slots=1)


def _gate() -> RoleGraph:
    ps = _role("ps", _restart("replica", max_restarts=1), kind="service", gang=False, ports=("rpc",), ready=READY)
    gates = (Gate("ps", "ready", "restart"),)
    trainer = _role("trainer", _restart("role", max_restarts=1), min_replicas=2, max_replicas=2, gates=gates)
    return _graph(ps, trainer, slots=3)


def _loose() -> RoleGraph:
    policy = _restart("replica", max_restarts=1)
    return _graph(_role("worker", policy, gang=False, min_replicas=1, max_replicas=2), slots=1)


def _helper() -> RoleGraph:
    policy = _restart("replica", max_restarts=1, then="ignore")
    evaluator = _role("evaluator", policy, gang=False, primary=False, gates=(Gate("trainer"),))
    return _graph(_role("trainer", _restart("role", max_restarts=1)), evaluator, slots=2)


def _address() -> RoleGraph:
    ps = _role("ps", _restart("replica", max_restarts=1), kind="service", gang=False, ports=("rpc",))
    policy = _restart("role", max_restarts=0)
    return _graph(ps, _role("trainer", policy, gates=(Gate("ps"),), address_edges=("ps",)), slots=1)


def _ignore() -> RoleGraph:
    policy = _restart("replica", max_restarts=0, then="ignore")
    return _graph(_role("worker", policy, gang=False, min_replicas=1, max_replicas=2), slots=1)


def _domain() -> RoleGraph:
    actor = _role("actor", _restart("domain", max_restarts=1))
    learner = _role("learner", _restart("domain", max_restarts=1))
    return _graph(actor, learner, slots=2, domains=(Domain("core", ("actor", "learner")),))


def _versions() -> RoleGraph:
    policy = _restart("replica", max_restarts=1, then="ignore")
    actor = _role("actor", policy, gang=False, primary=False, versions=VersionEdge("learner"))
    return _graph(_role("learner", _restart("role", max_restarts=1)), actor, slots=1)


def _snapshots() -> RoleGraph:
    policy = _restart("role", max_restarts=1)
    trainer = _role("trainer", policy, min_replicas=1, max_replicas=2, snapshots=SnapshotSpec(copies=2))
    return _graph(trainer, slots=1)


JOBS = {
    job.name: job
    for job in (
        SmallJob("gang", "an elastic gang of 1 to 2, a node each", _gang()),
        SmallJob("asking", "the same gang, whose workers ask should_stop()", _gang(), asks=True),
        SmallJob("staying", "the same gang, whose workers can be suspended", _gang(), elastic=True),
        SmallJob("snapshots", "the same gang, which keeps its state in the memory of both nodes", _snapshots()),
        SmallJob("gate", "a service, and a gang of 2 with a gate on it that restarts with it", _gate()),
        SmallJob("loose", "two replicas without a gang, a node each", _loose()),
        SmallJob("domain", "two roles that restart together", _domain()),
        SmallJob("helper", "a task, and a helper that is ignored when its budget is used up", _helper()),
        SmallJob("address", "a service, and a task without budget that has its address in its command", _address()),
        SmallJob("versions", "a learner that publishes versions, and an actor that needs the latest", _versions()),
        SmallJob("ignore", "two replicas without a gang, ignored when they fail", _ignore()),
    )
}

STATES_MAX = 1_000_000
PARTS = (  # the explorations of the default run: small jobs in whole, of the others the shortest paths
    *(Part(JOBS[name], 1, False, STATES_MAX) for name in ("loose", "ignore", "address", "helper")),
    Part(JOBS["versions"], 1, True, STATES_MAX),
    Part(JOBS["snapshots"], 1, True, STATES_MAX),
    *(Part(JOBS[name], 1, True, STATES_MAX) for name in ("gang", "asking", "staying", "domain")),
    *(Part(JOBS[name], 2, True, 90_000) for name in ("gang", "asking", "staying", "gate", "loose")),
    *(Part(JOBS[name], 2, True, 90_000) for name in ("ignore", "address", "domain", "helper")),
    *(Part(JOBS[name], 3, True, 60_000) for name in ("loose", "address")),
)
