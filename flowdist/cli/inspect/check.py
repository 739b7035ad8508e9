"""`flowdist check`: every problem of a topology at once."""

from __future__ import annotations

import click

from flowdist.cli.shared.common import load, print_json, problems_json, show_problems, verb
from flowdist.cli.shared.engines import EngineOptions, engine_options, problems_on, refuse_errors
from flowdist.cli.shared.options import TopologyOptions, topology_options


@verb("check")
@topology_options
@engine_options
def command(named: TopologyOptions, engine: EngineOptions) -> None:
    """Report every problem of a topology, each at its place in the file. Exit code 2 if there is an error.

    With --on, what the engine cannot honour of the topology is a problem, too.
    """
    loaded = load(named, by_engine=bool(engine.on))
    more = refuse_errors(problems_on(engine, loaded), engine.on)
    loaded = loaded._replace(warnings=(*loaded.warnings, *more))
    if named.as_json:
        print_json("problems", problems=problems_json(loaded.warnings))
        return
    show_problems(more)
    graph = loaded.graph
    replicas = sum(role.max_replicas for role in graph.roles)
    size = f"{_counted(len(graph.roles), 'role')}, up to {_counted(replicas, 'replica')}"
    nodes_text = _counted(len(graph.cluster.nodes), "node") if graph.cluster.given else "nodes of any number"
    warnings = f", {_counted(len(loaded.warnings), 'warning')}" if loaded.warnings else ""
    click.echo(f"{graph.name}: ok ({size}, {nodes_text}{warnings})")


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"
