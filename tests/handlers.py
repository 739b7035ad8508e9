"""Signal handlers as a terminal gives them, whoever has started this process."""

from __future__ import annotations

import signal

USUAL = (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
)


def restore() -> list[str]:
    """Stop ignoring signals, and return the names of those that were ignored.

    A shell starts a background command so, and every process of a test would inherit it.
    """
    ignored = [(number, handler) for number, handler in USUAL if signal.getsignal(number) == signal.SIG_IGN]
    for number, handler in ignored:
        signal.signal(number, handler)
    return [number.name for number, _ in ignored]
