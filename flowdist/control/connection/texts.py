"""Length of the texts that agents report: each is cut before it is recorded, and says so.

A text stays in the state of the job, in each line of the journal that repeats it, and on every host that reads the
journal. What a worker printed, or what a hostile host says, must not decide how much memory that takes.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from flowdist.control.protocol.events import GpuFailed, InventoryItem, ReplicaExited, ReplicaStartsCold, StoreLost
from flowdist.control.protocol.messages import Reported

TEXT_MAX = 500  # characters

_TEXTS: dict[type, str] = {
    GpuFailed: "reason",
    ReplicaExited: "detail",
    ReplicaStartsCold: "detail",
    StoreLost: "detail",
}
E = TypeVar("E", bound=Reported)


def cut(text: str) -> str:
    """Return a text for people, cut if it has over TEXT_MAX characters; its end then tells how many it had."""
    if len(text) <= TEXT_MAX:
        return text
    end = f"... (cut, it has {len(text)} characters)"
    return text[: TEXT_MAX - len(end)] + end


def with_short_text(event: E) -> E:
    """Return an event of an agent with its text for people cut; the same event if its text is short, or has none."""
    name = _TEXTS.get(type(event))
    if name is None or len(getattr(event, name)) <= TEXT_MAX:
        return event
    return msgspec.structs.replace(event, **{name: cut(getattr(event, name))})


def with_short_texts(items: tuple[InventoryItem, ...]) -> tuple[InventoryItem, ...]:
    """Return an inventory with the texts of its exits cut."""
    return tuple(
        msgspec.structs.replace(item, exited=with_short_text(item.exited)) if item.exited is not None else item
        for item in items
    )
