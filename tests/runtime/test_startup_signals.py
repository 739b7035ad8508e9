"""Ctrl-C between the folder of a run and its supervisor is counted; afterwards all is as it was before."""

from __future__ import annotations

import signal

import pytest

from flowdist.runtime.supervisor.startup_signals import StartupSignals


def test_an_interrupt_is_no_exception_until_somebody_asks() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StartupSignals() as early:
        early.check()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert early.count == 2
        with pytest.raises(KeyboardInterrupt):
            early.check()
    assert signal.getsignal(signal.SIGINT) == before


def test_after_its_end_interrupts_are_what_they_were() -> None:
    with StartupSignals() as early:
        early.end()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        mine = signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert early.count == 0 and signal.getsignal(signal.SIGINT) == signal.SIG_IGN, "of whoever has come since"
    signal.signal(signal.SIGINT, mine)
