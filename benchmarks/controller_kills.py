"""The controller is killed again and again at random moments of a real job: does anybody notice? (R21)

    python benchmarks/controller_kills.py [--kills 8]

A world of two replicas steps, tells its progress and commits checkpoints. Its controller gets SIGKILL as often as
asked, a random while after it has come up each time, so that some hit it in the middle of taking over. At the end: the
same result as without a kill, no worker started twice, no commit lost or refused, and a journal that replays.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flowdist.control.controller import Controller
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.events import ControllerStarted
from flowdist.record.journal import Header, Record
from flowdist.record.reader import read_whole_lines

SCRIPT = """
import hashlib, json, os, sys, time
from flowdist import worker

until = os.environ["UNTIL_FILE"]
info = worker.info()
chain, step, refused = hashlib.sha256(info.replica.encode()), 0, 0
while step < 50 or not os.path.exists(until):
    step += 1
    chain.update(str(step).encode())
    worker.progress(step)
    if step % 20 == 0 and info.rank == 0:
        path = worker.checkpoint_dir() / f"step-{step}.json"
        path.write_text(json.dumps({"step": step}))
        refused += not worker.commit(path, step=step)
    time.sleep(0.01)
again = hashlib.sha256(info.replica.encode())
for done in range(1, step + 1):
    again.update(str(done).encode())
result = {"pid": os.getpid(), "attempt": info.attempt, "whole": chain.digest() == again.digest(), "refused": refused}
(worker.checkpoint_dir() / f"result-{info.rank}.json").write_text(json.dumps(result))
"""


def controller_pid(run_dir: str) -> int | None:
    """The controller's process of that run, if there is one."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if b"flowdist.runtime.controller.controller_main" in command and run_dir.encode() in command:
                    return int(entry.name)
    return None


def run_with_kills(folder: Path, kills: int, seed: int) -> tuple[int, Path, list[float]]:
    """Exit code, folder of the run, and how long each controller was left alone, in seconds."""
    (folder / "count.py").write_text(SCRIPT)
    until = folder / "until"
    command = [sys.executable, "-m", "flowdist", "run", "count.py", "--replicas", "2", "--nodes", "2", "--quiet"]
    env = {**os.environ, "UNTIL_FILE": str(until)}
    draw = random.Random(seed)
    with subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.DEVNULL) as process:
        while not (folder / "runs/latest/trainer/1/attempt_1/0/pid").exists() and process.poll() is None:
            time.sleep(0.02)
        run_dir = (folder / "runs/latest").resolve()
        pauses: list[float] = []
        last = None
        while len(pauses) < kills and process.poll() is None:
            pid = controller_pid(str(run_dir))
            if pid is None or pid == last:
                time.sleep(0.002)
                continue
            pauses.append(draw.choice([0.0, 0.05, 0.2, 0.5]) * draw.random() * 2)
            time.sleep(pauses[-1])
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            last = pid
        until.touch()
        return process.wait(), run_dir, pauses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=8, help="the tenth death in quick succession ends a run")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="controller-kills-") as folder:
        began = time.monotonic()
        code, run_dir, pauses = run_with_kills(Path(folder), options.kills, options.seed)
        lines, *_ = read_whole_lines((run_dir / "journal.jsonl").read_bytes())
        results = [json.loads(path.read_text()) for path in sorted((run_dir / "checkpoints").glob("result-*.json"))]
        took = time.monotonic() - began
    header = lines[0]
    assert isinstance(header, Header)
    controller = Controller(header.graph, header.known_nodes)
    records = [line for line in lines if isinstance(line, Record)]
    replays = all(tuple(controller.handle(line.event, line.t_ns)) == line.effects for line in records)
    starts = [effect for line in records for effect in line.effects if isinstance(effect, StartReplica)]
    epochs = sum(isinstance(line.event, ControllerStarted) for line in records)
    print(f"controllers killed: {len(pauses)}, left alone for {min(pauses):.3f} to {max(pauses):.3f} s; {took:.0f} s")
    print(f"took over: {epochs} (a controller that was killed before it wrote a line did not)")
    print(f"exit code: {code}; workers started: {len(starts)} (2 is right); results: {results}")
    print(f"the journal of {len(records)} events replays: {replays}")
    good = code == 0 and replays and len(starts) == 2 and len(results) == 2
    good = good and all(result["whole"] and not result["refused"] and result["attempt"] == 1 for result in results)
    print("nobody noticed" if good else "SOMEBODY NOTICED")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
