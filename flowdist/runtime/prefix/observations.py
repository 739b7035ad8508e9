"""Observations: what a script has read before its split, which has to be the same in a restart.

A file counts as the same if its size, its times of change, its mode and its inode are. Of a folder that modules are
imported from the entries count that could be a module which the script has imported, or has tried to import, and of one
in which importlib.metadata has looked for packages those that say what is installed: a checkpoint beside the script
changes nothing. A file of the user is marked when it is imported, one of a library at the split: nobody edits those
meanwhile. Time, process ids and what /proc and /sys say are not observed.
"""

from __future__ import annotations

import _io
import posix
import stat
import sys

from flowdist.runtime.prefix.caller import namespace_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_open = _io.open  # the script may have put something else in place of `builtins.open`
_LIVE = ("/proc/", "/sys/", "/dev/")
_MEMORY = "/dev/shm/"  # files all the same
_MISSING, _FOLDER = "", "folder"
_PACKAGES = (".dist-info", "egg-info")

Mark = str


class Observations:
    """Files, folders and modules that were read, each with a mark that changes when it does."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], Mark] = {}  # by what was asked, and path
        self._names: set[str] = set()  # first parts of the names of modules that were looked for
        self._path: list[tuple[str, Mark]] = []  # sys.path and its folders, as they are at the split
        self._made: list[str] = []  # folders that the script has made
        self._once = ""  # why a restart must not go on from here, in words: it would find what was missed before

    def note(self, asked: str, path: str) -> None:
        """Note that something was read, or looked for. `asked` is what matters of it. Only the first time counts."""
        path = _whole(path)
        if (asked, path) not in self._seen and (not path.startswith(_LIVE) or path.startswith(_MEMORY)):
            self._seen[asked, path] = MARKS[asked](path)

    def note_made(self, path: str) -> None:
        """Note that a folder is about to be made: it has to be there in a restart."""
        self._made.append(_whole(path))

    def why_once(self) -> str:
        """Return whether the script has made a folder after it has missed it, in words; empty if it has not.

        The ranks of this start go on from here: each of them might have been the first. A restart finds the folder.
        """
        if self._made:
            for asked, path in self._seen:
                if (mark := MARKS[asked](path)) != self._seen[asked, path]:
                    self._seen[asked, path], self._once = mark, f"it has made {self._made[0]}"
            for made in self._made:
                self.note("file", made)
            self._made.clear()
        return self._once

    def note_module(self, name: str) -> None:
        """Note that a module is looked for."""
        if first := name.partition(".")[0]:
            self._names.add(first)

    def note_missing_module(self, name: str) -> None:
        """Note that a package has no such submodule. Top-level modules are looked for in `sys.path`: see `close`."""
        package, _, last = name.rpartition(".")
        for folder in getattr(sys.modules.get(package), "__path__", ()):
            if isinstance(folder, str):
                self.note("module", f"{folder}/{last}")

    def close(self) -> None:
        """Note the files of modules and those mapped into memory, and the folders in which modules are looked for.

        Compiled code maps files by itself: libraries, and weights that are read when they are used.
        """
        for path in _mapped("/proc/self/maps"):
            self.note("file", path)
        for module in list(sys.modules.values()):
            spec = namespace_of(module).get("__spec__")
            origin = getattr(spec, "origin", None)
            if getattr(spec, "has_location", False) and isinstance(origin, str):
                self.note("file", origin)
        folders = [folder for folder in sys.path if isinstance(folder, str)]
        self._path = [(folder, _names(folder or ".", self._names)) for folder in folders]

    def files(self) -> list[str]:
        """Return the files that were read or looked at, and were there."""
        return [
            path for (asked, path), mark in self._seen.items() if asked == "file" and mark not in (_MISSING, _FOLDER)
        ]

    def changed(self) -> str:
        """Return the path of something that has changed since it was read; empty if nothing has."""
        for (asked, path), mark in self._seen.items():
            if MARKS[asked](path) != mark:
                return path
        for path, mark in self._path:
            if _names(path or ".", self._names) != mark:
                return path or posix.getcwd()
        return ""


def _whole(path: str) -> str:
    return path if path.startswith("/") else f"{posix.getcwd()}/{path}"


def _mapped(maps: str) -> list[str]:
    """Return the files that a process has mapped into memory, by its file `maps`."""
    with _open(maps, errors="replace") as lines:
        paths = [line.rstrip("\n").split(maxsplit=5)[5:] for line in lines]
    return list(dict.fromkeys(path for found in paths for path in found if path.startswith("/")))


def _file(path: str) -> Mark:
    try:
        found = posix.stat(path)
    except (OSError, ValueError):
        return _MISSING
    return _FOLDER if stat.S_ISDIR(found.st_mode) else _text(found)


def _status(path: str) -> Mark:
    """Return the mark of a file, or of a folder, which changes with each entry that comes or goes."""
    try:
        return _text(posix.stat(path))
    except (OSError, ValueError):
        return _MISSING


def _text(found: posix.stat_result) -> Mark:
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino} {found.st_mode}"


def _link(path: str) -> Mark:
    try:
        return posix.readlink(path)
    except (OSError, ValueError):
        return _MISSING


def _folder(path: str) -> Mark:
    return _names(path, None)


def _entries(path: str) -> Mark:
    return "/".join(f"{name} {_status(f'{path}/{name}')}" for name in _folder(path).split("/"))


def _names(path: str, wanted: set[str] | None) -> Mark:
    """Return the sorted entries of a folder; with `wanted`, only those that may be a module of such a name."""
    return _listed(path, lambda entry: wanted is None or entry.partition(".")[0] in wanted)


def _packages(path: str) -> Mark:
    """Return the sorted entries of a folder that say which packages are installed there."""
    return _listed(path, lambda entry: entry.lower().endswith(_PACKAGES))


def _module(path: str) -> Mark:
    """Return what there is of a submodule: entries of the package's folder with its name."""
    folder, _, name = path.rpartition("/")
    return _names(folder, {name})


def _place(path: str) -> Mark:
    """Return which folder a path leads to, whatever it holds."""
    try:
        found = posix.stat(path)
    except (OSError, ValueError):
        return _MISSING
    return f"{found.st_dev} {found.st_ino}"


def _listed(path: str, counts: Callable[[str], bool]) -> Mark:
    try:
        entries = posix.listdir(path)
    except OSError:
        return _file(path)  # missing, or a zip file
    return "/".join(sorted(filter(counts, entries)))


MARKS: dict[str, Callable[[str], Mark]] = {
    "file": _file,
    "status": _status,
    "link": _link,
    "folder": _folder,
    "entries": _entries,
    "packages": _packages,
    "module": _module,
    "place": _place,
}
