"""The job of the first host, as a host that joins it with a command line of torchrun runs it."""

from __future__ import annotations

import msgspec

from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph


def as_here(theirs: RoleGraph, ours: RoleGraph) -> RoleGraph:
    """Return the controller's graph (`theirs`) with the command, environment, folder and worker count of `ours`.

    FlowdistError if the two command lines cannot be one job.
    """
    if len(theirs.roles) != 1:
        names = ", ".join(role.name for role in theirs.roles)
        message = f"the host that runs the controller runs a topology ({names}), not a command line of torchrun"
        raise FlowdistError(message, help="join it with flowdist join")
    (role,), (own,) = theirs.roles, ours.roles
    if role.name != own.name:
        message = f"--role is {own.name} here, and {role.name} on the host that runs the controller"
        raise FlowdistError(message, help="give every host the same")
    if role.resources.gpu and role.procs != own.procs:
        message = f"--nproc-per-node is {own.procs} here, and {role.procs} on the host that runs the controller"
        raise FlowdistError(message, help="with --numa-binding give every host the same, or leave that out")
    kept = msgspec.structs.replace(
        role,
        procs=own.procs,
        command=own.command,
        env=own.env,
        workdir=own.workdir,
        preload=own.preload,
        warm=own.warm,
    )
    return msgspec.structs.replace(theirs, roles=(kept,), source=ours.source)
