"""Phases of replicas and of worlds."""

from __future__ import annotations

from typing import Literal, get_args

ReplicaPhase = Literal[
    "waiting",  # nothing of it runs; it may be placed and start
    "starting",  # ordered to start; its node has not confirmed that
    "running",
    "ready",  # runs and has passed its readiness check
    "stopping",  # ordered to stop; its node has not confirmed that
    "gone",  # its attempt is over; its incident decides what comes next
    "succeeded",
    "ended",  # will not run again, without success: ignored, or stopped at the end
]
UP_PHASES: frozenset[str] = frozenset({"starting", "running", "ready"})
LIVE_PHASES: frozenset[str] = UP_PHASES | {"stopping"}
OVER_PHASES: frozenset[str] = frozenset({"succeeded", "ended"})
PHASES: tuple[ReplicaPhase, ...] = get_args(ReplicaPhase)

RoleOutcome = Literal["succeeded", "failed", "ignored", "stopped"]
Stall = Literal["", "progress", "output", "start"]  # the sign of life that a stalled replica misses; empty: not stalled
WorldPhase = Literal[
    "waiting",  # for gates, nodes, the join window or back-off
    "opening",  # members are chosen, the store is being bound
    "running",  # all members have the order to start
    "stopping",  # all members have the order to stop, to start again or to end
    "succeeded",
    "ended",
]
