"""`python -m flowdist.call module:function`: what runs a role that was declared with `run=`. Standard library only."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path


def main(target: str) -> None:
    """Import the module, or the file, and call its function; what it raises ends the process as it would any script."""
    place, _, name = target.rpartition(":")
    if place.endswith(".py"):
        sys.path[0] = str(Path(place).parent)
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    getattr(module, name)()


if __name__ == "__main__":
    main(sys.argv[1])
