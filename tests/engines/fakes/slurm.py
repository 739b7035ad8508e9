"""A fake Slurm for tests: `sbatch`, `scancel`, `squeue`, `sinfo` and `scontrol` as one real program on the path.

    slurm.py install FOLDER        makes the programs in FOLDER; they keep their state in FOLDER/jobs

A job starts at once on the first node on which no other job runs and that it does not exclude; else it waits. Its batch
script is a real process in a session of its own. Tests break the cluster by files: `FOLDER/nodes` has one line for each
node, its name and its state; a file `FOLDER/away` makes every program fail as if slurmctld were down.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

PROGRAMS = ("sbatch", "scancel", "squeue", "sinfo", "scontrol")


def install(folder: Path, nodes: int = 3) -> None:
    """Make the programs in the folder, and a cluster of idle nodes h1, h2, ..."""
    (folder / "jobs").mkdir(parents=True)
    (folder / "nodes").write_text("".join(f"h{i} idle\n" for i in range(1, nodes + 1)))
    for name in PROGRAMS:
        program = folder / name
        words = shlex.join([sys.executable, "-S", __file__, name, str(folder)])
        program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        program.chmod(0o755)


class Cluster:
    """The state of the fake, in files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def nodes(self) -> dict[str, str]:
        return dict(line.split() for line in (self.folder / "nodes").read_text().splitlines())

    def jobs(self) -> list[dict[str, object]]:
        files = sorted((self.folder / "jobs").glob("*.json"), key=lambda path: int(path.stem))
        return [self._look(json.loads(path.read_text())) for path in files]

    def save(self, job: dict[str, object]) -> None:
        (self.folder / "jobs" / f"{job['id']}.json").write_text(json.dumps(job))

    def _look(self, job: dict[str, object]) -> dict[str, object]:
        """Bring a job up to date: one whose process has ended is over, one that waits may start."""
        if job["state"] == "RUNNING":
            code = self.folder / "jobs" / f"{job['id']}.code"
            if code.exists() and (text := code.read_text().strip()):
                job["state"] = "CANCELLED" if job["cancelled"] else "FAILED" if int(text) else "COMPLETED"
                self.save(job)
        return job

    def start_waiting(self) -> None:
        jobs = self.jobs()
        busy = {job["host"] for job in jobs if job["state"] == "RUNNING"}
        for job in jobs:
            free = [
                name
                for name, state in self.nodes().items()
                if state == "idle" and name not in busy and name not in job["exclude"]  # type: ignore[operator]
            ]
            if job["state"] == "PENDING" and free:
                self._start(job, free[0])
                busy.add(free[0])

    def _start(self, job: dict[str, object], host: str) -> None:
        stem = self.folder / "jobs" / str(job["id"])
        script = stem.with_suffix(".sh")
        script.write_text(str(job["script"]))
        log = str(job["output"]).replace("%x", str(job["name"])).replace("%j", str(job["id"]))
        run = f"sh {shlex.quote(str(script))} >>{shlex.quote(log)} 2>&1"
        waiter = subprocess.Popen(
            ["sh", "-c", f"{run} & echo $!; exec >&-; wait $!; echo $? > {shlex.quote(f'{stem}.code')}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd=str(job["chdir"]),
            env={**os.environ, "SLURM_JOB_ID": str(job["id"]), "SLURMD_NODENAME": host},
        )
        assert waiter.stdout is not None
        with waiter.stdout as said:
            stem.with_suffix(".pid").write_bytes(said.readline())
        self.save({**job, "state": "RUNNING", "host": host})

    def kill(self, job: dict[str, object], number: int) -> None:
        pid = int((self.folder / "jobs" / f"{job['id']}.pid").read_text())
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def sbatch(cluster: Cluster, words: list[str]) -> int:
    text = sys.stdin.read()
    given = re.findall(r'^#SBATCH --([a-z-]+)(?:="?([^"\n]*)"?)?$', text, re.MULTILINE)
    options = dict(given)
    if options.get("partition") == "closed":
        print("sbatch: error: invalid partition specified: closed", file=sys.stderr)
        return 1
    number = len(cluster.jobs()) + 1
    job = {
        "id": number, "name": options["job-name"], "state": "PENDING", "host": "", "script": text,
        "exclude": options.get("exclude", "").split(","), "output": options["output"], "chdir": options["chdir"],
        "cancelled": False, "env": sorted(os.environ),
    }  # fmt: skip
    cluster.save(job)
    cluster.start_waiting()
    print(number)
    return 0


def scancel(cluster: Cluster, words: list[str]) -> int:
    sent = next((word.partition("=")[2] for word in words if word.startswith("--signal=")), "")
    for job in cluster.jobs():
        if str(job["id"]) not in words:
            continue
        if sent:
            if job["state"] != "RUNNING":
                return 1  # as Slurm 22.05 does, without a word
            cluster.kill(job, signal.Signals[f"SIG{sent}"])
        elif job["state"] == "PENDING":
            cluster.save({**job, "state": "CANCELLED"})
        elif job["state"] == "RUNNING":
            cluster.save({**job, "cancelled": True})
            cluster.kill(job, signal.SIGTERM)
    return 0


def squeue(cluster: Cluster, words: list[str]) -> int:
    cluster.start_waiting()
    wanted = next(word.partition("=")[2] for word in words if word.startswith("--jobs=")).split(",")
    known = [job for job in cluster.jobs() if str(job["id"]) in wanted]
    if not known:
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1
    for job in known:
        reason = "Resources" if job["state"] == "PENDING" else "None"
        print(f"{job['id']}|{job['state']}|{job['host']}|{reason}")
    return 0


def sinfo(cluster: Cluster, words: list[str]) -> int:
    shape = next(word for word in words if word.startswith("--format=")).removeprefix("--format=")
    for name, state in cluster.nodes().items():
        print(shape.replace("%N", name).replace("%T", state))
    return 0


def scontrol(cluster: Cluster, words: list[str]) -> int:
    if words[:2] == ["show", "hostnames"]:
        print("\n".join(words[2].split(",")))
    else:
        print("KillWait                = 30 sec")
    return 0


if __name__ == "__main__":
    where = Path(sys.argv[2])
    if (where / "away").exists():
        print("Unable to contact slurm controller (connect failure)", file=sys.stderr)
        sys.exit(1)
    sys.exit(globals()[sys.argv[1]](Cluster(where), sys.argv[3:]))
