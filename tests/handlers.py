"""Signal handlers as a terminal gives them, whoever has started this process."""

from __future__ import annotations

import signal

USUAL = (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
)


def restore() -> None:
    """Stop ignoring signals: a shell starts a background command so, and every process of a test would inherit it."""
    for number, handler in USUAL:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)
