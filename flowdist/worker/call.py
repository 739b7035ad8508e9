"""`python -m flowdist.worker.call module:function`: runs a role declared with `run=`. Standard library only."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, GeneratorType

SUSPENDED = (CoroutineType, GeneratorType, AsyncGeneratorType)


def main(target: str, folder: str = "") -> None:
    """Import the module, or the file, and call its function; what it raises ends the process as it would any script.

    Args:
        target: `module:function`, or `/path/file.py:function`, whose folder is then the first on the path.
        folder: Where modules are looked for first; empty: the current folder.
    """
    place, _, name = target.rpartition(":")
    if "/" in place:
        sys.path[0] = str(Path(place).parent)
        loader = SourceFileLoader(Path(place).stem, place)
        spec = spec_from_loader(loader.name, loader)
        assert spec is not None
        module = module_from_spec(spec)
        sys.modules[spec.name] = module
        loader.exec_module(module)
    else:
        if folder:
            sys.path[0] = folder
        module = importlib.import_module(place)
    returned = getattr(module, name)()
    if isinstance(returned, CoroutineType):
        returned.close()  # else Python says, too, that nobody has awaited it
    if isinstance(returned, SUSPENDED):
        raise SystemExit(f"{target} returned a {type(returned).__name__}: nothing of it has run")


if __name__ == "__main__":
    main(*sys.argv[1:])
