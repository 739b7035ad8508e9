"""Generators of random numbers that the script itself has made, found in its variables and named by them.

Those of Python, numpy and torch as a whole are known without that. Nothing is drawn, and no variable lives longer.
"""

from __future__ import annotations

import inspect
import marshal
import os
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from flowdist.prove.in_worker.digests import digest, hashed

_KEEPS_COPIES = sys.version_info < (3, 13)  # a frame keeps the dict of its variables that it has made


def own_generators(folder: str) -> dict[str, str]:
    """Return a digest of each generator that a variable has, by its name: `noise`, or `loop.noise`.

    These are variables of the functions that are running and of their modules, and attributes of the script's objects.

    Args:
        folder: The folder of the script: functions of other code are left out.
    """
    found: dict[str, str] = {}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if os.path.abspath(frame.f_code.co_filename).startswith(f"{folder}/"):  # noqa: PTH100
            variables = frame.f_locals
            for values in (variables, frame.f_globals):
                for name, value in _generators(values, folder):
                    found.setdefault(name, value)
            if _KEEPS_COPIES and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
                variables.clear()
        frame = frame.f_back
    return found


def _generators(values: Mapping[str, Any], folder: str) -> Iterator[tuple[str, str]]:
    for name, value in list(values.items()):
        if (state := _state(value)) is not None:
            yield name, state
        elif _is_of_script(type(value), folder):
            for inner, attribute in list(getattr(value, "__dict__", {}).items()):
                if (state := _state(attribute)) is not None:
                    yield f"{name}.{inner}", state


def _is_of_script(kind: type, folder: str) -> bool:
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and os.path.abspath(file).startswith(f"{folder}/")  # noqa: PTH100


def _state(value: Any) -> str | None:
    """Return a digest of a generator's state; None for any other value."""
    module = type(value).__module__.partition(".")[0]
    match module, type(value).__name__:
        case "random", "Random":
            return hashed(marshal.dumps(value.getstate(), 2))
        case "numpy", "Generator":
            return digest(value.bit_generator.state)
        case "numpy", "RandomState":
            return digest(value.get_state())
        case "torch", "Generator":
            return digest(value.get_state())
        case _:
            return None
