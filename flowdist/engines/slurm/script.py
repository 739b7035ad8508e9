"""The batch script of one member, or of the controller: options for sbatch, then one command.

The shell replaces itself with the command (`exec`), so that the signals that Slurm sends to the batch shell reach
flowdist.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from flowdist.graph import SECOND

# options of members that sbatch has by the same names; the others have lines of their own
_SAME = ("partition", "account", "qos", "reservation", "constraint", "licenses", "mail-type", "mail-user", "time")
MIB = 1 << 20
NAME_MAX = 60  # characters of a job's name


def job_name(*parts: str) -> str:
    """Return the name of a job in squeue, such as `word2vec-trainer-m3`."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(filter(None, parts)))[:NAME_MAX]


def directives(
    name: str, options: Mapping[str, str], *, folder: str, log: str, cpu: int, gpu: int, memory: int,
    avoid: Sequence[str], requeue: bool, notice_ns: int,
) -> list[str]:  # fmt: skip
    """Return the options of a job of one node for sbatch, one each.

    `gpu` counts unless `gres` names some; `memory` is in bytes, 0: the partition's default. Hosts in `avoid` are
    excluded besides those of `exclude`. SIGUSR1 comes `notice_ns` before the time limit.
    """
    excluded = [*filter(None, [options.get("exclude", "")]), *avoid]
    gres = options.get("gres", "")
    if gpu and not re.search(r"(^|,)(gres[:/])?(gpu\b|none$)", gres):
        gres = ",".join(filter(None, (gres, f"gpu:{gpu}")))
    exclusive = options.get("exclusive", "no")
    return [
        f"--job-name={name}",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={cpu}",
        *([f"--gres={gres}"] if gres else []),
        *([f"--mem={-(-memory // MIB)}M"] if memory else []),
        *(f"--{name}={options[name]}" for name in _SAME if name in options),
        *({"yes": ["--exclusive"], "no": []}.get(exclusive, [f"--exclusive={exclusive}"])),
        *([f"--exclude={','.join(excluded)}"] if excluded else []),
        f"--signal=B:USR1@{max(1, notice_ns // SECOND)}",
        "--requeue" if requeue else "--no-requeue",
        f"--chdir={folder}",
        f"--output={log}",
        "--open-mode=append",
        *options.get("sbatch", "").splitlines(),
    ]


def script(directives: Sequence[str], command: Sequence[str], *, setup: str = "") -> str:
    """Return a batch script with these options for sbatch, which becomes the command.

    Lines of `setup` run before it in a login shell of bash: only there is `module` known everywhere.
    """
    lines = [*_head(directives, setup), f"exec {shlex.join(command)}", ""]
    return "\n".join(lines)


def _head(directives: Sequence[str], setup: str) -> list[str]:
    """Return what a script begins with: the shell, the options for sbatch, and the set-up lines.

    The first set-up line that fails ends the job with its exit code, but not a failure inside a function such as
    `module`.
    """
    asked = [f"#SBATCH {_quoted(each)}" for each in directives]
    if not setup:
        return ["#!/bin/sh", *asked]
    return ["#!/bin/bash -l", *asked, FAILED_SETUP, *setup.splitlines(), "trap - ERR"]


FAILED_SETUP = """\
trap 'code=$?; echo "flowdist: a set-up line ended with exit code $code: $BASH_COMMAND" >&2; exit "$code"' ERR"""
CONTROLLER = """\
{command} &
child=$!
trap ':' TERM  # Slurm has sent it to flowdist, too, which cancels the job
trap 'kill -KILL "$child"; scontrol requeue "$SLURM_JOB_ID"; sleep 600' USR1  # the time limit comes
wait "$child"; code=$?
while kill -0 "$child" 2>/dev/null; do wait "$child"; code=$?; done
exit "$code"
"""


def controller_script(directives: Sequence[str], command: Sequence[str], *, setup: str = "") -> str:
    """Return a controller's script, requeued before its time limit to resume the run; arguments as for `script`."""
    return "\n".join([*_head(directives, setup), CONTROLLER.format(command=shlex.join(command))])


def _quoted(option: str) -> str:
    """Return an option as a line of a script needs it: sbatch takes double quotes off, and knows no others."""
    name, _, value = option.partition("=")
    return f'{name}="{value}"' if re.search(r"[\s#'&|()]", value) else option
