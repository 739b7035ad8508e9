"""Slurm's programs: sbatch, scancel, squeue, sinfo and scontrol, and the meaning of what they print.

They are called with limits of time, and without flowdist's secrets.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Mapping, Sequence

from flowdist.control.fleet.values import Cause, Phase, Seen
from flowdist.engines.interface import EngineFailed

PATIENCE_S = 30.0  # for one program; Slurm may be busy
SECRETS = ("FLOWDIST_TOKEN", "FLOWDIST_HOST_SECRET")
KEPT = ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS")  # of the variables of a job in which this process may run itself
# `squeue --format=%T`. A job that is being completed still runs: it may be requeued afterwards.
_PENDING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
_RUNNING = {"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"}
_ENDED: dict[str, Cause] = {
    "COMPLETED": "succeeded",
    "CANCELLED": "cancelled",
    "TIMEOUT": "time limit",
    "DEADLINE": "time limit",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node failed",
    "BOOT_FAIL": "node failed",
}
_HELD = "requeued held"  # Slurm could not launch the job, and waits for an administrator
_LEAVING = ("drain", "drng", "fail", "maint")  # beginnings of `sinfo --format=%T`, which may end in `*`


def call(words: Sequence[str], text: str = "") -> str:
    """Run one of Slurm's programs, with `text` on stdin, and return its output.

    EngineFailed if it is missing, does not end in time, or ends with another code than 0.
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
    """Return the environment for Slurm's programs, which sbatch passes on to the job, without flowdist's secrets.

    Nor does it have the variables of a Slurm job around this process: sbatch would take them for options.
    """
    prefixes = ("SLURM_", "SBATCH_")
    return {
        name: value
        for name, value in base.items()
        if name not in SECRETS and (name in KEPT or not name.startswith(prefixes))
    }


def seen(state: str, host: str, reason: str) -> Seen:
    """Return a member as Slurm shows its job; `host` is empty or `(null)` without one, `reason` `None` if it runs."""
    phase: Phase = "pending" if state in _PENDING else "running" if state in _RUNNING else "ended"
    words = f"{state} ({reason})" if reason not in ("", "None") else state
    if phase == "pending" and _HELD in reason:
        return Seen("ended", "", "node failed", words)
    cause: Cause = _ENDED.get(state, "failed") if phase == "ended" else ""
    return Seen(phase, "" if host == "(null)" else host, cause, words, is_ending=state == "COMPLETING")


def is_drained(state: str) -> bool:
    """Return whether Slurm wants a node empty, by its state, such as `draining` or `drained*`."""
    return state.lower().startswith(_LEAVING)


def drained(hosts: Collection[str]) -> set[str]:
    """Return which of these nodes Slurm wants empty."""
    if not hosts:
        return set()
    lines = call(["sinfo", "--noheader", "--Node", f"--nodes={','.join(sorted(hosts))}", "--format=%N|%T"]).splitlines()
    return {host for host, _, state in (line.partition("|") for line in lines) if is_drained(state)}


def left_out(nodelist: str) -> list[str]:
    """Return all nodes of the cluster except those of `nodelist` (`gpu[01-08],big1`); none if it is empty.

    sbatch's --nodelist names nodes that a job gets all of: every member would get the first. With the others excluded
    the choice is Slurm's. EngineFailed if Slurm does not answer or lacks one of these names.
    """
    if not nodelist:
        return []
    wanted = set(call(["scontrol", "show", "hostnames", nodelist]).split())
    known = dict.fromkeys(call(["sinfo", "--noheader", "--all", "--Node", "--format=%N"]).split())
    if unknown := sorted(wanted - known.keys()):
        raise EngineFailed(f"-o nodelist={nodelist}: Slurm has no node {', '.join(unknown)}")
    return [name for name in known if name not in wanted]
