"""The cache folder of the user, in which each profile of a learned preload has a file.

The folder is `flowdist/preload` in XDG_CACHE_HOME or `~/.cache`. It belongs to the user alone. With
FLOWDIST_LEARNED_PRELOAD=0 there is no cache, and nothing is learned.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from flowdist.graph import RoleSpec
from flowdist.graph.warmth import PythonCommand, python_command
from flowdist.runtime.atomic import write_atomically
from flowdist.runtime.left_files import read_small
from flowdist.runtime.preload.profile import FILE_BYTES_MAX, Profile, read_profile, short

SWITCH = "FLOWDIST_LEARNED_PRELOAD"
PROFILES_MAX = 200  # the one that was used longest ago is removed first
_SITES = ("site-packages", "dist-packages")


class ProfileCache:
    """The profiles in a folder. What cannot be read, or another user could have written, is ignored with one line."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, key: str) -> Profile | None:
        """Return the profile with this key, and note that it was used; None if there is none."""
        path = self._path(key)
        if not os.path.lexists(path):
            return None
        why = _why_foreign(self._folder, stat.S_ISDIR) or _why_foreign(path, stat.S_ISREG)
        data = read_small(path, FILE_BYTES_MAX) if not why else None
        profile = read_profile(data) if data is not None else None
        if profile is None:
            print(f"flowdist: {path} is ignored: {why or 'it is no profile of flowdist'}", file=sys.stderr)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return profile

    def save(self, key: str, profile: Profile) -> None:
        """Write a profile, and remove the oldest ones above PROFILES_MAX. What prevents it is said in one line."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if why := _why_foreign(self._folder, stat.S_ISDIR):
                raise PermissionError(0, why)
            write_atomically(self._path(key), msgspec.json.encode(profile))
            self._path(key).chmod(0o600)  # with a umask of 002 the group could write it
            self._remove_oldest()
        except OSError as error:
            print(f"flowdist: {self._folder} keeps no learned preload: {error.strerror}", file=sys.stderr)

    def _remove_oldest(self) -> None:
        files = [file for file in self._folder.iterdir() if file.suffix == ".json"]
        if len(files) > PROFILES_MAX:
            files.sort(key=lambda file: (file.lstat().st_mtime_ns, file.name))
            for file in files[:-PROFILES_MAX]:
                file.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"


def _why_foreign(path: Path, is_kind: object) -> str:
    """Return why a file or folder of the cache is not to be trusted; empty if it is the user's own."""
    try:
        found = path.lstat()
    except OSError as error:
        return error.strerror or str(error)
    if not is_kind(found.st_mode):  # type: ignore[operator]
        return "it is neither a plain file nor a folder"
    if found.st_uid != os.geteuid():
        return "it belongs to another user"
    return "other users may write it" if found.st_mode & 0o022 else ""


def profile_cache(env: Mapping[str, str]) -> ProfileCache | None:
    """Return the cache of the user; None if the environment turns it off, or names no home."""
    if env.get(SWITCH) == "0":
        return None
    base = env.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):  # the specification of XDG_CACHE_HOME has relative paths ignored
        home = env.get("HOME", "")
        if not home.startswith("/"):
            return None
        base = f"{home}/.cache"
    return ProfileCache(Path(base, "flowdist", "preload"))


def script_of(role: RoleSpec) -> str:
    """Return the script of a role, as an absolute path, or `-m MODULE in FOLDER`; empty if it has none."""
    command = python_command(role.command)
    if not isinstance(command, PythonCommand):
        return ""
    if command.is_module:
        return short(f"-m {command.target} in {role.workdir}")
    return short(str(Path(role.workdir, command.target).resolve()))


def key_of(role: RoleSpec, interpreter: str, path: Sequence[str]) -> str:
    """Return the key of the profile for the workers of a role.

    The key depends on the script's path, not on its content: an edited script mostly imports the same. It depends on
    the interpreter, and on the names and versions of all installed distributions.

    Args:
        role: The role.
        interpreter: Path of the interpreter that runs flowdist and the workers.
        path: Its `sys.path`.
    """
    command = python_command(role.command)
    flags = command.flags if isinstance(command, PythonCommand) else ()
    parts = [script_of(role), *flags, interpreter, sys.version, *role.preload, *_distributions(path)]
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:32]


def _distributions(path: Sequence[str]) -> list[str]:
    """Return what the folders of installed distributions list: `torch-2.13.0.dist-info`, of each distribution."""
    found = []
    for folder in path:
        if Path(folder).name in _SITES:
            with contextlib.suppress(OSError):
                names = os.listdir(folder)  # noqa: PTH208  # names alone
                found += sorted(name for name in names if name.endswith((".dist-info", ".egg-info")))
    return found
