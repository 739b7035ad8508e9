"""Workers that behave badly: their output, children, signals, descriptors, and the error files that they leave."""

from __future__ import annotations

import resource
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tests.chaos.job import expect, expect_end, last_line, ours
from tests.chaos.row import Row
from tests.runtime.harness import Deaths, Job

MEMORY_MAX_MIB = 120  # of any process of the run
SOON_S = 30.0

PRINTS_LINES = """
import os

for _ in range(BYTES // (1 << 20)):
    os.write(1, (b"x" * 1023 + b"\\n") * 1024)
"""
PRINTS_NO_NEWLINE = """
import os

for _ in range(BYTES // (1 << 20)):
    os.write(1, b"x" * (1 << 20))
"""
PRINTS_BINARY = """
import os, random

for seed in range(32):
    os.write(1, random.Random(seed).randbytes(1 << 16))
"""
FORKS = """
import os, signal

for _ in range(500):
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
        signal.pause()
print("forked", flush=True)
os._exit(EXIT)
"""
IGNORES_SIGTERM = """
import signal

signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("stubborn", flush=True)
while True:
    signal.pause()
"""
CLOSES_FILES = """
import os, time

os.closerange(0, 1024)
time.sleep(1)
os._exit(EXIT)
"""
ERROR_FILE = """
import os

path = os.environ["TORCHELASTIC_ERROR_FILE"]
MAKE
os._exit(3)
"""
REMOVES_ITS_FOLDER = """
import os, shutil

shutil.rmtree(os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"]))
os._exit(EXIT)
"""
SENDS_JUNK = """
import os, socket

path = os.environ["FLOWDIST_SOCKET"]
for junk in (b"\\x00" * 4096, b"{" * 4096, b"\\xff\\xff\\xff\\xff" * 1024, b'{"progress": "x"}\\n', b"[]\\n" * 1000):
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        try:
            link.sendall(junk)
        except OSError:
            pass
"""

ERROR_FILES = {
    "numbers": 'open(path, \'w\').write(\'{"message": {"message": 5, "extraInfo": 7}}\')',
    "a-list": "open(path, 'w').write('[1, 2, {}]')",
    "deep": "open(path, 'w').write('[' * 100_000)",
    "binary": "open(path, 'wb').write(os.urandom(100_000))",
    "a-folder": "os.mkdir(path)",
    "a-fifo": "os.mkfifo(path)",
    "a-loop": "os.symlink(path, path)",
    "huge": "open(path, 'wb').truncate(1 << 40)",
}


def ends(script: str, code: int, *arguments: str, cause: str = "") -> Callable[[Path], str]:
    """Return the function that runs a script, which must end with that exit code and, if given, with that cause."""

    def play(folder: Path) -> str:
        (folder / "odd.py").write_text(script)
        began = time.monotonic()
        with Job(folder, "odd.py", *arguments) as job:
            job.output = deque(maxlen=1000)  # type: ignore[assignment]
            expect_end(job, code)
            expect(cause in ours(job), f"no line says {cause!r}: {last_line(job)}")
        peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        expect(peak_mib < MEMORY_MAX_MIB, f"a process took {peak_mib:.0f} MiB")
        return f"exit code {code} after {time.monotonic() - began:.0f} s; the largest process took {peak_mib:.0f} MiB"

    return play


def interrupted(folder: Path) -> str:
    """Interrupt a run whose worker ignores SIGTERM, twice."""
    (folder / "odd.py").write_text(IGNORES_SIGTERM)
    with Job(folder, "odd.py", "--set", "trainer.grace=2s") as job:
        job.until("stubborn")
        began = time.monotonic()
        job.process.terminate()
        with Deaths(job.alive()) as deaths:
            expect_end(job, 130)
            expect(deaths.survivors(SOON_S) == [], "processes are left")
        return f"all ended {time.monotonic() - began:.1f} s after one SIGTERM, with a grace of 2 s"


SUCCEEDS = "the job succeeds"
SMALL = f"the job succeeds, and no process takes more than {MEMORY_MAX_MIB} MiB"
ENDS = "the job ends with the worker's exit code, at once"
ROWS = [
    Row(
        "prints-1gb",
        "a worker prints 1 GiB",
        SMALL,
        ends(PRINTS_LINES.replace("BYTES", str(1 << 30)), 0),
        limit_s=300.0,
    ),
    Row(
        "prints-100mb-line",
        "a worker prints 100 MiB without a newline",
        SMALL,
        ends(PRINTS_NO_NEWLINE.replace("BYTES", str(100 << 20)), 0),
    ),
    Row("prints-binary", "a worker prints 2 MiB of random bytes", SUCCEEDS, ends(PRINTS_BINARY, 0)),
    Row(
        "forks-500",
        "a worker forks 1,000 processes, half of them in sessions of their own, and fails",
        "the job fails, and none of them is left",
        ends(FORKS.replace("EXIT", "3"), 1, cause="3"),
    ),
    Row(
        "ignores-sigterm",
        "a worker ignores SIGTERM, and the run gets one",
        "all of it has ended soon after the grace",
        interrupted,
        is_quick=True,
    ),
    Row(
        "closes-files",
        "a worker closes all of its file descriptors, and succeeds",
        SUCCEEDS,
        ends(CLOSES_FILES.replace("EXIT", "0"), 0),
    ),
    Row(
        "removes-its-folder",
        "a worker removes the folder of its logs, and fails",
        ENDS,
        ends(REMOVES_ITS_FOLDER.replace("EXIT", "3"), 1, cause="3"),
    ),
    Row("sends-junk", "a worker sends its agent junk", SUCCEEDS, ends(SENDS_JUNK, 0)),
] + [
    Row(
        f"error-file-{name}",
        f"a worker's error file is odd: {name.replace('-', ' ')}",
        ENDS,
        ends(ERROR_FILE.replace("MAKE", make), 1, cause="3"),
        is_quick=name in ("numbers", "a-fifo"),
    )
    for name, make in ERROR_FILES.items()
]
