"""The controller of a job over TCP is killed again and again beside busy processes: is a worker restarted? (R21)

    python benchmarks/controller_returns.py --times 20 --load 8

Three hosts, each a command of its own on this machine, form a world of three workers over connections with a token. The
lease is the default, 4 s: an agent that has had no answer for 3 s kills its workers. The controller gets SIGKILL as
often as asked, in several jobs: the tenth death in quick succession ends a job. Printed for each kill: the time until
the next controller begins, until every agent has joined it, and how much of the lease was left. Exit code 0 if no
worker was restarted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.events import ControllerStarted, NodeJoined
from flowdist.graph import JobOptions
from flowdist.record.journal import Record
from flowdist.record.reader import read_whole_lines
from flowdist.runtime.clock import boot_ns
from flowdist.runtime.controller.controller_process import ControllerConfig

HOSTS, KILLS_OF_A_JOB = 3, 5
TOPOLOGY = f"""
from flowdist import Topology

t = Topology("returns", nodes="1:{HOSTS}")
t.role("trainer", ["python", "wait.py"], replicas={HOSTS}, apart=True, join_window="60s")
"""
WAIT = """
import time
from pathlib import Path

while not Path("over").exists():
    time.sleep(0.05)
"""
BUSY = "while True: pass"
FORM_S, RETURN_S, END_S = 120.0, 30.0, 60.0  # how long this program waits for each of them
CONTROLLER = b"flowdist.runtime.controller.controller_main"


class Return(NamedTuple):
    """One kill of the controller: times from the kill on, in seconds; None: it did not happen within RETURN_S."""

    began_s: float | None  # until the next controller had read the journal
    joined_s: float | None  # until all agents had joined it

    def describe(self, margin_s: float) -> str:
        if self.began_s is None or self.joined_s is None:
            return f"not all hosts were back after {RETURN_S:g} s"
        left_s = margin_s - self.joined_s
        return f"began after {self.began_s:.2f} s, all joined after {self.joined_s:.2f} s, left {left_s:.2f} s"


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep so many processes busy meanwhile, each in a session of its own: none shares its part of a core."""
    command = [sys.executable, "-c", BUSY]
    started = [subprocess.Popen(command, start_new_session=True) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextlib.contextmanager
def job(folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start the commands of all hosts, that of the controller first; kill at the end what has not ended."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    (folder / "topology.py").write_text(TOPOLOGY)
    (folder / "wait.py").write_text(WAIT)
    env = {**os.environ, "FLOWDIST_TOKEN": secrets.token_hex(16)}
    verbs = [["run", "topology.py", "--listen", endpoint], *[["join", endpoint]] * (HOSTS - 1)]
    started = []
    for number, verb in enumerate(verbs):
        with (folder / f"host{number}.log").open("wb") as log:
            command = [sys.executable, "-m", "flowdist", *verb]
            options = {"cwd": folder, "env": env, "stdout": log, "stderr": log}
            started.append(subprocess.Popen(command, start_new_session=True, **options))  # type: ignore[call-overload]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def records(folder: Path) -> list[Record]:
    journal = folder / "runs/latest/journal.jsonl"
    if not journal.exists():
        return []
    lines, *_ = read_whole_lines(journal.read_bytes())
    return [line for line in lines if isinstance(line, Record)]


def starts(folder: Path) -> int:
    """Return how many workers were started so far."""
    return sum(isinstance(effect, StartReplica) for record in records(folder) for effect in record.effects)


def controllers(folder: Path) -> list[tuple[int, ControllerConfig]]:
    """Return the controller processes of the run with their configurations, the one that serves first."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, msgspec.MsgspecError, IndexError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if CONTROLLER in words:
                config = msgspec.json.decode(words[words.index(CONTROLLER) + 1], type=ControllerConfig)
                started = int((entry / "stat").read_text().rpartition(")")[2].split()[19])
                if Path(config.run_dir) == (folder / "runs/latest").resolve():
                    found.append((started, int(entry.name), config))
    return [(pid, config) for _, pid, config in sorted(found, key=lambda each: each[:2])]


def kill_controller(folder: Path) -> Return:
    """Kill the controller that serves, and wait until all agents have joined the next one."""
    pid, config = controllers(folder)[0]
    before = len(records(folder))
    killed_ns = boot_ns() - config.start_ns
    os.kill(pid, signal.SIGKILL)
    began_s = joined_s = None
    until = time.monotonic() + RETURN_S
    while joined_s is None and time.monotonic() < until:
        time.sleep(0.05)
        new = records(folder)[before:]
        joined = {record.event.node: record.t_ns for record in new if isinstance(record.event, NodeJoined)}
        began = [record.t_ns for record in new if isinstance(record.event, ControllerStarted)]
        began_s = (began[0] - killed_ns) / 1e9 if began else None
        if len(joined) == HOSTS:
            joined_s = (max(joined.values()) - killed_ns) / 1e9
    return Return(began_s, joined_s)


def wait_for_workers(folder: Path) -> None:
    until = time.monotonic() + FORM_S
    while starts(folder) < HOSTS:
        if time.monotonic() > until:
            sys.exit(f"the job has not formed within {FORM_S:g} s: {(folder / 'host0.log').read_text()}")
        time.sleep(0.1)


def play(
    folder: Path, numbers: Sequence[int], load: int, gap_s: tuple[float, float], draw: random.Random
) -> tuple[list[Return], int, list[int]]:
    """Run one job, and return what each kill came to, how many workers were restarted, and the hosts' exit codes."""
    done, options = list[Return](), JobOptions()
    margin_s = (options.lease_ns - options.lease_margin_ns) / 1e9
    with job(folder) as hosts:
        wait_for_workers(folder)
        with busy(load):
            for number in numbers:
                time.sleep(draw.uniform(*gap_s))
                done.append(kill_controller(folder))
                print(f"{number:3}  {done[-1].describe(margin_s)}", flush=True)
        again = starts(folder) - HOSTS
        (folder / "over").touch()
        codes = [host.wait(END_S) for host in hosts]
    return done, again, codes


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20, help="kills of the controller")
    parser.add_argument("--load", type=int, default=8, help="busy processes beside the job")
    parser.add_argument(
        "--gap", type=float, nargs=2, default=(3.0, 6.0), metavar="S", help="between two kills, at random"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(words)
    draw, done, again, codes = random.Random(options.seed), list[Return](), 0, list[int]()
    for first in range(1, options.times + 1, KILLS_OF_A_JOB):
        numbers = range(first, min(first + KILLS_OF_A_JOB, options.times + 1))
        with tempfile.TemporaryDirectory(prefix="controller-returns-") as folder:
            returns, restarted, ended = play(Path(folder), numbers, options.load, tuple(options.gap), draw)
        done, again, codes = done + returns, again + restarted, codes + ended
    for name, values in (("began", [each.began_s for each in done]), ("joined", [each.joined_s for each in done])):
        known = [value for value in values if value is not None]
        if known:
            print(f"{name}: median {statistics.median(known):.2f} s, at most {max(known):.2f} s")
    print(f"controllers killed: {len(done)}; workers restarted: {again}; exit codes: {sorted(set(codes))}")
    good = not again and not any(codes) and all(each.joined_s is not None for each in done)
    print("no worker was restarted" if good else "WORKERS WERE RESTARTED")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
