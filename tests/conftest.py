"""What all tests share: how Hypothesis draws, and the end of tests that hang and of processes that tests leave.

Hypothesis draws anew at every run on a developer's machine, and the same in CI: a red run there is reproducible. How
long an example takes, or is drawn, says how busy the machine is, and nothing else.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from tests import choosing, handlers, leftovers

settings.register_profile("usual", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("usual"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "usual")

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users' Python writes what it has compiled, in their scripts' folders


def pytest_configure(config: pytest.Config) -> None:
    handlers.restore()
    config.pluginmanager.register(leftovers)


@pytest.hookimpl(tryfirst=True)  # before those are left out that `-m` does not name
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of each module that draws `examples`."""
    for item in items:
        if getattr(getattr(item, "module", None), "examples", None) is choosing.examples:
            item.add_marker("campaign")
