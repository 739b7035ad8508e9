"""What is needed and what is free, in words: `2 cpu, 0.5 gpu`, `0 of 2 gpu`."""

from __future__ import annotations

from flowdist.graph import WHOLE, format_memory
from flowdist.graph.capacity import Capacity, Need


def need_text(need: Need) -> str:
    """`2 cpu, 0.5 gpu`; only what is asked for."""
    parts = [f"{_amount('cpu', need.mcpu)} cpu"] if need.mcpu else []
    parts += [f"{need.gpu} gpu" if need.share == WHOLE else f"{need.share / WHOLE:g} gpu"] if need.gpu else []
    parts += [f"{_amount('memory', need.memory)} memory"] if need.memory else []
    return ", ".join(parts) or "nothing"


def free_text(free: Capacity, total: Capacity, like: Need) -> str:
    """`0 of 2 gpu`; what `like` does not ask for is left out, and what there is enough of too, if something lacks."""
    asked = {
        "cpu": (like.mcpu, free.mcpu, total.mcpu),
        "gpu": (like.gpu, free.devices.count(WHOLE), len(total.devices)),
        "memory": (like.memory, free.memory, total.memory),
    }
    if like.share < WHOLE:  # what is left of the emptiest device says more than what is left of all of them
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
