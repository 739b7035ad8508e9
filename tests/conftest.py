"""What all tests share: how Hypothesis draws, and the end of tests that hang and of processes that tests leave.

Hypothesis draws anew at every run on a developer's machine, and the same in CI: a red run there is reproducible. How
long an example takes, or is drawn, says how busy the machine is, and nothing else.
"""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from tests import leftovers

settings.register_profile("usual", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("usual"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "usual")

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users' Python writes what it has compiled, in their scripts' folders

USUAL_HANDLERS = (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
)


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts a background command with signals ignored, and every process of a test would inherit that.
    for number, handler in USUAL_HANDLERS:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)
    config.pluginmanager.register(leftovers)
