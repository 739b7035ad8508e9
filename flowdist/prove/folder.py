"""The folder of a run: a copy of the user's, in which the script works, and which each run finds as the first did.

The user's own folder is never written. What the script writes and what the user's folder had there already, such as the
checkpoints of an earlier training, is left out of the copy, so that every run begins anew.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from flowdist.errors import FlowdistError
from flowdist.prove.calls import Stop
from flowdist.prove.history import Call, is_in
from flowdist.runtime.run_folder.owner_file import OWNER

COPIED_BYTES_MAX = 64 << 20  # of one entry of the folder; a larger one is linked
LEFT_OUT = ("runs", "__pycache__", "node_modules")
CACHES = (".cache", ".config", ".triton")  # in the user's home; a run may write there
_CODE = (".py", ".pyc", ".so", "pyvenv.cfg")
_IN_ALL = ("/dev/", "/proc/", "/sys/")


class CannotProve(FlowdistError):
    """Error: the script does not run without a fault, or not in a way that can be proved."""


class Outside(CannotProve):
    """Error: the script writes a file that is not in its folder, and which `prove` must not touch."""

    def __init__(self, path: str) -> None:
        help = "write into the current folder, by a relative path; runs happen in a copy of it"
        super().__init__(f"the script writes {path}, which is outside of the copy of its folder", help=help)


class Folder:
    """A copy of the user's folder.

    Args:
        users: The user's folder.
        copy: The folder to make.
        own: A folder of `prove` itself, in which a run may write.
        left_out: Entries of the user's folder that are known to be written by the script.
    """

    def __init__(self, users: Path, copy: Path, own: Path, left_out: Iterable[str] = ()) -> None:
        self.users, self.path, self._own = users, copy, own
        self._allowed = (*_IN_ALL, "/memfd:", str(own), *(str(Path.home() / name) for name in CACHES))
        self.left_out = set(left_out)
        self.ready_made: frozenset[str] = frozenset()  # folders that are there, and empty, when a run begins
        self._written: set[str] = set()  # paths in the copy that a run has written
        self._unsynced: set[str] = set()  # those whose content may be in memory only
        self._made: dict[str, tuple[int, int, int]] = {}  # the files of the copy as they were made

    def make(self) -> None:
        """Copy the user's folder; large entries become links, which a run must not write through."""
        if self.path.exists():
            shutil.rmtree(self.path)
        self.path.mkdir(parents=True)
        self._written.clear()
        for entry in sorted(self.users.iterdir()):
            if entry.name.startswith(".") or entry.name in LEFT_OUT or (entry / "pyvenv.cfg").exists():
                continue
            self._copy(entry, self.path / entry.name)
        self._made = self._stamps()

    def _stamps(self) -> dict[str, tuple[int, int, int]]:
        found = {}
        for path in self.path.rglob("*"):
            if not path.is_symlink() and path.is_file() and path.parent.name != "__pycache__":
                status = path.stat()
                found[str(path.relative_to(self.path))] = status.st_ino, status.st_mtime_ns, status.st_size
        return found

    def unnoted(self) -> list[str]:
        """Return the files of the copy that a run has changed, relative to it, and that were not noted as written."""
        changed = (path for path, stamp in self._stamps().items() if self._made.get(path) != stamp)
        return sorted(set(changed) - self._written)

    def _copy(self, source: Path, target: Path) -> None:
        name = str(source.relative_to(self.users))
        if name in self.left_out or source == self._own:
            return
        if source.is_symlink() or not source.is_dir():
            if source.is_symlink() or source.stat().st_size > COPIED_BYTES_MAX:
                target.symlink_to(source)
            else:
                shutil.copy2(source, target)
        elif not any(out.startswith(name + "/") for out in self.left_out) and _size(source) > COPIED_BYTES_MAX:
            target.symlink_to(source)
        else:
            target.mkdir()
            for entry in source.iterdir():
                if entry.name != "__pycache__":
                    self._copy(entry, target / entry.name)

    def inside(self, path: str, *, follows: bool = True) -> str | None:
        """Return a path relative to the copy; None for one elsewhere that a run may write, such as /dev/null.

        Links above it are followed, and one at its end if `follows`.

        Raises:
            Outside: The path is one that `prove` must not touch.
        """
        if not path.startswith("/"):
            return None  # a pipe, a socket
        head, tail = os.path.split(path)
        whole = os.path.join(os.path.realpath(head), tail)  # noqa: PTH118
        whole = os.path.realpath(whole) if follows else whole
        if whole.startswith(f"{self.path}/"):
            return whole[len(str(self.path)) + 1 :]
        if whole.startswith(self._allowed) or "__pycache__" in whole.split("/"):
            return None
        raise Outside(whole)

    def changed(self, stop: Stop) -> tuple[str, str] | None:
        """Return the files of the copy that a call changes, by their relative paths; None if it changes none.

        Raises:
            Outside: It changes one that `prove` must not touch.
        """
        follows = stop.call.startswith("open") or "truncate" in stop.call  # others change a link, not its file
        path = self.inside(stop.path, follows=follows) or ""
        target = "" if stop.call.startswith("symlink") else self.inside(stop.target, follows=False) or ""
        if stop.call.startswith("mkdir") and Path(stop.path).exists():
            return None  # it fails
        if stop.call.startswith(("unlink", "rmdir")) and not os.path.lexists(stop.path):
            return None
        return (path, target) if path or target else None

    def note_written(self, path: str) -> bool:
        """Note that a run writes a path, relative to the copy; return whether the user's folder has it already.

        The folder must be made anew then, without it.
        """
        self._written.add(path)
        name = self._whole(path)
        if (self.users / name).exists() and not is_in(name, self.left_out):
            self.left_out.add(name)
            return True
        return False

    def _whole(self, path: str) -> str:
        """Return the entry to which a path belongs: the folder of an earlier training, but not one with code."""
        name = path
        for each in (Path(path), *Path(path).parents):
            if str(each) != "." and (self.users / each).is_dir() and not any((self.users / each).rglob("*.py")):
                name = str(each)
        return name

    def results(self, paths: Iterable[str]) -> set[str]:
        """Return the entries of the user's folder that may be an earlier training's results, by paths that are read."""
        names = {self._whole(path) for path in paths if path != "." and not path.endswith(_CODE)}
        return {name for name in names if (self.users / name).exists() and not name.startswith(".")} - self.left_out

    def note_call(self, call: Call) -> None:
        """Note what a call does to files that a loss of power would spoil, by the defaults of ext4.

        A file that was not forced to the disk may be empty afterwards. A rename over a file that is there forces it
        (`auto_da_alloc` in ext4(5)); a rename to a new name does not.
        """
        match call.kind:
            case "write" | "truncate":
                self._unsynced.add(call.path)
            case "fsync":
                self._unsynced.discard(call.path)
            case "rename":
                self._unsynced.discard(call.target)
                for path in [path for path in self._unsynced if is_in(path, {call.path})]:
                    self._unsynced.discard(path)
                    now = call.target + path.removeprefix(call.path)
                    if call.target and not (self.path / now).exists():
                        self._unsynced.add(now)
            case _:
                pass

    def lose_power(self) -> None:
        """Empty the files that were not forced to the disk."""
        for path in self._unsynced:
            if (self.path / path).is_file():
                os.truncate(self.path / path, 0)
        self._unsynced.clear()

    def note_ready_made(self) -> None:
        """Note the folders that the script has made already, before any worker has begun: each run finds them."""
        folders = (path for path in self.path.rglob("*") if path.is_dir() and not path.is_symlink())
        names = (path.relative_to(self.path) for path in folders)
        self.ready_made |= {str(name) for name in names if self._is_new(name)}

    def is_written(self, path: str) -> bool:
        """Return whether the run has written a path, relative to the copy, or has made or renamed a folder above it."""
        return is_in(path, self._written)

    def reset(self) -> None:
        """Remove what runs have written since the copy was made."""
        of_job = {str(path.parent.relative_to(self.path)) for path in self.path.glob(f"*/{OWNER}")}
        for name in self._written | of_job:  # the job notes there which checkpoint was committed last
            above = [*reversed(Path(name).parents)][1:]  # without the copy itself
            whole = self.path / next((each for each in above if self._is_new(each)), name)
            for each in whole.iterdir() if (whole / OWNER).exists() else [whole]:
                if each.is_dir() and not each.is_symlink():
                    shutil.rmtree(each)
                elif each.name != OWNER:  # of the job, which goes on
                    each.unlink(missing_ok=True)
        for path in self.ready_made:
            (self.path / path).mkdir(parents=True, exist_ok=True)
        self._written.clear()
        self._unsynced.clear()

    def _is_new(self, path: Path) -> bool:
        return not (self.users / path).exists() or str(path) in self.left_out

    def files(self) -> dict[str, Path]:
        """Return the files that the run has left, also those in folders, by their paths relative to the copy."""
        found = {path for path in self._left() if path.is_file()}
        return {str(path.relative_to(self.path)): path for path in sorted(found)}

    def _left(self) -> Iterator[Path]:
        for path in (self.path / name for name in self._written):
            yield path
            yield from path.rglob("*") if path.is_dir() else ()

    def keep(self, target: Path) -> None:
        """Copy what the run has left into another folder, empty folders, too."""
        if target.exists():
            shutil.rmtree(target)
        for folder in [path for path in self._left() if path.is_dir()]:
            (target / folder.relative_to(self.path)).mkdir(parents=True, exist_ok=True)
        for name, path in self.files().items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target / name)


def _size(folder: Path) -> int:
    total = 0
    for entry in folder.rglob("*"):
        if not entry.is_symlink() and entry.is_file():
            total += entry.stat().st_size
            if total > COPIED_BYTES_MAX:
                break
    return total
