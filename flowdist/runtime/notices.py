"""Notices of a batch system that it will take the machine away: SIGUSR1, as `sbatch --signal=USR1@60` sends it.

Slurm sends the signal to every process of a job step. The foreground process handles it; all others of flowdist, and
the workers unless they have a handler, must survive it.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping


def ignore_notices(env: Mapping[str, str]) -> None:
    """Ignore SIGUSR1 in this process and those that it starts, if it runs in a Slurm job by its environment `env`."""
    if "SLURM_JOB_ID" in env:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
