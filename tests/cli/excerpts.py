"""Scenes that the simulator plays to prove the rules of `flowdist.dsl.check.timeouts`: one role in its situation.

The role keeps its durations, its restart policy and its workload. It has two replicas at most, one a node, and no
gates, resources or code of its own, so that the simulator plays any scene within milliseconds. Of the timeouts that end
healthy workers only those stay that the scene is about: each rule has its scene, and none hides another.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from flowdist.dsl.check.timeouts import begins_ns
from flowdist.graph import SECOND, Cluster, NodeSpec, RestartPolicy, RoleGraph, RoleSpec
from flowdist.graph.role_graph import Placement, Resources

ENDLESS = 10**9  # steps: the role does not end before its scene
LOOPS_MAX = 8  # crashes that a scene shows
AFTER_NS = 1 * SECOND  # for which a scene goes on after what it shows
FREED = replace(RoleSpec("", ()), placement=Placement(), resources=Resources())  # demands that no scene has


class Scene(NamedTuple):
    """A small job and what happens to it, ready for the simulator.

    Attributes:
        graph: The job: one role of the user's with its durations and policy, on as many small nodes as it needs.
        faults: The faults, in the fault grammar.
        until_ns: Time at which the scene is over, in ns.
        beats: Each heartbeat is played by itself, because the scene is about heartbeats.
    """

    graph: RoleGraph
    faults: tuple[str, ...]
    until_ns: int
    beats: bool = False


def excerpt(graph: RoleGraph, spec: RoleSpec, *about: str, size: int = 2, spare: int = 0) -> RoleGraph:
    """Return a job with this role alone, in which each replica has a node of its own.

    Args:
        graph: The user's job, of which the options are kept.
        spec: The role.
        about: Those of `hang_after_ns`, `start_timeout_ns` and `ready` that the role keeps.
        size: Number of replicas, if the role is a gang that may have more than one; else there is one.
        spare: Number of nodes without a replica.
    """
    is_group = spec.gang and (spec.max_replicas > 1 or graph.world_of(spec.name) is not None)
    size = size if is_group else 1
    alone = ["gates", "resources", "placement", "parallel", "simulate", "secrets", "env", "preload", "address_edges"]
    alone += [name for name in ("hang_after_ns", "start_timeout_ns", "ready") if name not in about]
    role = replace(
        spec,
        command=("true",),
        min_replicas=size,
        max_replicas=size,
        procs=1,
        primary=True,
        workload=replace(spec.workload, steps=ENDLESS),
        **{name: getattr(FREED, name) for name in alone},
    )
    nodes = tuple(NodeSpec(f"node{i}", cpu=1) for i in range(size + spare))
    return RoleGraph(graph.name, (role,), cluster=Cluster(nodes, len(nodes)), options=graph.options)


def stepped_ns(spec: RoleSpec, steps: int) -> int:
    """Return how long after its first start a role has done so many steps, by its workload, in ns."""
    load = spec.workload
    saves = (steps * load.step_ns - 1) // load.checkpoint_every_ns
    return begins_ns(spec) + steps * load.step_ns + saves * load.blocking_ns


def one_hangs(graph: RoleGraph, spec: RoleSpec, until_ns: int) -> Scene:
    """Return the scene in which one replica hangs right after its second step; it ends `until_ns` after that."""
    fault = f"{spec.name}/0@step={spec.name},2:hang"
    return Scene(excerpt(graph, spec, "hang_after_ns"), (fault,), stepped_ns(spec, 2) + until_ns + AFTER_NS)


def nothing_fails(graph: RoleGraph, spec: RoleSpec, until_ns: int, about: str) -> Scene:
    """Return the scene in which a role starts and works, without a fault, for `until_ns`, with the timeout `about`."""
    return Scene(excerpt(graph, spec, about), (), until_ns)


def restored(graph: RoleGraph, spec: RoleSpec, until_ns: int, about: str) -> Scene:
    """Return the scene in which a node dies after the first checkpoint, comes back, and the role restores its state.

    It ends `until_ns` after that. The role keeps the timeout `about`.
    """
    load = spec.workload
    saved_ns = begins_ns(spec) + load.cycle_ns + load.lag_ns
    fault = f"node0@checkpoint={spec.name},1+1s/1s"
    return Scene(excerpt(graph, spec, about), (fault,), saved_ns + 2 * SECOND + until_ns + AFTER_NS)


def leaves_node(graph: RoleGraph, spec: RoleSpec, how: str, until_ns: int) -> Scene:
    """Return the scene in which a role has to leave a node right after its second step, with a spare node.

    Args:
        graph: The user's job.
        spec: The role.
        how: Kind of the fault, such as `drain` or `preempt=30s`.
        until_ns: Time from that step to the end of the scene, in ns.
    """
    fault = f"node0@step={spec.name},2:{how}"
    return Scene(excerpt(graph, spec, spare=1), (fault,), stepped_ns(spec, 2) + until_ns + AFTER_NS)


def crash_loop(graph: RoleGraph, spec: RoleSpec, policy: RestartPolicy, up_ns: int) -> Scene:
    """Return the scene in which a replica fails again and again, `up_ns` after each start.

    Args:
        graph: The user's job.
        spec: The role.
        policy: The policy that pays, of which the rules are left out.
        up_ns: Time from each start to the failure, in ns.
    """
    spec = replace(spec, restart=replace(policy, rules=()))
    loops = min(policy.max_restarts + 3, LOOPS_MAX)
    name = spec.name
    faults = tuple(f"{name}/0@generation={name},{n}+{_us(up_ns)}:exit=1" for n in range(1, loops + 1))
    until_ns = loops * (up_ns + policy.backoff_max_ns + SECOND)
    return Scene(excerpt(graph, spec, size=1), faults, until_ns)


def beat_late(graph: RoleGraph, spec: RoleSpec) -> Scene:
    """Return the scene in which one heartbeat of one node arrives when the next one is due."""
    beat_ns = graph.options.heartbeat_ns
    late = -(-stepped_ns(spec, 2) // beat_ns)  # the number of the heartbeat
    fault = f"node0@{_us(late * beat_ns - beat_ns // 2)}:delay={_us(beat_ns)}/{_us(beat_ns)}"
    return Scene(excerpt(graph, spec), (fault,), (late + 3) * beat_ns + AFTER_NS, beats=True)


def no_beat_counts(graph: RoleGraph, spec: RoleSpec) -> Scene:
    """Return the scene in which a job only starts, and heartbeats come as they should."""
    until_ns = 10 * (graph.options.heartbeat_ns + graph.options.lease_ns)
    return Scene(excerpt(graph, spec), (), until_ns, beats=True)


def controller_dies(graph: RoleGraph, spec: RoleSpec) -> Scene:
    """Return the scene in which the controller dies and is started again."""
    at_ns = stepped_ns(spec, 2)
    return Scene(excerpt(graph, spec), (f"controller@{_us(at_ns)}",), at_ns + 2 * AFTER_NS)


def _us(ns: int) -> str:
    """Return a time as the fault grammar writes it, in whole microseconds."""
    return f"{ns // 1000}us"
