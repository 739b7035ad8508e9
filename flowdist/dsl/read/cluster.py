"""Reading of `nodes=`, `heartbeat=` and `lease=` of a topology."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from flowdist.dsl.read.fields import NAME, RESERVED, Fields, parse_sizes
from flowdist.dsl.read.resources import NamedResources
from flowdist.dsl.words import Node
from flowdist.graph import Cluster, JobOptions, NodeSpec
from flowdist.graph.units import COUNT_MAX

HELP = 'write nodes=4, nodes="2:4" or a list of Node'


def read_cluster(top: Fields, sizes: NamedResources) -> Cluster:
    """Return the nodes of a topology, whose arguments are `top`. Nodes may have one of the named `sizes`.

    If the topology declares no nodes, `given` of the result is false. Nodes that cannot be used add errors; if none can
    be used, `given` is false, too.
    """
    nodes = top.values.get("nodes")
    if nodes is None:
        return Cluster(given=False)
    if isinstance(nodes, int | str):
        return _read_count(top, nodes)
    if isinstance(nodes, Sequence) and len(nodes) > COUNT_MAX:
        message = f"nodes= lists {len(nodes):,} nodes, more than {COUNT_MAX:,}"
        top.error("FD105", "nodes", message, "write fewer nodes")
        return Cluster(given=False)
    specs: dict[str, NodeSpec] = {}
    for i, node in enumerate(top.items("nodes", Node, help=HELP)):
        if isinstance(node, Node):
            spec = _read_node(node, i, specs, top, sizes)
            specs[spec.name] = spec
        else:
            message = f"nodes[{i}] is not a Node"
            top.error("FD134", "nodes", message, "write nodes=[Node(cpu=8), ...]", top.element("nodes", i))
    if isinstance(nodes, Sequence) and not nodes:
        top.error("FD105", "nodes", "nodes= is empty", "write nodes=1, or leave it out")
    if not specs:
        return Cluster(given=False)
    return Cluster(tuple(specs.values()), len(specs))


def _read_count(top: Fields, nodes: int | str) -> Cluster:
    """Return the nodes for `nodes=4` or `nodes="2:4"`: `node0`, `node1`, ... of the default size.

    Other values add an error, and return a cluster without nodes.
    """
    try:
        sizes = parse_sizes(nodes)
        if sizes.procs is not None:
            raise ValueError("nodes have no procs")
    except ValueError:
        top.error("FD104", "nodes", f"nodes={nodes!r} cannot be read", HELP)
        return Cluster(given=False)
    if sizes.high > COUNT_MAX:
        top.error("FD105", "nodes", f"nodes={nodes!r} is more than {COUNT_MAX:,}", "write fewer nodes")
    elif sizes.low < 1:
        top.error("FD105", "nodes", f"nodes={nodes!r} has a zero", "write nodes=1, or leave it out")
    elif sizes.low > sizes.high:
        top.error("FD103", "nodes", f"nodes={nodes!r} is not a range", f'write nodes="{sizes.high}:{sizes.low}"')
    else:
        return Cluster(tuple(NodeSpec(f"node{i}") for i in range(sizes.high)), sizes.low)
    return Cluster(given=False)


def _read_node(node: Node, index: int, taken: Collection[str], top: Fields, sizes: NamedResources) -> NodeSpec:
    """Return the graph's value of one `Node`; add an error if its name is unusable, or one of those `taken`."""
    name = f"node{index}" if node.name is None else str(node.name)
    fields = Fields(f"node {name!r}", vars(node), node.site, top.problems)
    if fields.is_wrong("name"):
        pass
    elif not NAME.fullmatch(name) or name in RESERVED:
        fields.error("FD102", "name", "its name cannot be used", "use lower case letters, digits and hyphens")
    elif name in taken:
        fields.error("FD137", "name", "there are two nodes of that name", "give each node its own name")
    if node.resources is None:
        cpu, gpu, memory = fields.number("cpu", 8), fields.devices("gpu"), fields.memory("memory")
    else:
        size = sizes.of_node(fields)
        cpu, gpu, memory = size.cpu, size.gpu, size.memory
    spec = NodeSpec(name, cpu, gpu, memory, fields.pairs("labels"))
    for argument, parts in (("nodes", ("cpu", "gpu", "memory", "resources")), ("labels", ("labels",))):
        if fields.is_wrong(*parts):
            top.problems.mark_wrong(top.owner, argument)
    return spec


def read_heartbeat_and_lease(top: Fields) -> tuple[int, int]:
    """Return the interval of heartbeats and the length of a lease, both in ns.

    If one of the two cannot be read, both have their defaults: the other one may not go with a default.
    """
    usual = JobOptions()
    given = [top.duration(name, 0, zero=False) for name in ("heartbeat", "lease")]
    if not all(ns or top.values.get(name) is None for ns, name in zip(given, ("heartbeat", "lease"), strict=True)):
        return usual.heartbeat_ns, usual.lease_ns
    return given[0] or usual.heartbeat_ns, given[1] or usual.lease_ns
