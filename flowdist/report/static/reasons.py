"""Reasons for which each role of a restart set is in it, and roles of the set that do not run then, from the graph
alone.

The set comes from the restart table. This module adds the edge, domain or scope that leads to each of its roles.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

from flowdist.graph import RoleGraph, RoleSpec
from flowdist.graph.policies import Scope
from flowdist.report.static.restarts import Cause, Extent, followers, restart_set

Scopes = Mapping[str, Scope]  # by role that fails, the scope of the policy that decides


def restarting(graph: RoleGraph, scopes: Scopes, cause: Cause) -> tuple[dict[str, Extent], dict[str, str]]:
    """Return the restart set of several roles that fail together, and for each role in it the reason in words.

    Args:
        graph: The topology.
        scopes: The failing roles, each with the scope of the policy that decides.
        cause: Whether replicas fail or their node is lost.

    Returns:
        By role in the order of the graph, `role` if all of its replicas restart, else `replica`; and the reasons.
    """
    extents: dict[str, Extent] = {}
    reasons: dict[str, str] = {}
    for role, scope in scopes.items():
        here = restart_set(graph, role, cause, scope)
        why = _reasons(graph, role, cause, scope)
        for name, extent in here.items():
            before = extents.get(name)
            # the reason of the role that is hit itself comes first
            if before is None or (before, extent) == ("replica", "role") or (name == role and before == extent):
                extents[name], reasons[name] = extent, why[name]
    return {spec.name: extents[spec.name] for spec in graph.roles if spec.name in extents}, reasons


def _reasons(graph: RoleGraph, role: str, cause: Cause, scope: Scope) -> dict[str, str]:
    """Return each role that restarts when `role` does, with the first edge, domain or scope that leads to it."""
    reasons = _walk(graph, {role: scope}, cause, [spec.name for spec in graph.roles], lambda *_: True)
    if not graph.role(role).gang and (scope == "replica" or cause == "node_lost"):
        edges = (edge for name in reasons for edge in followers(graph, name))
        own = next((because for follower, because in edges if follower == role), "")
        reasons[role] += f"; all of it restarts: {own}" if own else ""  # the replica brings the rest of it along
    return reasons


def _seeds(graph: RoleGraph, spec: RoleSpec, cause: Cause, scope: Scope) -> dict[str, str]:
    """Return the roles that restart by the policy's scope alone, before edges are followed, with the reasons."""
    if cause == "node_lost":
        return {spec.name: "it ran there" + (", and a gang re-forms as one" if spec.gang else "")}
    of = "the policy" if spec.restart is None or scope == spec.restart.scope else "the wider policy"
    text = f'the scope of {of} of {spec.name} is "{scope}"'
    if scope == "replica" and spec.gang:
        return {spec.name: "a gang restarts as one"}
    names = [spec.name]
    if scope == "domain" and (domain := graph.domain_of(spec.name)) is not None:
        names += domain.roles
        text += f", which is {domain.name}"
    if scope == "job":
        names += [other.name for other in graph.roles]
    return dict.fromkeys(names, text)


def spared_of(graph: RoleGraph, scopes: Scopes, extents: Mapping[str, Extent], cause: Cause) -> dict[str, str]:
    """Return the roles of the restart set that do not run then, and so do not restart, each with the reason.

    Such a role has not started yet or has succeeded already (R17), or only such roles lead to it.

    Args:
        graph: The topology.
        scopes: The failing roles, each with the scope of the policy that decides.
        extents: The restart set.
        cause: Whether replicas fail or their node is lost.
    """
    roles = list(scopes)
    running = {name for name in extents if why_not_running(graph, name, roles) is None}
    blocked: dict[str, str] = {}

    def passes(name: str, follower: str) -> bool:
        why = why_not_running(graph, follower, [*roles, name] if name in running else roles)
        if why is not None:
            blocked.setdefault(follower, why)
        return why is None

    reached = _walk(graph, scopes, cause, running, passes)
    spared = {}
    for name in extents:
        why = why_not_running(graph, name, roles)
        if why is None and name not in reached:
            why = blocked.get(name, "only roles that do not run by then lead to it")
        if why is not None:
            spared[name] = why
    return spared


def alone(graph: RoleGraph, scopes: Scopes, restarting: Iterable[str], cause: Cause) -> dict[str, str]:
    """Return the failing roles of which only the failed replicas restart, each with the reason.

    The restart table says the whole role where its restart leads back to it over other roles. That holds only while
    one of the roles on the way runs.

    Args:
        graph: The topology.
        scopes: The failing roles, each with the scope of the policy that decides.
        restarting: The roles that restart.
        cause: Whether replicas fail or their node is lost.
    """
    led_to = {follower for name in restarting for follower, _ in followers(graph, name)}
    return {
        role: _seeds(graph, graph.role(role), cause, scope)[role]
        for role, scope in scopes.items()
        if role not in led_to and not graph.role(role).gang and (cause == "node_lost" or scope == "replica")
    }


def uncertain(graph: RoleGraph, scopes: Scopes, extents: Mapping[str, Extent], cause: Cause) -> dict[str, str]:
    """Return the roles of the restart set that restart only under a condition, each with the condition in words.

    The condition is that other roles have succeeded before the failure: the topology alone does not say. The arguments
    are those of `spared_of`.
    """
    done = {name for role in scopes for name in graph.to_succeed_before(role)}
    open_for = {name: sorted(graph.to_succeed_before(name) - done) for name in extents}
    certain = {name for name, waits in open_for.items() if not waits}
    reached = _walk(graph, scopes, cause, certain, lambda _, follower: follower in certain)
    found = {}
    for name, waits in open_for.items():
        if waits:
            found[name] = f"if {' and '.join(waits)} {'has' if len(waits) == 1 else 'have'} succeeded by then"
        elif name not in reached:
            found[name] = "if what leads to it runs by then"
    for name in alone(graph, scopes, [name for name in extents if name not in found], cause):
        if extents[name] == "role":
            found.setdefault(name, "the rest of it if what leads back to it runs by then")
    return found


def _walk(
    graph: RoleGraph, scopes: Scopes, cause: Cause, running: Container[str], passes: Callable[[str, str], bool]
) -> dict[str, str]:
    """Return the roles that a restart reaches, each with the reason: the seeds, and what the edges lead to from there.

    Args:
        graph: The topology.
        scopes: The failing roles, each with the scope of the policy that decides.
        cause: Whether replicas fail or their node is lost.
        running: The roles that run; seeds that are not among them are left out.
        passes: Return whether a restart of the first role restarts the second.
    """
    seeds = (_seeds(graph, graph.role(role), cause, scope) for role, scope in scopes.items())
    reached = {name: because for names in seeds for name, because in names.items() if name in running}
    todo = list(reached)
    for name in todo:  # grows while it is walked
        for follower, because in followers(graph, name):
            if follower not in reached and passes(name, follower):
                reached[follower] = because
                todo.append(follower)
    return reached


def why_not_running(graph: RoleGraph, name: str, running: Iterable[str]) -> str | None:
    """Return in words why the role `name` cannot run while the roles in `running` do; None if it can.

    Args:
        graph: The topology.
        name: The role.
        running: Other roles that run.
    """
    for other in running:
        if other in graph.to_succeed_before(name):
            return f"it has not started by then: it waits for {other} to succeed"
        if name in graph.to_succeed_before(other):
            return f"it has succeeded by then, as {other} waits for that: it does not run again because of others"
    return None
