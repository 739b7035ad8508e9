"""What is to run, and by which rules: the compiled topology.

Every field holds what the user asked for or the default that applies to it, so that a reader of the graph never
has to know a default. Durations are nanoseconds (`_ns`), memory is bytes. Mappings are tuples of pairs in the order
in which the user wrote them, so that equal graphs are equal bytes.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from flowdist.graph.mesh import Parallel, replica_step
from flowdist.graph.units import MINUTE, MS, SECOND

RoleKind = Literal["task", "service"]
Scope = Literal["replica", "role", "domain", "job"]
GateCondition = Literal["started", "ready", "succeeded"]
OnRestart = Literal["reconnect", "restart"]
Action = Literal["restart", "fail", "ignore"]
Then = Literal["fail", "ignore", "widen"]
Strategy = Literal["spread", "pack"]
FailureKind = Literal[
    "exit",
    "signal",
    "oom",
    "hang",
    "start_failed",
    "unready",
    "unkillable",
    "store_lost",
    "preempted",
    "gpu_lost",
    "node_lost",
]
Pairs = tuple[tuple[str, str], ...]

# A label of a node whose host says itself how many workers each replica has there. No label of a user has a `=`.
NODE_PROCS = "procs="


class Resources(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """What one replica needs. cpu in cores (fractions allowed), gpu in devices, memory in bytes.

    `gpu_share` is how much of its one device it has, in thousandths: less than 1000 where others may share it.
    """

    cpu: float = 1.0
    gpu: int = 0
    memory: int = 0
    gpu_share: int = 1000

    @property
    def gpu_words(self) -> str:
        """`2 gpu`, `0.5 gpu`; empty when it needs none."""
        if self.gpu_share == 1000:
            return f"{self.gpu} gpu" if self.gpu else ""
        return f"{self.gpu_share / 1000:g} gpu"


class NodeSpec(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """What one node offers. cpu in cores, gpu in devices, memory in bytes."""

    name: str
    cpu: float = 8.0
    gpu: int = 0
    memory: int = 32 << 30
    labels: Pairs = ()

    @property
    def procs(self) -> int:
        """How many workers a replica has here, if its host says so itself; else 0."""
        if not self.labels:
            return 0
        text = dict(self.labels).get(NODE_PROCS, "")
        return int(text) if re.fullmatch("[0-9]{1,5}", text) else 0


class Cluster(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """The nodes of the job. `given` is false when the topology names none: then `run` uses this machine as one node."""

    nodes: tuple[NodeSpec, ...] = ()
    min_nodes: int = 1
    given: bool = True


class Rule(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """One `On(...)`: the first rule that matches a failure decides (R9). None matches everything."""

    do: Action
    kind: FailureKind | None = None
    exit: int | None = None
    signal: str | None = None  # without SIG: "SEGV"
    counted: bool = True


class RestartPolicy(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """What a failure of the role restarts, how often, and what comes after that (R5, R7, R9, R10, R11)."""

    scope: Scope = "role"
    max_restarts: int = 0
    within_ns: int | None = None  # None: over the whole job
    then: Then = "fail"
    rules: tuple[Rule, ...] = ()
    backoff_ns: int = 1 * SECOND  # before the second counted restart; the first waits for nothing
    backoff_max_ns: int = 1 * MINUTE
    backoff_reset_ns: int = 10 * MINUTE  # this long without a counted incident starts the back-off anew
    wider: RestartPolicy | None = None  # with then="widen": its scope, budget and `then` come next (R11)

    def chain(self) -> tuple[RestartPolicy, ...]:
        """This one and what comes when its budget is used up, in that order."""
        return (self, *(self.wider.chain() if self.wider is not None else ()))


class Placement(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Which nodes may take a replica, and which of these is taken first.

    `near` are roles of which a replica has to be on the node, `apart` roles of which none may be: the role itself, for
    one replica a node. `where` are labels that the node has to have.
    """

    strategy: Strategy = "spread"
    near: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    where: Pairs = ()


class Readiness(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """How a replica shows that it is ready. `target` is the port, file or expression; empty for `call`."""

    how: Literal["tcp", "http", "file", "log", "call"]
    target: str = ""


class Gate(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """An edge of the graph: I start once `role` is so far, and do `on_restart` when it comes back anew."""

    role: str
    condition: GateCondition = "started"
    on_restart: OnRestart = "reconnect"


class WorkloadSpec(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """How the simulator plays a worker: steps of `step_ns` after `startup_ns`, a checkpoint every so often.

    A checkpoint is whole after `checkpoint_ns`; for the first `blocking_ns` of it nobody steps.
    """

    steps: int = 600
    step_ns: int = 1 * SECOND
    startup_ns: int = 5 * SECOND
    checkpoint_every_ns: int = 1 * MINUTE
    checkpoint_ns: int = 1 * SECOND
    restore_ns: int = 0
    rejoin_ns: int | None = None  # in place; None: its workers are not elastic
    collective: Literal["", "wait", "fail", "hang"] = ""  # what becomes of a dead worker's peers; empty: not said, wait
    collective_timeout_ns: int | None = None  # of the process group; None: as of the backend
    step_spread: float = 0.0  # how much longer than `step_ns` a worker may take, as a share of it
    warmup_ns: int = 0  # from the moment that all are up to the first step
    checkpoint_blocks_ns: int | None = None  # how long a checkpoint blocks, if not for all of its time

    @property
    def blocking_ns(self) -> int:
        """How long a checkpoint keeps its workers from stepping."""
        return self.checkpoint_ns if self.checkpoint_blocks_ns is None else self.checkpoint_blocks_ns

    @property
    def lag_ns(self) -> int:
        """For how long they step again before it is whole."""
        return self.checkpoint_ns - self.blocking_ns

    @property
    def cycle_ns(self) -> int:
        """From the beginning of one checkpoint to that of the next."""
        return self.checkpoint_every_ns + self.blocking_ns


class SecretRef(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Where the value of an environment variable is read when a worker starts: a variable of ours, or a file.

    The value itself is never in the graph.
    """

    name: str  # of the worker's variable
    env: str = ""
    file: str = ""  # absolute, or beginning with ~


class RoleSpec(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A homogeneous group of replicas: one command, one resource request, one restart policy."""

    name: str
    command: tuple[str, ...]  # macros are still in it: they are known at start
    kind: RoleKind = "task"
    min_replicas: int = 1
    max_replicas: int = 1
    procs: int = 1  # workers of a replica; `procs_on` says how many on a node
    resources: Resources = Resources()
    placement: Placement = Placement()
    env: Pairs = ()
    secrets: tuple[SecretRef, ...] = ()  # names that are not in `env`
    ports: tuple[str, ...] = ()
    workdir: str = ""  # absolute; empty: the folder of the topology
    gang: bool = True
    primary: bool = True
    gates: tuple[Gate, ...] = ()
    restart: RestartPolicy | None = None
    ready: Readiness | None = None
    ready_timeout_ns: int = 5 * MINUTE
    state: Literal["none", "memory", "checkpoint"] = "none"
    grace_ns: int = 10 * SECOND
    stop_grace_ns: int = 2 * SECOND
    drain_ns: int = 30 * SECOND
    join_window_ns: int = 10 * SECOND
    pending_timeout_ns: int = 10 * MINUTE
    finish_timeout_ns: int = 5 * MINUTE
    cooldown_ns: int = 30 * SECOND
    hang_after_ns: int | None = None
    start_timeout_ns: int | None = None
    preload: tuple[str, ...] = ()
    warm: bool = True
    numa: Literal["", "node"] = ""  # what its workers are bound to: the cores beside their GPU
    virtual_local_rank: bool = False  # each worker has LOCAL_RANK=0 and sees one device
    parallel: Parallel = ()
    workload: WorkloadSpec = WorkloadSpec()
    simulate: str = ""  # `module:Class` or `/path/file.py:Class`, the user's model of its workers; empty: the workload
    address_edges: tuple[str, ...] = ()  # roles whose addresses stand in my command or env

    @property
    def step(self) -> int:
        """A gang of it has a multiple of so many replicas: of others the ranks form no mesh."""
        return replica_step(self.parallel, self.procs) if self.parallel else 1

    def procs_on(self, node: NodeSpec) -> int:
        """Workers of a replica on that node. Only the ranks of a gang follow the number that its host says.

        Whoever has devices has as many as its workers need, and a mesh has the same number of ranks in every replica.
        """
        follows = self.gang and not self.resources.gpu and not self.parallel
        return (node.procs if follows else 0) or self.procs

    def gate_on(self, role: str) -> Gate | None:
        return next((gate for gate in self.gates if gate.role == role), None)


class Domain(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Roles that the user wants restarted together."""

    name: str
    roles: tuple[str, ...]


class JointWorld(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """One RANK space and one process group over several roles, which restart as one."""

    name: str
    roles: tuple[str, ...]


class JobOptions(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Numbers that belong to the job rather than to a role."""

    heartbeat_ns: int = 500 * MS
    lease_ns: int = 4 * SECOND
    lease_margin_ns: int = 1 * SECOND  # the agent fences so long before, the controller replaces so long after (R19)
    cause_window_ns: int = 2 * SECOND  # R7
    min_uptime_ns: int = 60 * SECOND  # R8
    free_incidents_max: int = 5  # R8
    unkillable_after_ns: int = 30 * SECOND  # R6
    controller_outage_ns: int = 10 * MINUTE  # how long agents keep their workers while nobody listens (R21)
    bad_node_window_ns: int = 60 * MINUTE  # R22
    move_after: int = 2  # failures of one kind of a replica on one node, then elsewhere (R22)
    cordon_after: int = 3  # failures of one kind on one node, then it takes no more (R22)

    @property
    def silent_after_ns(self) -> int:
        """A node that is not heard for so long is lost: its agent has fenced by then (R19)."""
        return self.lease_ns + self.lease_margin_ns

    @property
    def suspect_after_ns(self) -> int:
        """A node that is not heard for so long is overdue: halfway from a late heartbeat to when its agent fences."""
        return min(self.silent_after_ns, (self.heartbeat_ns + self.lease_ns - self.lease_margin_ns) // 2)


class RoleGraph(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A compiled topology. Roles stand in the order of their declaration; gates point to earlier ones."""

    name: str
    roles: tuple[RoleSpec, ...]
    domains: tuple[Domain, ...] = ()
    cluster: Cluster = Cluster()
    options: JobOptions = JobOptions()
    on_incident: tuple[str, ...] = ()  # a command of the user's; empty: none
    checkpoint_dir: str = ""  # empty: checkpoints/ of the run's folder
    source: str = ""  # the topology file, absolute
    worlds: tuple[JointWorld, ...] = ()
    format: int = 1

    def on(self, node: NodeSpec) -> RoleGraph:
        """As that node runs it: each role with as many workers as a replica has there."""
        if not node.procs:
            return self
        roles = tuple(msgspec.structs.replace(role, procs=role.procs_on(node)) for role in self.roles)
        return msgspec.structs.replace(self, roles=roles)

    def role(self, name: str) -> RoleSpec:
        """The role of that name; KeyError if there is none."""
        for role in self.roles:
            if role.name == name:
                return role
        raise KeyError(name)

    def dependents(self, name: str) -> tuple[tuple[RoleSpec, Gate], ...]:
        """The roles with a gate on `name`, each with that gate."""
        return tuple((role, gate) for role in self.roles for gate in role.gates if gate.role == name)

    def domain_of(self, name: str) -> Domain | None:
        return next((domain for domain in self.domains if name in domain.roles), None)

    def world_of(self, name: str) -> JointWorld | None:
        """The joint world that the role is in; None when it has one of its own, or none."""
        return next((world for world in self.worlds if name in world.roles), None)
