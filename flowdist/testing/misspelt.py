"""Python warnings about methods of users' models that are never called, because their names are misspelt."""

from __future__ import annotations

import warnings

from flowdist.dsl.read.objects import methods_of, misspelt, place_of_method
from flowdist.graph import RoleGraph
from flowdist.sim.user_code.models import load_model

_SHOWN: dict[str | tuple[str, type[Warning], int], int] = {}  # of Python: the warnings that this process has shown


def warn_of_misspelt(graph: RoleGraph) -> None:
    """Warn of each method of a model that has almost the name of a method of models which its class lacks.

    Such a model passes every test: one with `publsh` saves nothing, so nothing can be restored wrongly. The warning has
    the file and line of the method. Python shows it once in a process unless its filters say otherwise.

    Raises:
        FlowdistError: A model cannot be imported.
    """
    for role in graph.roles:
        if role.simulate:
            found = load_model(graph, role)
            for method, meant in misspelt(methods_of(found), role.kind):
                file, line = place_of_method(found, method)
                text = (
                    f"{found.__qualname__}.{method}: did you mean {meant}? A model of a {role.kind} has no {method}()"
                )
                warnings.warn_explicit(text, UserWarning, file, line, found.__module__, _SHOWN)
