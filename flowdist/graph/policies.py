"""Restart policies: what a failure of a role restarts, how often, and what follows when the budget is used up."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from flowdist.graph.units import MINUTE, SECOND, ExitCode, Ns, Number, PositiveNs

Scope = Literal["replica", "role", "domain", "job"]
SCOPES: tuple[Scope, ...] = get_args(Scope)  # from narrow to wide
Action = Literal["restart", "fail", "ignore"]
Then = Literal["fail", "ignore", "widen"]
FailureKind = Literal[
    "exit", "signal", "oom", "hang", "start_failed", "unready", "unkillable", "store_lost", "preempted", "gpu_lost",
    "node_lost",
]  # fmt: skip


class Rule(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """One rule of a restart policy, `On(...)` in a topology: the failures that it matches, and the action `do`.

    The first rule that matches a failure decides (R9). None in `kind`, `exit` or `signal` matches every value.
    """

    do: Action
    kind: FailureKind | None = None
    exit: ExitCode | None = None
    signal: str | None = None  # without SIG: "SEGV"
    counted: bool = True


class RestartPolicy(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Restart policy of a role: what a failure restarts (R5), how often (R7), and after which wait (R10).

    `rules` are the exceptions (R9). `then` is the action when the budget is used up; "widen" means that `wider` applies
    (R11).
    """

    scope: Scope = "role"
    max_restarts: Number = 0
    within_ns: PositiveNs | None = None  # window of the budget; None: the whole job
    then: Then = "fail"
    rules: tuple[Rule, ...] = ()
    backoff_ns: Ns = 1 * SECOND  # wait before the second charged restart; the first does not wait
    backoff_max_ns: Ns = 1 * MINUTE
    backoff_reset_ns: Ns = 10 * MINUTE  # time without a charged incident after which the back-off begins anew
    wider: RestartPolicy | None = None  # applies when the budget is used up, if `then` is "widen" (R11)

    def chain(self) -> tuple[RestartPolicy, ...]:
        """Return this policy and the wider ones after it, in the order in which their budgets are used up."""
        policies = [self]
        while (wider := policies[-1].wider) is not None:
            policies.append(wider)
        return tuple(policies)


SIGNAL_NAMES = {
    1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL", 10: "USR1", 11: "SEGV",
    12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM", 24: "XCPU", 31: "SYS",
}  # fmt: skip
