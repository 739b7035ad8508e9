"""A topology without a file: `flowdist run train.py --replicas 1:4x2 --max-restarts 3`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from flowdist.dsl.load import Loaded, compile_loaded
from flowdist.dsl.places import COMMAND_LINE, CallSite
from flowdist.dsl.topology import Restart, Topology


def one_role_graph(
    script: str,
    args: Sequence[str] = (),
    *,
    replicas: str = "1",
    max_restarts: int = 0,
    nodes: str | None = None,
    sets: Sequence[str] = (),
) -> Loaded:
    """One role `trainer` that runs the script, as torchrun would: a failure restarts all of it.

    Raises:
        TopologyProblems: when the script is not there or a number makes no sense.
    """
    name = re.sub(r"[^a-z0-9-]+", "-", Path(script).stem.lower()).strip("-") or "job"
    topology = Topology(name if name[0].isalpha() else f"job-{name}", nodes=None)
    role = topology.role(
        "trainer",
        script=str(Path(script).resolve()),
        args=list(args),
        replicas=replicas,
        workdir=str(Path.cwd()),
        restart=Restart("role", max_restarts=max_restarts) if max_restarts else None,
    )
    topology.site = role.site = CallSite(COMMAND_LINE, 1, ())  # that is where the user wrote it
    role.sites = {}
    return compile_loaded(topology, sets, nodes)
