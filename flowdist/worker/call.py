"""The program of a role with `run=`: `python -m flowdist.worker.call module:function`. Standard library only."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, GeneratorType, ModuleType

SUSPENDED = (CoroutineType, GeneratorType, AsyncGeneratorType)  # a function that returns one of these has not run yet


def main(target: str, folder: str = "") -> None:
    """Import a module or a file and call one of its functions without arguments. Exceptions pass through.

    Args:
        target: `module:function`; or `/path/file.py:function`, and the file's folder becomes sys.path[0].
        folder: The folder that becomes sys.path[0] for a module; empty: it stays the current folder.

    Raises:
        SystemExit: if the function has returned a coroutine or generator, of which nothing has run.
    """
    place, _, name = target.rpartition(":")
    if "/" in place:
        sys.path[0] = str(Path(place).parent)
        module = import_file(place, Path(place).stem)
    else:
        if folder:
            sys.path[0] = folder
        module = importlib.import_module(place)
    returned = getattr(module, name)()
    if isinstance(returned, CoroutineType):
        returned.close()  # else Python also warns that it was never awaited
    if isinstance(returned, SUSPENDED):
        raise SystemExit(f"{target} returned a {type(returned).__name__}: nothing of it has run")


def import_file(path: str, name: str) -> ModuleType:
    """Import a file of Python code, whatever its suffix, as a module of this name."""
    loader = SourceFileLoader(name, path)
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(*sys.argv[1:])
