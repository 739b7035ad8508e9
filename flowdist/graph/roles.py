"""Roles and their parts as the graph has them: size, resources, placement, gates, readiness, workload and timeouts."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from flowdist.graph.nodes import NodeSpec, Pairs
from flowdist.graph.policies import RestartPolicy
from flowdist.graph.sizes import Parallel, replica_step, step_time_at
from flowdist.graph.units import (
    MINUTE,
    MS,
    SECOND,
    Count,
    Cpus,
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
