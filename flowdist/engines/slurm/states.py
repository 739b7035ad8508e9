"""Meaning of Slurm's words for the states of jobs and nodes."""

from __future__ import annotations

from flowdist.control.fleet.values import Cause, Phase, Seen

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


def seen(state: str, host: str, reason: str) -> Seen:
    """Return a member as Slurm shows its job.

    Args:
        state: The state of the job, such as `RUNNING`.
        host: Its node; empty or `(null)`: none.
        reason: Why it waits, such as `Resources`; for a job that runs `None`.
    """
    phase: Phase = "pending" if state in _PENDING else "running" if state in _RUNNING else "ended"
    words = f"{state} ({reason})" if reason not in ("", "None") else state
    if phase == "pending" and _HELD in reason:
        return Seen("ended", "", "node failed", words)
    cause: Cause = _ENDED.get(state, "failed") if phase == "ended" else ""
    return Seen(phase, "" if host == "(null)" else host, cause, words, is_ending=state == "COMPLETING")


def is_drained(state: str) -> bool:
    """Return whether Slurm wants a node empty, by its state, such as `draining` or `drained*`."""
    return state.lower().startswith(_LEAVING)
