"""The role graph as the pods see it: paths of the image, and a node for each member."""

from __future__ import annotations

from pathlib import PurePosixPath

from msgspec.structs import replace

from flowdist.graph import NODE_POOL, Cluster, RoleGraph, RoleSpec


def graph_in_image(graph: RoleGraph, workdir: str, checkpoint_dir: str = "") -> RoleGraph:
    """Return the graph that the pods run.

    Paths below the topology's folder become paths below `workdir`. Replicas of a role may run on the nodes of its own
    members alone. The labels that `where=` asks for are those of machines, which the pods ask for. The job has no nodes
    of its own, and begins when the members of all minima have joined.

    Args:
        graph: The compiled topology.
        workdir: The folder of the image that has the files of the topology's folder.
        checkpoint_dir: Folder for checkpoints in the pods; empty: that of the topology.
    """
    roles = tuple(_role_in_image(role, graph.source, workdir) for role in graph.roles)
    members = sum(role.min_replicas for role in graph.roles)
    return replace(
        graph,
        roles=roles,
        cluster=Cluster(min_nodes=members),
        source=moved(graph.source, graph.source, workdir),
        checkpoint_dir=checkpoint_dir or moved(graph.checkpoint_dir, graph.source, workdir),
        on_incident=tuple(moved(word, graph.source, workdir) for word in graph.on_incident),
    )


def _role_in_image(role: RoleSpec, source: str, workdir: str) -> RoleSpec:
    # One replica for each member: a member offers whole cores, and two replicas of half a core would fit.
    placement = replace(role.placement, where=((NODE_POOL, role.name),), near=(), apart=(role.name,))
    return replace(
        role,
        command=tuple(moved(word, source, workdir) for word in role.command),
        secrets=tuple(replace(secret, file=moved(secret.file, source, workdir)) for secret in role.secrets),
        env=tuple((name, moved(value, source, workdir)) for name, value in role.env),
        workdir=moved(role.workdir, source, workdir) or workdir,
        simulate=moved(role.simulate, source, workdir),
        placement=placement,
    )


def moved(path: str, source: str, workdir: str) -> str:
    """Return a path in the folder of the topology file `source` as a path in `workdir`; other texts are not changed."""
    folder = str(PurePosixPath(source).parent) if source else ""
    if folder in ("", "/", ".") or not (path == folder or path.startswith(f"{folder}/")):
        return path
    return workdir.rstrip("/") + path[len(folder) :]
