"""Cuts of every length of one host of three, whose workers talk over plain TCP: is any of them charged to the role?

    python -m tests.lab.peers [--from 0.5] [--to 6] [--step 0.25] [--labs 3]

For each length, a job of three hosts starts in a lab of its own, and the last host is cut off once. Its workers are
killed when its lease is over; those of the other hosts fail when their connections close, which they learn when the cut
is over, together with heartbeats that were sent before the fence. Nobody's code has failed, so no budget may pay, and
no host be cordoned (R8). The exit code is 1 if that is not so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from flowdist.record.replay import Replay
from flowdist.runtime.clock import boot_ns
from tests.lab.beating_job import BeatingJob
from tests.lab.beats import BEATER
from tests.lab.network import Lab, LabUnavailable
from tests.lab.partitions import HOSTS, await_one_world

# Worker 0 has a connection to each other one. A worker whose connection is closed fails, unless the job is over.
PEER = (
    """
import os, select, socket, sys, threading, time

def is_closed(link):
    try:
        return not link.recv(4096)
    except OSError:
        return True

def watch(links):
    while not any(is_closed(link) for link in select.select(links, [], [])[0]):
        pass
    os._exit(0 if os.path.exists(os.environ["LAB_END"]) else 1)

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
port = 20000 + int(os.environ["FLOWDIST_GENERATION"])
if rank == 0:
    server = socket.create_server(("", port))
    links = [server.accept()[0] for _ in range(size - 1)]
else:
    while True:
        try:
            links = [socket.create_connection((os.environ["MASTER_ADDR"], port), timeout=60)]
            break
        except OSError:
            time.sleep(0.05)

def talk():
    while True:
        for link in links:
            try:
                link.sendall(b"x")
            except OSError:
                pass  # `watch` sees that it is closed
        time.sleep(0.05)

if links:
    threading.Thread(target=watch, args=(links,), daemon=True).start()
    threading.Thread(target=talk, daemon=True).start()
"""
    + BEATER
)


class Outcome(NamedTuple):
    """What became of a cut of `seconds`."""

    seconds: float
    charged: int  # incidents that a budget has paid for
    cordoned: list[str]
    incidents: list[str]

    def __str__(self) -> str:
        found = f"charged {self.charged}, cordoned {', '.join(self.cordoned) or 'none'}"
        return f"{self.seconds:.2f} s: {found}; {'; '.join(self.incidents) or 'no incident'}"


def play(folder: Path, seconds: float) -> Outcome:
    """Cut the last host off for so long, and wait until all hosts are one world again.

    Raises:
        LabUnavailable: No lab can be made here.
    """
    with Lab(folder, HOSTS) as lab:
        job = BeatingJob(lab, script=PEER)
        job.begin()
        lab.isolate(HOSTS[-1])
        threading.Event().wait(seconds)  # the cut lasts
        lab.heal()
        assert await_one_world(folder / "beats", boot_ns()), lab.text
        header, lines = job.first.journal()
        state = Replay(header).follow(lines).job
        assert set(job.close().values()) == {0}, lab.text
        incidents = [f"{each.kind} of {each.root}{', counted' * each.counted}" for each in state.incidents]
        cordoned = [name for name, node in state.nodes.items() if node.cordoned]
        return Outcome(seconds, sum(each.counted for each in state.incidents), cordoned, incidents)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.peers")
    parser.add_argument("--from", type=float, default=0.5, dest="first", help="the shortest cut, in s (default: 0.5)")
    parser.add_argument("--to", type=float, default=6.0, help="the longest, in s (default: 6)")
    parser.add_argument("--step", type=float, default=0.25, help="from one to the next, in s (default: 0.25)")
    parser.add_argument("--labs", type=int, default=3, help="how many at the same time (default: 3)")
    options = parser.parse_args()
    lengths = [options.first + i * options.step for i in range(round((options.to - options.first) / options.step) + 1)]
    with tempfile.TemporaryDirectory() as top, ThreadPoolExecutor(options.labs) as pool:
        folders = [Path(top, f"{seconds:.2f}") for seconds in lengths]
        for folder in folders:
            folder.mkdir()
        outcomes: list[Outcome] = []
        try:
            for done in as_completed([pool.submit(play, *pair) for pair in zip(folders, lengths, strict=True)]):
                outcomes.append(done.result())
                print(outcomes[-1], flush=True)
        except LabUnavailable as error:
            pool.shutdown(cancel_futures=True)
            sys.exit(f"no lab: {error}")
    charged = sum(bool(outcome.charged or outcome.cordoned) for outcome in outcomes)
    print(f"charged {charged} of {len(outcomes)}")
    sys.exit(charged > 0)


if __name__ == "__main__":
    main()
