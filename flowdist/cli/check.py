"""`flowdist check`: every problem of a topology at once."""

from __future__ import annotations

import click

from flowdist.cli.common import Named, guarded, load, print_json, topology_options


@click.command(name="check")
@topology_options
@guarded
def command(named: Named) -> None:
    """Report every problem of a topology, each at its place. Exit code 2 if there is an error."""
    loaded = load(named)
    if named.as_json:
        print_json("problems", problems=[problem.as_dict() for problem in loaded.warnings])
        return
    graph = loaded.graph
    replicas = sum(role.max_replicas for role in graph.roles)
    size = f"{len(graph.roles)} roles, up to {replicas} replicas"
    nodes_text = f"{len(graph.cluster.nodes)} nodes" if graph.cluster.given else "nodes of any number"
    warnings = f", {len(loaded.warnings)} warnings" if loaded.warnings else ""
    click.echo(f"{graph.name}: ok ({size}, {nodes_text}{warnings})")
