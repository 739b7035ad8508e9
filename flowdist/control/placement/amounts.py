"""Text for amounts of CPU, GPU and memory that are needed or free: `2 cpu, 0.5 gpu`, `0 of 2 gpu`."""

from __future__ import annotations

from flowdist.graph import WHOLE, format_memory
from flowdist.graph.capacity import Capacity, Need


def need_text(need: Need) -> str:
    """Return the resources that the need asks for, as in `2 cpu, 0.5 gpu`; `nothing` if it asks for none."""
    parts = [f"{_amount('cpu', need.mcpu)} cpu"] if need.mcpu else []
    parts += [f"{need.gpu} gpu" if need.share == WHOLE else f"{need.share / WHOLE:g} gpu"] if need.gpu else []
    parts += [f"{_amount('memory', need.memory)} memory"] if need.memory else []
    return ", ".join(parts) or "nothing"


def free_text(free: Capacity, total: Capacity, like: Need) -> str:
    """Return how much is free of each resource that `like` asks for, as in `0 of 2 gpu`; `room` if it asks for none.

    If some resources do not suffice for `like`, only those are named.

    Args:
        free: The resources that are free on a node.
        total: All resources of the node.
        like: The need of one replica.
    """
    asked = {
        "cpu": (like.mcpu, free.mcpu, total.mcpu),
        "gpu": (like.gpu, free.devices.count(WHOLE), len(total.devices)),
        "memory": (like.memory, free.memory, total.memory),
    }
    if like.share < WHOLE:  # a share has to fit on one device, so that the sum over all devices would mislead
        asked["gpu"] = (like.share, max(free.devices, default=0), WHOLE)
    wanted = {unit: amounts for unit, amounts in asked.items() if amounts[0]}
    lacking = {unit: amounts for unit, amounts in wanted.items() if amounts[1] < amounts[0]}
    parts = [_part(unit, have, of, like) for unit, (_, have, of) in (lacking or wanted).items()]
    return ", ".join(parts) or "room"


def _part(unit: str, have: int, of: int, like: Need) -> str:
    if unit == "gpu" and like.share < WHOLE:
        return f"at most {have / WHOLE:g} of one gpu"
    return f"{_amount(unit, have)} of {_amount(unit, of)} {unit}"


def _amount(unit: str, value: int) -> str:
    value = max(value, 0)
    return f"{value / 1000:g}" if unit == "cpu" else f"{value}" if unit == "gpu" else format_memory(value)
