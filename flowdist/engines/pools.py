"""Pools: members that are alike, and what each of them needs for its part of the replicas.

A role with options of its own has members of its own. All other roles share one pool, whose sizes are those of the
topology's nodes or of `--nodes`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import msgspec

from flowdist.control.fleet.values import Pool, Size
from flowdist.errors import FlowdistError
from flowdist.graph import NODE_POOL, RoleGraph, RoleSpec, parse_memory
from flowdist.graph.capacity import needed
from flowdist.graph.role_graph import PENDING_NS
from flowdist.graph.units import DAY

QUEUE_NS = 30 * DAY  # for which a role waits for members
SHARED = "*"  # the value of the label NODE_POOL of members that all other roles share; no role has this name


class Unsized(FlowdistError):
    """The topology does not say how many members the roles without options of their own have."""


def pools_of(graph: RoleGraph, of_roles: Mapping[str, Mapping[str, str]], shared: Mapping[str, str]) -> list[Pool]:
    """Return the pools of a job, that of all other roles (`""`) first; `shared` are the options of all members.

    Options of a role for itself that count here are `cpus`, `mem` and `nodes`. Unsized if the shared pool has no number
    of members from topology or command line.
    """
    others = [role for role in graph.roles if role.name not in of_roles]
    found = []
    if others:
        if not graph.cluster.given:
            raise Unsized("nothing says how many members there are", help="write --nodes 2:8")
        most = len(graph.cluster.nodes)
        size = _size(others, most, shared)
        found.append(Pool("", tuple(role.name for role in others), graph.cluster.min_nodes, most, size))
    for role in graph.roles:
        if role.name in of_roles:
            options = {**shared, **of_roles[role.name]}
            low, _, high = options.get("nodes", f"{role.min_replicas}:{role.max_replicas}").partition(":")
            most = int(high or low)
            found.append(Pool(role.name, (role.name,), int(low), most, _size([role], most, options)))
    return found


def _size(roles: Collection[RoleSpec], members: int, options: Mapping[str, str]) -> Size:
    """Return what each member needs if the replicas are spread over `members`; options `cpus` and `mem` override it."""
    on_each = {role.name: -(-role.max_replicas // members) for role in roles}
    mcpu = sum(on_each[role.name] * needed(role.resources).mcpu for role in roles)
    gpu = math.ceil(sum(on_each[role.name] * role.resources.gpu * role.resources.gpu_share for role in roles) / 1000)
    memory = sum(on_each[role.name] * role.resources.memory for role in roles)
    return Size(
        int(options["cpus"]) if "cpus" in options else max(1, -(-mcpu // 1000)),
        gpu,
        parse_memory(options["mem"]) if "mem" in options else memory,
    )


def on_pools(graph: RoleGraph, pools: Collection[Pool]) -> RoleGraph:
    """Return the graph as it runs on these pools: each role only on its own; members bring the nodes.

    It starts with the minimum of all pools. A default `pending_timeout` becomes QUEUE_NS: members that begin together
    end together at one time limit, and replacements wait in the engine's queue, with its own measure of time.
    """
    pool_of = {role: pool.name for pool in pools for role in pool.roles}
    roles = []
    for role in graph.roles:
        wait_ns = QUEUE_NS if role.pending_timeout_ns == PENDING_NS else role.pending_timeout_ns
        label = ((NODE_POOL, pool_of[role.name] or SHARED),) if len(pools) > 1 else ()
        placement = msgspec.structs.replace(role.placement, where=(*role.placement.where, *label))
        roles.append(msgspec.structs.replace(role, pending_timeout_ns=wait_ns, placement=placement))
    least = sum(pool.min_members for pool in pools)
    cluster = msgspec.structs.replace(graph.cluster, nodes=(), min_nodes=least)
    return msgspec.structs.replace(graph, roles=tuple(roles), cluster=cluster)
