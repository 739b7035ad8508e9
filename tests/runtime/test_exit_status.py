"""Every signal that can end a process has a name: without one, the end of a worker would not be reported."""

from __future__ import annotations

import signal

import pytest

from flowdist.runtime.processes.spawn_protocol import describe_exit, signal_name


@pytest.mark.parametrize(
    ("code", "name"), [(-9, "KILL"), (-34, "RTMIN"), (-35, "RTMIN+1"), (-64, "RTMAX"), (-32, "32")]
)
def test_a_signal_has_a_name(code: int, name: str) -> None:
    assert signal_name(code) == name
    assert describe_exit(code) == f"signal {name}"


def test_all_signals_have_different_names() -> None:
    names = [signal_name(-number) for number in range(1, signal.SIGRTMAX + 1)]
    assert len(set(names)) == len(names) == 64
