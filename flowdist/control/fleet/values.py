"""Values that cross the border of the fleet: pools, members as an engine shows them, nodes of the job, orders."""

from __future__ import annotations

from typing import Literal

import msgspec

from flowdist.control.protocol.ids import NodeName

Phase = Literal["pending", "running", "ended"]
Cause = Literal["", "succeeded", "failed", "cancelled", "time limit", "preempted", "node failed"]


class Size(msgspec.Struct, frozen=True):
    """Size of a member: cpu in whole cores, a number of GPUs, memory in bytes (0: whatever the engine gives)."""

    cpu: int = 1
    gpu: int = 0
    memory: int = 0


class Pool(msgspec.Struct, frozen=True):
    """Members that are alike, and the roles that may run on them. The pool of all roles has an empty name."""

    name: str
    roles: tuple[str, ...]
    min_members: int
    max_members: int
    size: Size


class Launch(msgspec.Struct, frozen=True):
    """One member that an engine starts.

    Args:
        member: Name of the member, unique in its run, such as `m3`.
        title: Name by which people recognise it in the engine's own lists.
        pool: Name of its pool.
        size: What it needs.
        command: Command line of the member, without secrets.
        avoid: Hosts on which the engine must not start it.
    """

    member: str
    title: str
    pool: str
    size: Size
    command: tuple[str, ...]
    avoid: tuple[str, ...] = ()


class Seen(msgspec.Struct, frozen=True):
    """A member as its engine shows it.

    Args:
        phase: Whether it waits for a machine, runs, or is over.
        host: The engine's name of its machine; empty: none, or not known.
        cause: Why it is over; empty if it is not, or the engine has forgotten.
        reason: The engine's own words for its state, such as `TIMEOUT` or `Resources`.
        is_host_drained: The engine wants its machine empty.
        is_ending: It runs, and is being ended: it will be over, or wait again.
    """

    phase: Phase
    host: str = ""
    cause: Cause = ""
    reason: str = ""
    is_host_drained: bool = False
    is_ending: bool = False


class NodeSeen(msgspec.Struct, frozen=True):
    """The node of a member as the job has it. `is_leaving`: it is drained or preempted; `cordoned` says why."""

    node: NodeName
    member: str
    is_usable: bool
    is_leaving: bool = False
    cordoned: str = ""
    replicas: int = 0
    lost_because: str = ""


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Order to submit the member, which `Fleet.members` has. `avoid` are hosts on which it must not start."""

    member: str
    pool: str
    avoid: tuple[str, ...] = ()


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Order to cancel a member. `because` is for people; `again`: it was ordered before, and it still exists."""

    member: str
    reference: str
    because: str
    again: bool = False


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Order to move all work off a node."""

    node: NodeName
    because: str


class Tell(msgspec.Struct, frozen=True, tag=True):
    """Text for people about what the fleet does and why."""

    text: str
    level: Literal["event", "warning", "error"] = "event"


class GiveUp(msgspec.Struct, frozen=True, tag=True):
    """Order to end the job, because the engine gives it no members any more, or somebody has cancelled all of them."""

    because: str
    outcome: Literal["cancelled", "failed"]


Order = Submit | Cancel | Drain | Tell | GiveUp
