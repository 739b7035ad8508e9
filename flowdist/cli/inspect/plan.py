"""`flowdist plan`: sizes, placement and policies, before anything runs."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import click

from flowdist.cli.shared.common import load, print_json, problems_json, verb
from flowdist.cli.shared.options import TopologyOptions, topology_options

if TYPE_CHECKING:
    from flowdist.graph import RoleGraph
    from flowdist.report.static.plan import LearnedModules


@verb("plan")
@topology_options
def command(named: TopologyOptions) -> None:
    """Show sizes, placement, start waves, restart policies, and what restarts with what."""
    loaded = load(named)
    from flowdist.report.static.plan import plan_of, plan_text  # networkx: only where the graph is analysed

    python = os.environ.get("PYTHON_EXEC", sys.executable)
    plan = plan_of(loaded.graph, python, sys.executable, _learned(loaded.graph))
    if named.as_json:
        from flowdist.graph import encode_graph

        problems = problems_json(loaded.warnings)
        print_json("plan", graph=json.loads(encode_graph(loaded.graph)), **plan, problems=problems)
    else:
        click.echo(plan_text(loaded.graph, plan), nl=False)


def _learned(graph: RoleGraph) -> dict[str, LearnedModules] | None:
    """Return what earlier runs on this machine have learned to preload, by role; None if nothing is ever learned."""
    from flowdist.report.static.plan import LearnedModules
    from flowdist.runtime.preload.cache import key_of, profile_cache

    if (cache := profile_cache(os.environ)) is None:
        return None
    profiles = {role.name: cache.load(key_of(role, sys.executable, sys.path)) for role in graph.roles}
    return {
        name: LearnedModules(profile.learned_on, profile.modules, profile.left_out)
        for name, profile in profiles.items()
        if profile is not None
    }
