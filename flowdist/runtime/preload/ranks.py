"""Modules that read the rank when they are imported, and keep it where it can be set again in a forked worker.

Lightning and torchmetrics import a module which sets `rank_zero_only.rank` to the rank of the process, unless it has
been set before: both document it as an attribute to be set. A fork server has no rank. It may import such a module all
the same, because each worker that is forked sets the attribute from its own variables.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType

_LIGHTNING = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
# Names of the modules, each with the variables from which it takes the rank: the first that is set.
KEEP_THE_RANK: Mapping[str, tuple[str, ...]] = {
    "lightning.fabric.utilities.rank_zero": _LIGHTNING,
    "lightning_fabric.utilities.rank_zero": _LIGHTNING,
    "torchmetrics.utilities.prints": ("LOCAL_RANK",),
}


def keeps(module: str, variable: str, env: Mapping[str, str]) -> bool:
    """Return whether an imported module keeps only the rank of what it has read, where `set_ranks` sets it again.

    Args:
        module: Name of the module.
        variable: Name of the environment variable that it has read.
        env: The environment in which it was imported.
    """
    variables, found = KEEP_THE_RANK.get(module, ()), sys.modules.get(module)
    return variable in variables and found is not None and _kept(found) == _rank(variables, env)


def set_ranks(env: Mapping[str, str]) -> None:
    """Set the rank in all imported modules that keep it.

    Args:
        env: The environment of this process, a forked worker.
    """
    for name, variables in KEEP_THE_RANK.items():
        module, rank = sys.modules.get(name), _rank(variables, env)
        if module is not None and rank is not None and _kept(module) is not None:  # another version may keep none
            module.rank_zero_only.rank = rank


def _kept(module: ModuleType) -> object:
    return getattr(getattr(module, "rank_zero_only", None), "rank", None)


def _rank(variables: tuple[str, ...], env: Mapping[str, str]) -> int | None:
    """Return the rank that the first of the variables has, 0 if none is set, None if that is no number."""
    value = next((env[name] for name in variables if name in env), "0")
    return int(value) if value.isascii() and value.isdigit() else None
