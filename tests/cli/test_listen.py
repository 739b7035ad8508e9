"""`flowdist run --listen` as a user types it, up to the start of the job."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner

from flowdist.cli.main import cli
from flowdist.cli.run import hosts
from flowdist.cli.run.execution import RunSettings

TOPOLOGY = 'from flowdist import Topology\nt = Topology("x", nodes=1)\nt.role("a", "true")\n'


def test_the_seed_of_faults_at_random_is_that_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[RunSettings] = []

    def meet(graph: object, place: object, settings: RunSettings, *others: object) -> NoReturn:
        started.append(settings)
        raise SystemExit(0)

    monkeypatch.setattr(hosts, "meet", meet)
    file = tmp_path / "topology.py"
    file.write_text(TOPOLOGY)
    words = ["run", str(file), "--listen", "127.0.0.1:0", "--rate", "a-kill=6/replica-hour", "--seed", "7"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    assert [settings.seed for settings in started] == [7]
