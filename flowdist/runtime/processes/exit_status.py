"""Words for exit codes, which are as `subprocess` has them: negative for a signal."""

from __future__ import annotations

import signal


def signal_name(code: int) -> str:
    """Return the name of the signal that a negative exit code stands for: `KILL` for -9.

    Raises:
        ValueError: if Python has no name for the signal, such as 35, a real-time signal.
    """
    return signal.Signals(-code).name.removeprefix("SIG")


def describe_exit(code: int) -> str:
    """Return an exit code in words: `exit code 3`, or `signal KILL` for -9. Raises as `signal_name` does."""
    return f"exit code {code}" if code >= 0 else f"signal {signal_name(code)}"
