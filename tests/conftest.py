"""Hypothesis draws anew at every run on a developer's machine, and the same in CI: a red run there is reproducible.

How long an example takes, or is drawn, says how busy the machine is, and nothing else.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("usual", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("usual"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "usual")
