"""What the workers of a job have written into one file of all hosts, and whether two generations ran at once.

Each worker appends a line every 10 ms while it runs: the time, its generation, the size of the world, its rank, host
and process. All hosts of a lab are namespaces of one machine and read one clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

# A worker that beats until the file LAB_END exists. Prints one line at its start, for tests that wait for it.
BEATER = """
import os, socket, time
names = ("FLOWDIST_GENERATION", "WORLD_SIZE", "RANK")
generation, size, rank = (int(os.environ[name]) for name in names)
beats = os.open(os.environ["LAB_BEATS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
print("generation", generation, "rank", rank, "of", size, flush=True)
while not os.path.exists(os.environ["LAB_END"]):
    words = (time.clock_gettime_ns(time.CLOCK_BOOTTIME), generation, size, rank, socket.gethostname(), os.getpid())
    os.write(beats, (" ".join(map(str, words)) + "\\n").encode())
    time.sleep(0.01)
"""


class Beat(NamedTuple):
    """One line of a worker."""

    t_ns: int
    generation: int
    size: int
    rank: int
    host: str
    pid: int


def read_beats(file: Path) -> list[Beat]:
    """Return all beats of the file in the order of time. A last line without its end is left out."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return sorted(_beat(line) for line in lines if line.endswith("\n"))


def _beat(line: str) -> Beat:
    t_ns, generation, size, rank, host, pid = line.split()
    return Beat(int(t_ns), int(generation), int(size), int(rank), host, int(pid))


def overlaps(beats: Iterable[Beat]) -> list[tuple[Beat, Beat]]:
    """Return the pairs of a beat of a generation and a later beat of an earlier generation; one pair for each worker.

    A job has no such pair: what a generation replaces is gone before the first worker of the next one runs (R6, R19).
    """
    first: dict[int, Beat] = {}  # the first beat of each generation that is newer than all before
    found: dict[tuple[str, int], tuple[Beat, Beat]] = {}
    for beat in sorted(beats):
        newest = max(first, default=0)
        if beat.generation > newest:
            first[beat.generation] = beat
        elif beat.generation < newest:
            found.setdefault((beat.host, beat.pid), (first[newest], beat))
    return list(found.values())
