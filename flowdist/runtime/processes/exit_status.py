"""Words for exit codes, which are as `subprocess` has them: negative for a signal."""

from __future__ import annotations

import signal


def signal_name(code: int) -> str:
    """Return the name of a negative exit code's signal: `KILL` for -9, `RTMIN+1` for -35; a number if it has none."""
    number = -code
    if number in set(signal.Signals):
        return signal.Signals(number).name.removeprefix("SIG")
    return f"RTMIN+{number - signal.SIGRTMIN}" if number > signal.SIGRTMIN else str(number)


def describe_exit(code: int) -> str:
    """Return an exit code in words: `exit code 3`, or `signal KILL` for -9."""
    return f"exit code {code}" if code >= 0 else f"signal {signal_name(code)}"
