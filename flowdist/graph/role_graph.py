"""The role graph, a compiled topology: all roles with their parts, domains, worlds, nodes and options.

Every field holds the user's value or the default that applies to it, so that code that reads the graph needs to know no
defaults. Durations are nanoseconds (`_ns`), memory is bytes. Mappings are tuples of pairs in the order in which the
user wrote them, so that equal graphs have equal bytes.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from flowdist.graph.policies import RestartPolicy
from flowdist.graph.sizes import Parallel, replica_step, step_time_at
from flowdist.graph.units import (
    MINUTE,
    MS,
    SECOND,
    Count,
    Cpus,
    Endpoint4,
    GpuCount,
    LookNs,
    Ns,
    Number,
    PositiveCount,
    PositiveNs,
)

RoleKind = Literal["task", "service"]
GateCondition = Literal["started", "ready", "succeeded"]
OnRestart = Literal["reconnect", "restart"]
Strategy = Literal["spread", "pack"]
Pairs = tuple[tuple[str, str], ...]
# Label by which a host sets its own number of workers per replica. Names of users' labels never have a `=` in them.
NODE_PROCS = "procs="
# Labels of a node that an engine has started: the name of the member that brings it, and its pool.
NODE_MEMBER, NODE_POOL = "member=", "pool="


# Timeouts of process groups that torch sets, in ns, for peers that fail (gloo) and for peers that hang (NCCL).
GROUP_TIMEOUTS_NS = {"fail": 30 * MINUTE, "hang": 10 * MINUTE}
PENDING_NS = 10 * MINUTE  # the default of `pending_timeout`


class Resources(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Resources of one replica: cpu in cores (fractions allowed), gpu as a number of GPUs, memory in bytes.

    `gpu_share` is the part that it gets of each GPU, in thousandths: below 1000, other replicas may use the GPU too.
    """

    cpu: Cpus = 1.0
    gpu: GpuCount = 0
    memory: Number = 0
    gpu_share: Annotated[int, Meta(ge=1, le=1000)] = 1000

    @property
    def gpu_words(self) -> str:
        """GPUs as text for messages, `2 gpu` or `0.5 gpu`; empty if the replica needs none."""
        if self.gpu_share == 1000:
            return f"{self.gpu} gpu" if self.gpu else ""
        return f"{self.gpu_share / 1000:g} gpu"


class Placement(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Rules for the nodes on which replicas of a role may run, and the order in which nodes are tried.

    A replica runs on a node with a replica of every role in `near`, and of no role in `apart`. A role that names itself
    in `apart` has at most one replica on a node. `where` has the labels that the node must have. `strategy` says which
    node is tried first: that with the most room ("spread") or with the least ("pack").
    """

    strategy: Strategy = "spread"
    near: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    where: Pairs = ()


class Readiness(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Readiness check of a replica, `ready_when=` in a topology: its method and what it looks at.

    `target` is a port (with a path for `http`), a file, or a regular expression for lines of the log. It is empty for
    `call`: the worker itself says that it is ready.
    """

    how: Literal["tcp", "http", "file", "log", "call"]
    target: str = ""


class Gate(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Gate of a role: it starts only after `role`, another one, meets the condition.

    When `role` restarts, this one either keeps running ("reconnect") or restarts too ("restart").
    """

    role: str
    condition: GateCondition = "started"
    on_restart: OnRestart = "reconnect"


class VersionEdge(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Edge of a role that needs versions of what `role` publishes, such as the weights of a learner (R23).

    A replica is ready only after it has acknowledged a version that is at most `max_staleness` lower than the one that
    `role` has published last.
    """

    role: str
    max_staleness: Number = 0


class SecretRef(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Source of a secret environment variable `name`: a variable of flowdist's own environment (`env`), or a file.

    The value is read when a worker starts, and is never in the graph. Of `env` and `file` one is empty.
    """

    name: str  # variable of the worker
    env: str = ""
    file: str = ""  # absolute, or beginning with ~


class WorkloadSpec(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Timing of a simulated worker: steps of `step_ns` after `startup_ns`, and a checkpoint at every interval.

    A checkpoint is complete `checkpoint_ns` after it has begun. The workers do not step for the first `blocking_ns` of
    that.
    """

    steps: Number = 600
    step_ns: PositiveNs = 1 * SECOND
    startup_ns: Ns = 5 * SECOND
    checkpoint_every_ns: PositiveNs = 1 * MINUTE
    checkpoint_ns: Ns = 1 * SECOND
    restore_ns: Ns = 0
    rejoin_ns: Ns | None = None  # for workers in place to join a new generation; None: they are restarted instead
    collective: Literal["", "wait", "fail", "hang"] = ""  # what the peers of a dead worker do; empty: they wait
    collective_timeout_ns: PositiveNs | None = None  # of the process group; None: the default of its backend
    step_spread: Annotated[float, Meta(ge=0, le=100)] = 0.0  # by which part a step of the slowest worker may be longer
    warmup_ns: Ns = 0  # from the end of the last worker's start-up to the first step
    checkpoint_blocks_ns: Ns | None = None  # None: a checkpoint blocks for all of `checkpoint_ns`
    warm_startup_ns: Ns | None = None  # start-up on a node that has the modules already; None: as `startup_ns`
    import_ns: Ns = 0  # from the arrival of a node until it has imported the modules of the workers
    finish_ns: Ns = 0  # from the last step until the workers have exited
    stop_ns: Ns = 100 * MS  # from SIGTERM until a worker has ended that obeys
    step_times: tuple[tuple[PositiveCount, PositiveNs], ...] = ()  # of other sizes than the largest; empty: `step_ns`
    batch_workers: Number = 0  # workers whose batches are one step of `steps`; 0: any number does the same batch
    startup_spread: Annotated[float, Meta(ge=0, le=1)] = 0.2  # share by which a start-up may be shorter or longer
    peer_restore_ns: Ns | None = None  # to restore from the memory of peers; None: their memory has no checkpoint

    def step_ns_at(self, workers: int) -> int:
        """Return the time in ns of one of `steps`, when the role has that many workers (1 or more).

        Where each worker keeps its own batch (`batch_workers`), fewer workers need more steps for the same samples. So
        what counts as one step takes them longer.
        """
        ns = step_time_at(self.step_times, workers) if self.step_times else self.step_ns
        return -(-ns * self.batch_workers // workers) if self.batch_workers else ns

    @property
    def depends_on_size(self) -> bool:
        """Whether a step of a smaller world takes another time."""
        return bool(self.step_times or self.batch_workers)

    @property
    def group_timeout_ns(self) -> int | None:
        """Time in ns after which a blocked collective operation ends its workers; None: they wait without a limit."""
        if self.collective not in GROUP_TIMEOUTS_NS:
            return None
        return GROUP_TIMEOUTS_NS[self.collective] if self.collective_timeout_ns is None else self.collective_timeout_ns

    @property
    def blocking_ns(self) -> int:
        """Part of a checkpoint for which its workers do not step, in ns."""
        return self.checkpoint_ns if self.checkpoint_blocks_ns is None else self.checkpoint_blocks_ns

    def restore_ns_after(self, lost: int) -> int:
        """Time to read a checkpoint, in ns, after the loss of so many nodes that had parts of it in memory.

        A part is in memory on two nodes: after the loss of one node all parts are there still, after that of a second
        one they may not be, and all workers read from the disk.
        """
        return self.restore_ns if self.peer_restore_ns is None or lost > 1 else self.peer_restore_ns

    @property
    def lag_ns(self) -> int:
        """Part of a checkpoint for which the workers step again although it is not complete, in ns."""
        return self.checkpoint_ns - self.blocking_ns

    @property
    def cycle_ns(self) -> int:
        """Time from the beginning of one checkpoint to the beginning of the next, in ns."""
        return self.checkpoint_every_ns + self.blocking_ns


class SnapshotSpec(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Snapshots of a gang in the memory of nodes (R24): every `every` steps, each shard in `copies` nodes.

    The first copy is on the node of the rank itself. The nodes of the others differ in the label `apart` ("node": in
    their names), as far as that is possible. `size` is that of one shard in bytes; 0: it is not known.
    """

    copies: PositiveCount = 2
    every: PositiveCount = 1
    apart: str = "node"
    size: Number = 0


class RoleSpec(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A group of equal replicas. The arguments of `flowdist.dsl.Topology.role` describe the fields in full."""

    name: str
    command: Annotated[tuple[str, ...], Meta(min_length=1)]  # its macros have values only when a worker starts
    kind: RoleKind = "task"
    min_replicas: Count = 1
    max_replicas: PositiveCount = 1
    procs: PositiveCount = 1  # workers of a replica; `procs_on` returns the number on a given node
    resources: Resources = Resources()
    placement: Placement = Placement()
    env: Pairs = ()
    secrets: tuple[SecretRef, ...] = ()  # their names are not in `env`
    ports: tuple[str, ...] = ()
    workdir: str = ""  # absolute; empty: the folder of the topology
    gang: bool = True
    primary: bool = True
    gates: tuple[Gate, ...] = ()
    versions: VersionEdge | None = None  # what its replicas have to acknowledge before they are ready (R23)
    restart: RestartPolicy | None = None
    ready: Readiness | None = None
    ready_timeout_ns: Ns = 5 * MINUTE
    snapshots: SnapshotSpec | None = None  # snapshots in the memory of nodes (R24); a joint world has one for all roles
    state: Literal["none", "memory", "checkpoint"] = "none"
    grace_ns: Ns = 10 * SECOND
    stop_grace_ns: Ns = 2 * SECOND
    drain_ns: Ns = 30 * SECOND
    join_window_ns: Ns = 10 * SECOND
    pending_timeout_ns: Ns = PENDING_NS
    finish_timeout_ns: Ns = 5 * MINUTE
    cooldown_ns: Ns = 30 * SECOND
    hang_after_ns: LookNs | None = None
    start_timeout_ns: LookNs | None = None
    preload: tuple[str, ...] = ()  # modules that are imported before workers are forked, besides those of the script
    warm: bool = True
    numa: Literal["", "node"] = ""  # "node": workers are bound to the cores of the NUMA node of their GPU
    count_steps: bool = True  # optimizer steps of workers that report no progress are counted
    virtual_local_rank: bool = False  # each worker has LOCAL_RANK=0 and sees one device
    parallel: Parallel = ()
    workload: WorkloadSpec = WorkloadSpec()
    simulate: str = ""  # `module:Class` or `/path/file.py:Class`, the user's model of a worker; empty: the workload
    address_edges: tuple[str, ...] = ()  # roles of which the command or environment has an addresses macro

    @property
    def step(self) -> int:
        """Number of which a gang's replicas are a multiple, so that their ranks form its mesh; 1 without a mesh."""
        return replica_step(self.parallel, self.procs) if self.parallel else 1

    @property
    def has_readiness(self) -> bool:
        """Whether a replica that runs still has to become ready: by a check, by a version, or by both."""
        return self.ready is not None or self.versions is not None

    @property
    def longest_step_ns(self) -> int:
        """Time in ns of a step of the workload, in the size between minimum and maximum that takes longest."""
        least, most = self.min_replicas * self.procs, self.max_replicas * self.procs
        sizes = [max(1, least), most, *(size for size, _ in self.workload.step_times if least < size < most)]
        return max(self.workload.step_ns_at(size) for size in sizes)

    def procs_on(self, node: NodeSpec) -> int:
        """Return the number of workers that a replica of this role has on the node: `procs`, or the host's own number.

        The host's own number counts for gangs alone, and only without GPUs and without a mesh: the number of workers of
        a replica with GPUs follows its devices, and a mesh has the same number of ranks in every replica.
        """
        follows = self.gang and not self.resources.gpu and not self.parallel
        return (node.procs if follows else 0) or self.procs

    def gate_on(self, role: str) -> Gate | None:
        """Return the gate of this role on the role with the given name; None if it has none."""
        return next((gate for gate in self.gates if gate.role == role), None)


class NodeSpec(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Name, labels and capacity of one node: cpu in cores, gpu as a number of GPUs, memory in bytes."""

    name: str
    cpu: Cpus = 8.0
    gpu: GpuCount = 0
    memory: Number = 32 << 30
    labels: Pairs = ()

    @property
    def procs(self) -> int:
        """Number of workers that each replica has on this node, if the host has set one (label NODE_PROCS); else 0."""
        if not self.labels:
            return 0
        text = dict(self.labels).get(NODE_PROCS, "")
        return int(text) if re.fullmatch("[0-9]{1,5}", text) else 0


class Cluster(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Nodes of the job, which starts when `min_nodes` of them have joined.

    `given` is false if the topology declares no nodes: `flowdist run` then uses this machine as one node.
    """

    nodes: tuple[NodeSpec, ...] = ()
    min_nodes: Count = 1
    given: bool = True


class Domain(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Restart domain: roles that all restart when one of them fails whose policy has the scope "domain"."""

    name: str
    roles: tuple[str, ...]


class JointWorld(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """World of several roles: they share one RANK space and one process group, and form, restart and end together."""

    name: str
    roles: tuple[str, ...]


class JobOptions(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Timeouts in ns and limits of the whole job instead of one role; numbers such as R7 refer to docs/restarts.md."""

    heartbeat_ns: PositiveNs = 500 * MS
    lease_ns: PositiveNs = 4 * SECOND
    lease_margin_ns: Ns = 1 * SECOND  # agents fence so long before a lease ends; nodes are lost so long after (R19)
    cause_window_ns: Ns = 2 * SECOND  # in which a failure follows from one of an upstream role (R7)
    min_uptime_ns: Ns = 60 * SECOND  # after which a world without progress counts as healthy (R8)
    free_incidents_max: Number = 5  # changes of members in a row, without health, that a world survives (R8)
    unkillable_after_ns: Ns = 30 * SECOND  # from SIGKILL until the node of a worker that still lives is lost (R6)
    controller_outage_ns: Ns = 10 * MINUTE  # for which agents keep their workers without a controller (R21)
    bad_node_window_ns: Ns = 60 * MINUTE  # in which `move_after` and `cordon_after` count failures (R22)
    move_after: Number = 2  # failures of one kind of a replica on one node before it runs elsewhere (R22)
    cordon_after: Number = 3  # failures of one kind on one node before the node is cordoned (R22)
    store_endpoint: Endpoint4 = ""  # where the stores of all generations listen; empty: each at a port of its own

    @property
    def silent_after_ns(self) -> int:
        """Time without a heartbeat after which a node is lost, in ns; its agent has killed its workers then (R19)."""
        return self.lease_ns + self.lease_margin_ns

    @property
    def suspect_after_ns(self) -> int:
        """Time without a heartbeat after which a node is suspected, in ns.

        The time is halfway between the moment at which the next heartbeat is due and the one at which the agent fences.
        """
        return min(self.silent_after_ns, (self.heartbeat_ns + self.lease_ns - self.lease_margin_ns) // 2)


class RoleGraph(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A compiled topology: everything about a job that is known before it runs.

    Roles are in the order of their declaration, and gates point to earlier roles.
    """

    name: str
    roles: tuple[RoleSpec, ...]
    domains: tuple[Domain, ...] = ()
    cluster: Cluster = Cluster()
    options: JobOptions = JobOptions()
    on_incident: tuple[str, ...] = ()  # command of the hook; empty: none
    checkpoint_dir: str = ""  # empty: checkpoints/ in the folder of the run
    source: str = ""  # path of the topology file, absolute
    worlds: tuple[JointWorld, ...] = ()
    format: Literal[1] = 1

    def on(self, node: NodeSpec) -> RoleGraph:
        """Return the graph as one node sees it: `procs` of each role is the number of workers of a replica there."""
        if not node.procs:
            return self
        roles = tuple(msgspec.structs.replace(role, procs=role.procs_on(node)) for role in self.roles)
        return msgspec.structs.replace(self, roles=roles)

    def role(self, name: str) -> RoleSpec:
        """Return the role with that name; KeyError if there is none."""
        for role in self.roles:
            if role.name == name:
                return role
        raise KeyError(name)

    def dependents(self, name: str) -> tuple[tuple[RoleSpec, Gate], ...]:
        """Return the roles that have a gate on the role `name`, each with that gate."""
        return tuple((role, gate) for role in self.roles for gate in role.gates if gate.role == name)

    def holders_of(self, name: str) -> tuple[RoleSpec, ...]:
        """Return the roles that need versions of what the role `name` publishes (R23)."""
        return tuple(role for role in self.roles if role.versions is not None and role.versions.role == name)

    def domain_of(self, name: str) -> Domain | None:
        """Return the restart domain of the role; None if it is in none."""
        return next((domain for domain in self.domains if name in domain.roles), None)

    def world_of(self, name: str) -> JointWorld | None:
        """Return the joint world of the role; None if it shares its ranks with no other role."""
        return next((world for world in self.worlds if name in world.roles), None)

    def mates_of(self, name: str) -> tuple[str, ...]:
        """Return the names of the roles in the role's joint world, itself included; itself alone if it is in none."""
        world = self.world_of(name)
        return world.roles if world is not None else (name,)

    def to_succeed_before(self, name: str) -> set[str]:
        """Return the names of all roles that have to succeed before a role can start."""
        gates = [gate for gate in self.gates_before(name) if gate.condition == "succeeded"]
        return {mate for gate in gates for mate in self.mates_of(gate.role)}

    def gates_before(self, name: str) -> list[Gate]:
        """Return all gates that have to open before a role can start.

        Gates of the role count, and gates of the roles for which it waits in any way. The roles of a joint world start
        and succeed together, so a gate of one of them counts for all.
        """
        gates = {role.name: role.gates for role in self.roles}
        found: list[Gate] = []
        todo = list(dict.fromkeys(self.mates_of(name)))
        for other in todo:  # grows while it is walked
            found += gates.get(other, ())  # a world with a role of another topology is a problem, reported elsewhere
            for gate in gates.get(other, ()):
                todo += [mate for mate in self.mates_of(gate.role) if mate not in todo]
        return found
