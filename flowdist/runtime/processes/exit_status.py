"""Words for exit codes, which are as `subprocess` has them: negative for a signal."""

from __future__ import annotations

import signal


def signal_name(code: int) -> str:
    """Return the name of the signal that an exit code stands for: -9 is `KILL`."""
    return signal.Signals(-code).name.removeprefix("SIG")


def describe_exit(code: int) -> str:
    """Return `exit code 3`, or `signal KILL`."""
    return f"exit code {code}" if code >= 0 else f"signal {signal_name(code)}"
