"""A supervisor kills the orphans of a guardian: every descendant that it has not started itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import msgspec

from flowdist.runtime.processes.owned_processes import OwnedProcesses
from flowdist.runtime.processes.reaper import descendants


class Nothing(msgspec.Struct):
    """The argument of a module that takes none."""


def test_a_process_that_is_being_started_is_no_orphan(tmp_path: Path) -> None:
    """The process runs before the supervisor knows its process id."""
    before = descendants(os.getpid())

    async def both() -> int:
        owned = OwnedProcesses(tmp_path)
        starts = asyncio.create_task(owned.start("this", Nothing(), "own.log"))
        while not set(descendants(os.getpid())) - set(before):
            await asyncio.sleep(0)
        assert not starts.done()
        await owned.kill_others(before)
        return await (await starts).wait()

    assert asyncio.run(both()) == 0
    assert "Zen" in (tmp_path / "own.log").read_text()


def test_orphans_are_killed_and_spared_processes_are_not(tmp_path: Path) -> None:
    before = descendants(os.getpid())
    with subprocess.Popen(["sleep", "600"]) as orphan, subprocess.Popen(["sleep", "600"]) as spared:
        asyncio.run(OwnedProcesses(tmp_path).kill_others([*before, spared.pid]))
        assert not Path(f"/proc/{orphan.pid}").exists() and spared.poll() is None
        spared.send_signal(signal.SIGTERM)
