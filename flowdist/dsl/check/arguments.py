"""Places of the arguments of a topology, looked up by role and name when all of it has been read."""

from __future__ import annotations

from flowdist.dsl.problems.places import Place
from flowdist.dsl.problems.problem import Problems
from flowdist.dsl.read.fields import Fields
from flowdist.dsl.topology import Topology
from flowdist.dsl.words import Restart, Workload

NESTED = (Restart, Workload)


class Arguments:
    """Lookup of the places at which the arguments of a topology stand.

    An argument is named by its role (empty: the topology itself) and by its name, in which dots lead into a Restart or
    a Workload: `hang_after`, `workload.startup`, `restart.then.within`. What a role does not say itself comes from the
    argument of the same name of the topology, if it has one.
    """

    def __init__(self, topology: Topology) -> None:
        nothing = Problems()
        self._top = Fields(f"topology {topology.name!r}", topology.fields, topology.site, nothing, topology.overridden)
        self._roles: dict[str, Fields] = {}
        for role in topology.roles:
            self._roles.setdefault(role.name, Fields.of_role(role, nothing))

    def owner(self, role: str) -> str:
        """Return the role, or if the name is empty the topology, as messages begin: `role 'trainer'`."""
        return self._roles.get(role, self._top).owner

    def place(self, role: str, name: str) -> Place:
        """Return the place of the argument; that of the call that could have it, if the user has not written it."""
        fields, last = self._find(role, name)
        return fields.place(last)

    def is_written(self, role: str, name: str) -> bool:
        """Return whether the user has given the argument a value other than its default."""
        fields, last = self._find(role, name)
        if last != name.rpartition(".")[2]:
            return False  # there is no Restart or Workload that could have it
        value = fields.values.get(last)
        return value is not None and value not in [vars(kind).get(last) for kind in NESTED]

    def _find(self, role: str, name: str) -> tuple[Fields, str]:
        """Return the arguments of the innermost call that exists, and the name of the argument in them."""
        fields = self._roles.get(role, self._top)
        *outer, last = name.split(".")
        for part in outer:
            given = fields.values.get(part)
            if not isinstance(given, NESTED):
                return fields, part
            fields = fields.nested(part, given)
        if not outer and fields.values.get(last) is None and self._top.values.get(last) is not None:
            return self._top, last
        return fields, last
