"""A topology without a file: `flowdist run train.py --replicas 1:4x2 --max-restarts 3`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from flowdist.dsl.load import Loaded, compile_loaded
from flowdist.dsl.problems.places import COMMAND_LINE, CallSite
from flowdist.dsl.topology import Topology
from flowdist.dsl.words import Restart


def one_role_graph(
    script: str,
    args: Sequence[str] = (),
    *,
    replicas: str = "1",
    max_restarts: int = 0,
    nodes: str | None = None,
    sets: Sequence[str] = (),
) -> Loaded:
    """Compile a topology with one role `trainer` that runs the script as torchrun would: a failure restarts the role.

    Raises:
        TopologyProblems: There is no such script, or a number cannot be used.
    """
    topology = Topology(name_from(script), nodes=None)
    topology.role(
        "trainer",
        script=str(Path(script).resolve()),
        args=list(args),
        replicas=replicas,
        workdir=str(Path.cwd()),
        restart=Restart("role", max_restarts=max_restarts) if max_restarts else None,
    )
    return compile_loaded(written_on_the_command_line(topology), sets, nodes)


def name_from(path: str) -> str:
    """Return the stem of a path, changed so that it can name a topology or a role."""
    name = re.sub(r"[^a-z0-9-]+", "-", Path(path).stem.lower()).strip("-")[:50].rstrip("-") or "job"
    return name if name[0].isalpha() else f"job-{name}"


def written_on_the_command_line(topology: Topology) -> Topology:
    """Return the topology with the command line as the place of its problems."""
    return written_at(topology, CallSite(COMMAND_LINE, 1, ()))


def written_at(topology: Topology, site: CallSite) -> Topology:
    """Return the topology as if one call had written all of it: the place of problems, and the base of paths."""
    topology.site = site
    nodes = topology.fields["nodes"]
    for node in nodes if isinstance(nodes, list) else []:
        node.site = site
    for role in topology.roles:
        role.site = site
        role.sites = dict.fromkeys(role.sites, site)
        if isinstance(policy := role.fields["restart"], Restart):
            policy.site = site
    return topology
