"""The leaves of nested dicts, lists and tuples, and stand-ins for those of them that are tensors.

What holds a state in memory, or sends it, pickles the nest with a `Placeholder` for each tensor, whose bytes go another
way. Torch is imported only by a caller that has a value of torch, or wants one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SMALL_BYTES = 1 << 10  # a CPU tensor up to this size is pickled with the other values


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the items of nested dicts, lists and tuples, each with its place, such as `name['a'][0]`."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(f"{name}[{key!r}]", item)
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            yield from leaves(f"{name}[{index}]", item)
    else:
        yield name, value


class Placeholder:
    """Stand-in for a tensor in the values that are pickled, with the tensor's number."""

    def __init__(self, number: int, tensor: torch.Tensor) -> None:
        self.number, self.shape, self.dtype = number, tensor.shape, tensor.dtype
        self.is_cpu = tensor.device.type == "cpu"


def without_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return the value with placeholders for its tensors, which are added to `tensors`. Small CPU tensors stay."""
    import torch  # heavy: workers without elastic() import this module, too

    if isinstance(value, torch.Tensor):
        if value.device.type == "cpu" and value.numel() * value.element_size() <= SMALL_BYTES:
            return value
        tensors.append(value)
        return Placeholder(len(tensors) - 1, value)
    return mapped(value, lambda item: without_tensors(item, tensors))


def with_tensors(value: Any, tensors: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, Placeholder):
        return tensors[value.number]
    return mapped(value, lambda item: with_tensors(item, tensors))


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a dict, list or tuple of the same kind with `change` applied to its items; any other value as it is."""
    if isinstance(value, dict):
        changed = copy.copy(value)  # keeps attributes: the state_dict of a module has its versions
        for name, item in value.items():
            changed[name] = change(item)
        return changed
    if type(value) in (list, tuple):
        return type(value)(change(item) for item in value)
    return value
