"""Objections to messages: what an agent may not say. A message with an objection is refused before it is recorded.

The decoder has checked the types of a message. This module checks its meaning against the state of the job. A node
speaks for itself alone. Replicas and worlds exist. An attempt or a generation was begun, and its present number on that
node. Numbers, names and lists have sizes that an agent can send. Everything that passes can be recorded and replayed,
and changes nothing beyond the node of the agent.

A text for people is never too long: `texts` cuts it, because the end of a worker must be recorded whatever it printed.

A late report is no objection: it is recorded, and changes nothing (R20).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import assert_never

from flowdist.control.job.state import JobState
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.ids import VERSION_MAX, NodeName, OfAttempt, ReplicaId
from flowdist.control.protocol.messages import Heartbeat, Join, Leave, Preempted, Report, ToController
from flowdist.graph import NodeSpec
from flowdist.graph.units import GPUS_MAX, PORTS_MAX

NUMBER_MAX = 1 << 62  # of a time in ns, a step, a generation
INCARNATION_MAX = 1 << 53  # a node's next host counts on from there
PORT_MAX = (1 << 16) - 1
RANK_MAX = 1 << 16
CPUS_MAX, MEMORY_MAX = 1 << 16, 1 << 52  # of one node: cores, bytes
NAME_MAX, PATH_MAX = 1 << 8, 1 << 12  # characters of an address, a port, a signal or half a label; of a path
LABELS_MAX, ITEMS_MAX = 1 << 6, 1 << 12  # of a node, of an inventory
ADDRESS_MARKS = ".:%-_"  # what an address may have besides letters and digits: it goes into lists of `host:port`
PHASES = frozenset(("starting", "running", "ready", "suspended", "stopped", "exited"))  # of an inventory item


def objection(message: ToController, job: JobState, sender: NodeName | None = None) -> str:
    """Return why a message must not be recorded; empty if there is no reason.

    `sender` is the node, on another host, that the connection belongs to. None: a process of the controller's host.
    """
    return next(_objections(message, job, sender), "")


def objection_to_proof(node: NodeName, incarnation: int, sender: NodeName | None = None) -> str:
    """Return why a proof of the death of a node's processes must not be recorded; empty if there is no reason.

    `incarnation` is the last of its agent that the sender knows of; `sender` is as for `objection`.
    """
    found = (*_of_sender(node, sender), *_of_incarnation(incarnation))
    return next(iter(found), "")


def objection_to_sender(node: NodeName, sender: NodeName | None) -> str:
    """Return why the sender may not speak for the node; empty if it may. The sender is as for `objection`."""
    return next(_of_sender(node, sender), "")


def _objections(message: ToController, job: JobState, sender: NodeName | None) -> Iterator[str]:
    yield from _of_sender(message.node, sender)
    yield from _of_incarnation(message.incarnation)
    match message:
        case Join():
            yield from _of_number("sent_ns", message.sent_ns)
            yield from _of_join(message, job)
        case Heartbeat():
            yield from _of_number("sent_ns", message.sent_ns)
            yield from _of_number("answered_ns", message.answered_ns)
        case Report():
            yield from _of_report(message.event, message.node, job)
        case Preempted():
            yield from _of_number("notice_ns", message.notice_ns)
        case Leave():
            pass
        case _:
            assert_never(message)


def _of_sender(node: NodeName, sender: NodeName | None) -> Iterator[str]:
    if sender is not None and node != sender:
        yield f"{sender} may not speak for {node[:100]!r}"


def _of_join(message: Join, job: JobState) -> Iterator[str]:
    yield from _of_spec(message.spec, message.node)
    yield from _of_address(message.address)
    yield from _of_count("attempts", message.inventory, ITEMS_MAX)
    for item in message.inventory:
        yield from _of_item(item, job)
    yield from _of_count("bad GPUs", message.bad_gpus, GPUS_MAX)
    for gpu, _ in message.bad_gpus:
        yield from _of_number("gpu", gpu, 0, GPUS_MAX)
    yield from _of_number("vault_port", message.vault_port, 0, PORT_MAX)
    yield from _of_count("copies", message.copies, ITEMS_MAX)
    for copy in message.copies:
        yield from _of_copy(copy, message.node, job)


def _of_item(item: ev.InventoryItem, job: JobState) -> Iterator[str]:
    yield from _of_replica(item.replica, job)
    yield from _of_number("attempt", item.attempt, 1)  # one that no journal knows any more is stopped
    yield from _of_ports(item.ports)
    if item.phase not in PHASES:
        yield f"there is no phase {item.phase[:100]!r}"
    if item.exited is not None:
        if (item.exited.replica, item.exited.attempt) != (item.replica, item.attempt):
            yield f"the end of {item.replica} names another attempt"
        yield from _of_exit(item.exited)


def _of_address(address: str) -> Iterator[str]:
    yield from _of_name("address", address)
    if not all(each.isalnum() or each in ADDRESS_MARKS for each in address[:NAME_MAX]):
        yield f"{address[:100]!r} is no address"


def _of_spec(spec: NodeSpec, node: NodeName) -> Iterator[str]:
    if spec.name != node:
        yield f"{node} brings the capacity of {spec.name[:100]!r}"
    if not (math.isfinite(spec.cpu) and 0 <= spec.cpu <= CPUS_MAX):
        yield f"cpu is {spec.cpu:g}, not between 0 and {CPUS_MAX}"
    yield from _of_number("gpu", spec.gpu, 0, GPUS_MAX)
    yield from _of_number("memory", spec.memory, 0, MEMORY_MAX)
    yield from _of_count("labels", spec.labels, LABELS_MAX)
    for text in chain.from_iterable(spec.labels):
        yield from _of_name("label", text)


def _of_report(event: ev.Event, node: NodeName, job: JobState) -> Iterator[str]:
    match event:
        case ev.NodeWarm():
            yield from _of_sender(event.node, node)
        case ev.NodeStandsStill():
            yield from _of_sender(event.node, node)
            yield from _of_count("stopped workers", event.workers, ITEMS_MAX)
        case ev.GpuFailed():
            yield from _of_sender(event.node, node)
            yield from _of_number("gpu", event.gpu, 0, GPUS_MAX)
            yield from _of_number("xid", event.xid)
        case ev.StoreOpened():
            yield from _of_store(event, node, job)
            yield from _of_number("port", event.port, 1, PORT_MAX)
        case ev.StoreLost():
            yield from _of_store(event, node, job)
        case ev.VaultOpened():
            yield from _of_sender(event.node, node)
            yield from _of_number("port", event.port, 1, PORT_MAX)
        case ev.VaultLost():
            yield from _of_sender(event.node, node)
        case ev.CopyHeld() | ev.CopyBroken():
            yield from _of_copy(event, node, job)
        case ev.CheckpointOffered():
            yield from _of_attempt(event, node, job)
            yield from _of_number("generation", event.generation)
            yield from _of_number("step", event.step, -1)
            yield from _of_name("path", event.path, PATH_MAX)
        case _:
            assert ev.is_of_attempt(event)
            yield from _of_attempt(event, node, job)
            yield from _of_details(event)
            yield from _of_version(event, job)


def _of_version(event: ev.AttemptEvent, job: JobState) -> Iterator[str]:
    """Yield why a version cannot be meant: no role needs what this one publishes, or it needs none itself (R23)."""
    role = event.replica.role
    if isinstance(event, ev.ReplicaPublished | ev.ReplicaAcknowledged):
        yield from _of_number("version", event.version, 0, VERSION_MAX)
    if isinstance(event, ev.ReplicaPublished) and not job.graph.holders_of(role):
        yield f"no role needs versions of {role[:100]!r}"
    if isinstance(event, ev.ReplicaAcknowledged) and role in job.roles and job.roles[role].spec.versions is None:
        yield f"{role} needs no versions of another role"


def _of_details(event: ev.AttemptEvent) -> Iterator[str]:
    match event:
        case ev.ReplicaExited():
            yield from _of_exit(event)
        case ev.ReplicaStarted():
            yield from _of_ports(event.ports)
        case ev.ReplicaProgressed():
            yield from _of_number("step", event.step, -1)
        case ev.ReplicaStepped():
            yield from _of_number("steps", event.steps, 1)
        case ev.ReplicaSpent():
            yield from _of_number("ns", event.ns, 1)
        case ev.ReplicaSampling():
            yield from _of_number("begin", event.begin)
            yield from _of_number("ranks", event.ranks, 1, RANK_MAX)
            yield from _of_number("rank", event.rank, 0, event.ranks - 1)
            yield from _of_number("local_rank", event.local_rank, 0, RANK_MAX)
            for name in ("dataset_size", "global_batch", "micro_batch"):
                yield from _of_number(name, getattr(event.sampling, name), 1)
            yield from _of_number("seed", event.sampling.seed)
        case ev.StepTold():
            if event.step is not None:
                yield from _of_number("step", event.step, -1)
        case ev.ReplicaStalled():
            yield from _of_number("step", event.step, -1)
            yield from _of_number("for_ns", event.for_ns)
        case _:
            pass


def _of_attempt(event: OfAttempt, node: NodeName, job: JobState) -> Iterator[str]:
    replica = job.replicas.get(event.replica)
    if replica is None:
        yield from _of_replica(event.replica, job)
    elif not 1 <= event.attempt <= replica.attempt:
        yield f"{replica.id} has had no attempt {event.attempt}"
    elif event.attempt == replica.attempt and replica.order is not None and replica.order.node != node:
        yield f"attempt {event.attempt} of {replica.id} runs on {replica.order.node}, not on {node}"


def _of_replica(replica: ReplicaId, job: JobState) -> Iterator[str]:
    if replica not in job.replicas:
        yield f"the job has no replica {str(replica)[:100]!r}"


def _of_store(event: ev.StoreOpened | ev.StoreLost, node: NodeName, job: JobState) -> Iterator[str]:
    world = job.worlds.get(event.world)
    if world is None:
        yield f"the job has no world {event.world[:100]!r}"
    elif not 1 <= event.generation <= world.generation:
        yield f"{world.name} has had no generation {event.generation}"
    elif event.generation == world.generation and world.store_node != node:
        yield f"the store of {world.name} is on {world.store_node or 'no node'}, not on {node}"


def _of_copy(event: ev.CopyHeld | ev.CopyBroken, node: NodeName, job: JobState) -> Iterator[str]:
    yield from _of_sender(event.node, node)
    if event.world not in job.worlds:
        yield f"the job has no world {event.world[:100]!r}"
    yield from _of_number("generation", event.generation, 1)  # one that no journal knows any more is released
    yield from _of_number("step", event.step)
    yield from _of_number("rank", event.rank, 0, RANK_MAX)
    if isinstance(event, ev.CopyHeld):
        yield from _of_number("world_size", event.world_size, 1, RANK_MAX)
        yield from _of_number("bytes", event.bytes, 0, MEMORY_MAX)
        yield from _of_name("digest", event.digest)


def _of_exit(event: ev.ReplicaExited) -> Iterator[str]:
    yield from _of_number("exit_code", event.exit_code, -RANK_MAX, RANK_MAX)
    yield from _of_number("local_rank", event.local_rank, 0, RANK_MAX)
    yield from _of_name("signal", event.signal or "")


def _of_ports(ports: Sequence[tuple[str, int]]) -> Iterator[str]:
    yield from _of_count("ports", ports, PORTS_MAX)
    for name, port in ports:
        yield from _of_name("port", name)
        yield from _of_number(f"port {name}", port, 0, PORT_MAX)


def _of_incarnation(incarnation: int) -> Iterator[str]:
    yield from _of_number("incarnation", incarnation, 0, INCARNATION_MAX)


def _of_number(name: str, value: int, least: int = 0, most: int = NUMBER_MAX) -> Iterator[str]:
    if not least <= value <= most:
        yield f"{name} is {value}, not between {least} and {most}"


def _of_name(kind: str, name: str, most: int = NAME_MAX) -> Iterator[str]:
    if len(name) > most:
        yield f"{kind} has {len(name)} characters, at most {most}"


def _of_count(kind: str, items: Sequence[object], most: int) -> Iterator[str]:
    if len(items) > most:
        yield f"it has {len(items)} {kind}, at most {most}"
