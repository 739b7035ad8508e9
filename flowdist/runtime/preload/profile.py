"""Values of the learned preload, and the checks of those that come from a file. Nothing here reads or imports anything.

Both a `Recording` and a `Profile` come from files that other programs may write: `read_recording` and `read_profile`
return None for what is not one.
"""

from __future__ import annotations

import os
import re
import sysconfig
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

RECORDING = "imported.json"  # in the folder of a worker
MODULES_MAX = 10_000
NAME_MAX = 200  # characters of a module's name
TEXT_MAX = 500  # characters of a reason
FILE_BYTES_MAX = 2 << 20
UNSET = -1  # in place of a checksum: the script has unset the variable
UNKNOWN = -2  # the same: the script may set the variable
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_STDLIB = tuple({f"{sysconfig.get_path(kind)}{os.sep}" for kind in ("stdlib", "platstdlib")})

Changes = tuple[tuple[str, int], ...]  # names of variables, each with the checksum of its new value


class Recording(msgspec.Struct, frozen=True):
    """Modules that one worker has imported since it was forked, in the order in which their imports began.

    `at_step` is False if the script ended without a step. `changed` has the variables that the script, or a module that
    it imports, has changed since the start.
    """

    modules: tuple[str, ...]
    changed: Changes
    at_step: bool


class Profile(msgspec.Struct, frozen=True):
    """The learned preload of one script: `modules` have been imported in a fork server, in this order, without harm.

    `left_out` has modules that must not be imported there, each with the reason. `refused` says why nothing is learned
    for the script; normally it is empty. `learned_on` is a date.
    """

    script: str
    learned_on: str
    modules: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    changed: Changes = ()
    refused: str = ""


def read_recording(data: bytes) -> Recording | None:
    """Return the recording that a worker has left in a file; None if the data is none."""
    try:
        found = msgspec.json.decode(data, type=Recording)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if are_names(found.modules) and _are_changes(found.changed) else None


def read_profile(data: bytes) -> Profile | None:
    """Return the profile that a file of the cache has; None if the data is none."""
    try:
        found = msgspec.json.decode(data, type=Profile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    texts = (found.script, found.learned_on, found.refused, *(why for _, why in found.left_out))
    is_sound = are_names(found.modules) and are_names([name for name, _ in found.left_out])
    is_sound = is_sound and _are_changes(found.changed) and all(map(str.isprintable, texts))
    return found if is_sound else None


def are_names(names: Iterable[str]) -> bool:
    """Return whether these are names that modules may have, each once, and no more than MODULES_MAX."""
    names = tuple(names)
    is_sound = len(names) <= MODULES_MAX and len(set(names)) == len(names)
    return is_sound and all(len(name) <= NAME_MAX and _NAME.fullmatch(name) for name in names)


def _are_changes(changed: Changes) -> bool:
    return len(changed) <= MODULES_MAX and all(name and "\0" not in name for name, _ in changed)


def short(text: str) -> str:
    """Return the text of a reason as one printable line of at most TEXT_MAX characters."""
    line = " ".join(text.encode(errors="replace").decode().split())
    return "".join(letter if letter.isprintable() else "?" for letter in line)[:TEXT_MAX]


def without(modules: Iterable[str], left_out: Iterable[str]) -> tuple[str, ...]:
    """Return the modules, in their order, that neither are in `left_out` nor belong to a package that is."""
    banned = frozenset(left_out)
    return tuple(name for name in modules if not any(package in banned for package in _packages(name)))


def _packages(name: str) -> Iterable[str]:
    """Return `a`, `a.b` and `a.b.c` for the module `a.b.c`."""
    parts = name.split(".")
    return (".".join(parts[: i + 1]) for i in range(len(parts)))


def is_installed(file: str) -> bool:
    """Return whether a module's file belongs to the standard library or to an installed distribution.

    Args:
        file: The absolute path of the file. A folder `site-packages` or `dist-packages` has what is installed.
    """
    return file.startswith(_STDLIB) or not _INSTALLED.isdisjoint(Path(file).parts)


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> Changes:
    """Return the variables whose values differ between two environments, sorted by name.

    A value may be a secret. The result has only its checksum of 32 bits, which many values share.
    """
    names = sorted(name for name in {**before, **after} if before.get(name) != after.get(name))
    return tuple((name, checksum(after.get(name))) for name in names)


def checksum(value: str | None) -> int:
    """Return the checksum of a variable's value; UNSET for None, a variable that is not set."""
    return UNSET if value is None else zlib.crc32(os.fsencode(value))
