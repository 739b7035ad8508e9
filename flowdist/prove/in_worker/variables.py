"""Variables of the script: those of the functions that run, of their modules, and attributes of the script's objects.

They are looked at and named, for digests of what they have. Nothing is drawn, called or changed, and no variable lives
longer than it would.
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
_DEPTH_MAX, _ENTRIES_MAX = 6, 100_000  # of a value that is plain
_SMALL = 100  # entries of a collection that is looked at before each step
_NUMBERS = (bool, int, float)


def own_generators(folder: str) -> dict[str, str]:
    """Return a digest of each generator of random numbers that a variable has, by its name: `noise`, or `loop.noise`.

    Those of Python, numpy and torch as a whole are known without that.

    Args:
        folder: The folder of the script: functions of other code are left out.
    """
    return _digests(sys._getframe(1), folder, _generator)


def small_values(folder: str) -> dict[str, str]:
    """Return what variables have that are numbers, as `=0.5`, or small collections, as digests."""
    return _digests(sys._getframe(1), folder, _small)


def plain_attributes(value: Any) -> str:
    """Return a digest of an object's attributes that are plain, such as those of a scheduler without its optimizer."""
    return digest({name: each for name, each in vars(value).items() if _is_plain(each, _DEPTH_MAX)})


def plain_state(frame: FrameType | None, folder: str) -> dict[str, str]:
    """Return numbers, and digests of variables that have text, arrays, modules, optimizers or generators.

    Args:
        frame: The innermost frame, of a thread that waits.
        folder: The folder of the script.
    """
    return _digests(frame, folder, _plain)


def _digests(frame: FrameType | None, folder: str, state_of: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    while frame is not None:
        if os.path.abspath(frame.f_code.co_filename).startswith(f"{folder}/"):  # noqa: PTH100
            is_copy = _KEEPS_COPIES and bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
            # What such a function has got of locals() is that dict: to ask for it would change the script's own.
            variables = {} if is_copy and "locals" in frame.f_code.co_names else frame.f_locals
            for values in (variables, frame.f_globals):
                for name, value in _named(values, folder):
                    if name not in found and (state := state_of(value)) is not None:
                        found[name] = state
            if is_copy:
                variables.clear()
        frame = frame.f_back
    return found


def _named(values: Mapping[str, Any], folder: str) -> Iterator[tuple[str, Any]]:
    for name, value in list(values.items()):
        if name.startswith("__"):
            continue
        yield name, value
        if _is_of_script(type(value), folder):
            for inner, attribute in list(getattr(value, "__dict__", {}).items()):
                yield f"{name}.{inner}", attribute


def _is_of_script(kind: type, folder: str) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return isinstance(file, str) and os.path.abspath(file).startswith(f"{folder}/")  # noqa: PTH100


def _generator(value: Any) -> str | None:
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


def _small(value: Any) -> str | None:
    """Return a number as `=0.5`, or a digest of a few numbers or texts; None for any other value."""
    if type(value) in _NUMBERS:
        return f"={value!r}"
    if type(value) not in (list, tuple, dict) or len(value) > _SMALL:
        return None
    parts = [*value.values()] if isinstance(value, dict) else value
    return hashed(repr(value).encode()) if all(type(each) in (*_NUMBERS, str) for each in parts) else None


def _plain(value: Any) -> str | None:
    """Return a number, or a digest of a value of numbers, text, arrays and generators; None for any other."""
    if (state := _generator(value) or _small(value)) is not None:
        return state
    if (torch := sys.modules.get("torch")) is not None and hasattr(torch, "optim"):
        if isinstance(value, torch.nn.Module):
            return digest(dict([*value.named_parameters(), *value.named_buffers()]))
        if isinstance(value, torch.optim.Optimizer):
            value = [list(value.state.values()), [{**group, "params": 0} for group in value.param_groups]]
    return digest(value) if _is_plain(value, _DEPTH_MAX) else None


def _is_plain(value: Any, depth: int) -> bool:
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return True
    if type(value) in (list, tuple):
        return depth > 0 and len(value) <= _ENTRIES_MAX and all(_is_plain(each, depth - 1) for each in value)
    if type(value) is dict:
        return depth > 0 and _is_plain([*value], 2) and _is_plain([*value.values()], depth - 1)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "Tensor") and isinstance(value, torch.Tensor):
        return True
    return hasattr(value, "tobytes") and getattr(getattr(value, "dtype", None), "hasobject", True) is False
