"""The entries of --rdzv-conf: of torchrun, and of TorchX's `dist.ddp`, which passes them on to torchrun."""

from __future__ import annotations

import re

TIMERS = {"join_timeout": "pending_timeout", "last_call_timeout": "join_window"}  # with the argument of a role
PLACES = ("is_host", "token")  # for several hosts
DEAD_TIMERS = (  # without effect
    *("close_timeout", "heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt", "read_timeout"),
    *("timeout", "store_type", "cas_backoff_max_seconds"),
)
KNOWN = (*TIMERS, *PLACES, *DEAD_TIMERS)


def entries_of(text: str) -> list[str]:
    """Return the entries of a value of --rdzv-conf in order. Quotation marks around the whole value are removed."""
    return [part.strip() for part in unquoted(text).split(",") if part.strip()]


def pair_of(entry: str) -> tuple[str, str]:
    """Return name and value of an entry, without quotation marks around the value. A missing value is empty."""
    name, _, value = entry.partition("=")
    return name.strip(), unquoted(value)


def as_duration(seconds: str) -> str | None:
    """Return a number of seconds as a duration of the DSL: `30` as `30s`; None if the text is no such number."""
    return f"{seconds.strip()}s" if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", seconds.strip()) else None


def unquoted(text: str) -> str:
    """Return the text without the blanks around it, and without one pair of equal quotation marks around the rest."""
    word = text.strip()
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word
