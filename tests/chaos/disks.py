"""Disks without room or inodes, or read-only: small file systems, mounted where only the job sees them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tests.chaos.job import (
    TOPOLOGY,
    expect,
    expect_end,
    expect_result,
    expect_whole,
    last_line,
    ours,
    restarts,
    write_job,
)
from tests.chaos.row import Row
from tests.runtime.harness import MARK, Job

What = Literal["bytes", "inodes"]
GATED = """
from flowdist import Node, Restart, Topology

t = Topology("steps", nodes=2 * [Node(cpu=4)], CHECKPOINTS)
wait = "echo waits; while ! test -e gate; do sleep 0.1; done; echo open; exec sleep infinity"
gate = t.role("gate", ["sh", "-c", wait], kind="service", cpu=0.1, ready_when="log:open")
t.role("trainer", ["python", "trainer.py"], replicas=2, cpu=1, preload=["decimal"], depends_on=[gate.ready()],
       restart=Restart("role", max_restarts=3, backoff="0s"))
"""
MOUNT = 'mount -t tmpfs -o "$2" none "$1" && echo mounted && exec sleep infinity'


class SmallDisk:
    """A file system of 4 MiB and 400 inodes at a folder. Only what is started with `inside` sees it there."""

    def __init__(self, at: Path, options: str = "size=4m,nr_inodes=400") -> None:
        at.mkdir(parents=True, exist_ok=True)
        self._at = at
        self.holder = subprocess.Popen(
            ["unshare", "-Urm", "sh", "-c", MOUNT, "sh", str(at), options],
            stdout=subprocess.PIPE,
            env={**os.environ, MARK: "disk"},
        )
        assert self.holder.stdout is not None
        expect(self.holder.stdout.readline() == b"mounted\n", "the file system cannot be mounted")

    def inside(self, folder: Path) -> tuple[str, ...]:
        """Return the start of a command that sees the file system, in that working folder."""
        enter = ("nsenter", "-t", str(self.holder.pid), "-U", "-m", "--preserve-credentials")
        return (*enter, "sh", "-c", 'cd "$0" && exec "$@"', str(folder))

    @property
    def path(self) -> Path:
        """Where the file system is for all others."""
        return Path(f"/proc/{self.holder.pid}/root{self._at}")

    def fill(self, what: What) -> None:
        """Leave no room, or no inode."""
        with contextlib.suppress(OSError):
            if what == "bytes":
                with (self.path / "ballast").open("wb", buffering=0) as file:
                    while True:
                        file.write(bytes(4096))
            else:
                (self.path / "ballasts").mkdir()
                for number in range(10_000):
                    (self.path / f"ballasts/{number}").touch()

    def free(self) -> None:
        """Make room again."""
        (self.path / "ballast").unlink(missing_ok=True)
        for file in (self.path / "ballasts").glob("*"):
            file.unlink()

    def close(self) -> None:
        self.holder.kill()
        self.holder.communicate()


@contextmanager
def small_disk(at: Path, options: str = "size=4m,nr_inodes=400") -> Iterator[SmallDisk]:
    """Mount a small file system while the block runs."""
    disk = SmallDisk(at, options)
    try:
        yield disk
    finally:
        disk.close()


class InsideJob(Job):
    """A run in the disk's namespace, with its runs on the disk."""

    def __init__(self, folder: Path, disk: SmallDisk, *arguments: str) -> None:
        super().__init__(folder, *arguments, before=disk.inside(folder))
        self._disk = disk

    @property
    def run_dir(self) -> Path:
        return (self._disk.path / "latest").resolve()


def journal(what: What) -> Callable[[Path], str]:
    """Return the function that fills the disk of the run's folder, waits for the end, makes room, and resumes."""

    def play(folder: Path) -> str:
        write_job(folder, topology=TOPOLOGY.replace("1000, backoff", "3, backoff"))
        with small_disk(folder / "runs") as disk:
            with InsideJob(folder, disk) as job:
                job.until("at step 60")
                disk.fill(what)
                code = job.finish()
                expect_whole(job)
                if code == 0:  # what was open goes on to have room: no inode is needed for another line
                    expect_result(folder)
                    return f"the job has succeeded all the same; {job.text.count('warning')} warnings"
                why = next((line for line in job.output if "room on the disk" in line or "No space left" in line), "")
                expect(why, f"no line says why: {last_line(job)}")
            disk.free()
            if "the job ended" in job.text:
                return f"exit code {code} after all restarts that the policy allows, with the cause"
            with InsideJob(folder, disk, "--resume", "latest") as again:
                expect_end(again)
        expect_result(folder)
        return f"exit code {code} and the cause; resumed with room, it succeeds"

    return play


def logs(what: What) -> Callable[[Path], str]:
    """Return the function that fills the disk of the trainers' logs before they start."""

    def play(folder: Path) -> str:
        write_job(folder, topology=GATED.replace("CHECKPOINTS", ""))
        holder = folder / "disk"
        with small_disk(holder) as disk:
            (disk.path / "trainer").mkdir()
            disk.fill(what)
            with Job(folder) as job:
                job.until("waits")
                (job.run_dir / "trainer").symlink_to(disk.path / "trainer")
                (folder / "gate").touch()
                code = job.finish()
                expect_whole(job)
                if code == 0:
                    expect_result(folder)
                    return "the job has succeeded, without these logs"
                why = next((line for line in ours(job).splitlines() if "No space left" in line), "")
                expect(why, f"no line says why: {last_line(job)}")
                return f"exit code {code}: {why.strip()[:90]}"

    return play


def checkpoints(what: What) -> Callable[[Path], str]:
    """Return the function that fills the disk of the checkpoints for good."""

    def play(folder: Path) -> str:
        (folder / "gate").touch()
        with small_disk(folder / "disk") as disk:
            where = f'checkpoint_dir="{disk.path}"'
            write_job(folder, topology=GATED.replace("CHECKPOINTS", where))
            with Job(folder) as job:
                job.until("at step 60")
                disk.fill(what)
                code = job.finish()
                expect_whole(job)
                expect(code == 1, f"exit code {code}")
                expect("No space left" in ours(job), f"no line says why: {last_line(job)}")
                job_restarts = restarts(job)
            disk.free()
            expect(_is_whole(disk.path), "the newest checkpoint cannot be read")
            return f"exit code 1 with the worker's own error; {job_restarts}; the newest checkpoint is whole"

    return play


def _is_whole(checkpoint_dir: Path) -> bool:
    pointer = json.loads((checkpoint_dir / "trainer/latest.json").read_text())
    step, chain = json.loads(Path(pointer["path"]).read_text())
    return step == pointer["step"] and len(chain) == 64


def read_only(folder: Path) -> str:
    """Start a run whose folder cannot be written."""
    write_job(folder)
    with small_disk(folder / "runs", "ro") as disk, InsideJob(folder, disk) as job:
        code = job.finish()
        expect(code == 2, f"exit code {code}: {last_line(job)}")
        expect_whole(job)
        expect("Read-only file system" in job.text, f"no line says why: {last_line(job)}")
        return f"exit code 2: {last_line(job).strip()[:100]}"


def full_at_start(folder: Path) -> str:
    """Start a run on a disk without room."""
    write_job(folder)
    with small_disk(folder / "runs") as disk:
        disk.fill("bytes")
        with InsideJob(folder, disk) as job:
            code = job.finish()
            expect(code in (1, 2), f"exit code {code}: {last_line(job)}")
            expect_whole(job)
            expect("No space left" in job.text or "room on the disk" in job.text, f"no cause: {last_line(job)}")
            return f"exit code {code}: {last_line(job).strip()[:100]}"


SUCCEEDS = "the run ends with the cause, or goes on; after room was made it succeeds with its undisturbed result"
WHOLE = "the job ends with the worker's error, and the newest checkpoint is whole"
ROWS = [
    Row(
        "disk-full-journal",
        "the disk of the run's folder is full",
        SUCCEEDS,
        journal("bytes"),
        needs_mount=True,
    ),
    Row(
        "inodes-journal",
        "the disk of the run's folder has no inode left",
        SUCCEEDS,
        journal("inodes"),
        needs_mount=True,
    ),
    Row(
        "disk-full-logs",
        "the disk of the workers' logs is full",
        "the job succeeds without these logs, or ends with the cause",
        logs("bytes"),
        needs_mount=True,
    ),
    Row(
        "inodes-logs",
        "the disk of the workers' logs has no inode left",
        "the job ends with the cause",
        logs("inodes"),
        needs_mount=True,
    ),
    Row("disk-full-checkpoints", "the disk of the checkpoints is full", WHOLE, checkpoints("bytes"), needs_mount=True),
    Row(
        "inodes-checkpoints",
        "the disk of the checkpoints has no inode left",
        WHOLE,
        checkpoints("inodes"),
        needs_mount=True,
    ),
    Row(
        "read-only",
        "the run's folder is read-only",
        "the run is refused with the cause",
        read_only,
        is_quick=True,
        needs_mount=True,
    ),
    Row(
        "disk-full-at-start",
        "the disk of the run's folder is full from the start",
        "the run ends with the cause",
        full_at_start,
        needs_mount=True,
    ),
]
