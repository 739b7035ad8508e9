"""Import of a learned preload in a fork server, with a look at what each module does.

A module is refused if its import would not have the same effect in the worker itself:

* it fails, or imports a file that is not installed, such as one of the user beside the script;
* it reads an environment variable that has, or gets by the script, another value in a worker, other than the rank
  where that can be set again;
* it leaves something that must not be forked, such as a thread.

A fork server that has imported such a module is of no use, because an import cannot be undone. Its modules are tried
again without that one, in a new process.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import NamedTuple

from flowdist.runtime.preload.profile import UNKNOWN, Changes, checksum, is_installed, short, without
from flowdist.runtime.preload.ranks import keeps


class Trial(NamedTuple):
    """Result of the imports: the modules that were imported by name, and those that are refused, each with the reason.

    A module that another one has imported before its turn is not in `imported`.
    """

    imported: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]


class _Watched(dict[bytes, bytes]):
    """Data of `os.environ`, which notes the names that are read one by one. A copy of all variables does not count."""

    def __init__(self, data: dict[bytes, bytes]) -> None:
        super().__init__(data)
        self.read: dict[tuple[str, str], None] = {}  # names, each with the module that was being imported
        self._copied: Iterator[bytes] = iter(())
        self._next: bytes | None = None

    def __iter__(self) -> Iterator[bytes]:
        self._copied = iter(list(super().__iter__()))
        self._next = next(self._copied, None)
        return super().__iter__()

    def __getitem__(self, key: bytes) -> bytes:
        if key == self._next:
            self._next = next(self._copied, None)
        else:
            self._next = None
            self.read[os.fsdecode(key), _imported_now()] = None
        return super().__getitem__(key)


def _imported_now() -> str:
    """Return the name of the module whose code runs, because it is being imported."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")) if frame is not None else ""


def import_learned(
    modules: Sequence[str],
    per_worker: Sequence[str],
    changed: Changes,
    look: Callable[[], object],
    check: Callable[[], str],
) -> Trial:
    """Import the modules in their order, and return what became of them.

    Args:
        modules: Names of installed modules.
        per_worker: Environment variables that each worker gets with a value of its own.
        changed: Variables that the script, or an import of it, changes before the first step.
        look: Returns a value that differs when an import has left something, such as a thread. Called after each
            import, so it has to be quick.
        check: Returns why this process must not be forked now; empty if it may be. Called when `look` has returned
            another value; the modules after the first such refusal are not tried.
    """
    data: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
    watched = _Watched(data)
    os.environ._data = watched  # type: ignore[attr-defined]
    try:
        return _Importer(watched, per_worker, changed, look, check).run(modules)
    finally:
        os.environ._data = data  # type: ignore[attr-defined]  # the same object: os.environb has it, too
        data.clear()
        data.update(watched)


class _Importer:
    """Importer of the modules of one trial. The arguments are those of `import_learned`."""

    def __init__(
        self,
        watched: _Watched,
        per_worker: Sequence[str],
        changed: Changes,
        look: Callable[[], object],
        check: Callable[[], str],
    ) -> None:
        self._watched, self._per_worker, self._changed = watched, per_worker, dict(changed)
        self._look, self._check = look, check
        self._known, self._seen = set(sys.modules), look()
        self._readers: list[tuple[str, str]] = []  # variables that the script changes, and modules that read them
        self._refused: dict[str, str] = {}

    def run(self, modules: Sequence[str]) -> Trial:
        """Import the modules, up to one after which this process must not be forked."""
        imported = []
        for name in modules:
            if name in sys.modules or not without([name], self._refused):
                continue
            why = self._import(name)
            unsafe = self._why_unsafe()
            if why or unsafe:
                self._refused[name] = short(why or unsafe)
            else:
                imported.append(name)
            if unsafe:
                break
        for variable, name in self._readers:
            # An import may have set the variable to the value that it has in a worker. Else the script has set it.
            if checksum(os.environ.get(variable)) != self._changed[variable]:
                changes = "may change" if self._changed[variable] == UNKNOWN else "changes"
                self._refused.setdefault(name, f"it reads {variable} when it is imported, which the script {changes}")
        return Trial(tuple(imported), tuple(self._refused.items()))

    def _import(self, name: str) -> str:
        """Import a module, and return why it must not be preloaded; empty if it may be."""
        self._watched.read.clear()
        error = _import(name)
        read = tuple(self._watched.read)
        self._readers += [(variable, name) for variable, _ in read if variable in self._changed]
        new = [module for module in sys.modules if module not in self._known]
        self._known.update(new)
        own = [(variable, reader) for variable, reader in read if variable in self._per_worker]
        why = [
            f"it reads {variable} when it is imported"
            for variable, reader in own
            if not keeps(reader, variable, os.environ)
        ]
        why += [f"it imports {file}, which may change" for file in _own_files(new)]
        return error or (why[0] if why else "")

    def _why_unsafe(self) -> str:
        """Return why this process must not be forked after the last import, if that has left something."""
        before, self._seen = self._seen, self._look()
        return self._check() if self._seen != before else ""


def _import(name: str) -> str:
    """Import a module, and return why that fails; empty if it does not.

    A module is not imported if the search finds another file now, such as one that was added beside the script.
    """
    top = name.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top) if top not in sys.modules else None
        if spec is not None and spec.origin is not None and spec.has_location and not is_installed(spec.origin):
            return f"{spec.origin} hides it"
        importlib.import_module(name)
    except BaseException as error:  # SystemExit too
        return f"{type(error).__name__}: {error}"
    return ""


def _own_files(names: Sequence[str]) -> Iterator[str]:
    """Yield the files of these modules that are not installed."""
    for name in names:
        module = sys.modules.get(name)
        file = vars(module).get("__file__") if hasattr(module, "__dict__") else None
        # Torch gives modules that it makes up a `__file__` that is no path.
        is_own = isinstance(file, str) and file.startswith("/") and not is_installed(file)
        if is_own and not name.startswith("flowdist."):
            yield str(file)
