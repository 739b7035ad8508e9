"""Slurm's programs: sbatch, scancel, squeue and sinfo, called with limits of time, and without flowdist's secrets."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from flowdist.engines.interface import EngineFailed

PATIENCE_S = 30.0  # for one program; slurmctld may be busy
SECRETS = ("FLOWDIST_TOKEN", "FLOWDIST_HOST_SECRET")
KEPT = ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS")  # of the variables of a job in which this process may run itself


def call(words: Sequence[str], text: str = "") -> str:
    """Run one of Slurm's programs and return its output.

    Args:
        words: The program and its arguments.
        text: Its standard input.

    Raises:
        EngineFailed: The program is missing, does not end in time, or ends with another code than 0.
    """
    try:
        done = subprocess.run(
            words,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
            env=clean(os.environ),
            check=False,
        )
    except FileNotFoundError:
        raise EngineFailed(f"{words[0]} is not on the path", help="run this where Slurm's programs are") from None
    except subprocess.TimeoutExpired:
        raise EngineFailed(f"{words[0]} has not answered for {PATIENCE_S:.0f} s") from None
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        raise EngineFailed(f"{words[0]} ended with exit code {done.returncode}: {said}")
    return done.stdout


def clean(base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for Slurm's programs, which sbatch passes on to the job.

    flowdist's secrets are left out. So are the variables of a Slurm job in which this process runs: sbatch would take
    them for options of the new job.
    """
    prefixes = ("SLURM_", "SBATCH_")
    return {
        name: value
        for name, value in base.items()
        if name not in SECRETS and (name in KEPT or not name.startswith(prefixes))
    }
