"""Difference between the user's code and the import of a library, which does what it does in every process alike.

A library that is imported probes folders, asks for its process id, and draws names for itself. The user's code that
does so wants a value of its own for each rank, even where it calls a library for it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

_INSTALLED = ("/site-packages/", "/dist-packages/")
_STANDARD = tuple({f"{sys.base_prefix}/lib/python3", f"{sys.prefix}/lib/python3"})
_IMPORT = "<frozen importlib."
_BACKPORT = "/importlib_metadata/__init__.py"
OWN = __file__.rpartition("/")[0] + "/"
_known: dict[str, bool] = {}  # whether a file is installed


def is_installed(file: str) -> bool:
    """Return whether the code of a file is installed, or a part of Python."""
    if file not in _known:
        in_packages = any(part in file for part in _INSTALLED)
        _known[file] = in_packages or file.startswith(("<frozen ", *_STANDARD))
    return _known[file]


def is_import(frame: FrameType | None = None) -> bool:
    """Return whether the code that runs belongs to the import of something installed, and not to the user's code."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        if is_import_system(frame):
            return True
        if is_user(frame):
            return False
        frame = frame.f_back
    return False


def is_import_system(frame: FrameType) -> bool:
    """Return whether a frame is one of the import system, which looks for modules."""
    return frame.f_code.co_filename.startswith(_IMPORT)


def is_search_for_packages(frame: FrameType) -> bool:
    """Return whether a frame is one of importlib.metadata, which lists a folder of modules for what is installed."""
    code = frame.f_code
    return code.co_name == "children" and code.co_filename.endswith(("/importlib/metadata/__init__.py", _BACKPORT))


def is_user(frame: FrameType) -> bool:
    """Return whether a frame is one of the user's code."""
    file = frame.f_code.co_filename
    return not file.startswith(OWN) and not is_installed(file)


def place() -> str:
    """Return where the user's code is, such as " (train.py:7)"; empty if none runs, as at the end of the program."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user(frame):
        frame = frame.f_back
    return f" ({frame.f_code.co_filename}:{frame.f_lineno})" if frame is not None else ""


def is_module(below: str) -> bool:
    """Return whether the code of a module itself, and no function, has called what runs in the file `below`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.endswith(below):
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename.endswith(below):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "<module>"


def namespace_of(thing: object) -> dict[str, Any]:
    """Return the attributes of a module or object, without asking it: a module may load itself when it is asked."""
    try:
        namespace = object.__getattribute__(thing, "__dict__")
    except Exception:  # it has none, or its class computes it
        return {}
    return namespace if type(namespace) is dict else {}


def is_of_library(namespace: dict[str, Any]) -> bool:
    """Return whether the namespace of a module is that of an installed one, or of one without a file."""
    return is_installed(namespace.get("__file__") or "<frozen ")


def is_imported(name: str) -> bool:
    """Return whether a module is imported, and not only about to be."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


def is_in(function: str, file: str) -> bool:
    """Return whether a function of a file is running, such as `_get_default_tempdir` of `/tempfile.py`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == function and frame.f_code.co_filename.endswith(file):
            return True
        frame = frame.f_back
    return False
