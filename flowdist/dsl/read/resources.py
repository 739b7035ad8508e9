"""`cpu=`, `gpu=` and `memory=` of a role, over a named size of the topology or of `flowdist.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flowdist.dsl as dsl
from flowdist.dsl.problems.problem import Problems, did_you_mean
from flowdist.dsl.read.fields import Fields
from flowdist.graph import Resources


class NamedResources:
    """Sizes that roles may name. Those of the topology win over those of `flowdist.toml`."""

    def __init__(self, topology: dsl.Topology, shared: Mapping[str, Resources], problems: Problems) -> None:
        self._problems = problems
        own: Any = topology.fields["resources"] or {}
        if not isinstance(own, Mapping):
            help = 'write resources={"small": Resources(cpu=2)}'
            message = f"topology {topology.name!r}: resources= must be a dict"
            problems.error("FD134", message, help, topology.site.place("resources"))
            own = {}
        self._own, self._shared = own, shared

    def read(self, fields: Fields) -> Resources:
        """Return the resources of a replica of the role; its own numbers win over the named size."""
        named = self._named(fields)
        given = {name: fields.values[name] is not None for name in ("cpu", "gpu", "memory")}
        gpu, share = fields.gpu("gpu") if given["gpu"] else (named.gpu, named.gpu_share)
        return Resources(
            fields.number("cpu", 1) if given["cpu"] else named.cpu,
            gpu,
            fields.memory("memory") if given["memory"] else named.memory,
            share,
        )

    def _named(self, fields: Fields) -> Resources:
        name = fields.values["resources"]
        if name is None:
            return Resources()
        if not isinstance(name, str):
            fields.error("FD134", "resources", f"resources={name!r} must be a name", 'write resources="small"')
            return Resources()
        if name not in self._own:
            if name not in self._shared:
                known = {**self._shared, **self._own}
                here = 'write Topology(..., resources={"small": Resources(cpu=2)}), or a flowdist.toml'
                help = did_you_mean(name, known) if known else here
                fields.error("FD110", "resources", f"resources={name!r} is unknown", help)
            return self._shared.get(name, Resources())
        size = self._own[name]
        if not isinstance(size, dsl.Resources):
            help = f'write resources={{"{name}": Resources(cpu=2)}}'
            fields.error("FD134", "resources", f"the topology's {name!r} is not a Resources", help)
            return Resources()
        return Fields(f"resources {name!r}", vars(size), size.site, self._problems).size()
