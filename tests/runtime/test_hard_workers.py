"""Workers that flood their logs, write no text, close their descriptors or fork without end: the run stays as it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flowdist.control.protocol.events import ReplicaExited
from flowdist.record.journal import Record
from flowdist.runtime.run_folder.logs import CUT
from tests.runtime.harness import Job

pytestmark = pytest.mark.real

# Prints the peak memory of the largest process of the run, in KiB.
MEASURED = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print("peak", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, flush=True)
sys.exit(code)
"""
PEAK_KIB = 160 << 10
WITHOUT_NEWLINE = "import os\nfor _ in range(100): os.write(1, b'x' * (1 << 20))\nraise SystemExit(7)"
MUCH = "import os\nfor _ in range(1024): os.write(1, (b'y' * 127 + b'\\n') * (8 << 10))\nraise SystemExit(7)"
BINARY = (
    "import os\nfor _ in range(20): os.write(1, os.urandom(1 << 20))\nos.write(2, os.urandom(1 << 20))\nos._exit(7)"
)
CLOSED = "import os\nos.closerange(0, 1000)\nos._exit(7)"
ODD_FILE = """
import os
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    file.write('{"message": {"message": 5, "extraInfo": 7}}')
raise SystemExit(7)
"""
PIPE = "import os\nos.mkfifo(os.environ['TORCHELASTIC_ERROR_FILE'])\nraise SystemExit(7)"
CHILDREN = """
import os, time
for number in range(500):
    if os.fork() == 0:
        if number % 2:
            os.setsid()
        time.sleep(600)
raise SystemExit(7)
"""


def run_measured(folder: Path, work: str, *more: str) -> Job:
    (folder / "work.py").write_text(work)
    (folder / "topology.py").write_text(
        "from flowdist import Topology\nt = Topology('hard', nodes=1)\n"
        "t.role('trainer', ['python', 'work.py'], warm=False, restart=None)\n"
    )
    return Job(folder, *more, before=(sys.executable, "-c", MEASURED))


def assert_exit_is_reported(job: Job) -> None:
    assert job.finish() == 1
    _, lines = job.journal()
    exits = [line.event for line in lines if isinstance(line, Record) and isinstance(line.event, ReplicaExited)]
    assert [event.exit_code for event in exits] == [7] and job.alive() == []


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(WITHOUT_NEWLINE, id="100 MiB without a newline"),
        pytest.param(ODD_FILE, id="an odd error file"),
        pytest.param(PIPE, id="a pipe as error file", marks=pytest.mark.slow),
        pytest.param(BINARY, id="no text", marks=pytest.mark.slow),
        pytest.param(CLOSED, id="closes its descriptors", marks=pytest.mark.slow),
        pytest.param(MUCH, id="1 GiB", marks=pytest.mark.slow),
        pytest.param(CHILDREN, id="500 children", marks=pytest.mark.slow),
    ],
)
def test_the_exit_is_reported_and_memory_stays_bounded(tmp_path: Path, work: str) -> None:
    with run_measured(tmp_path, work, *(["--quiet"] if work == MUCH else [])) as job:
        assert_exit_is_reported(job)
        peak = next(int(line.split()[1]) for line in job.output if line.startswith("peak "))
        assert peak < PEAK_KIB
        if work == WITHOUT_NEWLINE:
            shown = [line.removeprefix("[trainer/0] ") for line in job.output if line.startswith("[trainer/0] x")]
            assert sum(line.count("x") for line in shown) == 100 << 20
            assert 50 <= len(shown) <= 100 and all(line.endswith(CUT) for line in shown[:-1])
