"""The class that `simulate=` of a role names, imported from the folder of the topology file."""

from __future__ import annotations

import importlib
import sys
import traceback
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph, RoleSpec


def load_model(graph: RoleGraph, role: RoleSpec) -> Any:
    """Import and return the class that `simulate=` of a role names: `module:Class` or `path/file.py:Class`.

    Raises:
        FlowdistError: The import fails (the message names the place in the user's code), or the result is no class, or
            the class of a task has no `restore()` or `step()`.
    """
    folder = str(Path(graph.source).parent) if graph.source else ""
    place, _, name = role.simulate.rpartition(":")
    try:
        found = getattr(_module(place, folder), name)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else ""
        message = f"role {role.name!r}: simulate={role.simulate!r} cannot be imported: {error!r}{where}"
        raise FlowdistError(message, help="it is imported from the folder of the topology file") from None
    missing = [name for name in ("restore", "step") if role.kind == "task" and not callable(getattr(found, name, None))]
    if not isinstance(found, type) or missing:
        what = f"has no method {missing[0]}()" if isinstance(found, type) else "is no class"
        raise FlowdistError(f"role {role.name!r}: simulate={role.simulate!r} {what}", help="see docs/models.md")
    return found


@lru_cache(maxsize=64)
def _module(place: str, folder: str) -> ModuleType:
    """Import a module, once for each pair of arguments, and leave `sys.path` as it was.

    A module is first looked up in the folder; `place` may also be the path of a file. Modules of the same name that
    were imported from other folders are hidden during the import, so two folders may each have a `model.py`.
    """
    is_file = "/" in place
    before = list(sys.path)
    sys.path.insert(0, str(Path(place).parent) if is_file else folder)
    hidden = _strangers(folder) if not is_file else {}
    try:
        return _execute(Path(place)) if is_file else importlib.import_module(place)
    finally:
        sys.path[:] = before
        sys.modules.update(hidden)


def _strangers(folder: str) -> dict[str, ModuleType]:
    """Remove modules from `sys.modules` that only share a name with a file in the folder, and return them."""
    names = {path.stem for path in Path(folder or ".").glob("*.py")}
    hidden = {}
    for name in list(sys.modules):
        if name.partition(".")[0] in names:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if Path(file).parent != Path(folder):
                hidden[name] = sys.modules.pop(name)
    return hidden


def _execute(path: Path) -> ModuleType:
    loader = SourceFileLoader(f"flowdist_model_{path.stem}", str(path))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module
