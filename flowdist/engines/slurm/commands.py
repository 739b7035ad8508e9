"""Slurm's programs: sbatch, scancel, squeue and sinfo, called with limits of time, and without flowdist's secrets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from flowdist.engines.programs import SECRETS, output_of

KEPT = ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS")  # of the variables of a job in which this process may run itself


def call(words: Sequence[str], text: str = "") -> str:
    """Run one of Slurm's programs and return its output.

    Args:
        words: The program and its arguments.
        text: Its standard input.

    Raises:
        EngineFailed: The program is missing, does not end in time, or ends with another code than 0.
    """
    help = "run this where Slurm's programs are"
    return output_of(words, words[0], clean(os.environ), text, help=help)


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
