"""Programs of an engine, such as sbatch: called with a limit of time, and without flowdist's secrets."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from flowdist.engines.interface import EngineFailed

PATIENCE_S = 30.0  # for one program; the engine may be busy
SECRETS = ("FLOWDIST_TOKEN", "FLOWDIST_HOST_SECRET")


def output_of(command: Sequence[str], env: Mapping[str, str], text: str, *, help: str) -> str:
    """Run a program of an engine without the variables in SECRETS, `text` on stdin, and return its output.

    EngineFailed if it is missing (`help` says what to do), does not end in time, or ends with another code than 0.
    """
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
            env={key: value for key, value in env.items() if key not in SECRETS},
            check=False,
        )
    except FileNotFoundError:
        raise EngineFailed(f"{command[0]} is not on the path", help=help) from None
    except subprocess.TimeoutExpired:
        raise EngineFailed(f"{command[0]} has not answered for {PATIENCE_S:.0f} s") from None
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        raise EngineFailed(f"{command[0]} ended with exit code {done.returncode}: {said}")
    return done.stdout
