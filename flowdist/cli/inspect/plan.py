"""`flowdist plan`: sizes, placement and policies, before anything runs."""

from __future__ import annotations

import json
import os
import sys

import click

from flowdist.cli.shared.common import load, print_json, problems_json, verb
from flowdist.cli.shared.options import TopologyOptions, topology_options
from flowdist.graph import encode_graph
from flowdist.report.static.plan import plan_of, plan_text


@verb("plan")
@topology_options
def command(named: TopologyOptions) -> None:
    """Show sizes, placement, start waves, restart policies, and what restarts with what."""
    loaded = load(named)

    python = os.environ.get("PYTHON_EXEC", sys.executable)
    plan = plan_of(loaded.graph, python, sys.executable)
    if named.as_json:
        problems = problems_json(loaded.warnings)
        print_json("plan", graph=json.loads(encode_graph(loaded.graph)), **plan, problems=problems)
    else:
        click.echo(plan_text(loaded.graph, plan), nl=False)
