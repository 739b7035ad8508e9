"""`flowdist check`: every problem of a topology at once."""

from __future__ import annotations

import click

from flowdist.cli.shared.common import load, print_json, problems_json, verb
from flowdist.cli.shared.options import TopologyOptions, topology_options


@verb("check")
@topology_options
def command(named: TopologyOptions) -> None:
    """Report every problem of a topology, each at its place in the file. Exit code 2 if there is an error."""
    loaded = load(named)
    if named.as_json:
        print_json("problems", problems=problems_json(loaded.warnings))
        return
    graph = loaded.graph
    replicas = sum(role.max_replicas for role in graph.roles)
    size = f"{_counted(len(graph.roles), 'role')}, up to {_counted(replicas, 'replica')}"
    nodes_text = _counted(len(graph.cluster.nodes), "node") if graph.cluster.given else "nodes of any number"
    warnings = f", {_counted(len(loaded.warnings), 'warning')}" if loaded.warnings else ""
    click.echo(f"{graph.name}: ok ({size}, {nodes_text}{warnings})")


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"
