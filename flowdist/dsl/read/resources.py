"""Reading of nodes and sizes: `nodes=`, `resources=`, `cpu=`, `gpu=`, `memory=`, and the sizes in `flowdist.toml`.

The file has named sizes that several topologies share. The nearest file of that name counts, from the folder of the
topology upwards.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import flowdist.dsl as dsl
from flowdist.dsl.problems.places import CallSite, Place
from flowdist.dsl.problems.problem import Problems, did_you_mean
from flowdist.dsl.read.fields import NAME, RESERVED, Fields, owner_of, parse_sizes
from flowdist.graph import Cluster, JobOptions, NodeSpec, Resources
from flowdist.graph.units import COUNT_MAX
from flowdist.text.toml_keys import Keys, Span, span_of, spans_of_keys

FILE = "flowdist.toml"
KNOWN = ("resources",)
SIZES = ("cpu", "gpu", "memory")
NODES_HELP = 'write nodes=4, nodes="2:4" or a list of Node'


class NamedResources:
    """Sizes for `resources=`, of the topology or else of `flowdist.toml`, whose problems go to `problems`."""

    def __init__(self, topology: dsl.Topology, folder: Path, problems: Problems) -> None:
        self._problems, self._owner = problems, owner_of(topology)
        own: Any = topology.fields["resources"] or {}  # an Unknown is empty, and a problem already
        if not isinstance(own, Mapping):
            help = 'write resources={"small": Resources(cpu=2)}'
            message = f"topology {topology.name!r}: resources= must be a dict"
            problems.error("FD134", message, help, topology.site.place("resources"))
            problems.mark_wrong(self._owner, "resources")
            own = {}
        self._own, self._shared = own, shared_sizes(folder, problems)

    def read(self, fields: Fields) -> Resources:
        """Return the resources of one replica of a role; its own `cpu`, `gpu` and `memory` win over the named size."""
        named = self._named(fields)
        given = {name: fields.values[name] is not None for name in ("cpu", "gpu", "memory")}
        gpu, share = fields.gpu("gpu") if given["gpu"] else (named.gpu, named.gpu_share)
        return Resources(
            fields.number("cpu", 1) if given["cpu"] else named.cpu,
            gpu,
            fields.memory("memory") if given["memory"] else named.memory,
            share,
        )

    def of_node(self, fields: Fields) -> Resources:
        """Return the size that a node names. An unknown name adds an error, once for all nodes and roles with it."""
        size, name = self._named(fields), fields.values["resources"]
        if isinstance(name, str) and fields.is_wrong("resources"):
            self._problems.mark_wrong(FILE, name)
        return size

    def _named(self, fields: Fields) -> Resources:
        """Return the size that the role or node names; the default size if it names none, or after an error."""
        name = fields.values["resources"]
        if name is None:
            return Resources()
        if not isinstance(name, str):
            fields.error("FD134", "resources", f"resources={name!r} must be a name", 'write resources="small"')
            return Resources()
        if name not in self._own:
            if self._problems.is_wrong(self._owner, "resources") or self._problems.is_wrong(FILE, name):
                fields.problems.mark_wrong(fields.owner, "resources")
            elif name not in self._shared:
                known = {**self._shared, **self._own}
                here = 'write Topology(..., resources={"small": Resources(cpu=2)}), or a flowdist.toml'
                help = did_you_mean(name, known) if known else here
                fields.error("FD110", "resources", f"resources={name!r} is unknown", help)
            return self._shared.get(name, Resources())
        size = self._own[name]
        if not isinstance(size, dsl.Resources):
            help = f'write resources={{"{name}": Resources(cpu=2)}}'
            fields.error("FD134", "resources", f"the topology's {name!r} is not a Resources", help)
            return Resources()
        given = Fields(f"resources {name!r}", vars(size), size.site, self._problems)
        found = given.size()
        if given.is_wrong(*SIZES):
            fields.problems.mark_wrong(fields.owner, "resources")
        return found


def read_cluster(top: Fields, sizes: NamedResources) -> Cluster:
    """Return the nodes of a topology; with none, or none that can be used, `given` of the result is false."""
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
    for i, node in enumerate(top.items("nodes", dsl.Node, help=NODES_HELP)):
        if isinstance(node, dsl.Node):
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
    """Return `node0`, `node1`, ... of the default size for `nodes=4` or `nodes="2:4"`; no nodes after an error."""
    try:
        sizes = parse_sizes(nodes)
        if sizes.procs is not None:
            raise ValueError("nodes have no procs")
    except ValueError:
        top.error("FD104", "nodes", f"nodes={nodes!r} cannot be read", NODES_HELP)
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


def _read_node(node: dsl.Node, index: int, taken: Collection[str], top: Fields, sizes: NamedResources) -> NodeSpec:
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


def shared_sizes(folder: Path, problems: Problems) -> Mapping[str, Resources]:
    """Return the sizes in the `flowdist.toml` nearest to a folder, by name, if any; add errors for what is wrong."""
    path = next((at / FILE for at in (folder, *folder.parents) if (at / FILE).is_file()), None)
    if path is None:
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        problems.mark_wrong(FILE, "*")
        problems.error("FD142", f"{FILE} cannot be read: {reason}", "correct the file", _place_of(path, str(error)))
        return {}
    return _Reader(path, spans_of_keys(text), problems).resources(content)


class _Reader:
    """Reader of the tables of one `flowdist.toml`; it adds errors at the places of their keys."""

    def __init__(self, path: Path, spans: Mapping[Keys, Span], problems: Problems) -> None:
        self._path, self._spans, self._problems = path, spans, problems

    def resources(self, content: Mapping[str, Any]) -> dict[str, Resources]:
        """Return the sizes in the file's table `resources` by name; add errors for other tables and keys."""
        self._refuse_unknown(content, KNOWN, ())
        table = content.get("resources", {})
        if not isinstance(table, dict):
            self._error("FD134", ("resources",), "it must be a table", 'write [resources."gpu.large"]')
            return {}
        return {name: self._size(name, values) for name, values in table.items()}

    def _size(self, name: str, values: Any) -> Resources:
        key = ("resources", name)
        if not isinstance(values, dict):
            self._error("FD134", key, "it must be a table", f'write [resources."{name}"]')
            return Resources()
        nested = [key for key in values if isinstance(values[key], dict) and key not in SIZES]
        if nested and len(nested) == len(values):
            help = f'write [resources."{name}.{nested[0]}"]: a dot without quotation marks makes a table of its own'
            self._error("FD132", (*key, nested[0]), "it holds a table", help)
            return Resources()
        self._refuse_unknown(values, SIZES, key)
        site = CallSite(str(self._path), self._place(key).line, ())
        places = {size: self._place((*key, size)) for size in SIZES}
        fields = Fields(f"{FILE}: {_dotted(key)}", {"gpu": 0, **values}, site, self._problems, places)
        size = fields.size()
        if fields.is_wrong(*SIZES):
            self._problems.mark_wrong(FILE, key[1])
        return size

    def _refuse_unknown(self, table: Mapping[str, Any], known: tuple[str, ...], prefix: Keys) -> None:
        for key in table:
            if key not in known:
                self._error("FD132", (*prefix, key), "the key is unknown", did_you_mean(key, known))

    def _error(self, code: str, key: Keys, message: str, help: str) -> None:
        self._problems.mark_wrong(FILE, key[1] if len(key) > 1 else "*")
        self._problems.error(code, f"{FILE}: {_dotted(key)}: {message}", help, self._place(key))

    def _place(self, key: Keys) -> Place:
        return Place(str(self._path), *span_of(self._spans, key))


def _dotted(key: Keys) -> str:
    """Return a key as TOML writes it: `resources."gpu.large".cpu`."""
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else f'"{part}"' for part in key)


def _place_of(path: Path, message: str) -> Place:
    """Return the place of a syntax error in the file, which tomllib gives in its message; line 1 if it does not."""
    found = re.search(r"at line (\d+), column (\d+)", message)
    line, column = map(int, found.groups()) if found else (1, 1)
    return Place(str(path), line, column, column + 1)
