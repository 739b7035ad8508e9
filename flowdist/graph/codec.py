"""The role graph as JSON, as it is in graph.json and in the header of a record, and what makes it sound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator

import msgspec

from flowdist.graph.policies import SIGNAL_NAMES
from flowdist.graph.role_graph import RoleGraph, RoleSpec

_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder(RoleGraph)


def encode_graph(graph: RoleGraph) -> bytes:
    """Encode the graph as compact JSON in UTF-8; equal graphs give equal bytes."""
    return _ENCODER.encode(graph)


def decode_graph(data: bytes | str) -> RoleGraph:
    """Decode a graph from the JSON of `encode_graph`; DecodeError if it is damaged, or contradicts itself."""
    try:
        graph = _DECODER.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(f"it is no JSON: {error}") from None
    if why := why_unsound(graph):
        raise msgspec.ValidationError(why)
    return graph


POLICIES_MAX = 4  # in a chain: each has a wider scope than the one before it


def why_unsound(graph: RoleGraph) -> str:
    """Return the first contradiction in the graph as a text for people; empty if there is none."""
    return next(_contradictions(graph), "")


def _contradictions(graph: RoleGraph) -> Iterator[str]:
    names = [role.name for role in graph.roles]
    if not any(role.kind == "task" and role.primary for role in graph.roles):
        yield "there is no primary task"
    yield from (f"{name!r} cannot be the name of a role" for name in names if not name or "/" in name)
    yield from _doubles("role", [*names, *(world.name for world in graph.worlds)])
    yield from _doubles("node", [node.name for node in graph.cluster.nodes])
    earlier: dict[str, None] = {}
    for role in graph.roles:
        for text in (*_of_sizes(role), *_of_names(role, names, earlier), *_of_policy(role, graph)):
            yield f"role {role.name!r}: {text}"
        earlier[role.name] = None
    for kind, groups in (("domain", graph.domains), ("world", graph.worlds)):
        yield from _doubles(f"{kind} of role", [name for group in groups for name in group.roles])
        for group in groups:
            yield from (
                f"{kind} {group.name!r}: there is no role {name!r}" for name in group.roles if name not in names
            )
    yield from _of_worlds(graph)
    options = graph.options
    if options.lease_ns <= options.lease_margin_ns + options.heartbeat_ns:
        yield "the lease is not longer than its margin and a heartbeat"


def _doubles(what: str, names: Iterable[str]) -> Iterator[str]:
    yield from (f"{what} {name!r} is there more than once" for name, count in Counter(names).items() if count > 1)


def _of_sizes(role: RoleSpec) -> Iterator[str]:
    if role.min_replicas > role.max_replicas:
        yield f"min_replicas={role.min_replicas} is more than max_replicas={role.max_replicas}"
    if role.gang and role.min_replicas < 1:
        yield "a gang needs a replica"
    if sum(not size for _, size in role.parallel) > 1:
        yield "its mesh has more than one elastic dimension"
    elif role.min_replicas % role.step or role.max_replicas % role.step:
        yield f"its number of replicas is no multiple of {role.step}, which its mesh needs"
    if role.resources.gpu_share != 1000 and role.resources.gpu != 1:
        yield "a share is of one GPU"
    if role.snapshots is not None and not role.gang:
        yield "it has snapshots, and is no gang"
    load = role.workload
    if load.blocking_ns > load.checkpoint_ns or load.lag_ns > load.checkpoint_every_ns:
        yield "its workload blocks longer than a checkpoint takes, or a checkpoint takes longer than their interval"


def _of_names(role: RoleSpec, names: list[str], earlier: Container[str]) -> Iterator[str]:
    """Yield the names of roles and ports that the role refers to and that do not exist, or not before it."""
    for gate in role.gates:
        if gate.role not in earlier:
            yield f"it waits for {gate.role!r}, which is not declared before it"
    if role.versions is not None and role.versions.role not in earlier:
        yield f"it needs versions of {role.versions.role!r}, which is not declared before it"
    yield from (f"there is no role {name!r}" for name in role.address_edges if name not in names)
    others = (*role.placement.near, *role.placement.apart)
    yield from (f"its placement names {name!r}, which is no role" for name in others if name not in names)
    if role.ready is not None and role.ready.how in ("tcp", "http"):
        port = role.ready.target.partition("/")[0]
        if port not in role.ports:
            yield f"its readiness check is of port {port!r}, which it does not have"


def _of_policy(role: RoleSpec, graph: RoleGraph) -> Iterator[str]:
    if graph.holders_of(role.name) and not role.gang and role.max_replicas > 1:
        yield "it publishes versions, and is no gang"
    policies = role.restart.chain() if role.restart is not None else ()
    if len(policies) > POLICIES_MAX:
        yield f"it has more than {POLICIES_MAX} restart policies, each wider than the one before it"
    for policy in policies:
        if (policy.then == "widen") != (policy.wider is not None):
            yield "its restart policy widens to nothing, or has a wider one that never applies"
        if policy.scope == "domain" and graph.domain_of(role.name) is None:
            yield "it restarts its domain, and is in none"
        if policy.scope == "replica" and role.gang:
            yield "it restarts replicas by themselves, and is a gang"
        for rule in policy.rules:
            if rule.signal is not None and rule.signal not in SIGNAL_NAMES.values():
                yield f"a rule of its restart policy names signal {rule.signal!r}"


def _of_worlds(graph: RoleGraph) -> Iterator[str]:
    """Yield the joint worlds that cannot run: of roles that are no gangs, not tasks alike, or wait for each other."""
    for world in graph.worlds:
        roles = [role for role in graph.roles if role.name in world.roles]
        if len(roles) < 2 or any(role.kind == "service" or not role.gang for role in roles):
            yield f"world {world.name!r}: it is not of several gangs that are tasks"
        if len({role.snapshots for role in roles}) > 1:
            yield f"world {world.name!r}: its roles have different snapshots"
        if len({role.primary for role in roles}) > 1:
            yield f"world {world.name!r}: only some of its roles are primary"
    waits: dict[str, set[str]] = {graph.mates_of(role.name)[0]: set() for role in graph.roles}
    for role in graph.roles:
        waits[graph.mates_of(role.name)[0]].update(graph.mates_of(gate.role)[0] for gate in role.gates)
    while free := [name for name, others in waits.items() if not others & waits.keys()]:
        for name in free:
            del waits[name]
    if waits:
        yield f"roles wait for each other: {', '.join(sorted(waits))}"
