"""Length of the texts that agents report: each is cut before it is recorded, and says so.

A text stays in the state of the job, in each line of the journal that repeats it, and in every process that reads the
journal. What a worker printed, or what a hostile host says, must not decide how much memory that takes.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from flowdist.control.protocol.events import (
    GpuFailed,
    InventoryItem,
    NodeStandsStill,
    ReplicaExited,
    ReplicaStartsCold,
    StoreLost,
)
from flowdist.control.protocol.messages import Reported

TEXT_MAX = 500  # characters
GPU_TEXT_MAX = 200  # characters of the reason why a GPU is bad; a node has one for each GPU, and one message holds all

_TEXTS: dict[type, tuple[str, int]] = {
    GpuFailed: ("reason", GPU_TEXT_MAX),
    NodeStandsStill: ("who", GPU_TEXT_MAX),
    ReplicaExited: ("detail", TEXT_MAX),
    ReplicaStartsCold: ("detail", TEXT_MAX),
    StoreLost: ("detail", TEXT_MAX),
}
E = TypeVar("E", bound=Reported)


def cut(text: str, most: int = TEXT_MAX) -> str:
    """Return a text for people, cut if it has over `most` characters; its end then tells how many it had."""
    if len(text) <= most:
        return text
    end = f"... (cut, it has {len(text)} characters)"
    return text[: most - len(end)] + end


def with_short_text(event: E) -> E:
    """Return an event of an agent with its text for people cut; the same event if its text is short, or has none."""
    name, most = _TEXTS.get(type(event), ("", 0))
    if not name or len(getattr(event, name)) <= most:
        return event
    return msgspec.structs.replace(event, **{name: cut(getattr(event, name), most)})


def with_short_texts(items: tuple[InventoryItem, ...]) -> tuple[InventoryItem, ...]:
    """Return an inventory with the texts of its exits cut."""
    return tuple(
        msgspec.structs.replace(item, exited=with_short_text(item.exited)) if item.exited is not None else item
        for item in items
    )
