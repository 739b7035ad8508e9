"""Reading of `parallel=`: the dimensions of a role's mesh, checked against every size that the role may have."""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from typing import Any

from flowdist.dsl.read.fields import Fields
from flowdist.graph import RoleGraph, RoleSpec
from flowdist.graph.sizes import Parallel, fixed_ranks, is_elastic, replica_step, spelled

ELASTIC = "elastic"
EXAMPLE = 'write parallel={"pp": 2, "dp": "elastic", "tp": 2}'


def read_parallel(fields: Fields) -> Parallel:
    """Return the dimensions of a role's mesh, with the size 0 for the elastic one; no dimensions after an error."""
    value = fields.values["parallel"]
    if value is None:
        return ()
    if isinstance(value, str):
        value = _from_text(value)
    if not isinstance(value, Mapping) or not value:
        fields.error("FD160", "parallel", f"parallel={value!r} must be a mapping of names to sizes", EXAMPLE)
        return ()
    found = [(name, size) for name in value if (size := _read_size(fields, name, value[name])) is not None]
    elastic = [name for name, size in found if not size]
    if len(elastic) > 1:
        names = " and ".join(elastic)
        fields.error("FD160", "parallel", f"parallel: {names} are both elastic", "only one can take what is left")
    return tuple(found) if len(found) == len(value) and len(elastic) < 2 else ()


def _from_text(text: str) -> dict[str, int | str]:
    """Return the dimensions in `pp=2,dp=elastic,tp=2`, the form that --set takes; sizes are checked by the caller."""
    pairs = [item.partition("=") for item in text.split(",")]
    return {name.strip(): int(size) if size.strip().isdecimal() else size.strip() for name, _, size in pairs}


def _read_size(fields: Fields, name: Any, size: Any) -> int | None:
    """Return the size of one dimension, 0 if it is elastic; None, after an error, for a wrong name or size."""
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        fields.error("FD160", "parallel", f"parallel: {name!r} cannot be the name of a dimension", EXAMPLE)
        return None
    if size == ELASTIC:
        return 0
    if isinstance(size, int) and not isinstance(size, bool) and size >= 1:
        return size
    help = 'write a number of 1 or more, or "elastic" for what the others leave'
    fields.error("FD160", "parallel", f"parallel: {name}={size!r} is not a size", help)
    return None


def check_parallel(fields: Fields, spec: RoleSpec, graph: RoleGraph) -> None:
    """Add an error for `parallel=` of a role that is no gang with its own world, or whose sizes form no mesh."""
    if fields.is_wrong("kind", "gang", "restart", "replicas", "gpu", "resources"):
        return
    world = graph.world_of(spec.name)
    if spec.parallel and (world is not None or not spec.gang or spec.kind == "service"):
        why = f"shares the ranks of world {world.name!r} with others" if world is not None else "is not a gang"
        fields.error("FD160", "parallel", f"it has parallel=, but {why}", "a mesh spans all ranks of one gang")
    elif spec.parallel:
        _check_sizes(fields, spec.parallel, spec.min_replicas, spec.max_replicas, spec.procs)


def _check_sizes(fields: Fields, parallel: Parallel, low: int, high: int, procs: int) -> None:
    """Add an error unless both bounds of the size (replicas) form the mesh, and the mesh can change if the size can."""
    ranks, step, mesh = fixed_ranks(parallel), replica_step(parallel, procs), spelled(parallel)
    tail = f"x{procs}" if procs > 1 else ""
    if not is_elastic(parallel):
        if high * procs != ranks:
            message = f"its mesh {mesh} has {ranks} ranks, and replicas={high}{tail} makes {high * procs}"
            one = f'write replicas="{ranks // procs}{tail}"' if ranks % procs == 0 else "change procs or a dimension"
            fields.error("FD160", "parallel", message, f'{one}, or make one dimension "elastic"')
        elif low != high:
            message = f"its mesh {mesh} never changes, but its replicas may, from {low} to {high}"
            fields.error("FD160", "parallel", message, 'make one dimension "elastic", or write one number of replicas')
        return
    if low % step or high % step:
        fits = f"{-(-low // step) * step}:{max(high // step, 1) * step}{tail}"
        of = f"{step} replicas" if step > 1 else "1 replica"
        message = f"its mesh {mesh} needs multiples of {of}, but replicas={low}:{high}{tail} has others"
        fields.error("FD160", "parallel", message, f'write replicas="{fits}"')
