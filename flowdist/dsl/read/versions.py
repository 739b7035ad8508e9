"""Reading of `versions=`: the role whose versions a role needs before it is ready (R23)."""

from __future__ import annotations

from flowdist.dsl.read.fields import Fields, owner_of
from flowdist.dsl.topology import Topology, Version
from flowdist.graph import RoleSpec, VersionEdge


def read_versions(fields: Fields, topology: Topology) -> VersionEdge | None:
    """Return the edge of `versions=`; None if there is none.

    Anything but `x.version()` with a role of this topology adds an error, and returns None.
    """
    value = fields.values["versions"]
    if value is None:
        return None
    if not isinstance(value, Version) or value.role.topology is not topology:
        message = f"versions={value!r} is no version of a role of this topology"
        fields.error("FD135", "versions", message, "write versions=learner.version(max_staleness=2)")
        return None
    given = {"max_staleness": value.max_staleness}
    reader = Fields(fields.owner, given, value.site, fields.problems, part="versions.")
    return VersionEdge(value.role.name, reader.whole("max_staleness", least=0, default=0))


def check_versions(fields: Fields, spec: RoleSpec, specs: dict[str, RoleSpec]) -> None:
    """Add an error if the role that is to publish has several worlds (FD170), whose numbers would contradict.

    Args:
        fields: The arguments of the role that has `versions=`.
        spec: That role.
        specs: All roles up to this one, by name.
    """
    publisher = specs.get(spec.versions.role) if spec.versions is not None else None
    if publisher is None or fields.is_wrong("versions"):
        return
    if publisher.gang or publisher.max_replicas == 1:
        return
    if not fields.problems.is_wrong(owner_of(publisher), "gang", "replicas", "kind", "restart"):
        message = f"the replicas of {publisher.name!r} have no common version: each is a world of its own"
        help = f"make {publisher.name!r} a gang (gang=True), or give it one replica"
        fields.error("FD170", "versions", message, help)
