"""Words of a topology file that are plain values: nodes, sizes, restart policies, workloads and secrets.

The constructors check nothing. Each value remembers the call that made it, so that the compiler can report every
problem of a topology at once, each at its argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from flowdist.dsl.problems.places import call_site

Duration = str | int | float
Memory = str | int
FailureWord = Literal[
    "exit", "signal", "oom", "hang", "start_failed", "unready", "unkillable", "preempted", "gpu_lost", "node_lost"
]


class Node:
    """What one node offers: `Node("node0", cpu=8, gpu=2, memory="64GiB", labels={"zone": "a"})`.

    Args:
        name: Defaults to `node0`, `node1`, ... by its position.
        cpu: Cores.
        gpu: Whole devices.
        memory: Bytes, or text such as `64GiB`.
        labels: Free words about the node.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        cpu: float = 8,
        gpu: int = 0,
        memory: Memory = "32GiB",
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.cpu, self.gpu, self.memory, self.labels = name, cpu, gpu, memory, labels
        self.site = call_site(("name",))


class Resources:
    """A named size for roles: `Topology(..., resources={"small": Resources(cpu=2)})`, then `resources="small"`."""

    def __init__(self, *, cpu: float = 1, gpu: float = 0, memory: Memory = 0) -> None:
        self.cpu, self.gpu, self.memory = cpu, gpu, memory
        self.site = call_site(())


class On:
    """One rule: what to do about a failure that matches. The first rule that matches decides.

    Args:
        kind: A kind of failure; None matches any.
        exit: Only this exit code.
        signal: Only this signal, such as `"SEGV"`.
        do: `restart`, `fail` the job, or `ignore` the replica.
        count: Whether a restart by this rule is charged to the budget.
    """

    def __init__(
        self,
        kind: FailureWord | None = None,
        *,
        exit: int | None = None,
        signal: str | None = None,
        do: Literal["restart", "fail", "ignore"] = "restart",
        count: bool = True,
    ) -> None:
        self.kind, self.exit, self.signal, self.do, self.count = kind, exit, signal, do, count
        self.site = call_site(("kind",))


class Restart:
    """What a failure of the role restarts, how often, and what comes after that.

    Args:
        scope: `replica` (roles without gang), `role`, `domain` or `job`.
        max_restarts: The budget; 0 means that a failure is final.
        within: The window of the budget; None: the whole job.
        then: What happens when the budget is used up: `fail` the job, `ignore` the replica, or a wider Restart
            with a budget of its own, such as `Restart("job", max_restarts=2)`.
        rules: Exceptions by kind of failure, the first match decides.
        backoff: Wait before the second counted restart; it doubles from there. The first waits for nothing.
        backoff_max: The longest wait.
        backoff_reset: This long without a counted incident starts the back-off anew.
    """

    def __init__(
        self,
        scope: Literal["replica", "role", "domain", "job"] = "role",
        *,
        max_restarts: int = 0,
        within: Duration | None = None,
        then: Literal["fail", "ignore"] | Restart = "fail",
        rules: Sequence[On] = (),
        backoff: Duration = "1s",
        backoff_max: Duration = "1m",
        backoff_reset: Duration = "10m",
    ) -> None:
        self.scope, self.max_restarts, self.within, self.then, self.rules = scope, max_restarts, within, then, rules
        self.backoff, self.backoff_max, self.backoff_reset = backoff, backoff_max, backoff_reset
        self.site = call_site(("scope",))


class Workload:
    """How the simulator plays a worker of the role.

    Args:
        steps: Steps until the task is done; services ignore it.
        step_time: One step, by the fastest worker.
        step_spread: How much longer the slowest may take, as a share: with 0.1 each attempt of a worker draws a step
            time between `step_time` and a tenth more. The world goes at the pace of its slowest member; of N workers it
            takes 1 + step_spread * N / (N + 1) times as long on average. Seed 0 draws nothing.
        startup: From the start of the process to its first step, or to readiness.
        warmup: From the moment that all workers of the world are up to their first step: compilation, caches, the first
            connections. Paid whenever a worker of the world is a new process.
        checkpoint_every: Time between checkpoints in which workers step.
        checkpoint_time: How long it takes until a checkpoint is whole. What dies earlier resumes from the one before.
        checkpoint_blocks: For how long of that the workers stand still. None: all of it. With less the checkpoint is
            asynchronous: they step on while it is written.
        restore_time: How long a restart takes to read its checkpoint.
        rejoin_time: Its workers call `worker.elastic()`: how long until they train on in a new generation, in the same
            process. None: they are restarted.
        collective: What becomes of the peers of a worker that dies: "fail", as with gloo, a moment later with exit code
            1; "hang", as with NCCL, until they are killed; "wait", they stand still and do as they are told. None: not
            said; they wait, and campaigns try all three.
        collective_timeout: How long they hang before the process group gives up. None: as in torch, 30 minutes where
            they fail and 10 where they hang.
    """

    def __init__(
        self,
        *,
        steps: int = 600,
        step_time: Duration = "1s",
        startup: Duration = "5s",
        checkpoint_every: Duration = "1m",
        checkpoint_time: Duration = "1s",
        restore_time: Duration = "0s",
        rejoin_time: Duration | None = None,
        collective: Literal["wait", "fail", "hang"] | None = None,
        collective_timeout: Duration | None = None,
        step_spread: float = 0.0,
        warmup: Duration = "0s",
        checkpoint_blocks: Duration | None = None,
    ) -> None:
        self.steps, self.step_time, self.startup = steps, step_time, startup
        self.step_spread, self.warmup, self.checkpoint_blocks = step_spread, warmup, checkpoint_blocks
        self.checkpoint_every, self.checkpoint_time = checkpoint_every, checkpoint_time
        self.restore_time, self.rejoin_time = restore_time, rejoin_time
        self.collective, self.collective_timeout = collective, collective_timeout
        self.site = call_site(())


class Secret:
    """A value for `env=` that is read when a worker starts, and is nowhere in the graph, the plan or the journal.

    Args:
        env: The variable that has it where flowdist runs.
        file: The file that has it, without the newline at its end; relative to the topology file, `~` is the home.
    """

    def __init__(self, *, env: str | None = None, file: str | None = None) -> None:
        self.env, self.file = env, file
        self.site = call_site(())

    def __repr__(self) -> str:
        return f"Secret(env={self.env!r})" if self.env is not None else f"Secret(file={self.file!r})"
