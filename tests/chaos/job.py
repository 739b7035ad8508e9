"""The job of the table: a parameter server, and two trainers whose result is a hash over all of their steps."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

from flowdist.control.protocol.effects import StartReplica
from flowdist.record.journal import Record
from tests.runtime.harness import Deaths, Job, children

STEPS = 400
CONTROLLER = "flowdist.runtime.controller.controller_main"
SCRIPTS = (b"ps.py", b"trainer.py")  # the templates of their workers run them, too
PROCESSES = ("supervisor", "controller", "guardian", "agent", "spawner", "template")
END_S = 15.0  # after `flowdist run` was killed, nothing of it may live longer

TOPOLOGY = """
from flowdist import Node, Restart, Topology

t = Topology("steps", nodes=2 * [Node(cpu=4)], min_uptime="1s", move_after=1000, cordon_after=1000)
ps = t.role("ps", ["python", "ps.py"], kind="service", cpu=1, ports=["rpc"], ready_when="tcp:rpc",
            restart=Restart("replica", max_restarts=1000, backoff="0s"))
t.role("trainer", ["python", "trainer.py"], replicas=2, cpu=1, preload=["decimal"], depends_on=[ps.ready()],
       restart=Restart("role", max_restarts=1000, backoff="0s"))
"""
PS = """
import socket
from flowdist import worker

server = socket.create_server(("127.0.0.1", worker.port("rpc")))
while True:
    server.accept()[0].close()
"""
TRAINER = """
import fcntl, hashlib, json, os, time
from flowdist import worker

rank = worker.info().rank
alone = open(f"rank-{rank}.lock", "w")
try:
    fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    open("two-at-once", "a").write(f"rank {rank}\\n")
saved = worker.latest()
step, chain = json.loads(saved.read_text()) if saved else (0, "")
print("from step", step, flush=True)
while step < STEPS:
    step += 1
    chain = hashlib.sha256(f"{chain} {step}".encode()).hexdigest()
    time.sleep(0.005)
    worker.progress(step)
    if step % 20 == 0:
        print("at step", step, flush=True)
    if step % 20 == 0 and rank == 0:
        path = worker.checkpoint_dir() / f"{step}-{worker.info().generation}.json"
        with path.open("w") as file:
            file.write(json.dumps([step, chain]))
            file.flush()
            os.fsync(file.fileno())
        worker.commit(path, step=step)
if rank == 0:
    with open("result.part", "w") as file:
        file.write(chain)
    os.rename("result.part", "result")
"""


class Broken(Exception):
    """A promise of the table that was not kept; the message says what happened instead."""


def expect(kept: object, instead: str) -> None:
    """Raise Broken with the text unless the promise is kept."""
    if not kept:
        raise Broken(instead)


def undisturbed(steps: int = STEPS) -> str:
    """Return the result of the job when nothing fails."""
    chain = ""
    for step in range(1, steps + 1):
        chain = hashlib.sha256(f"{chain} {step}".encode()).hexdigest()
    return chain


def write_job(folder: Path, *, trainer: str = TRAINER, topology: str = TOPOLOGY, steps: int = STEPS) -> None:
    """Write the files of the job into the folder."""
    for name, text in {"topology.py": topology, "ps.py": PS, "trainer.py": trainer}.items():
        (folder / name).write_text(text.replace("STEPS", str(steps)))


def expect_result(folder: Path, steps: int = STEPS) -> None:
    """Raise Broken unless the job's result is that of an undisturbed run, and no rank ever ran twice at once."""
    expect(not (folder / "two-at-once").exists(), "two attempts of a rank ran at once")
    expect((folder / "result").exists(), "there is no result")
    found = (folder / "result").read_text()
    expect(found == undisturbed(steps), f"the result is {found[:12]}, not {undisturbed(steps)[:12]}")


def expect_end(job: Job, code: int = 0) -> None:
    """Wait for the end of the run. Raise Broken unless it ends with that exit code and leaves no process."""
    found = job.finish()
    expect(found == code, f"exit code {found}: {last_line(job)}")
    expect_whole(job)


def expect_whole(job: Job) -> None:
    """Raise Broken if flowdist has printed a traceback of its own, or the run has left a process."""
    frames = [line for line in ours(job).splitlines() if line.lstrip().startswith("File ") and "/flowdist/" in line]
    expect(not frames, f"a traceback: {' '.join(frames)[:200]}")
    expect(job.alive() == [], f"{len(job.alive())} processes are left")


def ours(job: Job) -> str:
    """Return what flowdist itself has printed, without the workers' output."""
    return "\n".join(line for line in job.output if not line.startswith("["))


def last_line(job: Job) -> str:
    return next((line for line in reversed(job.output) if line.strip()), "no output")


def processes(job: Job, node_of: str = "trainer/0") -> dict[str, int]:
    """Return the process ids of flowdist's processes by name, those of the node where the replica runs."""
    worker = worker_pid(job, node_of)
    template = _parent(worker)
    spawner = _parent(template)
    guardian = _parent(spawner)
    agent = next(pid for pid in children(guardian) if pid != spawner)
    controller = job.named(CONTROLLER)[0]
    pids = (supervisor_pid(job), controller, guardian, agent, spawner, template)
    return dict(zip(PROCESSES, pids, strict=True))


def supervisor_pid(job: Job) -> int:
    """Return the process of `flowdist run` itself, which another command may have started."""
    return _parent(job.named(CONTROLLER)[0])


def worker_pid(job: Job, replica: str = "trainer/0") -> int:
    """Return the process of the replica's newest attempt."""
    attempts = (job.run_dir / replica).glob("attempt_*/0/pid")
    return int(max(attempts, key=lambda path: int(path.parts[-3].removeprefix("attempt_"))).read_text())


def own_processes(mark_of: Job) -> Iterator[int]:
    """Return the processes of flowdist that live: all of the run but workers and stores."""
    workers = {int(text) for path in mark_of.folder.glob("runs/*/*/*/attempt_*/*/pid") if (text := path.read_text())}
    for pid in mark_of.alive():
        command = _command(pid)
        if pid not in workers and any(word in command for word in (b"flowdist", *SCRIPTS)):
            yield pid


def resume_until_over(folder: Path, job: Job, reader: Thread) -> int:
    """Wait for the end of a run that may have been killed, and resume it until it has an end of its own.

    Args:
        folder: The folder of the job.
        job: The run, whose output `reader` reads.
        reader: What `read_in_background` has returned.

    Returns:
        How often it was resumed.
    """
    code = _end_of(job, reader)
    for again in range(10):
        if code >= 0:
            expect(code == 0 or "it has succeeded" in job.text, f"exit code {code}: {last_line(job)}")
            return again
        has_journal = any(path.stat().st_size for path in folder.glob("runs/*/journal.jsonl"))
        with Job(folder, *(("--resume", "latest") if has_journal else ())) as job:
            code = _end_of(job, read_in_background(job))
    raise Broken("the run was resumed ten times")


def _end_of(job: Job, reader: Thread) -> int:
    """Wait until the run has ended, and with it all of its processes; return the exit code, negative for a signal."""
    code = job.process.wait()
    with Deaths(job.alive()) as deaths:
        left = deaths.survivors(END_S)
        expect(left == [], f"{len(left)} processes outlive the run by {END_S:g} s: {[_command(pid) for pid in left]}")
    reader.join()
    return code


def read_in_background(job: Job) -> Thread:
    """Read the output of a run until it ends: a run whose output nobody reads stands still."""
    thread = Thread(target=lambda: deque(job.lines(), maxlen=0), daemon=True)
    thread.start()
    return thread


def starts(job: Job) -> int:
    """Return how many attempts of trainers the run has ordered, the first ones included."""
    _, lines = job.journal()
    effects = [effect for line in lines if isinstance(line, Record) for effect in line.effects]
    return sum(isinstance(effect, StartReplica) and effect.replica.role == "trainer" for effect in effects)


def restarts(job: Job) -> str:
    """Return in words how often the trainers started again."""
    again = starts(job) - 2
    return f"{again} attempts restarted" if again else "no worker restarted"


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def may_mount() -> bool:
    """Return whether this machine lets us make a user namespace, in which a small file system can be mounted."""
    mount = ["unshare", "-Urm", "sh", "-c", "mount -t tmpfs none /mnt"]
    return (
        shutil.which("unshare") is not None and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    )
