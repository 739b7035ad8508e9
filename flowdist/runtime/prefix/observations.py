"""Observations: what a script has read before its split, which has to be the same in a restart.

A file counts as the same if its size, its time of change and its inode are. Of a folder that modules are imported from
the entries count that could be a module which the script has imported, or has tried to import, and of one in which
importlib.metadata has looked for packages those that say what is installed: a checkpoint beside the script changes
nothing. Time, process ids and what /proc and /sys say are not observed.
"""

from __future__ import annotations

import posix
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_LIVE = ("/proc/", "/sys/", "/dev/")
_MISSING = ""
_PACKAGES = (".dist-info", "egg-info")

Mark = str


class Observations:
    """The files, folders and modules that were read, each with a mark that changes when it does."""

    def __init__(self) -> None:
        self._files: dict[str, Mark] = {}
        self._folders: dict[str, Mark] = {}
        self._packages: dict[str, Mark] = {}
        self._names: set[str] = set()  # first parts of the names of modules that were looked for
        self._path: list[tuple[str, Mark]] = []  # sys.path and its folders, as they are at the split

    def note_file(self, path: str) -> None:
        """Note that a file was read, or looked for. Only the first time counts."""
        path = posix.getcwd() + "/" + path if not path.startswith("/") else path
        if path not in self._files and not path.startswith(_LIVE):
            self._files[path] = _mark(path)

    def note_folder(self, path: str) -> None:
        """Note that a folder was listed. Only the first time counts."""
        path = posix.getcwd() + "/" + path if not path.startswith("/") else path
        if path not in self._folders and not path.startswith(_LIVE):
            self._folders[path] = _listing(path, None)

    def note_packages(self, path: str) -> None:
        """Note that a folder was searched for installed packages. Only the first time counts."""
        path = posix.getcwd() + "/" + path if not path.startswith("/") else path
        if path not in self._packages:
            self._packages[path] = _packages(path)

    def note_module(self, name: str) -> None:
        """Note that a module is looked for."""
        if first := name.partition(".")[0]:
            self._names.add(first)

    def close(self) -> None:
        """Note the files of all modules that are imported, and the folders in which modules are looked for."""
        for module in list(sys.modules.values()):
            spec = getattr(module, "__dict__", {}).get("__spec__")
            origin = getattr(spec, "origin", None)
            if getattr(spec, "has_location", False) and isinstance(origin, str):
                self.note_file(origin)
        folders = [folder for folder in sys.path if isinstance(folder, str)]
        self._path = [(folder, _listing(folder or ".", self._names)) for folder in folders]

    def changed(self) -> str:
        """Return the path of something that has changed since it was read; empty if nothing has."""
        for path, mark in self._files.items():
            if _mark(path) != mark:
                return path
        for path, mark in self._folders.items():
            if _listing(path, None) != mark:
                return path
        for path, mark in self._packages.items():
            if _packages(path) != mark:
                return path
        for path, mark in self._path:
            if _listing(path or ".", self._names) != mark:
                return path or posix.getcwd()
        return ""


def _mark(path: str) -> Mark:
    try:
        found = posix.stat(path)
    except (OSError, ValueError):
        return _MISSING
    if stat.S_ISDIR(found.st_mode):
        return "folder"
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ino} {found.st_mode}"


def _listing(path: str, names: set[str] | None) -> Mark:
    """Return the sorted entries of a folder; with `names`, only those that may be a module of such a name."""
    return _entries(path, lambda entry: names is None or entry.partition(".")[0] in names)


def _packages(path: str) -> Mark:
    """Return the sorted entries of a folder that say which packages are installed there."""
    return _entries(path, lambda entry: entry.lower().endswith(_PACKAGES))


def _entries(path: str, counts: Callable[[str], bool]) -> Mark:
    try:
        entries = posix.listdir(path)
    except OSError:
        return _mark(path)  # missing, or a zip file
    return "/".join(sorted(filter(counts, entries)))
