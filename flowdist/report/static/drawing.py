"""Drawings of the role graph as text for other programs: Mermaid, and the dot language of graphviz.

An arrow points from a role to the roles that have a gate on it, a line with a circle to those that need its versions.
Roles have numbers in the text, so that no name can be a word of the language: names are in labels only, escaped.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from typing import Any

from flowdist.graph import WHOLE, Domain, Gate, JointWorld, Resources, RoleGraph, RoleSpec, VersionEdge, format_memory

_PLAIN = frozenset(string.ascii_letters + string.digits + " .,:/+-_()=")


def graph_of(graph: RoleGraph) -> dict[str, Any]:
    """Return roles, gates, domains and joint worlds as plain values, for `flowdist graph --json`; memory in bytes."""
    return {
        "name": graph.name,
        "nodes": [_node(graph, spec) for spec in graph.roles],
        "edges": [
            {"from": gate.role, "to": spec.name, "condition": gate.condition, "on_restart": gate.on_restart}
            for spec in graph.roles
            for gate in spec.gates
        ],
        "versions": [
            {"from": edge.role, "to": spec.name, "max_staleness": edge.max_staleness} for spec, edge in _versions(graph)
        ],
        "domains": [{"name": domain.name, "roles": list(domain.roles)} for domain in graph.domains],
        "worlds": [{"name": world.name, "roles": list(world.roles)} for world in graph.worlds],
    }


def _node(graph: RoleGraph, spec: RoleSpec) -> dict[str, Any]:
    world, placement = graph.world_of(spec.name), spec.placement
    return {
        "name": spec.name,
        "kind": spec.kind,
        "size": size_text(spec),
        "min_replicas": spec.min_replicas,
        "max_replicas": spec.max_replicas,
        "procs": spec.procs,
        "cpu": spec.resources.cpu,
        "gpu": spec.resources.gpu if spec.resources.gpu_share == WHOLE else spec.resources.gpu_share / WHOLE,
        "memory": spec.resources.memory,
        "gang": spec.gang,
        "primary": spec.primary,
        "domains": [domain.name for domain in graph.domains if spec.name in domain.roles],
        "world": world.name if world is not None else None,
        "placement": {
            "strategy": placement.strategy,
            "near": list(placement.near),
            "apart": list(placement.apart),
            "where": dict(placement.where),
        },
    }


def size_text(spec: RoleSpec) -> str:
    """Return the size of a role as the DSL spells it: `2:4x2` for 2 to 4 replicas of 2 workers, or shorter: `4`."""
    low = f"{spec.min_replicas}:" if spec.min_replicas != spec.max_replicas else ""
    return f"{low}{spec.max_replicas}" + (f"x{spec.procs}" if spec.procs != 1 else "")


def needs_words(resources: Resources) -> list[str]:
    """Return the needs of one replica in words: `1 cpu`, then `2 gpu` and `64GiB` if it needs GPUs and memory."""
    gpus = [resources.gpu_words] if resources.gpu else []
    return [f"{resources.cpu:g} cpu", *gpus, *([format_memory(resources.memory)] if resources.memory else [])]


def seating_words(spec: RoleSpec) -> list[str]:
    """Return the placement rules of the role in words; an empty list if its replicas may run anywhere."""
    placement = spec.placement
    words = ["packed"] if placement.strategy == "pack" else []
    words += [f"on the node of {' and '.join(placement.near)}"] if placement.near else []
    words += ["one a node" if name == spec.name else f"not on a node with {name}" for name in placement.apart]
    return words + [f"where {key}={value}" for key, value in placement.where]


def mermaid(graph: RoleGraph) -> str:
    """Return a Mermaid flowchart: services round, tasks that are not waited for dashed, restarts by thick arrows."""
    ids = _ids(graph)
    lines = ["---", f"title: {_quote_yaml(graph.name)}", "---", "flowchart LR"]

    def node(spec: RoleSpec) -> str:
        label = "<br/>".join(_escape_mermaid(line) for line in _label(graph, spec))
        opening, closing = ("([", "])") if spec.kind == "service" else ("[", "]")
        return f'{ids[spec.name]}{opening}"{label}"{closing}'

    def box(number: int, title: str) -> str:
        return f'subgraph d{number}["{_escape_mermaid(title)}"]'

    lines += _boxes(graph, node, box, "end")
    for spec, gate in _edges(graph):
        arrow = "==>" if gate.on_restart == "restart" else "-.->"
        lines.append(f'    {ids[gate.role]} {arrow}|"{_edge_label(gate)}"| {ids[spec.name]}')
    for spec, edge in _versions(graph):
        lines.append(f'    {ids[edge.role]} -.-o|"{_version_label(edge)}"| {ids[spec.name]}')
    if auxiliary := [ids[spec.name] for spec in graph.roles if _is_auxiliary(spec)]:
        lines += ["    classDef auxiliary stroke-dasharray: 4 3", f"    class {','.join(auxiliary)} auxiliary"]
    return "\n".join(lines) + "\n"


def dot(graph: RoleGraph) -> str:
    """Return a digraph in dot: services rounded, tasks that are not waited for dashed, restarts by bold arrows."""
    ids = _ids(graph)
    lines = [f"digraph {_quote_dot(graph.name)} {{", "    rankdir=LR", f"    label={_quote_dot(graph.name)}"]
    lines += ["    labelloc=t", '    node [shape=box, fontname="sans-serif"]', '    edge [fontname="sans-serif"]']

    def node(spec: RoleSpec) -> str:
        styles = [*(["rounded"] if spec.kind == "service" else []), *(["dashed"] if _is_auxiliary(spec) else [])]
        style = f', style="{",".join(styles)}"' if styles else ""
        label = "\\n".join(_escape_dot(line) for line in _label(graph, spec))
        return f'{ids[spec.name]} [label="{label}"{style}]'

    def box(number: int, title: str) -> str:
        return f"subgraph cluster_{number} {{ label={_quote_dot(title)}"

    lines += _boxes(graph, node, box, "}")
    for spec, gate in _edges(graph):
        style = "bold" if gate.on_restart == "restart" else "dashed"
        lines.append(f'    {ids[gate.role]} -> {ids[spec.name]} [label="{_edge_label(gate)}", style={style}]')
    for spec, edge in _versions(graph):
        style = f'label="{_version_label(edge)}", style=dotted, arrowhead=odot'
        lines.append(f"    {ids[edge.role]} -> {ids[spec.name]} [{style}]")
    return "\n".join([*lines, "}"]) + "\n"


def _ids(graph: RoleGraph) -> dict[str, str]:
    """Return the number of each role in the text: `r0`, `r1`, ..."""
    return {spec.name: f"r{i}" for i, spec in enumerate(graph.roles)}


def _versions(graph: RoleGraph) -> list[tuple[RoleSpec, VersionEdge]]:
    """Return each role with `versions=`, together with that edge."""
    return [(spec, spec.versions) for spec in graph.roles if spec.versions is not None]


def _version_label(edge: VersionEdge) -> str:
    return f"versions, at most {edge.max_staleness} behind" if edge.max_staleness else "the latest version"


def _edges(graph: RoleGraph) -> list[tuple[RoleSpec, Gate]]:
    """Return every gate together with the role that has it."""
    return [(spec, gate) for spec in graph.roles for gate in spec.gates]


def _boxes(
    graph: RoleGraph, node: Callable[[RoleSpec], str], box: Callable[[int, str], str], closing: str
) -> list[str]:
    """Return the lines of all roles, grouped in boxes for worlds and domains. Each role is in one box at most."""
    lines = []
    boxes: list[tuple[str, JointWorld | Domain]] = [(f"one world: {world.name}", world) for world in graph.worlds]
    boxes += [(f"restart together: {domain.name}", domain) for domain in graph.domains]
    for number, (title, group) in enumerate(boxes):
        members = [spec for spec in graph.roles if _box_of(graph, spec) is group]
        if members:
            lines += [f"    {box(number, title)}", *(f"        {node(spec)}" for spec in members), f"    {closing}"]
    return lines + [f"    {node(spec)}" for spec in graph.roles if _box_of(graph, spec) is None]


def _box_of(graph: RoleGraph, spec: RoleSpec) -> JointWorld | Domain | None:
    """Return the group in whose box the role is drawn: its joint world, else its first domain, else None."""
    return graph.world_of(spec.name) or graph.domain_of(spec.name)


def _label(graph: RoleGraph, spec: RoleSpec) -> list[str]:
    """Return the lines of a role's label: name, kind and size, needs, placement, and domains without its box."""
    kind = f"{spec.kind} {size_text(spec)}" + (", not primary" if _is_auxiliary(spec) else "")
    lines = [spec.name, kind, f"each {', '.join(needs_words(spec.resources))}"]
    lines += [", ".join(words)] if (words := seating_words(spec)) else []
    others = [domain for domain in graph.domains if spec.name in domain.roles and domain is not _box_of(graph, spec)]
    return lines + [f"restarts together with {domain.name} too" for domain in others]


def _edge_label(gate: Gate) -> str:
    return f"{gate.condition}, {gate.on_restart}"


def _is_auxiliary(spec: RoleSpec) -> bool:
    """Return whether the role is a task that the job does not wait for."""
    return spec.kind == "task" and not spec.primary


def _escape_mermaid(text: str) -> str:
    """Return the text with each character that could end a label, or be markup in it, as a character entity."""
    return "".join(char if char in _PLAIN else f"#{ord(char)};" for char in _one_line(text))


def _quote_yaml(text: str) -> str:
    """Return the text in double quotes; `%` is escaped, since `%%` begins a directive anywhere in a Mermaid text."""
    return json.dumps(_one_line(text), ensure_ascii=False).replace("%", "\\x25")


def _escape_dot(text: str) -> str:
    return _one_line(text).replace("\\", "\\\\").replace('"', '\\"')


def _quote_dot(text: str) -> str:
    return f'"{_escape_dot(text)}"'


def _one_line(text: str) -> str:
    """Return the text with a space for each line break or other character that does not print."""
    return "".join(char if char.isprintable() else " " for char in text)
