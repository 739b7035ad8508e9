"""A topology without a file: `flowdist run train.py --replicas 1:4x2 --max-restarts 3`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from flowdist.dsl.frozen import force
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
    """Compile a topology with one role `trainer` that runs a script as torchrun would, from the current folder.

    A failure restarts all workers of the role, `max_restarts` times. `replicas` is `[MIN:]MAX[xPROCS]`. `nodes` is the
    value of `--nodes`, or None for this machine; `sets` are those of `--set`, which win over everything but `nodes`.
    Raises TopologyProblems, with all of them, if there is no such script, or an argument cannot be used.
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
    """Return a name for a topology or role, made of a path: `my_train` for `/a/My_Train.py`, `job` for `/a/_.py`."""
    name = re.sub(r"[^a-z0-9_-]+", "-", Path(path).stem.lower()).strip("_-")[:50].rstrip("_-") or "job"
    return name if name[0].isalpha() else f"job-{name}"


def written_on_the_command_line(topology: Topology) -> Topology:
    """Change the topology so that its problems are reported at the command line instead of a file, and return it."""
    return written_at(topology, CallSite(COMMAND_LINE, 1, ()))


def written_at(topology: Topology, site: CallSite) -> Topology:
    """Change the topology as if the call `site` had written all of it, which problems and paths then refer to."""
    force(topology, "site", site)
    nodes = topology.fields["nodes"]
    for node in nodes if isinstance(nodes, list) else []:
        force(node, "site", site)
    for role in topology.roles:
        force(role, "site", site)
        role.sites.update(dict.fromkeys(role.sites, site))
        if isinstance(policy := role.fields["restart"], Restart):
            force(policy, "site", site)
    return topology
