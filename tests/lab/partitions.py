"""Seeded partitions of a real job of three hosts: do two generations ever run at the same time?

    python -m tests.lab.partitions [--seeds 50] [--first 1] [--labs 3]

For each seed, a job of three hosts starts in a lab of its own. One to three cuts of the network follow, which the seed
draws: of which host, in which direction, for how long, how soon after the one before. When the last one is over, the
three hosts have to form one world again. The oracle (`beats.py`) then reads what all workers have written. The exit
code is 1 if two generations overlapped, or a job did not come to its end.
"""

from __future__ import annotations

import argparse
import random
import select
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from flowdist.runtime.clock import boot_ns
from tests.lab.beating_job import BeatingJob
from tests.lab.beats import overlaps, read_beats
from tests.lab.network import Lab, LabUnavailable

PATIENCE_S = 90.0  # for three hosts to be one world again
HOSTS = ("h0", "h1", "h2")
KINDS = ("is cut off", "cannot send", "cannot receive", "does not reach the next host", "has its port down")


class Cut(NamedTuple):
    """One cut: after `pause_s` seconds, for `seconds`, of one host."""

    pause_s: float
    host: str
    kind: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.host} {self.kind} for {self.seconds:.1f} s"


class Outcome(NamedTuple):
    """What became of one seed. `wrong` is empty if all is well."""

    seed: int
    cuts: list[Cut]
    generations: int
    wrong: str

    def __str__(self) -> str:
        cuts = ", ".join(map(str, self.cuts))
        return f"seed {self.seed}: {self.wrong or 'no overlap'}; {self.generations} generations; {cuts}"


def draw(seed: int) -> list[Cut]:
    """Return the cuts of a seed. They end before, within and after the last two seconds of a lease (3 to 5 s)."""
    chance = random.Random(seed)
    return [
        Cut(chance.uniform(0, 3), chance.choice(HOSTS), chance.choice(KINDS), chance.uniform(0.5, 8))
        for _ in range(chance.choice((1, 1, 2, 3)))
    ]


def play(folder: Path, seed: int) -> Outcome:
    """Play the cuts of a seed on a job in a lab of its own.

    Raises:
        LabUnavailable: No lab can be made here.
    """
    cuts = draw(seed)
    with Lab(folder, HOSTS, seed=seed) as lab:
        job = BeatingJob(lab)
        try:
            wrong = _play(lab, job, cuts)
        except (AssertionError, OSError) as error:
            wrong = f"{error!r}\n{lab.text}"
        beats = read_beats(folder / "beats")
        if found := overlaps(beats):
            wrong = f"TWO GENERATIONS AT ONCE: {found[0]}"
        return Outcome(seed, cuts, max((beat.generation for beat in beats), default=0), wrong)


def _play(lab: Lab, job: BeatingJob, cuts: list[Cut]) -> str:
    """Play the cuts and end the job; return what went wrong, empty if nothing did."""
    job.begin()
    for cut in cuts:
        _pass(cut.pause_s)
        begin(lab, cut)
        _pass(cut.seconds)
        lab.heal()
        lab.port_up(cut.host)
    if not await_one_world(lab.folder / "beats", boot_ns()):
        return f"no world of three hosts within {PATIENCE_S:.0f} s\n{lab.text}"
    codes = job.close()
    return "" if set(codes.values()) == {0} else f"exit codes {codes}\n{lab.text}"


def begin(lab: Lab, cut: Cut) -> None:
    """Begin a cut. `heal` and `port_up` end it."""
    others = [host for host in HOSTS if host != cut.host]
    match cut.kind:
        case "is cut off":
            lab.isolate(cut.host)
        case "cannot send":
            lab.cut(cut.host, *others)
        case "cannot receive":
            for other in others:
                lab.cut(other, cut.host)
        case "does not reach the next host":
            lab.partition(cut.host, HOSTS[(HOSTS.index(cut.host) + 1) % len(HOSTS)])
        case _:
            lab.port_down(cut.host)


def _pass(seconds: float) -> None:
    """Let a cut last, or the time between two cuts pass. Nothing is waited for."""
    threading.Event().wait(seconds)


def await_one_world(file: Path, since_ns: int) -> bool:
    """Wait until workers of all hosts beat in one generation, later than `since_ns`; return whether they came to it."""
    with subprocess.Popen(["tail", "--lines=+1", "--follow", file], stdout=subprocess.PIPE, text=True) as tail:
        try:
            assert tail.stdout is not None
            members: dict[int, set[str]] = {}
            until_ns = boot_ns() + int(PATIENCE_S * 1e9)
            while select.select([tail.stdout], [], [], PATIENCE_S)[0] and boot_ns() < until_ns:
                t_ns, generation, _, _, host, _ = tail.stdout.readline().split()
                if int(t_ns) > since_ns:
                    members.setdefault(int(generation), set()).add(host)
                    if len(members[max(members)]) == len(HOSTS):
                        return True
            return False
        finally:
            tail.kill()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.partitions")
    parser.add_argument("--seeds", type=int, default=50, help="how many (default: 50)")
    parser.add_argument("--first", type=int, default=1, help="the first of them (default: 1)")
    parser.add_argument("--labs", type=int, default=3, help="how many at the same time (default: 3)")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    with tempfile.TemporaryDirectory() as top, ThreadPoolExecutor(options.labs) as pool:
        folders = [Path(top, str(seed)) for seed in seeds]
        for folder in folders:
            folder.mkdir()
        outcomes: list[Outcome] = []
        try:
            for done in as_completed([pool.submit(play, *pair) for pair in zip(folders, seeds, strict=True)]):
                outcomes.append(done.result())
                print(outcomes[-1], flush=True)
        except LabUnavailable as error:
            pool.shutdown(cancel_futures=True)
            sys.exit(f"no lab: {error}")
    good = sum(not outcome.wrong for outcome in outcomes)
    print(f"{good} of {len(outcomes)} seeds: no two generations at once, and one world of three hosts at the end")
    sys.exit(good != len(outcomes))


if __name__ == "__main__":
    main()
