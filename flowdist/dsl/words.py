"""Words of a topology file that are plain values: nodes, sizes, restart policies, workloads and secrets.

The constructors check nothing. Each value records the call that made it, so that the compiler can report every
problem of a topology at once, each at its argument. The values never change. Durations are text such as `"1m30s"`;
only 0 needs no unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from flowdist.dsl.frozen import Frozen, word

Duration = str | Literal[0]
Memory = str | Literal[0]
FailureWord = Literal[
    "exit", "signal", "oom", "hang", "start_failed", "unready", "unkillable", "preempted", "gpu_lost", "node_lost"
]


@word("name")
@dataclass(eq=False, repr=False)
class Node(Frozen):
    """Capacity and labels of one node: `Node("node0", cpu=8, gpu=2, memory="64GiB", labels={"zone": "a"})`.

    Args:
        name: Name of the node, usable as a host name. None: `node0`, `node1`, ... by its position.
        cpu: Number of cores.
        gpu: Number of GPUs, a whole number.
        memory: Text such as `"64GiB"`; only 0 needs no unit.
        resources: Name of a size (see `Resources`) that the node has instead of cpu, gpu and memory.
        labels: Names and values of your choice, which `where=` of roles refers to.
    """

    name: str | None = None
    _: KW_ONLY
    cpu: float = 8
    gpu: int = 0
    memory: Memory = "32GiB"
    resources: str | None = None
    labels: Mapping[str, str] | None = None


@word()
class Resources(Frozen):
    """Named size of a replica: `Topology(..., resources={"small": Resources(cpu=2)})`, then `resources="small"`.

    Args:
        cpu: Number of cores; fractions are allowed.
        gpu: Number of GPUs, or a share of one such as 0.5.
        memory: Text such as `"64GiB"`; only 0 needs no unit.
    """

    def __init__(self, *, cpu: float = 1, gpu: float = 0, memory: Memory = 0) -> None:
        self.cpu, self.gpu, self.memory = cpu, gpu, memory


@word("kind")
@dataclass(eq=False, repr=False)
class On(Frozen):
    """One rule of a restart policy: the failures that it matches, and the action. The first rule that matches decides.

    A rule matches a failure if each of `kind`, `exit` and `signal` that is given does.

    Args:
        kind: Kind of failure, such as `"oom"` or `"node_lost"`; None matches every kind.
        exit: Exit code, 1 to 255; None matches every code.
        signal: Name of the signal that ended the worker, such as `"SEGV"`; None matches every signal.
        do: "restart": restart the policy's scope; "fail": fail the job; "ignore": go on without the replica.
        count: True if a restart by this rule is charged to the budget.
    """

    kind: FailureWord | None = None
    _: KW_ONLY
    exit: int | None = None
    signal: str | None = None
    do: Literal["restart", "fail", "ignore"] = "restart"
    count: bool = True


@word("scope")
@dataclass(eq=False, repr=False)
class Restart(Frozen):
    """Restart policy of a role: what a failure restarts, how often, and what follows.

    Args:
        scope: What restarts: the failed `replica` (only for roles without gang), its `role`, its `domain` (see
            `Topology.restart_together`), or the whole `job`.
        max_restarts: Number of charged restarts that the policy allows (its budget). With 0, `then` applies to the
            first charged failure.
        within: Time that the budget looks back: charges that are older do not count. None: all charges of the job
            count.
        then: Action when the budget is used up: "fail" the job, "ignore" the replica, or a `Restart` with a wider scope
            and a budget of its own, such as `Restart("job", max_restarts=2)`.
        rules: Exceptions for kinds of failures; the first that matches decides. A wider `Restart` has none.
        backoff: Wait before the second charged restart. It doubles with each further one; the first does not wait.
        backoff_max: Longest wait.
        backoff_reset: Time without a charged incident after which the next restart does not wait again.
    """

    scope: Literal["replica", "role", "domain", "job"] = "role"
    _: KW_ONLY
    max_restarts: int = 0
    within: Duration | None = None
    then: Literal["fail", "ignore"] | Restart = "fail"
    rules: Sequence[On] = ()
    backoff: Duration = "1s"
    backoff_max: Duration = "1m"
    backoff_reset: Duration = "10m"


@word()
@dataclass(eq=False, repr=False, kw_only=True)
class Snapshots(Frozen):
    """Snapshots of a gang in the memory of its nodes (R24), `snapshots=` of the role.

    Workers call `flowdist.worker.snapshot(step)`, which does nothing at most steps. After a failure the gang goes on
    from the newest snapshot of which each shard is on a node that is up, or from a later checkpoint.

    Args:
        copies: Number of nodes that hold the shard of a rank, its own node included.
        every: Number of steps from one snapshot to the next.
        apart: What differs between the nodes of the copies: "node", or a label of the nodes such as "rack". If the
            label has too few values, some copies are on other nodes with the same one.
        size: Size of the shard of one rank, such as `"200MB"`; 0: not known. With it, flowdist checks that the nodes
            have the memory, and the simulator knows how long a copy takes.
    """

    copies: int = 2
    every: int = 1
    apart: str = "node"
    size: Memory = 0


@word()
@dataclass(eq=False, repr=False, kw_only=True)
class Workload(Frozen):
    """Timing of a worker of a role in the simulator, `workload=` of the role.

    Args:
        steps: Steps until the task is done; services ignore it.
        step_time: Duration of one step of the fastest worker. A dict has it by the number of workers of the role:
            `{1: "2s", 4: "600ms"}`. Between two entries the speed changes evenly with the number.
        scaling: With one `step_time`, that of the largest size: the part of the speed, from 0 to 1, that is
            proportional to the number of workers. With 1 half of the workers take twice as long for a step.
        batch: "global": all sizes do the same global batch in a step. "worker": each worker keeps its own batch, so
            fewer workers need more steps for the same samples. `steps` counts steps of the largest size.
        startup_spread: Share by which each start-up is drawn shorter or longer. Seed 0 draws nothing.
        step_spread: Share by which a step of the slowest worker may be longer. With 0.1 each attempt of a worker draws
            a step time from `step_time` to a tenth more. A world has the pace of its slowest member: with N workers a
            step takes 1 + step_spread * N / (N + 1) times as long on average. Seed 0 draws nothing.
        startup: Time from the start of the process to its first step, or to readiness.
        warmup: Time from the start-up of the last worker of the world to the first step: compilation, caches, first
            connections. It passes in each generation in which a worker is a new process.
        checkpoint_every: Time from one checkpoint to the next, without the time for which a checkpoint blocks.
        checkpoint_time: Time until a checkpoint is complete. Workers that fail earlier resume from the one before.
        checkpoint_blocks: Part of `checkpoint_time` for which workers do not step. None: all of it. With less, the
            checkpoint is asynchronous: workers step while it is written.
        restore_time: Time that a restarted worker needs to read its checkpoint.
        peer_restore: The same if it reads it from the memory of a peer: each node has copies of the checkpoint of
            another one, so that no disk is read after the loss of one node. None: peers have no copies.
        warm_startup: `startup` of a worker on a node that has the modules of the role already: the role has started
            there before, or its workers wait for `import_time`. None: as long as `startup`.
        import_time: Time from the arrival of a node until it has imported the modules of the workers. Workers start on
            the node only then, and a running world grows onto it only then.
        finish_time: Time from the last step until the workers have exited.
        stop_time: Time from SIGTERM until the workers have ended.
        rejoin_time: Time until workers that call `worker.elastic()` train again in a new generation, in the same
            process. None: workers are restarted.
        collective: What the peers of a worker that dies do. "fail": they exit with code 1 a moment later, as with gloo.
            "hang": they hang until they are killed, as with NCCL. "wait": they wait for orders. None: they wait, and
            campaigns try all three.
        collective_timeout: Time after which the process group gives up. None: as in torch, 30 minutes with "fail" and
            10 minutes with "hang".
    """

    steps: int = 600
    step_time: Duration | Mapping[int, Duration] = "1s"
    scaling: float = 0.0
    batch: Literal["global", "worker"] = "global"
    startup: Duration = "5s"
    step_spread: float = 0.0
    startup_spread: float = 0.2
    warmup: Duration = "0s"
    checkpoint_blocks: Duration | None = None
    checkpoint_every: Duration = "1m"
    checkpoint_time: Duration = "1s"
    restore_time: Duration = "0s"
    peer_restore: Duration | None = None
    warm_startup: Duration | None = None
    import_time: Duration = "0s"
    finish_time: Duration = "0s"
    stop_time: Duration = "100ms"
    rejoin_time: Duration | None = None
    collective: Literal["wait", "fail", "hang"] | None = None
    collective_timeout: Duration | None = None


@word()
class Secret(Frozen):
    """Secret value for `env=`, read when a worker starts; the graph, the plan and the journal have only its source.

    Exactly one argument has to be given; the compiler reports anything else (FD138).

    Args:
        env: Name of a variable in the environment of flowdist that has the value.
        file: Path of a file that has the value, relative to the folder of the topology file; `~` is the home folder. A
            newline at the end of the file is removed.
    """

    def __init__(self, *, env: str | None = None, file: str | None = None) -> None:
        self.env, self.file = env, file

    def __repr__(self) -> str:
        return f"Secret(env={self.env!r})" if self.env is not None else f"Secret(file={self.file!r})"
