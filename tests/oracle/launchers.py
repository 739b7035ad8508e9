"""The two launchers as functions: `flowdist torchrun`, and torchrun without the time that its imports take.

torchrun imports torch for seconds before it starts a worker. A process of the oracle does so once, and is forked for
each run: the fork becomes torchrun's own `main`, in a session of its own. Its workers are new interpreters, as always.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

BIN = Path(sys.executable).parent
GRACE_S = 30  # from SIGTERM to SIGKILL, for a launcher that is over its time


class Ended(NamedTuple):
    """How a launcher ended: its exit code, None if it was over its time, and what it printed."""

    code: int | None
    said: str


def run_flowdist(words: Sequence[str], cwd: Path, env: dict[str, str], timeout_s: float) -> Ended:
    """Run `flowdist torchrun` with these words."""
    command = [str(BIN / "flowdist")] if (BIN / "flowdist").exists() else [sys.executable, "-P", "-m", "flowdist"]
    return _run([*command, "torchrun", *words], cwd, env, timeout_s)


def run_naive(words: Sequence[str], cwd: Path, env: dict[str, str], timeout_s: float) -> Ended:
    """Run a launcher that forks without care, with these words."""
    return _run([sys.executable, str(Path(__file__).with_name("naive.py")), *words], cwd, env, timeout_s)


def _run(command: Sequence[str], cwd: Path, env: dict[str, str], timeout_s: float) -> Ended:
    with tempfile.TemporaryFile() as said:
        streams = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, cwd=cwd, env=env, start_new_session=True, **streams)
        ended = _wait(process.pid, timeout_s)
        process.returncode = -1 if ended is None else ended  # it is reaped
        return Ended(ended, _text(said))


def run_torchrun(words: Sequence[str], cwd: Path, env: dict[str, str], timeout_s: float) -> Ended:
    """Run torchrun with these words, in a fork of this process; no thread but the caller's may be running."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # or numpy starts a thread; torchrun does not get the variable
    import torch.distributed.run  # seconds, once

    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise RuntimeError("torchrun is forked from a process with several threads: a lock may be held for ever")
    with tempfile.TemporaryFile() as said:
        pid = os.fork()
        if pid == 0:
            _become(torch.distributed.run.main, words, cwd, env, said.fileno())
        return Ended(_wait(pid, timeout_s), _text(said))


def _become(main: object, words: Sequence[str], cwd: Path, env: dict[str, str], said: int) -> NoReturn:
    """Be torchrun until the end of this process."""
    code = 1
    try:
        os.setsid()
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        for number, file in ((0, os.open(os.devnull, os.O_RDWR)), (1, said), (2, said)):
            os.dup2(file, number)
        sys.argv = [str(BIN / "torchrun")]
        main(list(words))  # type: ignore[operator]
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(pid: int, timeout_s: float) -> int | None:
    """Reap a child and return its exit code; after the time, end its session and return None."""
    handle = os.pidfd_open(pid)
    try:
        in_time = bool(select.select([handle], [], [], timeout_s)[0])
        if not in_time:
            os.kill(pid, signal.SIGTERM)
            select.select([handle], [], [], GRACE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
    finally:
        os.close(handle)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if in_time else None


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


LAUNCHERS = {"flowdist": run_flowdist, "torchrun": run_torchrun, "naive": run_naive}
