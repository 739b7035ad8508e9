"""The recorder of a forked worker: it writes the names of the modules that the worker has imported by its first step.

The first step is the first call of `flowdist.worker.progress`, or the end of the first step of an optimizer of torch. A
worker that comes to neither is recorded when its script ends without an error. The recorder runs once, for some
milliseconds, and an error in it never reaches the script.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from types import ModuleType

import msgspec

from flowdist.runtime.atomic import write_atomically
from flowdist.runtime.preload.profile import MODULES_MAX, RECORDING, Recording, are_names, changes, is_installed
from flowdist.worker.step_counter import step_counter


class Recorder:
    """Recorder of this process, which has to be created before the script runs.

    Args:
        folder: The folder of the worker, which gets the file RECORDING.
    """

    def __init__(self, folder: str) -> None:
        self._file, self._pid = Path(folder, RECORDING), os.getpid()
        self._modules, self._env = frozenset(sys.modules), dict(os.environ)
        self._finder = _Finder()
        sys.meta_path.insert(0, self._finder)
        step_counter.at_first_step(self._record_step)

    def _record_step(self) -> None:
        self._record(at_step=True)

    def record_end(self) -> None:
        """Write the file, if that has not been done yet, at the end of the script."""
        self._record(at_step=False)

    def _record(self, *, at_step: bool) -> None:
        if self._pid != os.getpid():  # it was written, or this is a child of the worker, such as a DataLoader's
            return
        self._pid = 0
        with contextlib.suppress(Exception):
            if self._finder in sys.meta_path:
                sys.meta_path.remove(self._finder)
            content = Recording(tuple(self._imported()), changes(self._env, os.environ), at_step)
            write_atomically(self._file, msgspec.json.encode(content))

    def _imported(self) -> list[str]:
        """Return the names of the installed modules that were imported since the start, at most MODULES_MAX."""
        # The module of `-m` is left out: it has to run as `__main__`, and runpy warns of one that is imported.
        main = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", None)
        names = [name for name in self._finder.searched if name not in self._modules and name != main]
        return [name for name in names if are_names([name]) and _is_installed(name)][:MODULES_MAX]


class _Finder:
    """Finder in `sys.meta_path` that finds nothing, and notes the order in which modules are searched.

    In `sys.modules` a module stands where its import has ended. To import the modules in that order would enter cycles
    of imports at places at which they fail.
    """

    def __init__(self) -> None:
        self.searched: dict[str, None] = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Note the name of a module that is about to be imported."""
        self.searched[name] = None


def _is_installed(name: str) -> bool:
    """Return whether a module is imported now, from an installed file.

    Attributes are read from the dictionary of the module: to ask a lazy module for them may import others.
    """
    module = sys.modules.get(name)
    spec = module.__dict__.get("__spec__") if isinstance(module, ModuleType) else None
    origin = getattr(spec, "origin", None)
    return getattr(spec, "has_location", False) and isinstance(origin, str) and is_installed(origin)
