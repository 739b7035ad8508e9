"""A supervisor kills the orphans of a guardian: every descendant that it has not started itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from flowdist.runtime.processes.owned_processes import OwnedProcesses
from flowdist.runtime.processes.reaper import descendants

PROGRAM = "import json, os, sys; print('told', os.read(json.loads(sys.argv[1])['end'], 1))"


class Config(msgspec.Struct):
    """The argument of `PROGRAM`, which ends when the pipe does."""

    end: int


def test_a_process_that_is_being_started_is_no_orphan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process runs before the supervisor knows its process id."""
    before = descendants(os.getpid())
    (tmp_path / "until_the_pipe_ends.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    end, release = os.pipe()

    async def both() -> int:
        owned = OwnedProcesses(tmp_path)
        starts = asyncio.create_task(owned.start("until_the_pipe_ends", Config(end), "own.log", [end]))
        while not set(descendants(os.getpid())) - set(before):
            await asyncio.sleep(0)
        assert not starts.done()
        await owned.kill_others(print, before)
        os.close(release)
        return await (await starts).wait()

    assert asyncio.run(both()) == 0
    os.close(end)
    assert "told b''" in (tmp_path / "own.log").read_text()


def test_orphans_are_killed_and_spared_processes_are_not(tmp_path: Path) -> None:
    before = descendants(os.getpid())
    with subprocess.Popen(["sleep", "600"]) as orphan, subprocess.Popen(["sleep", "600"]) as spared:
        asyncio.run(OwnedProcesses(tmp_path).kill_others(print, [*before, spared.pid]))
        assert not Path(f"/proc/{orphan.pid}").exists() and spared.poll() is None
        spared.send_signal(signal.SIGTERM)
